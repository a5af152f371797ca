//! The error of a close that was refused.

use std::{fmt, io};

use fabric_core::Error;

/// A refused close, with the handle, which is still open and usable.
pub struct CloseError<H> {
    /// The reason: [`Error::Busy`] with the open children by class.
    pub error: Error,
    /// The handle, still open.
    pub handle: H,
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
