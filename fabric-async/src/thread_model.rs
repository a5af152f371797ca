//! Thread models: from which threads the application uses handles, as a type parameter of handles.

mod sealed {
    pub trait Sealed {}
}

/// The promise of the application from which threads it uses the objects of a domain (`enum
/// fi_threading`): a type parameter of handles.
///
/// [`Shared`] is the only thread model: every handle is `Send + Sync` and can be used from any
/// thread.
#[doc(alias = "fi_threading")]
pub trait ThreadModel: sealed::Sealed + Clone + Send + Sync + Unpin + 'static {}

/// `FI_THREAD_SAFE`: any thread may use any handle at any time.
#[derive(Clone, Copy, Debug)]
pub enum Shared {}

impl sealed::Sealed for Shared {}
impl ThreadModel for Shared {}
