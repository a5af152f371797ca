//! Two endpoints in one process: sends a message and returns a reply. First between connectionless
//! endpoints (`FI_EP_RDM`), then between connected ones (`FI_EP_MSG`).
//!
//! `cargo run --release --example hello`
//! `cargo run --release --example hello -- tcp://127.0.0.1:0`

use fabric_async::{ConnectedEndpoint, Endpoint, Error, PassiveEndpoint, Result};

#[tokio::main]
async fn main() -> Result<()> {
    // Any free name; "shm://echo" is a fixed one.
    let address = std::env::args().nth(1).unwrap_or_else(|| "shm://".into());
    connectionless(&address).await?;
    connected(&address).await
}

async fn connectionless(address: &str) -> Result<()> {
    let server = Endpoint::bind(address).await?;
    let client = Endpoint::bind(address).await?;
    let peer = client.add_peer(server.name()).await?;
    tokio::spawn(async move {
        let msg = server.recv().await?; // in a pooled buffer
        server.send(msg.source()?, msg.into_bytes()).await?;
        Ok::<_, Error>(())
    });
    client.send(peer, "hello, fabric").await?;
    let reply = client.recv().await?;
    println!("{}", String::from_utf8_lossy(&reply));
    Ok(())
}

/// The server decides about each connection; the endpoint of a connection has one peer.
async fn connected(address: &str) -> Result<()> {
    let mut listener = PassiveEndpoint::bind(address).await?;
    let name = listener.name().clone();
    tokio::spawn(async move {
        while let Ok(request) = listener.accept().await {
            if request.private_data() != b"friend" {
                request.reject("friends only")?;
                continue;
            }
            let server = request.accept("welcome")?;
            let msg = server.recv().await?;
            server.send(msg.into_bytes()).await?;
        }
        Ok::<_, Error>(())
    });
    if let Err(rejected) = ConnectedEndpoint::connect(&name).await {
        println!("{rejected}");
    }
    let client = ConnectedEndpoint::connect(&name)
        .private_data("friend")
        .await?;
    client.send("hello, connection").await?;
    let reply = client.recv().await?;
    println!("{}", String::from_utf8_lossy(&reply));
    Ok(())
}
