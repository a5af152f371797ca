//! Thread models: the promise of the application that every handle carries in its type.

mod sealed {
    pub trait Sealed {}
}

/// How the objects of a domain are used by threads (`enum fi_threading`). Every handle carries one
/// as a marker.
///
/// [`Shared`] is the only one yet: every handle is `Send + Sync` and can be used from anywhere.
#[doc(alias = "fi_threading")]
pub trait ThreadModel: sealed::Sealed + Send + Sync + 'static {}

/// `FI_THREAD_SAFE`: any handle, from any thread, at any time.
#[derive(Clone, Copy, Debug)]
pub enum Shared {}

impl sealed::Sealed for Shared {}
impl ThreadModel for Shared {}
