//! Closing objects.

use std::{fmt, io};

use fabric_core::Error;
use fabric_core::tree::ObjectNode;

/// A refused close (`fi_close`), with the handle. Every object is closed in [the same
/// way](crate::guide::errors#closing).
pub struct CloseError<H> {
    /// The reason: [`Error::Busy`], with the objects that use this one by class, which leaves the
    /// object open and unchanged; or [`Error::Closed`] when it was closed through another handle.
    pub error: Error,
    /// The handle.
    pub handle: H,
}

/// Closes the object of a handle, for all its handles.
pub(crate) fn close_object<H>(
    handle: H,
    node: impl FnOnce(&H) -> &ObjectNode,
) -> Result<H, CloseError<H>> {
    match node(&handle).close() {
        Ok(()) => Ok(handle),
        Err(error) => Err(CloseError { error, handle }),
    }
}

impl<H> CloseError<H> {
    /// Turns the handle into another one of the same object.
    pub(crate) fn map_handle<T>(self, convert: impl FnOnce(H) -> T) -> CloseError<T> {
        CloseError {
            error: self.error,
            handle: convert(self.handle),
        }
    }
}

impl<H> fmt::Debug for CloseError<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CloseError")
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl<H> fmt::Display for CloseError<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<H> std::error::Error for CloseError<H> {}

impl<H> From<CloseError<H>> for Error {
    fn from(refused: CloseError<H>) -> Self {
        refused.error
    }
}

/// Converts the error, and drops the handle.
impl<H> From<CloseError<H>> for io::Error {
    fn from(refused: CloseError<H>) -> Self {
        refused.error.into()
    }
}
