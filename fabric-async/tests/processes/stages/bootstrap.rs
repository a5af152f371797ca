//! Victims that speak the protocol by hand, and die while two endpoints meet.

use rustix::event::{PollFd, PollFlags};
use rustix::fs::SealFlags;

use crate::hostile::{READY, hello, knock_at, memory, say};
use crate::onesided::{Impostor, hear, word};

/// A name without its scheme.
fn bare(name: &str) -> &str {
    name.rsplit("://").next().unwrap_or(name)
}

/// A victim that calls on the survivor.
pub(super) fn calls(stage: &str, name: &str) -> ! {
    if stage == "spoke" {
        crate::role::wait_for_parent();
    }
    let socket = knock_at(bare(name));
    if stage != "connected" {
        let segment = memory(
            4096 + 64 * 64,
            SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
        );
        if stage == "spoke" {
            // A whole message of eight bytes, and the beginning of one of a hundred.
            let records = [
                (1u64 | 16 << 16 | 1 << 40, 77u64),
                (2 | 24 << 16 | 1 << 40, 100),
            ];
            for (line, (header, payload)) in records.into_iter().enumerate() {
                let bytes: Vec<u8> = [header, payload, 0]
                    .into_iter()
                    .flat_map(u64::to_le_bytes)
                    .collect();
                rustix::io::pwrite(&segment, &bytes, 4096 + 64 * line as u64).unwrap();
            }
        }
        assert_eq!(hear(&socket), word(READY, 0));
        say(&socket, &hello("victim", 1, 64), &[&segment]);
    }
    super::die()
}

/// A victim that the survivor calls on.
pub(super) fn listens(stage: &str, name: &str) -> ! {
    let impostor = Impostor::listen(bare(name));
    if stage == "unaccepted" {
        let mut waits = [PollFd::new(&impostor.0, PollFlags::IN)];
        rustix::event::poll(&mut waits, None).unwrap();
        super::die()
    }
    let caller = rustix::net::accept(&impostor.0).unwrap();
    if stage != "accepted" {
        say(&caller, &word(READY, 0), &[]);
        hear(&caller);
        if stage != "heard" {
            say(&caller, &word(0, 1), &[]);
            if stage == "asked" {
                assert_eq!(hear(&caller)[10..12], 103u16.to_le_bytes(), "a question");
            }
        }
    }
    super::die()
}

pub(super) mod survives {
    use fabric_async::{DownReason, Endpoint, Error, RemoteAddr};

    use super::super::{Survivor, assert_gone, ended};
    use crate::role::Peer;

    pub(crate) async fn connected(_: &mut Survivor, mut victim: Peer) {
        // Nobody hears of it: it never said who it was.
        ended(&mut victim).await;
    }

    pub(crate) async fn greeted(survivor: &mut Survivor, _victim: Peer) {
        assert_eq!(survivor.hears_of_the_end("victim").await, DownReason::Died);
    }

    pub(crate) async fn spoke(survivor: &mut Survivor, mut victim: Peer) {
        // The whole message is there; the receive of the other one waits for the next message.
        let (whole, begun) = (
            survivor.ep.recv().start().unwrap(),
            survivor.ep.recv().start().unwrap(),
        );
        victim.goes_on();
        assert_eq!(whole.await.unwrap()[..], 77u64.to_le_bytes());
        assert_eq!(survivor.hears_of_the_end("victim").await, DownReason::Died);
        let friend = Endpoint::bind("shm://").await.unwrap();
        let to_survivor = friend.lookup(survivor.ep.name()).await.unwrap();
        friend.send(to_survivor, "next").await.unwrap();
        assert_eq!(&begun.await.unwrap()[..], b"next");
    }

    /// Sends until the victim is there to be sent to, and then until it is not any more.
    async fn sends(survivor: &mut Survivor) -> Error {
        let peer = survivor
            .ep
            .address_vector()
            .insert(survivor.victims_name())
            .unwrap();
        let (mut came, mut sent) = (false, 0);
        let error = loop {
            match survivor.ep.send(peer, "are you there?").await {
                Ok(_) => (came, sent) = (true, sent + 1),
                Err(failed) if came || !matches!(failed.error, Error::NoSuchPeer(_)) => {
                    break failed.error;
                }
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(1)).await,
            }
        };
        survivor.ep.address_vector().remove(peer).unwrap();
        error
    }

    pub(crate) async fn is_refused(survivor: &mut Survivor, mut victim: Peer) {
        assert_gone(&sends(survivor).await);
        ended(&mut victim).await;
    }

    pub(crate) use is_refused as unaccepted;
    pub(crate) use is_refused as accepted;
    pub(crate) use is_refused as heard;

    pub(crate) async fn welcomed(survivor: &mut Survivor, victim: Peer) {
        is_refused(survivor, victim).await;
        assert_eq!(survivor.hears_of_the_end("victim").await, DownReason::Died);
    }

    pub(crate) async fn asked(survivor: &mut Survivor, _victim: Peer) {
        let peer = survivor
            .ep
            .address_vector()
            .insert(survivor.victims_name())
            .unwrap();
        let error = loop {
            match survivor
                .ep
                .write(peer, RemoteAddr { key: 5, offset: 0 }, "x")
                .await
                .unwrap_err()
                .error
            {
                Error::NoSuchPeer(_) => {
                    tokio::time::sleep(std::time::Duration::from_millis(1)).await
                }
                error => break error,
            }
        };
        assert_gone(&error);
        assert_eq!(survivor.hears_of_the_end("victim").await, DownReason::Died);
        survivor.ep.address_vector().remove(peer).unwrap();
    }
}
