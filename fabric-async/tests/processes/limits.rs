//! Descriptors and memory run out, here or there: who asks for more is told so, the others go on,
//! and when there is something again it is used.

use std::fs::File;
use std::time::Duration;

use fabric_async::{Access, Endpoint, Error, EventKind, EventQueue, FiAddr, Refusal, RemoteRegion};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpSocket;

use crate::census::{Census, alone};
use crate::role::{Peer, wait_for_parent};
use crate::run;
use crate::witness::still_works;

const WORD: &str = "are you there?";
/// What a caller ends with: it was served, or it was refused for want of resources.
const SERVED: i32 = 0;
const REFUSED: i32 = 10;
const EMFILE: i32 = 24;

/// Calls once when it is let, and ends with what came of it.
pub(crate) async fn caller(name: &str) -> i32 {
    wait_for_parent();
    let ep = Endpoint::bind("shm://").await.unwrap();
    let peer = match ep.lookup(name).await {
        Ok(peer) => peer,
        Err(error) => return outcome(&error),
    };
    match ep.send(peer, WORD).tag(8).await {
        Ok(_) => SERVED,
        Err(failed) => outcome(&failed.error),
    }
}

fn outcome(error: &Error) -> i32 {
    match error {
        Error::Refused {
            reason: Refusal::Resources,
            ..
        } => REFUSED,
        other => {
            eprintln!("the caller got {other:?}");
            1
        }
    }
}

/// An endpoint with a friend that it has talked to.
struct Host {
    ep: Endpoint,
    events: EventQueue,
    friend: FiAddr,
    _friend: Peer,
}

impl Host {
    async fn open() -> Self {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let events = ep.events().unwrap();
        let _friend = Peer::start("echo", &ep.name().to_string());
        let friend = ep.recv().tag(3).await.unwrap().source().unwrap();
        let host = Self {
            ep,
            events,
            friend,
            _friend,
        };
        host.talks().await;
        host
    }

    /// The friend notices nothing.
    async fn talks(&self) {
        for word in 0..100u64 {
            self.ep
                .send(self.friend, word.to_le_bytes().to_vec())
                .await
                .unwrap();
            assert_eq!(
                self.ep.recv().tag(4).from(self.friend).await.unwrap()[..],
                word.to_le_bytes()
            );
        }
    }

    /// A process that will call when it is let.
    fn caller(&self) -> Peer {
        Peer::start("caller", &self.ep.name().to_string())
    }

    /// Lets a process call, and returns what it ended with. Who was served was heard as well.
    async fn is_called(&mut self, mut caller: Peer) -> i32 {
        caller.goes_on();
        while caller.0.try_wait().unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let code = caller.0.wait().unwrap().code().expect("it ends by itself");
        if code == SERVED {
            assert_eq!(&self.ep.recv().tag(8).await.unwrap()[..], WORD.as_bytes());
        }
        code
    }

    /// The errors of callers that were refused since this was asked last.
    fn rejections(&mut self) -> Vec<Error> {
        let events = std::iter::from_fn(|| self.events.try_next());
        events
            .filter_map(|event| match event.kind {
                EventKind::Rejected { error } => Some(error),
                _ => None,
            })
            .collect()
    }
}

const GIANT: usize = 512 << 20;

/// Sends a message of [`GIANT`] bytes, and a short one.
pub(crate) async fn giant(name: &str, single_copy_from: usize) {
    wait_for_parent();
    let own = if name.contains("tcp") {
        "tcp://127.0.0.1:0"
    } else {
        "shm://"
    };
    let ep = Endpoint::options()
        .single_copy_from(single_copy_from)
        .bind(own)
        .await
        .expect("bind");
    let peer = ep.lookup(name).await.expect("the receiver is there");
    let giant = ep.send(peer, vec![0u8; GIANT]).tag(1).start();
    giant.expect("a credit").await.expect("the receiver lives");
    ep.send(peer, WORD)
        .tag(2)
        .await
        .expect("the receiver lives");
    let _ = ep.recv().from(peer).await;
}

/// Uses up all descriptors but this many.
fn hog(left: usize) -> Vec<File> {
    let mut files: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    files.truncate(files.len() - left);
    files
}

/// Bytes of address space that this process uses.
fn address_space() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmSize:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Changes a limit of this process, until it is dropped.
struct Limited(Resource, Option<u64>);

fn limit(resource: Resource, to: u64) -> Limited {
    let was = getrlimit(resource);
    setrlimit(
        resource,
        Rlimit {
            current: Some(to),
            maximum: was.maximum,
        },
    )
    .unwrap();
    Limited(resource, was.current)
}

impl Drop for Limited {
    fn drop(&mut self) {
        let maximum = getrlimit(self.0).maximum;
        setrlimit(
            self.0,
            Rlimit {
                current: self.1,
                maximum,
            },
        )
        .unwrap();
    }
}

