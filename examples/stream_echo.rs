//! A server of byte streams that knows only Tokio's traits, and a client in another process.
//!
//! `cargo run --release --example stream_echo`, or with `-- --provider tcp` over a socket
//!
//! The program starts itself a second time as the client. The server accepts streams and echoes
//! each until its end. The client writes in one task and checks the echo in another.

use std::io;
use std::process::Command;
use std::time::Instant;

use fabric_async::stream::{FabricListener, FabricStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_buf};

const CLIENTS: usize = 2;
const WRITE: usize = 64 << 10;
const TOTAL: usize = 64 << 20;

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [] => run_server("shm").await,
        [flag, provider] if flag == "--provider" => run_server(provider).await,
        [flag, name] if flag == "--client" => run_client(name).await,
        other => {
            eprintln!("stream_echo takes --provider and its name, or nothing, not {other:?}");
            std::process::exit(2);
        }
    }
}

async fn run_server(provider: &str) -> io::Result<()> {
    let mut listener = FabricListener::bind(&format!("{provider}://")).await?;
    let mut client = Command::new(std::env::current_exe()?)
        .args(["--client", &listener.local_addr().to_string()])
        .spawn()?;
    let mut connections = Vec::new();
    for _ in 0..CLIENTS {
        let stream = listener.accept().await?;
        match stream.peer_credentials() {
            Some(peer) => {
                let pid = peer.pid.map_or("unknown".to_owned(), |pid| pid.to_string());
                println!("accepted a stream of user {}, process {pid}", peer.uid);
            }
            None => println!("accepted a stream from {}", stream.peer_addr()),
        }
        connections.push(tokio::spawn(echo(stream)));
    }
    for connection in connections {
        let echoed = connection.await??;
        println!("echoed {} MiB", echoed >> 20);
    }
    assert!(client.wait()?.success(), "the client failed");
    Ok(())
}

/// Echoes a stream until its end, and returns the number of bytes. The messages that arrive are
/// read in place.
async fn echo(mut stream: FabricStream) -> io::Result<u64> {
    let (mut reader, mut writer) = stream.split();
    let echoed = copy_buf(&mut reader, &mut writer).await?;
    writer.shutdown().await?;
    Ok(echoed)
}

async fn run_client(server: &str) -> io::Result<()> {
    for _ in 0..CLIENTS {
        let (mut reader, mut writer) = FabricStream::connect(server).await?.into_split();
        let began = Instant::now();
        let writing = tokio::spawn(async move {
            for number in 0..TOTAL / WRITE {
                writer.write_all(&[number as u8; WRITE]).await?;
            }
            writer.shutdown().await
        });
        let mut buf = vec![0; WRITE];
        for number in 0..TOTAL / WRITE {
            reader.read_exact(&mut buf).await?;
            assert!(buf.iter().all(|byte| *byte == number as u8), "echo differs");
        }
        assert_eq!(
            reader.read(&mut buf).await?,
            0,
            "the server ended the stream"
        );
        writing.await??;
        let rate = TOTAL as f64 / began.elapsed().as_secs_f64() / f64::from(1 << 20);
        println!("{} MiB written and read back: {rate:.0} MiB/s", TOTAL >> 20);
    }
    Ok(())
}
