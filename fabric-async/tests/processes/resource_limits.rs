//! Descriptors or memory run out, in this process or in a peer: the operations that need more fail
//! with an error, all others go on, and operations succeed again once resources are free.

use std::fs::File;
use std::time::Duration;

use fabric_async::{
    Access, Endpoint, Error, EventKind, EventQueue, FiAddr, RefusalReason, RemoteRegion, WaitPolicy,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpSocket;

use crate::health::assert_still_works;
use crate::leak_check::{ResourceUsage, run_in_own_process};
use crate::rma::recv_region;
use crate::run;
use crate::test_peer::{TestPeer, wait_for_parent};

const MESSAGE: &str = "hello";
/// Exit codes of a connecting process: served, or refused for lack of resources.
const EXIT_SERVED: i32 = 0;
const EXIT_REFUSED: i32 = 10;
pub(crate) const EMFILE: i32 = 24;

/// Waits for the parent, connects once, and returns the exit code for the outcome.
pub(crate) async fn connect_once(name: &str) -> i32 {
    wait_for_parent();
    let ep = Endpoint::bind("shm://").await.unwrap();
    let peer = match ep.add_peer(name).await {
        Ok(peer) => peer,
        Err(error) => return exit_code_for(&error),
    };
    match ep.send(peer, MESSAGE).tag(8).await {
        Ok(_) => EXIT_SERVED,
        Err(failed) => exit_code_for(&failed.error),
    }
}

fn exit_code_for(error: &Error) -> i32 {
    match error {
        Error::ConnectionRefused {
            reason: RefusalReason::Resources,
            ..
        } => EXIT_REFUSED,
        other => {
            eprintln!("unexpected error: {other:?}");
            1
        }
    }
}

/// An endpoint that is connected to an echo peer.
struct ConnectedFixture {
    ep: Endpoint,
    events: EventQueue,
    echo_peer: FiAddr,
    /// Killed when the fixture is dropped.
    #[expect(dead_code)]
    echo_process: TestPeer,
}

impl ConnectedFixture {
    async fn open() -> Self {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let events = ep.take_events().unwrap();
        let echo_process = TestPeer::start("echo", &ep.name().to_string());
        let echo_peer = ep.recv().tag(3).await.unwrap().source().unwrap();
        let host = Self {
            ep,
            events,
            echo_peer,
            echo_process,
        };
        host.assert_echo_works().await;
        host
    }

    /// Checks that the connection to the echo peer is not affected.
    async fn assert_echo_works(&self) {
        for number in 0..100u64 {
            self.ep
                .send(self.echo_peer, number.to_le_bytes().to_vec())
                .await
                .unwrap();
            assert_eq!(
                self.ep.recv().tag(4).from(self.echo_peer).await.unwrap()[..],
                number.to_le_bytes()
            );
        }
    }

    /// Starts a process that connects when [`wait_for_connect_outcome`] is called.
    ///
    /// [`wait_for_connect_outcome`]: Self::wait_for_connect_outcome
    fn start_connecting_peer(&self) -> TestPeer {
        TestPeer::start("connect_once", &self.ep.name().to_string())
    }

    /// Lets a process connect, and returns its exit code. The message of a served process must have
    /// arrived.
    async fn wait_for_connect_outcome(&mut self, mut connector: TestPeer) -> i32 {
        connector.signal_start();
        while connector.0.try_wait().unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let code = connector
            .0
            .wait()
            .unwrap()
            .code()
            .expect("it is not killed");
        if code == EXIT_SERVED {
            assert_eq!(
                &self.ep.recv().tag(8).await.unwrap()[..],
                MESSAGE.as_bytes()
            );
        }
        code
    }

    /// Returns the errors of the connections refused since the last call.
    fn take_refusals(&mut self) -> Vec<Error> {
        let events = std::iter::from_fn(|| self.events.try_read());
        events
            .filter_map(|event| match event.kind {
                EventKind::InboundRefused { error, .. } => Some(error),
                _ => None,
            })
            .collect()
    }
}

const HUGE_LEN: usize = 512 << 20;

/// Sends a message of [`HUGE_LEN`] bytes, and a short one.
pub(crate) async fn huge_sender(name: &str, single_copy_from: usize) {
    wait_for_parent();
    let own = if name.contains("tcp") {
        "tcp://127.0.0.1:0"
    } else {
        "shm://"
    };
    let ep = Endpoint::options()
        .single_copy_threshold(single_copy_from)
        .bind(own)
        .await
        .expect("bind");
    let peer = ep.add_peer(name).await.expect("add_peer");
    let huge = ep.send(peer, vec![0u8; HUGE_LEN]).tag(1).start();
    huge.expect("transmit credit").await.expect("send");
    ep.send(peer, MESSAGE).tag(2).await.expect("send");
    let _ = ep.recv().from(peer).await;
}

/// Opens files until only `left` descriptors are free.
pub(crate) fn exhaust_descriptors(left: usize) -> Vec<File> {
    let mut files: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    files.truncate(files.len() - left);
    files
}

/// Returns the address space that this process uses, in bytes.
fn address_space_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmSize:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Changes a resource limit of this process, and restores it when dropped.
pub(crate) struct RlimitGuard(Resource, Option<u64>);

pub(crate) fn set_rlimit(resource: Resource, to: u64) -> RlimitGuard {
    let previous = getrlimit(resource);
    setrlimit(
        resource,
        Rlimit {
            current: Some(to),
            maximum: previous.maximum,
        },
    )
    .unwrap();
    RlimitGuard(resource, previous.current)
}

impl Drop for RlimitGuard {
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
fn at_fd_limit_new_peers_are_refused_and_old_served() {
    run_in_own_process(
        "resource_limits::at_fd_limit_new_peers_are_refused_and_old_served",
        || {
            let _limited = set_rlimit(Resource::Nofile, 64);
            run(async {
                let mut host = ConnectedFixture::open().await;
                // What the first connection allocates for good must not count as a leak below.
                let connector = host.start_connecting_peer();
                assert_eq!(host.wait_for_connect_outcome(connector).await, EXIT_SERVED);
                let before = ResourceUsage::wait_stable().await;
                let mut refused = 0;
                // A connection takes several descriptors, and may fail at each of them.
                for left in 0..8 {
                    let connector = host.start_connecting_peer();
                    let files = exhaust_descriptors(left);
                    match host.wait_for_connect_outcome(connector).await {
                        EXIT_SERVED => assert!(left > 0),
                        EXIT_REFUSED => {
                            refused += 1;
                            let errors = host.take_refusals();
                            assert!(!errors.is_empty(), "{left} left");
                            let is_emfile =
                                |error: &Error| matches!(error, Error::Os { errno: EMFILE, .. });
                            assert!(errors.iter().all(is_emfile), "{left} left: {errors:?}");
                        }
                        code => panic!("{left} left: {code}"),
                    }
                    host.assert_echo_works().await;
                    drop(files);
                    before.wait_restored().await;
                    let connector = host.start_connecting_peer();
                    assert_eq!(
                        host.wait_for_connect_outcome(connector).await,
                        EXIT_SERVED,
                        "descriptors are free again after {left} were left"
                    );
                    assert_eq!(host.take_refusals(), []);
                    before.wait_restored().await;
                }
                assert!(refused > 0);
            });
        },
    );
}

#[test]
fn at_fd_limit_operations_fail_and_recover() {
    run_in_own_process(
        "resource_limits::at_fd_limit_operations_fail_and_recover",
        || {
            let _limited = set_rlimit(Resource::Nofile, 64);
            run(async {
                let host = ConnectedFixture::open().await;
                let (mut targets, mut regions) = (Vec::new(), Vec::new());
                // A grant of the latter has two descriptors.
                for role in ["rma_target", "memfd_target"] {
                    targets.push(TestPeer::start(role, &host.ep.name().to_string()));
                    let (owner, remote) = recv_region(&host.ep).await;
                    // Connects first, so that an access lacks only descriptors for the region.
                    let unknown = RemoteRegion::new(remote.key ^ 1, 1, Access::REMOTE_READ);
                    host.ep.read(owner, unknown.slice(..)).await.unwrap_err();
                    regions.push((owner, remote));
                }
                let other = Endpoint::bind("shm://").await.unwrap();
                let unconnected = host.ep.address_vector().insert(other.name()).unwrap();
                let before = ResourceUsage::wait_stable().await;

                let files = exhaust_descriptors(0);
                let refused = host.ep.send(unconnected, "hello").await.unwrap_err().error;
                assert!(
                    matches!(refused, Error::Os { errno: EMFILE, .. }),
                    "{refused}"
                );
                let refused = host.ep.domain().try_loan(100).map(drop).unwrap_err();
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
                host.assert_echo_works().await;
                drop(files);
                before.wait_restored().await;
                for &(owner, remote) in &regions {
                    let files = exhaust_descriptors(0);
                    let write = host.ep.write(owner, remote.at(0), "hello");
                    let refused = write.await.unwrap_err().error;
                    assert!(
                        refused.to_string().contains("no descriptor left"),
                        "{refused}"
                    );
                    host.assert_echo_works().await;
                    drop(files);
                    // A closer closes the descriptors of the refused grant later.
                    before.wait_restored().await;
                }

                for (owner, remote) in regions {
                    host.ep.write(owner, remote.at(0), "hello").await.unwrap();
                    let read = host.ep.read(owner, remote.slice(..5)).await.unwrap();
                    assert_eq!(&read[..], b"hello");
                }
                host.ep.send(unconnected, "hello").await.unwrap();
                assert_eq!(&other.recv().await.unwrap()[..], b"hello");
                drop(targets);
                assert_still_works(&host.ep).await;
            });
        },
    );
}

/// A listener without a descriptor to accept with retries on a timer, and accepts when descriptors
/// are free again.
#[test]
fn tcp_listener_at_fd_limit_accepts_when_fds_are_free() {
    run_in_own_process(
        "resource_limits::tcp_listener_at_fd_limit_accepts_when_fds_are_free",
        || {
            let _limited = set_rlimit(Resource::Nofile, 64);
            run(async {
                let ep = Endpoint::bind("tcp://").await.unwrap();
                let mut events = ep.take_events().unwrap();
                let bystander = Endpoint::bind("tcp://").await.unwrap();
                let connector = TcpSocket::new_v4().unwrap();
                let files = exhaust_descriptors(0);
                let _connection = connector
                    .connect(ep.name().socket_addr().unwrap())
                    .await
                    .unwrap();
                let error = loop {
                    if let EventKind::InboundRefused { error, .. } = events.read().await.kind {
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
                drop(files);
                let to_ep = bystander.add_peer(ep.name()).await.unwrap();
                bystander.send(to_ep, MESSAGE).await.unwrap();
                assert_eq!(&ep.recv().await.unwrap()[..], MESSAGE.as_bytes());
            });
        },
    );
}

#[test]
fn at_memory_limit_operations_fail_without_leaks() {
    run_in_own_process(
        "resource_limits::at_memory_limit_operations_fail_without_leaks",
        || {
            run(async {
                let mut host = ConnectedFixture::open().await;
                let other = Endpoint::bind("shm://").await.unwrap();
                let unconnected = host.ep.address_vector().insert(other.name()).unwrap();
                let connector = host.start_connecting_peer();
                assert_eq!(host.wait_for_connect_outcome(connector).await, EXIT_SERVED);
                let before = ResourceUsage::wait_stable().await;
                let space = address_space_bytes();

                // The address space suffices for small allocations, not for a connection. The file
                // size limit is less than a segment.
                for (resource, most) in [(Resource::As, space + 64 * 1024), (Resource::Fsize, 4096)]
                {
                    let connector = host.start_connecting_peer();
                    let limited = set_rlimit(resource, most);
                    let refused = host.ep.send(unconnected, "hello").await.unwrap_err().error;
                    assert!(
                        matches!(refused, Error::Os { .. }),
                        "{resource:?}: {refused}"
                    );
                    let refused = host.ep.domain().try_loan(1 << 20).map(drop).unwrap_err();
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
                    host.assert_echo_works().await;
                    // With `As`, the segment of the connecting process cannot be mapped here;
                    // `Fsize` does not prevent the mapping.
                    let expected = if resource == Resource::As {
                        EXIT_REFUSED
                    } else {
                        EXIT_SERVED
                    };
                    assert_eq!(
                        host.wait_for_connect_outcome(connector).await,
                        expected,
                        "{resource:?}"
                    );
                    assert_eq!(host.take_refusals().is_empty(), expected == EXIT_SERVED);
                    drop(limited);
                    before.wait_restored().await;
                    let connector = host.start_connecting_peer();
                    assert_eq!(host.wait_for_connect_outcome(connector).await, EXIT_SERVED);
                }
                host.ep.send(unconnected, "hello").await.unwrap();
                assert_eq!(&other.recv().await.unwrap()[..], b"hello");
            });
        },
    );
}

/// A receive of a message that does not fit into the address space fails with the length of the
/// message. The endpoint still works.
#[test]
fn out_of_memory_fails_only_the_receive_of_the_huge_message() {
    run_in_own_process(
        "resource_limits::out_of_memory_fails_only_the_receive_of_the_huge_message",
        || {
            run(async {
                for (own, role) in [
                    ("shm://", "huge_sender"),
                    ("shm://", "huge_sender single copy"),
                    ("tcp://127.0.0.1:0", "huge_sender"),
                ] {
                    let ep = Endpoint::bind(own).await.unwrap();
                    let receive = ep.recv().tag(1).start().unwrap();
                    let mut huge = TestPeer::start(role, &ep.name().to_string());
                    let limited =
                        set_rlimit(Resource::As, address_space_bytes() + (HUGE_LEN / 2) as u64);
                    huge.signal_start();
                    let error = receive.await.map(drop).unwrap_err().error;
                    assert!(
                        matches!(error, Error::OutOfMemory { len: HUGE_LEN, .. }),
                        "{own}, {role}: {error}"
                    );
                    assert_eq!(&ep.recv().tag(2).await.unwrap()[..], MESSAGE.as_bytes());
                    drop(limited);
                    assert_still_works(&ep).await;
                }
            });
        },
    );
}

/// The sender of a single-copy message sleeps until the receiver has copied the message. The sender
/// is woken also if the receiver has no memory for the message.
#[test]
fn out_of_memory_receive_wakes_the_sleeping_sender() {
    run_in_own_process(
        "resource_limits::out_of_memory_receive_wakes_the_sleeping_sender",
        || {
            run(async {
                let options = Endpoint::options()
                    .wait_policy(WaitPolicy::Park)
                    .single_copy_threshold(1 << 20);
                let sender = options.clone().bind("shm://").await.unwrap();
                let ep = options.bind("shm://").await.unwrap();
                let peer = sender.add_peer(ep.name()).await.unwrap();
                let huge = sender.send(peer, vec![0u8; HUGE_LEN]).tag(1);
                // A task of its own: it is polled again only if the driver wakes it.
                let sent = tokio::spawn(huge.start().unwrap());
                while ep.stats().unexpected == 0 {
                    ep.domain().progress();
                    tokio::task::yield_now().await;
                }
                // The sender's driver finds nothing to do, and sleeps.
                for _ in 0..1000 {
                    tokio::task::yield_now().await;
                }
                let limited =
                    set_rlimit(Resource::As, address_space_bytes() + (HUGE_LEN / 2) as u64);
                let error = ep.recv().tag(1).await.unwrap_err().error;
                assert!(
                    matches!(error, Error::OutOfMemory { len: HUGE_LEN, .. }),
                    "{error}"
                );
                drop(limited);
                sent.await.unwrap().unwrap();
            });
        },
    );
}

/// A read into a pooled buffer fails if the buffer cannot be allocated.
#[test]
fn read_fails_when_out_of_memory() {
    run_in_own_process("resource_limits::read_fails_when_out_of_memory", || {
        run(async {
            let ep = Endpoint::bind("shm://").await.unwrap();
            let target = TestPeer::start("rma_target", &ep.name().to_string());
            let announcement = ep.recv().await.unwrap();
            let (owner, remote) = (
                announcement.source().unwrap(),
                RemoteRegion::from_bytes(&announcement).unwrap(),
            );
            ep.write(owner, remote.at(0), "hello").await.unwrap();
            let mut huge = remote;
            huge.len = HUGE_LEN as u64;
            let limited = set_rlimit(Resource::As, address_space_bytes() + (HUGE_LEN / 2) as u64);
            let error = ep
                .read(owner, huge.slice(..))
                .await
                .map(drop)
                .unwrap_err()
                .error;
            assert!(
                matches!(error, Error::OutOfMemory { len: HUGE_LEN, .. }),
                "{error}"
            );
            drop(limited);
            let read = ep.read(owner, remote.slice(..5)).await.unwrap();
            assert_eq!(&read[..], b"hello");
            drop(target);
        });
    });
}
