//! Thread models: which threads may use a handle, as a type parameter of the handle.
//!
//! See [`guide::threads`](crate::guide::threads).

use std::marker::PhantomData;

use fabric_core::info::{Info, Progress, Threading};
use fabric_core::transport::ThreadMode;
use fabric_core::{Error, Result};

mod sealed {
    use super::ThreadMode;

    pub trait Sealed {
        /// How the engine locks a domain.
        const MODE: ThreadMode;
    }
}

/// The application's promise about the threads that use the objects of a domain (`enum
/// fi_threading`): a type parameter of handles, requests and operations.
///
/// | model | required [`Threading`] (not for resource domains) | handles |
/// |---|---|---|
/// | [`Shared`], the default | any | `Send` and `Sync` |
/// | [`Serial`] | [`Threading::Domain`] | `Send` and `Sync` |
/// | [`Pinned`] | [`Threading::Domain`] | neither |
#[doc(alias = "fi_threading")]
pub trait ThreadModel: sealed::Sealed + Clone + Unpin + 'static {}

/// `FI_THREAD_SAFE`: any thread may use any handle at any time.
///
/// The model works with every [`Threading`] level, because it allows every use.
#[derive(Clone, Copy, Debug)]
pub enum Shared {}

/// The program serializes its calls: no two threads are inside calls on the domain and its objects
/// at once. Handles are `Send` and `Sync`, so that a task that uses the domain may move between
/// threads at `.await`.
///
/// A call makes one atomic read-modify-write for exclusion, which also detects a second thread;
/// look-ups of memory regions, and sockets with io_uring, have locks of their own. If the calls of
/// two threads overlap:
///
/// * A call that posts or configures fails with [`Error::ConcurrentUse`] and returns the buffer.
/// * All other calls wait for the other thread: polls, reads of queues, counters, address vectors
///   and statistics, cancels, removals, closes, and drops of objects. So no completion and no
///   cancellation is lost. The drop of an operation or permit returns at once, and takes effect
///   when the other thread has left.
/// * [`DomainStats::concurrent_uses`](crate::stats::DomainStats::concurrent_uses) counts these
///   calls, and an [event](crate::EventKind::ConcurrentUse) reports the first.
///
/// The driver of the domain and the reader of an [`EventQueue`](crate::EventQueue) may run on any
/// thread. Calls wait for the end of their passes and do not fail.
///
/// Such a domain has [`Threading::Domain`], manual or automatic progress, and no asynchronous
/// registration. Open it with [`DomainBuilder::thread_model`](crate::DomainBuilder::thread_model),
/// or with [`BindOptions::thread_model`](crate::BindOptions::thread_model).
///
/// ```
/// # #[tokio::main(worker_threads = 2)] async fn main() -> fabric_async::Result<()> {
/// use fabric_async::Endpoint;
/// use fabric_async::thread_model::Serial;
/// let ep = Endpoint::options().thread_model::<Serial>().bind("shm://").await?;
/// let me = ep.add_peer(ep.name()).await?;
/// let task = tokio::spawn(async move {             // a task of any thread, the only user
///     let (sent, got) = tokio::join!(ep.send(me, vec![7; 5]), ep.recv());
///     sent?;
///     assert_eq!(ep.domain().stats().concurrent_uses, 0);
///     Ok::<_, fabric_async::Error>(got?.len())
/// });
/// assert_eq!(task.await.expect("no panic")?, 5);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Serial {}

/// One thread opens the domain and uses its objects. Handles, requests and operations are not
/// `Send`, so that a use by another thread does not compile.
///
/// Messages over `shm` take no lock, and no atomic read-modify-write for exclusion. Look-ups of
/// memory regions, and sockets with io_uring, take short locks, which threads that use other
/// handles of the parent domain also take. Such a domain has [`Threading::Domain`] and manual
/// progress, and its driver is a task of the same thread. Open it with
/// [`DomainBuilder::thread_model`](crate::DomainBuilder::thread_model), or with
/// [`BindOptions::thread_model`](crate::BindOptions::thread_model).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
/// use fabric_async::Endpoint;
/// use fabric_async::thread_model::Pinned;
/// let ep = Endpoint::options().thread_model::<Pinned>().bind("shm://").await?;
/// let me = ep.add_peer(ep.name()).await?;
/// let (sent, got) = tokio::join!(ep.send(me, "hello"), ep.recv());
/// sent?;
/// assert_eq!(&got?[..], b"hello");
/// # Ok(()) }
/// ```
///
/// ```compile_fail,E0277
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
/// use fabric_async::Endpoint;
/// use fabric_async::thread_model::Pinned;
/// let ep = Endpoint::options().thread_model::<Pinned>().bind("shm://").await?;
/// tokio::spawn(async move { ep.recv().await });     // a task of any thread
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Pinned {
    /// Neither `Send` nor `Sync`.
    _thread: PhantomData<*const ()>,
    _never: std::convert::Infallible,
}

impl sealed::Sealed for Shared {
    const MODE: ThreadMode = ThreadMode::Shared;
}
impl ThreadModel for Shared {}

impl sealed::Sealed for Serial {
    const MODE: ThreadMode = ThreadMode::Serial;
}
impl ThreadModel for Serial {}

impl sealed::Sealed for Pinned {
    const MODE: ThreadMode = ThreadMode::Pinned;
}
impl ThreadModel for Pinned {}

/// Returns how the engine locks a domain of this model.
pub(crate) fn mode<M: ThreadModel>() -> ThreadMode {
    M::MODE
}

/// Checks that a domain of this mode can be opened from `info`.
///
/// # Errors
/// [`Error::Invalid`] for `Pinned` and `Serial` with another level than [`Threading::Domain`], and
/// for `Pinned` with automatic progress.
pub(crate) fn check_info(mode: ThreadMode, info: &Info) -> Result<()> {
    if mode == ThreadMode::Shared {
        return Ok(());
    }
    let domain = &info.domain;
    let is_automatic = [domain.control_progress, domain.data_progress].contains(&Progress::Auto);
    let why = if domain.threading != Threading::Domain {
        format!(
            "{mode:?} needs Threading::Domain (FI_THREAD_DOMAIN), and the info has {:?}; use \
             Hints::threading",
            domain.threading
        )
    } else if mode == ThreadMode::Pinned && is_automatic {
        "Pinned needs manual control and data progress: automatic progress uses a second thread"
            .into()
    } else {
        return Ok(());
    };
    let what = "thread model";
    Err(Error::Invalid { what, why })
}
