//! Frames of 8 MiB pass from one process to another without a copy.
//!
//! `cargo run --release --example zero_copy`
//!
//! The program starts itself a second time as the screen. The renderer writes each frame in place,
//! in memory that it lends to the screen; the screen reads the frame there. The same frames are
//! then sent as ordinary messages, for comparison.
#![allow(unsafe_code)] // reading a frame in the sender's memory

use std::process::Command;
use std::time::{Duration, Instant};

use fabric_async::{Endpoint, Error, FiAddr, Result};

const FRAME: usize = 8 << 20;
const FRAMES: u64 = 200;
/// Distance in bytes of the pixels that are written and checked in each frame.
const STEP: usize = 64 << 10;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [] => run_renderer().await,
        [flag, name] if flag == "--screen" => run_screen(name).await,
        other => {
            eprintln!("zero_copy takes no arguments, not {other:?}");
            std::process::exit(2);
        }
    }
}

async fn run_renderer() -> Result<()> {
    let ep = Endpoint::bind("shm://").await?;
    let os = |call| move |error: std::io::Error| Error::os(call, error.raw_os_error().unwrap_or(0));
    let program = std::env::current_exe().map_err(os("readlink"))?;
    let name = ep.name().to_string();
    let mut screen = Command::new(program)
        .args(["--screen", &name])
        .spawn()
        .map_err(os("fork"))?;
    let peer = ep.recv().await?.source()?;

    let lent = run_frames(&ep, peer, async |number| {
        let mut frame = ep.domain().loan(FRAME).await?;
        draw(&mut frame, number);
        ep.send(peer, frame).await?;
        Ok(())
    });
    let lent = lent.await?;
    let mut buf = vec![0u8; FRAME];
    let copied = run_frames(&ep, peer, async |number| {
        draw(&mut buf, number);
        buf = ep.send(peer, std::mem::take(&mut buf)).await?.into_buf();
        Ok(())
    });
    let copied = copied.await?;
    let each = |took: Duration| took.as_micros() as f64 / FRAMES as f64;
    println!("{FRAMES} frames of 8 MiB, each acknowledged before the next is drawn");
    println!("lent:   {:>8.1} us per frame", each(lent));
    println!("copied: {:>8.1} us per frame", each(copied));
    screen.wait().map_err(os("wait4"))?;
    Ok(())
}

/// Sends all frames, each after the screen has acknowledged the previous one.
async fn run_frames(
    ep: &Endpoint,
    peer: FiAddr,
    mut pass: impl AsyncFnMut(u64) -> Result<()>,
) -> Result<Duration> {
    let began = Instant::now();
    for number in 0..FRAMES {
        pass(number).await?;
        ep.recv().from(peer).await?;
    }
    Ok(began.elapsed())
}

fn draw(frame: &mut [u8], number: u64) {
    frame
        .iter_mut()
        .step_by(STEP)
        .for_each(|pixel| *pixel = number as u8);
}

async fn run_screen(name: &str) -> Result<()> {
    let ep = Endpoint::bind("shm://").await?;
    let renderer = ep.add_peer(name).await?;
    ep.send(renderer, "ready").await?;
    for number in 0..2 * FRAMES {
        let frame = ep.recv_loan().from(renderer).await?;
        assert_eq!(
            frame.is_in_place(),
            number < FRAMES,
            "the first half of the frames is lent"
        );
        // SAFETY: the renderer does not write to a frame that it has lent.
        let pixels = unsafe { frame.as_slice() };
        assert!(
            pixels.len() == FRAME
                && pixels
                    .iter()
                    .step_by(STEP)
                    .all(|pixel| *pixel == (number % FRAMES) as u8)
        );
        drop(frame);
        ep.send(renderer, b"seen").inject()?;
    }
    Ok(())
}
