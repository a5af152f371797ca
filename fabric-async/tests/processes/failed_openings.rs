//! Opening a fabric, a domain, an endpoint and regions fails at each system call that it makes, and
//! at each descriptor: the error names the call, and no descriptor, mapping, thread or object
//! stays. Calls that an opening does without are listed.

use fabric_async::buf::Memfd;
use fabric_async::{
    Access, CqBind, Domain, EpType, Error, Fabric, Hints, Info, Progress, Result, SocketIo,
    discover,
};
use rustix::process::Resource;

use crate::failing_calls::{CALLS, Call, CallFilter, Failing};
use crate::leak_check::{ResourceUsage, count_mappings, run_in_own_process};
use crate::resource_limits::{EMFILE, exhaust_descriptors, set_rlimit};
use crate::run;
use crate::skip::{Facility, skip};

const MEMFD_LEN: usize = 8192;

const OPENINGS: [Opening; 8] = [
    Opening::new("shm", Progress::Manual, SocketIo::Auto),
    Opening::new("shm", Progress::Auto, SocketIo::Auto),
    Opening::new("tcp", Progress::Manual, SocketIo::Epoll),
    Opening::new("tcp", Progress::Auto, SocketIo::Epoll),
    Opening::new("tcp", Progress::Manual, SocketIo::IoUring),
    Opening::new("tcp", Progress::Auto, SocketIo::IoUring),
    Opening::new("udp", Progress::Manual, SocketIo::Auto),
    Opening::new("udp", Progress::Auto, SocketIo::Auto),
];

/// What is opened.
#[derive(Clone, Copy, Debug)]
struct Opening {
    provider: &'static str,
    progress: Progress,
    socket_io: SocketIo,
}

impl Opening {
    const fn new(provider: &'static str, progress: Progress, socket_io: SocketIo) -> Self {
        Self {
            provider,
            progress,
            socket_io,
        }
    }

    /// Opens every object, and closes all of them. A failure leaves no object open.
    fn open_and_close(self, memory: Option<&Memfd>) -> Result<()> {
        let ep_type = if self.provider == "udp" {
            EpType::Dgram
        } else {
            EpType::Rdm
        };
        let hints = Hints::new().provider(self.provider).ep_type(ep_type);
        let hints = hints
            .progress(self.progress)
            .control_progress(self.progress);
        let info = discover(&hints)?.swap_remove(0);
        let fabric = Fabric::open(&info)?;
        let opened = self.open_domain(&fabric, &info, memory);
        fabric.close().expect("the fabric has no children");
        opened
    }

    fn open_domain(self, fabric: &Fabric, info: &Info, memory: Option<&Memfd>) -> Result<()> {
        let builder = fabric.domain_builder(info).socket_io(self.socket_io);
        let domain = builder.open()?;
        let opened = open_children(&domain, info, memory);
        domain.close().expect("the domain has no children");
        opened
    }
}

/// Opens an endpoint with its queue and its vector, and regions if there is memory for one.
fn open_children(domain: &Domain, info: &Info, memory: Option<&Memfd>) -> Result<()> {
    let (cq, av) = (domain.completion_queue(16)?, domain.address_vector()?);
    let ep = domain.endpoint(info)?.bind_av(&av)?;
    let ep = ep.bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV)?.enable()?;
    if let Some(memory) = memory {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let _allocated = domain.alloc(4096, access)?;
        let _registered = domain.register_memfd(memory, access, None)?;
        drop(domain.try_loan(4096)?);
    }
    drop(ep);
    Ok(())
}

/// Calls of a provider whose failure an opening may survive.
const OPTIONAL_CALLS: [(&str, &str, Survives); 6] = [
    // It is repeated without MFD_NOEXEC_SEAL, which kernels before 6.3 do not have.
    ("shm", "memfd_create", Survives::OneFailure),
    ("tcp", "memfd_create", Survives::OneFailure),
    // SO_PASSRIGHTS, which kernels before 6.16 do not have.
    ("shm", "setsockopt", Survives::EveryFailure),
    // A descriptor in reserve for the descriptor limit.
    ("shm", "eventfd2", Survives::OneFailure),
    // The sockets that list the networks of this machine: any address is offered without them.
    ("tcp", "socket", Survives::OneFailure),
    // The size of the receive buffer.
    ("udp", "setsockopt", Survives::OneFailure),
];

/// Which failures of a call an opening may survive.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Survives {
    /// Those that follow or precede a call that succeeds.
    OneFailure,
    /// Also that of all calls.
    EveryFailure,
}

impl Opening {
    /// Returns whether the objects may be open although these calls have failed.
    fn survives(self, call: &str, failing: Failing) -> bool {
        OPTIONAL_CALLS
            .iter()
            .any(|&(provider, optional, survives)| {
                (provider, optional) == (self.provider, call)
                    && (survives == Survives::EveryFailure || failing != Failing::From(0))
            })
    }

