//! The I/O backend of a domain: epoll or io_uring, and the domain's io_uring instance.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use fabric_core::info::Progress;
use fabric_core::transport::{EngineContext, EpId, SocketIo, WaitSet, WaitToken};
use fabric_core::{Error, Result};
use rustix::io::Errno;

use crate::parameters::SOCKET_IO;
use crate::sys::fork_guard::ForkGuard;
use crate::sys::os_error::epoll_ctl_error;
use crate::sys::uring::{
    CompletionKind, ReleasedBuffer, SharedUring, Uring, UringCompletion, UringConfig,
};

/// The I/O backend of a domain.
pub(super) struct IoBackend {
    wait_set: Arc<dyn WaitSet>,
    /// The io_uring instance; `None` with epoll.
    uring: Option<SharedUring>,
    fork_guard: ForkGuard,
    /// Where the completions of each endpoint go.
    inboxes: HashMap<EpId, CompletionInbox>,
}

/// Completions of io_uring that an endpoint has not handled.
#[derive(Clone, Debug, Default)]
struct CompletionInbox(Arc<Mutex<VecDeque<UringCompletion>>>);

/// The domain's io_uring instance at an endpoint.
#[derive(Clone)]
pub(crate) struct EndpointUring {
    pub(super) ring: SharedUring,
    inbox: CompletionInbox,
}

impl EndpointUring {
    /// Takes the oldest completion of the endpoint.
    pub(super) fn next_completion(&self) -> Option<UringCompletion> {
        let mut inbox = self.inbox.0.lock().unwrap_or_else(PoisonError::into_inner);
        inbox.pop_front()
    }

    /// Submits the queued SQEs. What cannot be submitted now stays queued; the next pass submits
    /// it.
    pub(super) fn submit(&self) {
        let _ = self.ring.lock().submit();
    }
}

/// Opens an io_uring instance that the domain watches.
fn open_uring(wait_set: &Arc<dyn WaitSet>, progress: Progress) -> Result<SharedUring> {
    let failed = |error: std::io::Error| {
        Error::os(
            "io_uring_setup",
            error.raw_os_error().unwrap_or(Errno::NOSYS.raw_os_error()),
        )
    };
    // With cooperative task work, a thread that computes delays the completions of the SQEs
    // that the thread has submitted. Under automatic progress other threads wait for these
    // completions; under manual progress only the thread that polls does.
    let uring =
        Uring::open(UringConfig::for_connections(progress != Progress::Auto)).map_err(failed)?;
    wait_set
        .watch(uring.event_fd(), WaitToken::SHARED)
        .map_err(epoll_ctl_error)?;
    Ok(SharedUring::new(uring))
}

impl IoBackend {
    /// Opens the backend of a domain.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the parameter [`SOCKET_IO`] is not valid; [`Error::Os`] if io_uring
    /// was requested by name and is not available.
    pub(super) fn open(
        wait_set: Arc<dyn WaitSet>,
        progress: Progress,
        io: SocketIo,
    ) -> Result<Self> {
        Self::open_with_default(wait_set, progress, io, || SOCKET_IO.get())
    }

    /// Opens the io_uring instance of a domain that must have one.
    ///
    /// # Errors
    /// [`Error::NotReserved`] for sockets that are configured for epoll, and if the kernel refuses
    /// the instance.
    pub(super) fn open_reserved(
        wait_set: Arc<dyn WaitSet>,
        progress: Progress,
        io: SocketIo,
    ) -> Result<Self> {
        if io == SocketIo::Epoll {
            let why = "the model needs io_uring; do not set SocketIo::Epoll".into();
            return Err(Error::NotReserved(why));
        }
        Self::open(wait_set, progress, SocketIo::IoUring)
            .map_err(|error| Error::NotReserved(format!("the model needs io_uring: {error}")))
    }

    fn open_with_default(
        wait_set: Arc<dyn WaitSet>,
        progress: Progress,
        io: SocketIo,
        from_env: impl FnOnce() -> Result<Option<SocketIo>>,
    ) -> Result<Self> {
        let uring = match io {
            // Container runtimes may forbid io_uring; `auto` then falls back to epoll.
            SocketIo::Auto if from_env()? == Some(SocketIo::IoUring) => {
                open_uring(&wait_set, progress).ok()
            }
            SocketIo::IoUring => Some(open_uring(&wait_set, progress)?),
            _ => None,
        };
        Ok(Self {
            wait_set,
            uring,
            fork_guard: ForkGuard::current_process(),
            inboxes: HashMap::new(),
        })
    }

