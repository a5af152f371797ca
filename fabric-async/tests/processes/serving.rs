//! Registered buffers between processes that die or lie.

use fabric_async::{Access, AtomicOp, Endpoint, Error, RemoteRegion};
use rustix::fs::SealFlags;

use crate::hostile::{hello, knock, memory, say};
use crate::onesided::{AREA, Impostor, grant, hear_with, told, word};
use crate::role::Peer;
use crate::run;
use crate::witness::{killed_later, next_to_break, still_works};

const BOTH: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
const ROUNDS: u64 = 30;
/// What both sides can write, with room for a piece of 64 KiB.
const DESK: usize = 64 + (64 << 10);

/// Registers a buffer for the other, and waits for its own end.
pub(crate) async fn serve(name: &str) {
    let ep = Endpoint::bind("shm://").await.expect("bind");
    let region = ep
        .domain()
        .register_buffer(vec![0u8; AREA], BOTH, None)
        .expect("a key");
    let peer = ep.lookup(name).await.expect("the survivor is there");
    ep.send(peer, region.remote().to_bytes().to_vec())
        .await
        .expect("a peer");
    while ep.recv().from(peer).await.is_ok() {}
}

/// Whoever waits for a process that is killed hears of its end, and has its buffer back.
#[test]
fn a_killed_owner_is_noticed_by_who_asks_it() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        for round in 0..ROUNDS {
            let victim = Peer::start("server", &ep.name().to_string());
            let (peer, remote) = told(&ep).await;
            let killer = killed_later(victim, round);
            let mut buf = vec![round as u8; [8, 4096, AREA][round as usize % 3]];
            let len = buf.len();
            let error = loop {
                buf = match ep.write(peer, remote.at(0), buf).await {
                    Ok(done) => done.into_buf(),
                    Err(failed) => {
                        assert_eq!(failed.buf.len(), len);
                        break failed.error;
                    }
                };
                match ep.read(peer, remote.slice(..len as u64)).await {
                    Ok(back) => assert!(back.iter().all(|byte| *byte == round as u8)),
                    Err(failed) => break failed.error,
                }
            };
            assert!(error.is_peer_gone(), "round {round}: {error}");
            killer.join().unwrap();
        }
        still_works(&ep).await;
    });
}

/// A process that is killed in the middle of its writes and additions leaves the buffer, its owner
/// and others in order.
#[test]
fn a_killed_writer_leaves_the_buffer_in_order() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let mut region = ep
            .domain()
            .register_buffer(vec![0u8; AREA + 64], BOTH, None)
            .unwrap();
        let friend = Endpoint::bind("shm://").await.unwrap();
        let served = ep.clone();
        let progress = tokio::spawn(async move { served.recv().tag(77).await.map(drop) });
        let (to_ep, mut added) = (friend.lookup(ep.name()).await.unwrap(), 0u64);
        for round in 0..ROUNDS {
            let victim = Peer::start("writer", &ep.name().to_string());
            let hello = ep.recv().tag(1).await.unwrap();
            let peer = hello.source().unwrap();
            ep.send(peer, region.remote().to_bytes().to_vec())
                .await
                .unwrap();
            let end = ep.recv().tag(2).from(peer).start().unwrap();
            let killer = killed_later(victim, round);
            for _ in 0..10 {
                let at = region.remote().at(AREA as u64 + 8);
                friend.atomic(to_ep, at, AtomicOp::Sum, 1u64).await.unwrap();
                added += 1;
            }
            assert!(end.await.unwrap_err().error.is_peer_gone());
            killer.join().unwrap();
            let look = region.look();
            assert_eq!(
                look[AREA + 8..AREA + 16],
                added.to_le_bytes(),
                "what others add is not lost"
            );
        }
        progress.abort();
        still_works(&ep).await;
    });
}

