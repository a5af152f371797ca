//! A process that is stopped, not dead: it holds up nobody but those who want something of it.

use fabric_async::{Endpoint, Error};
use rustix::process::{Pid, Signal, kill_process};

use crate::run;
use crate::test_peer::TestPeer;

/// Much more than the ring of a connection takes.
const QUEUED_SENDS: usize = 200;
const MESSAGE_LEN: usize = 20_000;
const ROUND_TRIPS: u64 = 2000;

#[test]
fn stopped_peer_does_not_block_other_peers() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let sleeper = TestPeer::start("echo", &ep.name().to_string());
        let asleep = ep.recv().tag(3).await.unwrap().source().unwrap();
        let _friend = TestPeer::start("echo", &ep.name().to_string());
        let friend = ep.recv().tag(3).await.unwrap().source().unwrap();

        let process = Pid::from_child(&sleeper.0);
        kill_process(process, Signal::STOP).unwrap();
        let mut sent = Vec::new();
        for number in 0..QUEUED_SENDS {
            let mut message = vec![number as u8; MESSAGE_LEN];
            message[..8].copy_from_slice(&number.to_le_bytes());
            sent.push(ep.send(asleep, message).start().unwrap());
        }
        for word in 0..ROUND_TRIPS {
            ep.send(friend, word.to_le_bytes().to_vec()).await.unwrap();
            assert_eq!(
                ep.recv().tag(4).from(friend).await.unwrap()[..],
                word.to_le_bytes()
            );
        }
        // Credits are the endpoint's, and a peer has a part of them: what is too much is refused,
        // not lost.
        let refused = ep
            .send(asleep, vec![0; MESSAGE_LEN])
            .context(1)
            .post()
            .map_err(|failed| failed.error);
        assert!(
            matches!(refused, Ok(()) | Err(Error::WouldBlock(_))),
            "{refused:?}"
        );

        kill_process(process, Signal::CONT).unwrap();
        for (number, send) in sent.into_iter().enumerate() {
            send.await.unwrap();
            let back = ep.recv().tag(4).from(asleep).await.unwrap();
            assert_eq!(
                (back.len(), &back[..8]),
                (MESSAGE_LEN, &number.to_le_bytes()[..])
            );
            assert!(back[8..].iter().all(|byte| *byte == number as u8));
        }
        if refused.is_ok() {
            assert_eq!(
                ep.recv().tag(4).from(asleep).await.unwrap()[..],
                [0; MESSAGE_LEN]
            );
        }
    });
}

/// Stopped in the middle of a message, and then killed: it ends like any other.
#[test]
fn ops_fail_when_stopped_peer_is_killed() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let mut sleeper = TestPeer::start("echo", &ep.name().to_string());
        let asleep = ep.recv().tag(3).await.unwrap().source().unwrap();
        kill_process(Pid::from_child(&sleeper.0), Signal::STOP).unwrap();
        let send = ep.send(asleep, vec![1; 10 << 20]).start().unwrap();
        let answer = ep.recv().tag(4).from(asleep).start().unwrap();
        sleeper.0.kill().unwrap();
        assert!(send.await.unwrap_err().error.is_peer_gone());
        assert!(answer.await.unwrap_err().error.is_peer_gone());
    });
}
