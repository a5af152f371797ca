//! A large region is registered asynchronously (`FI_REG_MR`) while the task answers a peer. After
//! the event the peer writes to the region.
//!
//! `cargo run --release --example async_registration`, or with `-- --provider tcp` over a socket

use std::time::Instant;

use fabric_async::{
    Access, Address, Caps, Endpoint, Error, EventKind, Fabric, Hints, RemoteRegion, Result,
    discover,
};

const LEN: usize = 128 << 20;
/// The length of what the peer writes at the start and at the end of the region.
const WRITTEN: usize = 1 << 20;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let provider = match &args[..] {
        [] => "shm",
        [flag, provider] if flag == "--provider" => provider,
        other => {
            eprintln!("async_registration takes --provider and its name, or nothing: {other:?}");
            std::process::exit(2);
        }
    };
    let hints = Hints::new().provider(provider);
    let hints = hints.caps(Caps::MSG | Caps::SOURCE | Caps::RMA);
    let info = discover(&hints)?.swap_remove(0);
    let fabric = Fabric::open(&info)?;
    let (domain, mut eq) = (fabric.domain(&info)?, fabric.event_queue(16)?);
    domain.bind_eq_reg_mr(&eq)?;
    let av = domain.auto_insert_address_vector()?;
    let owner = domain.endpoint(&info)?.bind_av(&av)?.enable()?;
    let peer = tokio::spawn(run_peer(format!("{provider}://"), owner.name().clone()));
    answer(&owner, "hello").await?;

    let began = Instant::now();
    let request = domain.alloc_async(LEN, Access::REMOTE_READ | Access::REMOTE_WRITE);
    let mut pending = request.context(7).post()?;
    println!(
        "the registration of {} MiB was posted in {:?}",
        LEN >> 20,
        began.elapsed()
    );
    assert!(domain.alloc(8, Access::REMOTE_READ).is_err(), "FI_REG_MR");

    let mut answered = 0;
    let event = loop {
        tokio::select! {
            event = eq.read() => match event.kind {
                EventKind::MrComplete { .. } | EventKind::MrFailed { .. } => break event,
                other => println!("another event: {other:?}"),
            },
            question = owner.recv() => {
                let peer = question?.source()?;
                owner.send(peer, "the region is not registered yet").await?;
                answered += 1;
            }
        }
    };
    assert_eq!((event.object_id, event.context), (pending.id(), 7));
    println!(
        "after {:?} and {answered} answers to the peer: context {}, {:?}",
        began.elapsed(),
        event.context,
        event.kind
    );
    let region = pending.try_take().expect("the registration has ended")?;

    answer(&owner, region.remote().to_bytes().to_vec()).await?;
    let written = owner.recv().await?;
    println!("the peer says: {}", String::from_utf8_lossy(&written));
    let mut bytes = vec![0; WRITTEN];
    for (offset, byte) in [(0, 1), (LEN - WRITTEN, 2)] {
        region.read(offset, &mut bytes)?;
        assert!(bytes.iter().all(|there| *there == byte));
    }
    println!("the bytes are in the region");
    region.close()?;
    peer.await.expect("the peer does not panic")
}

/// Answers the next message of the peer.
async fn answer(owner: &Endpoint, with: impl Into<Vec<u8>>) -> Result<()> {
    let question = owner.recv().await?;
    owner.send(question.source()?, with.into()).await?;
    Ok(())
}

/// Asks for the region until the owner sends its description, and writes to it.
async fn run_peer(address: String, owner: Address) -> Result<()> {
    let ep = Endpoint::bind(&address).await?;
    let peer = ep.add_peer(owner).await?;
    let remote = loop {
        ep.send(peer, "where is the region?").await?;
        let answer = ep.recv().from(peer).await?;
        match RemoteRegion::from_bytes(&answer) {
            Ok(remote) => break remote,
            Err(Error::Invalid { .. }) => tokio::task::yield_now().await,
            Err(error) => return Err(error),
        }
    };
    let end = (LEN - WRITTEN) as u64;
    ep.write(peer, remote.at(0), vec![1; WRITTEN]).await?;
    ep.write(peer, remote.at(end), vec![2; WRITTEN]).await?;
    ep.send(peer, "written").await?;
    ep.flush().await
}
