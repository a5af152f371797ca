//! Thread models: how the application promises to use handles, as a type parameter of every handle.

mod sealed {
    pub trait Sealed {}
}

/// A promise of how threads use the objects of a domain (`enum fi_threading`). Every handle has one
/// as a marker type.
///
/// [`Shared`] is the only thread model: every handle is `Send + Sync` and can be used from any
/// thread.
#[doc(alias = "fi_threading")]
pub trait ThreadModel: sealed::Sealed + Send + Sync + Unpin + 'static {}

/// `FI_THREAD_SAFE`: any thread may use any handle at any time.
#[derive(Clone, Copy, Debug)]
pub enum Shared {}

impl sealed::Sealed for Shared {}
impl ThreadModel for Shared {}
