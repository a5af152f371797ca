//! Two endpoints in one process: sends a message and returns a reply.
//!
//! `cargo run --release --example hello`

use fabric_async::{Endpoint, Error, Result};

#[tokio::main]
async fn main() -> Result<()> {
    let server = Endpoint::bind("shm://").await?; // or a fixed name: "shm://echo"
    let client = Endpoint::bind("shm://").await?;
    let peer = client.add_peer(server.name()).await?;
    tokio::spawn(async move {
        let msg = server.recv().await?; // in memory of the domain's pool
        server.send(msg.source()?, msg.into_bytes()).await?;
        Ok::<_, Error>(())
    });
    client.send(peer, "hello, fabric").await?;
    let reply = client.recv().await?;
    println!("{}", String::from_utf8_lossy(&reply));
    Ok(())
}
