//! Thread models: from which threads the application uses handles, as a type parameter of handles.
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

/// The promise of the application from which threads it uses the objects of a domain (`enum
/// fi_threading`): a type parameter of handles, requests and operations.
///
/// | model | level of the info | handles |
/// |---|---|---|
/// | [`Shared`], the default | any | `Send` and `Sync` |
/// | [`Pinned`] | [`Threading::Domain`] | neither |
#[doc(alias = "fi_threading")]
pub trait ThreadModel: sealed::Sealed + Clone + Unpin + 'static {}

/// `FI_THREAD_SAFE`: any thread may use any handle at any time.
///
/// The model serves every [`Threading`] level, as its promise is the weakest.
#[derive(Clone, Copy, Debug)]
pub enum Shared {}

/// One thread opens the domain and uses its objects. Handles, requests and operations are not
/// `Send`, so that a use by another thread does not compile.
///
/// No call locks, and no call makes atomic read-modify-writes for exclusion. Such a domain has
/// [`Threading::Domain`] and manual progress, and its driver is a task of the same thread. Open it
/// with [`DomainBuilder::thread_model`](crate::DomainBuilder::thread_model), or with
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
/// [`Error::Invalid`] for `Pinned` with another level than [`Threading::Domain`], or with automatic
/// progress.
pub(crate) fn check_info(mode: ThreadMode, info: &Info) -> Result<()> {
    if mode == ThreadMode::Shared {
        return Ok(());
    }
    let domain = &info.domain;
    let why = if domain.threading != Threading::Domain {
        format!(
            "Pinned needs Threading::Domain (FI_THREAD_DOMAIN), and the info has {:?}",
            domain.threading
        )
    } else if [domain.control_progress, domain.data_progress].contains(&Progress::Auto) {
        "Pinned needs manual control and data progress: a thread of the domain's own would be a \
         second one"
            .into()
    } else {
        return Ok(());
    };
    let what = "thread model";
    Err(Error::Invalid { what, why })
}