    /// Checks that an error names the call that failed, and its errno.
    fn assert_names(self, error: &Error, call: Call) {
        let Error::Os { call: named, errno } = error else {
            panic!("{self:?}: {} failed, and the error is {error}", call.name);
        };
        let is_named = match (call.name, *named) {
            // pthread_create maps a stack, and reports what it calls as EAGAIN.
            ("clone3" | "mmap", "clone") => *errno == libc::EAGAIN,
            // The steps by which an instance of io_uring is set up.
            ("io_uring_register" | "mmap" | "eventfd2", "io_uring_setup") => *errno == call.errno,
            // The name of an option may follow.
            (name, named) => named.split('(').next() == Some(name) && *errno == call.errno,
        };
        assert!(
            is_named,
            "{self:?}: {} failed, and the error is {error}",
            call.name
        );
    }

    /// Returns memory to register, if the provider has regions.
    fn memory(self) -> Option<Memfd> {
        (self.provider != "udp").then(|| Memfd::create(MEMFD_LEN).unwrap())
    }

    /// Opens and closes everything once, so that what the process keeps is there. Returns what the
    /// process has then, or nothing if the machine has no io_uring.
    async fn prepare(self, memory: Option<&Memfd>) -> Option<ResourceUsage> {
        match self.open_and_close(memory) {
            Ok(()) => Some(ResourceUsage::wait_stable().await),
            Err(
                error @ Error::Os {
                    call: "io_uring_setup",
                    ..
                },
            ) => {
                skip(Facility::Uring, error);
                None
            }
            Err(error) => panic!("{self:?}: {error}"),
        }
    }

    /// Opens everything while each system call fails, once and from then on. Returns the calls.
    async fn fail_at_each_call(self, filter: &CallFilter) -> Vec<&'static str> {
        let memory = self.memory();
        let Some(before) = self.prepare(memory.as_ref()).await else {
            return Vec::new();
        };
        let mut calls = Vec::new();
        for (kind, call) in CALLS.into_iter().enumerate() {
            for failing in (0..).flat_map(|at| [Failing::Nth(at), Failing::From(at)]) {
                let open = || self.open_and_close(memory.as_ref());
                let (opened, counts) = filter.during(call, failing, open);
                let (Failing::Nth(at) | Failing::From(at)) = failing;
                if counts[kind] <= at {
                    // No call has failed.
                    opened.unwrap();
                    break;
                }
                calls.push(call.name);
                match opened {
                    Ok(()) => assert!(
                        self.survives(call.name, failing),
                        "{self:?} does not need {} ({failing:?})",
                        call.name
                    ),
                    Err(error) => self.assert_names(&error, call),
                }
                before.wait_restored().await;
                assert_eq!(count_mappings("io_uring"), 0, "{self:?}: {}", call.name);
            }
        }
        self.open_and_close(memory.as_ref()).unwrap();
        before.wait_restored().await;
        calls.dedup();
        calls
    }

    /// Opens everything at the descriptor limit, with each number of descriptors that does not
    /// suffice. Returns the number that does.
    async fn fail_at_each_descriptor(self) -> usize {
        let memory = self.memory();
        let Some(before) = self.prepare(memory.as_ref()).await else {
            return 0;
        };
        for left in 0.. {
            let files = exhaust_descriptors(left);
            let opened = self.open_and_close(memory.as_ref());
            drop(files);
            before.wait_restored().await;
            match opened {
                Ok(()) => return left,
                Err(Error::Os { errno, .. }) => assert_eq!(errno, EMFILE, "{self:?}: {left} left"),
                Err(error) => panic!("{self:?}: {left} left: {error}"),
            }
        }
        unreachable!("the limit is finite");
    }
}

#[test]
fn opening_fails_at_each_system_call_and_leaves_nothing() {
    run_in_own_process(
        "failed_openings::opening_fails_at_each_system_call_and_leaves_nothing",
        || {
            run(async {
                let filter = match CallFilter::install() {
                    Ok(filter) => filter,
                    Err(error) => return skip(Facility::Capability, format!("seccomp: {error}")),
                };
                for opening in OPENINGS {
                    let calls = opening.fail_at_each_call(&filter).await;
                    let has = |name| calls.contains(&name);
                    match opening {
                        _ if calls.is_empty() => {}
                        Opening {
                            provider: "shm", ..
                        } => {
                            assert!(has("memfd_create") && has("mmap") && has("socket"));
                        }
                        Opening {
                            socket_io: SocketIo::IoUring,
                            ..
                        } => {
                            assert!(has("io_uring_setup") && has("mmap") && has("socket"));
                        }
                        _ => assert!(has("socket") && has("bind")),
                    }
                    let is_auto = opening.progress == Progress::Auto;
                    assert!(calls.is_empty() || has("epoll_create1") && has("epoll_ctl"));
                    assert!(
                        calls.is_empty() || has("clone3") == is_auto,
                        "{opening:?}: {calls:?}"
                    );
                }
            });
        },
    );
}

#[test]
fn opening_fails_at_each_descriptor_and_leaves_nothing() {
    run_in_own_process(
        "failed_openings::opening_fails_at_each_descriptor_and_leaves_nothing",
        || {
            let _limited = set_rlimit(Resource::Nofile, 64);
            run(async {
                for opening in OPENINGS {
                    let needed = opening.fail_at_each_descriptor().await;
                    assert!(
                        needed == 0 || needed >= 3,
                        "{opening:?}: {needed} descriptors"
                    );
                }
            });
        },
    );
}
