//! Which way the sockets of a domain are waited for, and its ring.

use std::ffi::OsStr;
use std::sync::Arc;

use fabric_core::info::Progress;
use fabric_core::provider::{EpId, SocketIo, WaitSet};
use fabric_core::{Error, Result};

use super::endpoint::Token;
use crate::provider::origin::Origin;
use crate::uring::{Completion, Ring, Shape, SharedRing};
use crate::wait::unwatchable;

const ENOSYS: i32 = 38;

/// What says it where the program does not.
const VARIABLE: &str = "FABRIC_SOCKET_IO";
/// What `auto` means.
const BETTER: SocketIo = SocketIo::Epoll;

/// The way that was chosen, once.
pub(super) struct Io {
    wait: Arc<dyn WaitSet>,
    progress: Progress,
    ring: Option<SharedRing>,
    is_chosen: bool,
    origin: Origin,
}

impl Io {
    pub(super) fn new(wait: Arc<dyn WaitSet>, progress: Progress) -> Self {
        Self {
            wait,
            progress,
            ring: None,
            is_chosen: false,
            origin: Origin::here(),
        }
    }

    pub(super) fn name(&self) -> &'static str {
        if self.ring.is_some() {
            "io_uring"
        } else {
            "epoll"
        }
    }

    /// Chooses, unless that was done.
    pub(super) fn choose(&mut self, io: SocketIo) -> Result<()> {
        self.choose_from(io, told)
    }

    fn choose_from(&mut self, io: SocketIo, told: impl FnOnce() -> Result<SocketIo>) -> Result<()> {
        if self.is_chosen {
            let why = "it is said before the first endpoint is opened".into();
            return Err(Error::Invalid {
                what: "socket_io",
                why,
            });
        }
        match io {
            SocketIo::Auto if told()? == SocketIo::IoUring => {
                // Containers forbid rings, and programs go on there.
                self.ring = self.open_ring().ok();
            }
            SocketIo::IoUring => self.ring = Some(self.open_ring()?),
            _ => {}
        }
        self.is_chosen = true;
        Ok(())
    }

    fn open_ring(&self) -> Result<SharedRing> {
        let failed = |error: std::io::Error| {
            Error::os("io_uring_setup", error.raw_os_error().unwrap_or(ENOSYS))
        };
        // Under automatic progress several threads hand over, and none may keep the others waiting
        // for what it computes meanwhile. Under manual progress nobody else has been promised
        // anything.
        let ring = Ring::open(Shape::usual(self.progress != Progress::Auto)).map_err(failed)?;
        self.wait
            .watch(ring.event(), Token::Ring.pack(EpId(0)))
            .map_err(unwatchable)?;
        Ok(SharedRing::new(ring))
    }

    /// The ring of the domain, if that is the way.
    pub(super) fn ring(&mut self) -> Result<Option<SharedRing>> {
        if !self.is_chosen {
            self.choose(SocketIo::Auto)?;
        }
        Ok(self.ring.clone())
    }

    /// What has been done.
    #[inline]
    pub(super) fn next(&self) -> Option<Completion> {
        self.ring.as_ref()?.lock().next()
    }

    /// The ring has told that something was done.
    pub(super) fn heard(&self) {
        if let Some(ring) = &self.ring {
            ring.lock().heard();
        }
    }

    /// Hands over what was queued in this pass.
    #[inline]
    pub(super) fn submit(&self) {
        if let Some(ring) = &self.ring {
            // What cannot be handed over now is kept, and goes with the next pass.
            let _ = ring.lock().submit();
        }
    }

    /// Hands over what is queued: the ring tells of news from now on. False when there is some, or
    /// it cannot.
    pub(super) fn sleeps(&self) -> bool {
        self.ring.as_ref().is_none_or(|ring| {
            let mut ring = ring.lock();
            ring.submit().is_ok() && !ring.is_ready()
        })
    }
}

impl Drop for Io {
    fn drop(&mut self) {
        if let Some(ring) = &self.ring
            && self.origin.is_here()
        {
            self.wait.unwatch(ring.lock().event());
        }
    }
}

/// What the environment says.
fn told() -> Result<SocketIo> {
    std::env::var_os(VARIABLE).map_or(Ok(BETTER), |said| meant(&said))
}

fn meant(said: &OsStr) -> Result<SocketIo> {
    match said.to_str() {
        Some("auto" | "") => Ok(BETTER),
        Some("epoll") => Ok(SocketIo::Epoll),
        Some("io_uring") => Ok(SocketIo::IoUring),
        _ => {
            let why = format!("{said:?} is none of auto, epoll and io_uring");
            Err(Error::Invalid {
                what: VARIABLE,
                why,
            })
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::uring::tests::forbidding;
    use crate::wait::PollSet;

    /// Rule 7 of rings: who asked for one by name hears that there is none, and who wished for one
    /// does without.
    #[test]
    fn where_rings_are_forbidden_a_wish_is_not_granted_and_a_demand_is_refused() {
        let refused = |errno| Err(Error::os("io_uring_setup", errno));
        for errno in [libc::EPERM, libc::ENOSYS] {
            for (io, wish, expected) in [
                (SocketIo::IoUring, SocketIo::Epoll, refused(errno)),
                (SocketIo::Auto, SocketIo::IoUring, Ok("epoll")),
                (SocketIo::Epoll, SocketIo::IoUring, Ok("epoll")),
            ] {
                let became = forbidding(errno, || {
                    let set = PollSet::new().expect("descriptors");
                    let mut chosen = Io::new(Arc::new(set), Progress::Manual);
                    chosen.choose_from(io, || Ok(wish)).map(|()| chosen.name())
                });
                assert_eq!(became, expected, "{io:?} {wish:?}");
            }
        }
    }

    #[test]
    fn the_environment_says_one_of_three() {
        assert_eq!(meant(OsStr::new("auto")), Ok(BETTER));
        assert_eq!(meant(OsStr::new("epoll")), Ok(SocketIo::Epoll));
        assert_eq!(meant(OsStr::new("io_uring")), Ok(SocketIo::IoUring));
        let refused = meant(OsStr::new("rubbish")).unwrap_err().to_string();
        assert!(
            refused.contains("FABRIC_SOCKET_IO") && refused.contains("rubbish"),
            "{refused}"
        );
    }
}