#[test]
fn without_descriptors_callers_are_refused_and_friends_served() {
    alone(
        "limits::without_descriptors_callers_are_refused_and_friends_served",
        || {
            let _limited = limit(Resource::Nofile, 64);
            run(async {
                let mut host = Host::open().await;
                // The first that leaves makes what is made once.
                let caller = host.caller();
                assert_eq!(host.is_called(caller).await, SERVED);
                let before = Census::settled().await;
                let mut refused = 0;
                // A connection takes several descriptors; it may fail at each of them.
                for left in 0..8 {
                    let caller = host.caller();
                    let hogged = hog(left);
                    match host.is_called(caller).await {
                        SERVED => assert!(left > 0),
                        REFUSED => {
                            refused += 1;
                            let errors = host.rejections();
                            assert!(!errors.is_empty(), "{left} left");
                            let told =
                                |error: &Error| matches!(error, Error::Os { errno: EMFILE, .. });
                            assert!(errors.iter().all(told), "{left} left: {errors:?}");
                        }
                        code => panic!("{left} left: {code}"),
                    }
                    host.talks().await;
                    drop(hogged);
                    before.returns().await;
                    let caller = host.caller();
                    assert_eq!(
                        host.is_called(caller).await,
                        SERVED,
                        "{left} were left, now there are more"
                    );
                    assert_eq!(host.rejections(), []);
                    before.returns().await;
                }
                assert!(refused > 0);
            });
        },
    );
}

#[test]
fn without_descriptors_operations_fail_and_go_on_later() {
    alone(
        "limits::without_descriptors_operations_fail_and_go_on_later",
        || {
            let _limited = limit(Resource::Nofile, 64);
            run(async {
                let host = Host::open().await;
                let target = Peer::start("target", &host.ep.name().to_string());
                let place = host.ep.recv().await.unwrap();
                let (owner, remote) = (
                    place.source().unwrap(),
                    RemoteRegion::from_bytes(&place).unwrap(),
                );
                let other = Endpoint::bind("shm://").await.unwrap();
                let stranger = host.ep.address_vector().insert(other.name()).unwrap();
                // The connection that a write goes over, so that only the memory is missing.
                host.ep.send(owner, "hello").await.unwrap();
                let before = Census::settled().await;

                let hogged = hog(0);
                let refused = host.ep.send(stranger, "hello").await.unwrap_err().error;
                assert!(
                    matches!(refused, Error::Os { errno: EMFILE, .. }),
                    "{refused}"
                );
                let refused = host
                    .ep
                    .write(owner, remote.at(0), "hello")
                    .await
                    .unwrap_err()
                    .error;
                assert!(
                    refused.to_string().contains("out of descriptors"),
                    "{refused}"
                );
                let refused = host.ep.loan(100).map(drop).unwrap_err();
                assert!(
                    matches!(refused, Error::Os { errno: EMFILE, .. }),
                    "{refused}"
                );
                let refused = host
                    .ep
                    .domain()
                    .alloc(100, Access::REMOTE_READ)
                    .map(drop)
                    .unwrap_err();
                assert!(
                    matches!(refused, Error::Os { errno: EMFILE, .. }),
                    "{refused}"
                );
                let refused = Endpoint::bind("shm://").await.map(drop).unwrap_err();
                assert!(
                    matches!(refused, Error::Os { errno: EMFILE, .. }),
                    "{refused}"
                );
                host.talks().await;
                drop(hogged);
                before.returns().await;

                host.ep.write(owner, remote.at(0), "hello").await.unwrap();
                assert_eq!(
                    &host.ep.read(owner, remote.slice(..5)).await.unwrap()[..],
                    b"hello"
                );
                host.ep.send(stranger, "hello").await.unwrap();
                assert_eq!(&other.recv().await.unwrap()[..], b"hello");
                drop(target);
                still_works(&host.ep).await;
            });
        },
    );
}

/// The first who connects finds no descriptor: the listener has its clock all the same, and goes on
/// when there are some.
#[test]
fn without_descriptors_a_listener_over_tcp_waits() {
    alone(
        "limits::without_descriptors_a_listener_over_tcp_waits",
        || {
            let _limited = limit(Resource::Nofile, 64);
            run(async {
                let ep = Endpoint::bind("tcp://").await.unwrap();
                let mut events = ep.events().unwrap();
                let friend = Endpoint::bind("tcp://").await.unwrap();
                let caller = TcpSocket::new_v4().unwrap();
                let hogged = hog(0);
                let _caller = caller.connect(ep.name().socket().unwrap()).await.unwrap();
                let error = loop {
                    if let EventKind::Rejected { error } = events.next().await.kind {
                        break error;
                    }
                };
                assert!(
                    matches!(
                        error,
                        Error::Os {
                            call: "accept4",
                            errno: EMFILE
                        }
                    ),
                    "{error}"
                );
                drop(hogged);
                let to_ep = friend.lookup(ep.name()).await.unwrap();
                friend.send(to_ep, WORD).await.unwrap();
                assert_eq!(&ep.recv().await.unwrap()[..], WORD.as_bytes());
            });
        },
    );
}

