//! One process writes into the memory of another, which takes no part in the writes.
//!
//! `cargo run --release --example rma`, or with `-- --provider tcp` over a socket
//!
//! The program starts itself a second time as the camera. The viewer allocates memory for two
//! frames and sends its description to the camera. The camera writes frames there in turns, each
//! with completion data that makes an entry in the viewer's completion queue. The viewer counts the
//! frames it has read in a counter, which the camera reads before it overwrites a frame.

use std::process::Command;
use std::time::Instant;

use fabric_async::atomic::AtomicOp;
use fabric_async::{Access, Class, Endpoint, Error, OpKind, RemoteRegion, Result};

const FRAME: usize = 1 << 20;
const FRAMES: u64 = 500;
/// Offset of the counter of frames that were read, after the two frames.
const CREDIT_OFFSET: usize = 2 * FRAME;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [] => run_viewer("shm").await,
        [flag, provider] if flag == "--provider" => run_viewer(provider).await,
        [flag, name] if flag == "--camera" => run_camera(name).await,
        other => {
            eprintln!("rma takes --provider and its name, or nothing, not {other:?}");
            std::process::exit(2);
        }
    }
}

async fn run_viewer(provider: &str) -> Result<()> {
    let ep = Endpoint::bind(&format!("{provider}://")).await?;
    let region = ep.domain().alloc(
        CREDIT_OFFSET + 8,
        Access::REMOTE_READ | Access::REMOTE_WRITE,
    )?;
    let mut completions = ep
        .take_completions()
        .ok_or(Error::Unbound(Class::CompletionQueue))?;
    let program = std::env::current_exe().map_err(os_error("readlink"))?;
    let mut camera = Command::new(program)
        .args(["--camera", &ep.name().to_string()])
        .spawn()
        .map_err(os_error("fork"))?;

    let hello = ep.recv().await?;
    ep.send(hello.source()?, region.remote().to_bytes().to_vec())
        .await?;
    let (began, mut entries, mut frame) = (Instant::now(), Vec::new(), vec![0u8; FRAME]);
    for number in 0..FRAMES {
        if entries.is_empty() {
            completions.read_batch(&mut entries, 64).await;
        }
        let written = entries.remove(0);
        assert_eq!(
            (written.kind, written.transfer.data),
            (OpKind::RemoteWrite, Some(number))
        );
        region.read(number as usize % 2 * FRAME, &mut frame)?;
        assert!(
            frame.iter().all(|pixel| *pixel == number as u8),
            "frame {number} is complete"
        );
        region.atomic(CREDIT_OFFSET, AtomicOp::Sum, 1u64)?;
    }
    let rate = FRAMES as f64 / began.elapsed().as_secs_f64();
    println!("{FRAMES} frames of 1 MiB written, read and checked: {rate:.0} frames per second");
    ep.send(hello.source()?, "thank you").await?;
    camera.wait().map_err(os_error("wait4"))?;
    Ok(())
}

async fn run_camera(viewer: &str) -> Result<()> {
    let provider = viewer.split_once("://").map_or("shm", |(scheme, _)| scheme);
    // libfabric writes addresses with this prefix.
    let ep = Endpoint::bind(&format!("{}://", provider.trim_start_matches("fi_"))).await?;
    let peer = ep.add_peer(viewer).await?;
    ep.send(peer, "here I am").await?;
    let remote = RemoteRegion::from_bytes(&ep.recv().from(peer).await?)?;
    let mut frame = vec![0u8; FRAME];
    for number in 0..FRAMES {
        // Two frames may be unread: the viewer must have read the one before the previous frame.
        while ep
            .fetch_atomic(peer, remote.at(CREDIT_OFFSET as u64), AtomicOp::Read, 0u64)
            .await?
            + 2
            <= number
        {
            tokio::task::yield_now().await;
        }
        frame.fill(number as u8);
        let place = remote.at(number % 2 * FRAME as u64);
        frame = ep.write(peer, place, frame).data(number).await?.into_buf();
    }
    ep.recv().from(peer).await?;
    Ok(())
}

fn os_error(call: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::Os {
        call,
        errno: error.raw_os_error().unwrap_or(0),
    }
}
