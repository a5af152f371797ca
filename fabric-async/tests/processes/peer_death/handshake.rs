//! Victims that die during the handshake of a connection. They send its messages over raw sockets.

use rustix::event::{PollFd, PollFlags};
use rustix::fs::SealFlags;

use crate::hostile::{READY_CODE, connect_raw_to, encode_hello, sealed_memfd, send_with_fds};
use crate::rma::{RawShmListener, encode_control, recv_control};

/// Returns a name without its scheme.
fn without_scheme(name: &str) -> &str {
    name.rsplit("://").next().unwrap_or(name)
}

/// Plays a victim that connects to the survivor.
pub(super) fn connect_and_die(stage: &str, name: &str) -> ! {
    if stage == "after_partial_message" {
        crate::test_peer::wait_for_parent();
    }
    let socket = connect_raw_to(without_scheme(name));
    if stage != "after_connect" {
        let segment = sealed_memfd(
            4096 + 64 * 64,
            SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
        );
        if stage == "after_partial_message" {
            // A complete message of 8 bytes, and the beginning of one of 100 bytes.
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
        assert_eq!(recv_control(&socket), encode_control(READY_CODE, 0));
        send_with_fds(&socket, &encode_hello("victim", 1, 64), &[&segment]);
    }
    super::kill_self()
}

/// Plays a victim that the survivor connects to.
pub(super) fn accept_and_die(stage: &str, name: &str) -> ! {
    let listener = RawShmListener::listen(without_scheme(name));
    if stage == "before_accept" {
        let mut fds = [PollFd::new(&listener.0, PollFlags::IN)];
        rustix::event::poll(&mut fds, None).unwrap();
        super::kill_self()
    }
    let connection = rustix::net::accept(&listener.0).unwrap();
    if stage != "after_accept" {
        send_with_fds(&connection, &encode_control(READY_CODE, 0), &[]);
        recv_control(&connection);
        if stage != "after_reading_hello" {
            send_with_fds(&connection, &encode_control(0, 1), &[]);
            if stage == "after_key_query" {
                assert_eq!(
                    recv_control(&connection)[10..12],
                    103u16.to_le_bytes(),
                    "a key query"
                );
            }
        }
    }
    super::kill_self()
}

pub(super) mod survives {
    use fabric_async::{DownReason, Endpoint, Error, RemoteAddr};

    use super::super::{Survivor, assert_peer_gone, wait_exit};
    use crate::test_peer::TestPeer;

    pub(crate) async fn after_connect(_: &mut Survivor, mut victim: TestPeer) {
        // There is no event, because the victim has sent no hello.
        wait_exit(&mut victim).await;
    }

    pub(crate) async fn after_hello(survivor: &mut Survivor, _victim: TestPeer) {
        assert_eq!(survivor.wait_peer_down("victim").await, DownReason::Died);
    }

    pub(crate) async fn after_partial_message(survivor: &mut Survivor, mut victim: TestPeer) {
        // The first receive gets the complete message; the second stays posted for the next one.
        let (whole, partial) = (
            survivor.ep.recv().start().unwrap(),
            survivor.ep.recv().start().unwrap(),
        );
        victim.signal_start();
        assert_eq!(whole.await.unwrap()[..], 77u64.to_le_bytes());
        assert_eq!(survivor.wait_peer_down("victim").await, DownReason::Died);
        let bystander = Endpoint::bind("shm://").await.unwrap();
        let to_survivor = bystander.add_peer(survivor.ep.name()).await.unwrap();
        bystander.send(to_survivor, "next").await.unwrap();
        assert_eq!(&partial.await.unwrap()[..], b"next");
    }

    /// Sends until the victim listens and has taken a message, and then until a send fails.
    async fn send_until_error(survivor: &mut Survivor) -> Error {
        let peer = survivor
            .ep
            .address_vector()
            .insert(survivor.victim_address())
            .unwrap();
        let (mut connected, mut sent) = (false, 0);
        let error = loop {
            match survivor.ep.send(peer, "hello").await {
                Ok(_) => (connected, sent) = (true, sent + 1),
                Err(failed) if connected || !matches!(failed.error, Error::NoSuchPeer(_)) => {
                    break failed.error;
                }
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(1)).await,
            }
        };
        survivor.ep.address_vector().remove(peer).unwrap();
        error
    }

    pub(crate) async fn send_fails(survivor: &mut Survivor, mut victim: TestPeer) {
        assert_peer_gone(&send_until_error(survivor).await);
        wait_exit(&mut victim).await;
    }

    pub(crate) use send_fails as before_accept;
    pub(crate) use send_fails as after_accept;
    pub(crate) use send_fails as after_reading_hello;

    pub(crate) async fn after_handshake(survivor: &mut Survivor, victim: TestPeer) {
        send_fails(survivor, victim).await;
        assert_eq!(survivor.wait_peer_down("victim").await, DownReason::Died);
    }

    pub(crate) async fn after_key_query(survivor: &mut Survivor, _victim: TestPeer) {
        let peer = survivor
            .ep
            .address_vector()
            .insert(survivor.victim_address())
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
        assert_peer_gone(&error);
        assert_eq!(survivor.wait_peer_down("victim").await, DownReason::Died);
        survivor.ep.address_vector().remove(peer).unwrap();
    }
}
