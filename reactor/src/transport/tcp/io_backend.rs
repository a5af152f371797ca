//! Which way the sockets of a domain are waited for, and its ring.

use std::ffi::OsStr;
use std::sync::Arc;

use fabric_core::info::Progress;
use fabric_core::transport::{EpId, SocketIo, WaitSet};
use fabric_core::{Error, Result};

use super::endpoint::TcpToken;
use crate::transport::fork_guard::ForkGuard;
use crate::uring::{SharedUring, Uring, UringCompletion, UringConfig};
use crate::wait::epoll_ctl_error;

const ENOSYS: i32 = 38;

/// What says it where the program does not.
const ENV_VAR: &str = "FABRIC_SOCKET_IO";
/// What `auto` means.
const AUTO_BACKEND: SocketIo = SocketIo::Epoll;

/// The way that was chosen, once.
pub(super) struct IoBackend {
    wait_set: Arc<dyn WaitSet>,
    progress: Progress,
    uring: Option<SharedUring>,
    is_selected: bool,
    fork_guard: ForkGuard,
}

impl IoBackend {
    pub(super) fn new(wait_set: Arc<dyn WaitSet>, progress: Progress) -> Self {
        Self {
            wait_set,
            progress,
            uring: None,
            is_selected: false,
            fork_guard: ForkGuard::current_process(),
        }
    }

    pub(super) fn name(&self) -> &'static str {
        if self.uring.is_some() {
            "io_uring"
        } else {
            "epoll"
        }
    }

    /// Chooses, unless that was done.
    pub(super) fn select(&mut self, io: SocketIo) -> Result<()> {
        self.select_with_default(io, backend_from_env)
    }

    fn select_with_default(
        &mut self,
        io: SocketIo,
        told: impl FnOnce() -> Result<SocketIo>,
    ) -> Result<()> {
        if self.is_selected {
            let why = "it is said before the first endpoint is opened".into();
            return Err(Error::Invalid {
                what: "socket_io",
                why,
            });
        }
        match io {
            SocketIo::Auto if told()? == SocketIo::IoUring => {
                // Containers forbid rings, and programs go on there.
                self.uring = self.open_uring().ok();
            }
            SocketIo::IoUring => self.uring = Some(self.open_uring()?),
            _ => {}
        }
        self.is_selected = true;
        Ok(())
    }

    fn open_uring(&self) -> Result<SharedUring> {
        let failed = |error: std::io::Error| {
            Error::os("io_uring_setup", error.raw_os_error().unwrap_or(ENOSYS))
        };
        // Under automatic progress several threads hand over, and none may keep the others waiting
        // for what it computes meanwhile. Under manual progress nobody else has been promised
        // anything.
        let ring = Uring::open(UringConfig::for_connections(
            self.progress != Progress::Auto,
        ))
        .map_err(failed)?;
        self.wait_set
            .watch(ring.event_fd(), TcpToken::Uring.pack(EpId(0)))
            .map_err(epoll_ctl_error)?;
        Ok(SharedUring::new(ring))
    }

    /// The ring of the domain, if that is the way.
    pub(super) fn uring(&mut self) -> Result<Option<SharedUring>> {
        if !self.is_selected {
            self.select(SocketIo::Auto)?;
        }
        Ok(self.uring.clone())
    }

    /// What has been done.
    #[inline]
    pub(super) fn next_completion(&self) -> Option<UringCompletion> {
        self.uring.as_ref()?.lock().next_completion()
    }

    /// The ring has told that something was done.
    pub(super) fn clear_event(&self) {
        if let Some(ring) = &self.uring {
            ring.lock().clear_event();
        }
    }

    /// Hands over what was queued in this pass.
    #[inline]
    pub(super) fn submit(&self) {
        if let Some(ring) = &self.uring {
            // What cannot be handed over now is kept, and goes with the next pass.
            let _ = ring.lock().submit();
        }
    }

    /// Hands over what is queued: the ring tells of news from now on. False when there is some, or
    /// it cannot.
    pub(super) fn arm(&self) -> bool {
        self.uring.as_ref().is_none_or(|ring| {
            let mut ring = ring.lock();
            ring.submit().is_ok() && !ring.has_completions()
        })
    }
}

impl Drop for IoBackend {
    fn drop(&mut self) {
        if let Some(ring) = &self.uring
            && self.fork_guard.in_original_process()
        {
            self.wait_set.unwatch(ring.lock().event_fd());
        }
    }
}

/// What the environment says.
fn backend_from_env() -> Result<SocketIo> {
    std::env::var_os(ENV_VAR).map_or(Ok(AUTO_BACKEND), |said| parse_backend(&said))
}

fn parse_backend(said: &OsStr) -> Result<SocketIo> {
    match said.to_str() {
        Some("auto" | "") => Ok(AUTO_BACKEND),
        Some("epoll") => Ok(SocketIo::Epoll),
        Some("io_uring") => Ok(SocketIo::IoUring),
        _ => {
            let why = format!("{said:?} is none of auto, epoll and io_uring");
            Err(Error::Invalid { what: ENV_VAR, why })
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::uring::tests::with_uring_forbidden;
    use crate::wait::EpollSet;

    /// Rule 7 of rings: who asked for one by name hears that there is none, and who wished for one
    /// does without.
    #[test]
    fn forbidden_io_uring_fails_explicit_and_falls_back_on_auto() {
        let refused = |errno| Err(Error::os("io_uring_setup", errno));
        for errno in [libc::EPERM, libc::ENOSYS] {
            for (io, wish, expected) in [
                (SocketIo::IoUring, SocketIo::Epoll, refused(errno)),
                (SocketIo::Auto, SocketIo::IoUring, Ok("epoll")),
                (SocketIo::Epoll, SocketIo::IoUring, Ok("epoll")),
            ] {
                let became = with_uring_forbidden(errno, || {
                    let set = EpollSet::new().expect("descriptors");
                    let mut chosen = IoBackend::new(Arc::new(set), Progress::Manual);
                    chosen
                        .select_with_default(io, || Ok(wish))
                        .map(|()| chosen.name())
                });
                assert_eq!(became, expected, "{io:?} {wish:?}");
            }
        }
    }

    #[test]
    fn env_var_accepts_auto_epoll_and_io_uring() {
        assert_eq!(parse_backend(OsStr::new("auto")), Ok(AUTO_BACKEND));
        assert_eq!(parse_backend(OsStr::new("epoll")), Ok(SocketIo::Epoll));
        assert_eq!(parse_backend(OsStr::new("io_uring")), Ok(SocketIo::IoUring));
        let refused = parse_backend(OsStr::new("rubbish"))
            .unwrap_err()
            .to_string();
        assert!(
            refused.contains("FABRIC_SOCKET_IO") && refused.contains("rubbish"),
            "{refused}"
        );
    }
}
