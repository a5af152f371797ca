//! The windows of a connection: the peer's regions that were mapped here, by key.
//!
//! A region is mapped when it is accessed for the first time: the peer is asked, on the socket, and answers with the
//! memory. After that its help is not needed. A key that was taken back is noticed with the next access, and asked for
//! anew, since it may stand for something else by now.

use fabric_core::buf::{AnyBuf, Source};
use fabric_core::completion::OpKind;
use fabric_core::flags::Access;
use fabric_core::mr::{check_access, check_range, execute, wanted};
use fabric_core::provider::{Remote, SendSpec};
use fabric_core::{Error, Result};

use super::area::Area;

/// A region of the peer's, as it is mapped here.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) key: u64,
    pub(crate) area: Area,
    pub(crate) access: Access,
    /// The peer's endpoint wants to hear of everything that is done there.
    pub(crate) heeds: bool,
}

/// What became of the question for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// It could not be said yet.
    Unsaid(u64),
    Said(u64),
    /// There is nothing to be reached, for this reason.
    Denied(u64, &'static str),
}

/// All windows of a connection, by key.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    /// In the order of their keys.
    open: Vec<Window>,
    /// Which was used last.
    last: usize,
    asked: Option<Asked>,
}

impl Windows {
    /// The window of this key, if it is mapped and its owner still lends it.
    #[inline]
    pub(crate) fn get(&mut self, key: u64) -> Option<&Window> {
        if self.open.get(self.last).is_none_or(|window| window.key != key) {
            self.last = self.open.binary_search_by_key(&key, |window| window.key).ok()?;
        }
        if !self.open[self.last].area.is_lent() {
            self.open.remove(self.last);
            return None;
        }
        self.open.get(self.last)
    }

    /// Asks for a key, once: returns what is to be said now. An error when the peer has answered that there is none.
    pub(crate) fn ask(&mut self, key: u64) -> Result<Option<u64>> {
        match self.asked {
            Some(Asked::Denied(denied, why)) if denied == key => {
                self.asked = None;
                Err(Error::Key { key, why })
            }
            Some(Asked::Said(said)) if said == key => Ok(None),
            _ => {
                self.asked = Some(Asked::Unsaid(key));
                Ok(Some(key))
            }
        }
    }

    /// The question was said.
    pub(crate) fn said(&mut self, key: u64) {
        self.asked = Some(Asked::Said(key));
    }

    /// Whether an answer is awaited: nothing moves before it comes.
    pub(crate) fn awaits(&self) -> bool {
        matches!(self.asked, Some(Asked::Said(_)))
    }

    /// Whether this key was asked for.
    pub(crate) fn awaits_key(&self, key: u64) -> bool {
        self.asked == Some(Asked::Said(key))
    }

    /// The peer's answer to the question, or why it is of no use.
    pub(crate) fn answered(&mut self, key: u64, window: Result<Window, &'static str>) {
        match window {
            Ok(window) => {
                self.asked = None;
                match self.open.binary_search_by_key(&key, |window| window.key) {
                    Ok(at) => self.open[at] = window,
                    Err(at) => self.open.insert(at, window),
                }
            }
            Err(why) => self.asked = Some(Asked::Denied(key, why)),
        }
    }
}

impl Window {
    /// Checks an access; returns where it begins.
    #[inline]
    pub(crate) fn check(&self, kind: OpKind, remote: &Remote, len: usize) -> Result<usize> {
        let atomic = remote.atomic;
        check_access(self.key, self.access, wanted(kind, atomic.map(|atomic| atomic.op)))?;
        check_range(self.area.len(), remote.offset, len, atomic.map_or(1, |atomic| atomic.datatype.size()))
    }

    /// Whether the peer is to be told of this access.
    pub(crate) fn tells(&self, spec: &SendSpec) -> bool {
        self.heeds || spec.data.is_some()
    }

    /// Copies out of the region into a buffer with the room for it.
    pub(crate) fn read(&self, at: usize, len: usize, into: &mut AnyBuf) {
        into.receive(&self.area.part(at, len));
    }

    /// Part of the region.
    pub(crate) fn part(&self, at: usize, len: usize) -> impl Source {
        self.area.part(at, len)
    }

    /// Executes an atomic operation.
    pub(crate) fn execute(&self, at: usize, remote: &Remote, operands: &[u8], result: &mut [u8]) {
        execute(&self.area, at, remote, operands, result);
    }
}
