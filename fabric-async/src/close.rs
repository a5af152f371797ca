//! Closing objects, and keeping the objects that another object uses from being closed.
//!
//! Every handle with a `close` uses [`close_object`]. A bind call holds a [`DependencyGuard`] from
//! [`dependency_on`]: while the guard lives, closing the bound object fails with [`Error::Busy`].

use std::sync::Arc;
use std::{fmt, io};

use fabric_core::tree::{Class, DependencyGuard, ObjectNode};
use fabric_core::{Error, Result};

/// A refused close (`fi_close`), with the handle. Every object is closed in [the same
/// way](crate::guide::errors#closing).
pub struct CloseError<H> {
    /// The reason: [`Error::Busy`], with the number of objects by class that use the object, which
    /// stays open and unchanged; or [`Error::Closed`] when the object was closed through another
    /// handle.
    pub error: Error,
    /// The handle whose `close` was refused.
    pub handle: H,
}

/// Closes the object of a handle, for all handles of the object. Returns the handle.
pub(crate) fn close_object<H>(
    handle: H,
    node: impl FnOnce(&H) -> &ObjectNode,
) -> Result<H, CloseError<H>> {
    match node(&handle).close() {
        Ok(()) => Ok(handle),
        Err(error) => Err(CloseError { error, handle }),
    }
}

/// Keeps an object open while an object of class `by` uses it.
///
/// # Errors
/// [`Error::WrongParent`] when `parent`, a domain or a fabric, is not the parent of the object;
/// [`Error::Closed`].
pub(crate) fn dependency_on(
    node: &Arc<ObjectNode>,
    parent: &Arc<ObjectNode>,
    by: Class,
) -> Result<DependencyGuard> {
    if !is_child_of(node, parent) {
        return Err(Error::WrongParent {
            object: node.class(),
            parent: parent.class(),
        });
    }
    DependencyGuard::new(node, by)
}

/// Returns whether the parent of an object is `parent`.
pub(crate) fn is_child_of(node: &ObjectNode, parent: &Arc<ObjectNode>) -> bool {
    node.parent().is_some_and(|of| Arc::ptr_eq(of, parent))
}

impl<H> CloseError<H> {
    /// Converts the handle.
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
