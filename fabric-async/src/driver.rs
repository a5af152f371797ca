//! The task that drives a domain under manual progress while no operation is polled.
#![allow(unsafe_code)] // AsyncFd::register_with_interest: the descriptor stays open

use std::future::poll_fn;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use fabric_core::info::{Info, Progress};
use fabric_core::transport::ThreadMode;
use fabric_core::{Error, Result};
use fabric_reactor::{DomainHandle, DriverKind, WaitFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::io_driver;

/// What the program chooses to make progress in a domain under manual progress.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ManualDriver {
    /// A task of the runtime.
    Task,
    /// A task of the `LocalSet` of this thread.
    LocalTask,
    /// An event loop of the program.
    EventLoop,
}

impl ManualDriver {
    /// Returns the kind of driver of a domain that is opened from `info`. Automatic progress has a
    /// thread.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an event loop and automatic progress.
    pub(crate) fn kind(self, info: &Info) -> Result<DriverKind> {
        let is_automatic = info.domain.data_progress == Progress::Auto;
        match self {
            Self::EventLoop if is_automatic => Err(Error::Invalid {
                what: "driven_by_event_loop",
                why: "a domain with automatic progress is driven by its own thread".into(),
            }),
            Self::EventLoop => Ok(DriverKind::EventLoop),
            Self::Task | Self::LocalTask if is_automatic => Ok(DriverKind::Thread),
            Self::Task | Self::LocalTask => Ok(DriverKind::Task),
        }
    }

    /// Spawns the driver of a domain if that is a task.
    pub(crate) fn spawn(self, domain: &DomainHandle, mode: ThreadMode) -> Result<()> {
        match (domain.driver_kind(), self) {
            (DriverKind::Task, Self::LocalTask) => spawn_local(domain),
            (DriverKind::Task, _) => spawn(domain, mode),
            (DriverKind::Thread | DriverKind::EventLoop, _) => Ok(()),
        }
    }
}

/// The wait descriptor of a domain, as [`AsyncFd`] takes descriptors.
struct WaitFdSource(WaitFd);

impl AsRawFd for WaitFdSource {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Spawns the driver task of a domain on the current runtime. The task ends with the domain.
///
/// A domain that one thread owns needs a runtime of one thread: a multi-thread runtime moves tasks
/// between its threads.
fn spawn(domain: &DomainHandle, mode: ThreadMode) -> Result<()> {
    let runtime = current_runtime()?;
    if mode == ThreadMode::Pinned && runtime.runtime_flavor() == RuntimeFlavor::MultiThread {
        return Err(Error::Runtime(
            "a multi-thread runtime would move the driver of a Pinned domain between threads; use \
             a current-thread runtime, or, in a LocalSet, open_local or local_driver",
        ));
    }
    runtime.spawn(task(domain)?);
    Ok(())
}

/// Spawns the driver task of a domain on the `LocalSet` or `LocalRuntime` of this thread.
fn spawn_local(domain: &DomainHandle) -> Result<()> {
    current_runtime()?;
    tokio::task::spawn_local(task(domain)?);
    Ok(())
}

fn current_runtime() -> Result<Handle> {
    Handle::try_current().map_err(|_| {
        Error::Runtime("no Tokio runtime is running on this thread; open the domain inside one")
    })
}

/// Returns the driver task of a domain.
fn task(domain: &DomainHandle) -> Result<impl Future<Output = ()> + Send + 'static> {
    let mut driver = domain.task_driver();
    let source = WaitFdSource(driver.wait_fd());
    let registered = io_driver::catch_missing_io_driver(|| {
        // SAFETY: the descriptor is that of an epoll set. The `WaitFd` owns a share of the set, so
        // the descriptor stays open and the same as long as the `WaitFd` exists. `AsyncFd`
        // deregisters the descriptor before it drops the `WaitFd`.
        unsafe { AsyncFd::register_with_interest(source, Interest::READABLE) }
    });
    let fd = match registered {
        Some(Ok(fd)) => fd,
        Some(Err(error)) => {
            let (_, error) = error.into_parts();
            return Err(Error::os(
                "epoll_ctl",
                error.raw_os_error().unwrap_or_default(),
            ));
        }
        None => {
            return Err(Error::Runtime(
                "the Tokio runtime has no I/O driver; build it with enable_io() or enable_all(), \
                 or use automatic progress",
            ));
        }
    };
    Ok(poll_fn(move |cx| {
        driver.poll(cx, |cx| {
            fd.poll_read_ready(cx)
                .map_ok(|mut guard| guard.clear_ready())
        })
    }))
}