    pub(super) fn name(&self) -> &'static str {
        if self.uring.is_some() {
            "io_uring"
        } else {
            "epoll"
        }
    }

    /// Returns the domain's io_uring instance for a new endpoint, if that is the backend.
    pub(super) fn open_endpoint(&mut self, ep: EpId) -> Option<EndpointUring> {
        let ring = self.uring.clone()?;
        // Only the map holds the inbox of an endpoint that was closed.
        self.inboxes
            .retain(|_, inbox| Arc::strong_count(&inbox.0) > 1);
        let inbox = self.inboxes.entry(ep).or_default().clone();
        Some(EndpointUring { ring, inbox })
    }

    /// Distributes the completions of the io_uring instance to the endpoints, and appends these to
    /// `ready`.
    pub(super) fn collect(&self, engine: &mut impl EngineContext, ready: &mut Vec<EpId>) {
        let Some(uring) = &self.uring else { return };
        loop {
            let Some(mut completion) = uring.lock().next_completion() else {
                return;
            };
            if let CompletionKind::BufferReleased(ReleasedBuffer { op, buf, .. }) =
                &mut completion.kind
            {
                // The buffer returns to its operation even if the endpoint is gone.
                engine.return_buffer(*op, std::mem::take(buf));
            }
            let ep = WaitToken::unpack(completion.owner).ep;
            if let Some(inbox) = self.inboxes.get(&ep) {
                let mut inbox = inbox.0.lock().unwrap_or_else(PoisonError::into_inner);
                inbox.push_back(completion);
                ready.push(ep);
            }
        }
    }

    /// Resets the eventfd of the io_uring instance.
    pub(super) fn clear_event(&self) {
        if let Some(uring) = &self.uring {
            uring.lock().clear_event();
        }
    }

    /// Submits the queued SQEs.
    #[inline]
    pub(super) fn submit(&self) {
        if let Some(uring) = &self.uring {
            // SQEs that cannot be submitted now stay queued; the next pass submits them.
            let _ = uring.lock().submit();
        }
    }

    /// Submits the queued SQEs before the domain sleeps: the eventfd reports their completions.
    /// Returns false when there are completions already, or the submission failed.
    pub(super) fn arm(&self) -> bool {
        self.uring.as_ref().is_none_or(|uring| {
            let mut uring = uring.lock();
            uring.submit().is_ok() && !uring.has_completions()
        })
    }
}

impl Drop for IoBackend {
    fn drop(&mut self) {
        if let Some(uring) = &self.uring
            && self.fork_guard.in_original_process()
        {
            self.wait_set.unwatch(uring.lock().event_fd());
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sys::EpollSet;
    use crate::sys::uring::tests::with_uring_forbidden;

    /// If the kernel forbids io_uring, a request by name fails with the kernel's error, and `auto`
    /// falls back to epoll.
    #[test]
    fn forbidden_io_uring_fails_explicit_and_falls_back_on_auto() {
        let refused = |errno| Err(Error::os("io_uring_setup", errno));
        for errno in [libc::EPERM, libc::ENOSYS] {
            for (io, env, expected) in [
                (SocketIo::IoUring, SocketIo::Epoll, refused(errno)),
                (SocketIo::Auto, SocketIo::IoUring, Ok("epoll")),
                (SocketIo::Epoll, SocketIo::IoUring, Ok("epoll")),
            ] {
                let outcome = with_uring_forbidden(errno, || {
                    let set = EpollSet::new().expect("an epoll set");
                    let (set, progress) = (Arc::new(set), Progress::Manual);
                    let backend = IoBackend::open_with_default(set, progress, io, || Ok(Some(env)));
                    backend.map(|backend| backend.name())
                });
                assert_eq!(outcome, expected, "{io:?} {env:?}");
            }
        }
    }

    #[test]
    fn model_that_needs_io_uring_is_refused_without_it() {
        let open = |io| {
            let set = Arc::new(EpollSet::new().expect("an epoll set"));
            let backend = IoBackend::open_reserved(set, Progress::Manual, io);
            backend.map(|backend| backend.name())
        };
        assert_eq!(open(SocketIo::Auto), Ok("io_uring"));
        let of_the_kernel = with_uring_forbidden(libc::EPERM, || open(SocketIo::Auto));
        for (refused, why) in [
            (of_the_kernel, "io_uring_setup"),
            (open(SocketIo::Epoll), "Epoll"),
        ] {
            let error = refused.expect_err("the backend has no io_uring instance");
            assert_eq!(error.errno(), libc::ENOSPC);
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}