/// Requests without a desk, of no kind, of another length; desks of another size, and two of them.
#[test]
fn false_requests_end_that_connection_only() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let mut region = ep
            .domain()
            .register_buffer(vec![7u8; 100], BOTH, Some(5))
            .unwrap();
        let mut events = ep.events().unwrap();
        let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let request = |words: [u64; 6]| {
            words
                .into_iter()
                .flat_map(u64::to_le_bytes)
                .collect::<Vec<_>>()
        };
        let good = request([5, 0, 8, 8, 1, 1]);
        let cases = [
            ("without a desk", vec![], good.clone()),
            ("another length", vec![DESK], good[..40].to_vec()),
            ("cannot be done", vec![DESK], request([5, 0, 8, 8, 9, 1])),
            ("cannot be done", vec![DESK], request([5, 0, 9, 8, 1, 1])),
            (
                "cannot be done",
                vec![DESK],
                request([5, 0, DESK as u64, DESK as u64, 0, 1]),
            ),
            (
                "cannot be done",
                vec![DESK],
                request([5, 0, 8, 8, 2 | 99 << 8, 1]),
            ),
            ("another size", vec![4096], good.clone()),
            ("a second one", vec![DESK, DESK], good.clone()),
        ];
        for (reason, desks, record) in cases {
            let segment = memory(4096 + 64 * 64, all);
            let socket = knock(&ep).await;
            say(&socket, &hello("liar", 1, 64), &[&segment]);
            for len in desks {
                say(
                    &socket,
                    &grant(0, len as u64, 3),
                    &[&memory(4096 + len, all)],
                );
            }
            let header = 7 | (8 + record.len() as u64) << 16 | 1 << 40;
            rustix::io::pwrite(&segment, &record, 4096 + 8).unwrap();
            rustix::io::pwrite(&segment, &u64::to_le_bytes(header), 4096).unwrap();
            say(&socket, &word(101, 0), &[]);
            next_to_break(&mut events, reason).await;
        }
        assert_eq!(region.look()[..], [7; 100]);
        still_works(&ep).await;
    });
}

/// Whatever an owner answers: the operation that asked ends with it, once, or with the connection.
#[test]
fn false_answers_end_the_operation() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let name = format!("server-{}", std::process::id());
        let impostor = Impostor::listen(&name);
        let peer = ep.address_vector().insert(format!("shm://{name}")).unwrap();
        let remote = RemoteRegion::new(5, 100, BOTH);
        let first = ep.read(peer, remote.slice(..100)).start().unwrap();
        let (caller, desk) = tokio::task::spawn_blocking(move || {
            let caller = impostor.caller();
            hear_with(&caller);
            say(&caller, &word(0, 1), &[]);
            assert_eq!(
                hear_with(&caller).0[10..12],
                103u16.to_le_bytes(),
                "a question"
            );
            say(&caller, &word(107, 5), &[]);
            let desk = hear_with(&caller).1.swap_remove(0);
            (caller, desk)
        })
        .await
        .unwrap();
        let answer = |number: u64, code: u64| {
            rustix::io::pwrite(&desk, &code.to_ne_bytes(), 4096 + 8).unwrap();
            rustix::io::pwrite(&desk, &number.to_ne_bytes(), 4096).unwrap();
            say(&caller, &word(101, 0), &[]);
        };
        // Another number is no answer; the right one is, whatever it says.
        answer(99, 0);
        answer(1, u64::MAX);
        let error = first.await.unwrap_err().error;
        assert_eq!(
            error,
            Error::Key {
                key: 5,
                why: "is unknown"
            }
        );
        let second = ep.read(peer, remote.slice(..100)).start().unwrap();
        // It is asked for anew.
        say(&caller, &word(107, 5), &[]);
        while u64::from_ne_bytes(read_word(&desk)) != 1 {
            tokio::task::yield_now().await;
        }
        drop(caller);
        assert!(second.await.unwrap_err().error.is_peer_gone());
        still_works(&ep).await;
    });
}

fn read_word(desk: &std::os::fd::OwnedFd) -> [u8; 8] {
    let mut word = [0; 8];
    rustix::io::pread(desk, &mut word, 4096).unwrap();
    word
}