#[test]
fn without_memory_operations_fail_and_leave_nothing() {
    alone(
        "limits::without_memory_operations_fail_and_leave_nothing",
        || {
            run(async {
                let mut host = Host::open().await;
                let other = Endpoint::bind("shm://").await.unwrap();
                let stranger = host.ep.address_vector().insert(other.name()).unwrap();
                let caller = host.caller();
                assert_eq!(host.is_called(caller).await, SERVED);
                let before = Census::settled().await;
                let space = address_space();

                // Address space for small things, and none for a connection; files shorter than
                // one.
                for (resource, most) in [(Resource::As, space + 64 * 1024), (Resource::Fsize, 4096)]
                {
                    let caller = host.caller();
                    let limited = limit(resource, most);
                    let refused = host.ep.send(stranger, "hello").await.unwrap_err().error;
                    assert!(
                        matches!(refused, Error::Os { .. }),
                        "{resource:?}: {refused}"
                    );
                    let refused = host.ep.loan(1 << 20).map(drop).unwrap_err();
                    assert!(
                        matches!(refused, Error::Os { .. }),
                        "{resource:?}: {refused}"
                    );
                    let refused = host
                        .ep
                        .domain()
                        .alloc(1 << 20, Access::REMOTE_READ)
                        .map(drop)
                        .unwrap_err();
                    assert!(
                        matches!(refused, Error::Os { .. }),
                        "{resource:?}: {refused}"
                    );
                    host.talks().await;
                    // Memory of the caller's that cannot be mapped here.
                    let expected = if resource == Resource::As {
                        REFUSED
                    } else {
                        SERVED
                    };
                    assert_eq!(host.is_called(caller).await, expected, "{resource:?}");
                    assert_eq!(host.rejections().is_empty(), expected == SERVED);
                    drop(limited);
                    before.returns().await;
                    let caller = host.caller();
                    assert_eq!(host.is_called(caller).await, SERVED);
                }
                host.ep.send(stranger, "hello").await.unwrap();
                assert_eq!(&other.recv().await.unwrap()[..], b"hello");
            });
        },
    );
}

/// A message for which there is no address space: its receive fails and says how long the message
/// was. The endpoint and the process go on.
#[test]
fn a_message_without_memory_fails_its_receive_only() {
    alone(
        "limits::a_message_without_memory_fails_its_receive_only",
        || {
            run(async {
                for (own, role) in [
                    ("shm://", "giant"),
                    ("shm://", "giant in one copy"),
                    ("tcp://127.0.0.1:0", "giant"),
                ] {
                    let ep = Endpoint::bind(own).await.unwrap();
                    let receive = ep.recv().tag(1).start().unwrap();
                    let mut giant = Peer::start(role, &ep.name().to_string());
                    let limited = limit(Resource::As, address_space() + (GIANT / 2) as u64);
                    giant.goes_on();
                    let error = receive.await.map(drop).unwrap_err().error;
                    assert!(
                        matches!(error, Error::OutOfMemory { len: GIANT, .. }),
                        "{own}, {role}: {error}"
                    );
                    assert_eq!(&ep.recv().tag(2).await.unwrap()[..], WORD.as_bytes());
                    drop(limited);
                    still_works(&ep).await;
                }
            });
        },
    );
}

/// A buffer of the caller's asking is refused in the same way.
#[test]
fn a_read_without_memory_is_refused() {
    alone("limits::a_read_without_memory_is_refused", || {
        run(async {
            let ep = Endpoint::bind("shm://").await.unwrap();
            let target = Peer::start("target", &ep.name().to_string());
            let place = ep.recv().await.unwrap();
            let (owner, remote) = (
                place.source().unwrap(),
                RemoteRegion::from_bytes(&place).unwrap(),
            );
            ep.write(owner, remote.at(0), "hello").await.unwrap();
            let mut giant = remote;
            giant.len = GIANT as u64;
            let limited = limit(Resource::As, address_space() + (GIANT / 2) as u64);
            let error = ep
                .read(owner, giant.slice(..))
                .await
                .map(drop)
                .unwrap_err()
                .error;
            assert!(
                matches!(error, Error::OutOfMemory { len: GIANT, .. }),
                "{error}"
            );
            drop(limited);
            let read = ep.read(owner, remote.slice(..5)).await.unwrap();
            assert_eq!(&read[..], b"hello");
            drop(target);
        });
    });
}
