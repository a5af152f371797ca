//! The windows of a connection: the peer's regions that were mapped here, by key.
//!
//! A region is mapped when it is accessed for the first time: the peer is asked, on the socket, and
//! answers with the memory. After that its help is not needed. A key that was taken back is noticed
//! with the next access, and asked for anew, since it may stand for something else by now.

use fabric_core::atomic::{AtomicOp, Datatype};
use fabric_core::buf::{AnyBuf, Payload, Source};
use fabric_core::completion::OpKind;
use fabric_core::flags::Access;
use fabric_core::mr::{Memory, Reached, check_access, check_range, execute, wanted};
use fabric_core::provider::{Remote, SendSpec};
use fabric_core::tree::Class;
use fabric_core::{Error, Result};

use super::area::Area;

use std::sync::{Arc, OnceLock};

/// A region of the peer's, as it is mapped here.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) key: u64,
    pub(crate) area: Arc<Area>,
    pub(crate) access: Access,
    /// What the peer calls its first byte.
    pub(crate) base: u64,
    /// The peer's endpoint wants to hear of everything that is done there.
    pub(crate) heeds: bool,
}

/// What became of the question for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// It was said, and is not answered yet.
    Said,
    /// There is nothing to be reached, for this reason.
    Denied(&'static str),
}

/// All windows of a connection, by key.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    /// In the order of their keys.
    open: Vec<Window>,
    /// Keys of regions that the peer serves, and whether it wants to hear of what is done there.
    served: Vec<(u64, bool)>,
    /// Which was used last.
    last: usize,
    /// Questions, by key: few at a time.
    asked: Vec<(u64, Asked)>,
    /// Why the connection has ended, once it has.
    ended: Arc<OnceLock<Error>>,
}

/// A window in the hands of the user: it outlives the connection, and knows when that has ended.
#[derive(Debug)]
struct Held {
    area: Arc<Area>,
    ended: Arc<OnceLock<Error>>,
}

impl Windows {
    /// The window of this key, if it is mapped and its owner still lends it.
    #[inline]
    pub(crate) fn get(&mut self, key: u64) -> Option<&Window> {
        if self
            .open
            .get(self.last)
            .is_none_or(|window| window.key != key || !window.area.is_lent())
        {
            return self.find(key);
        }
        self.open.get(self.last)
    }

    #[cold]
    fn find(&mut self, key: u64) -> Option<&Window> {
        self.last = self
            .open
            .binary_search_by_key(&key, |window| window.key)
            .ok()?;
        if !self.open[self.last].area.is_lent() {
            self.open.remove(self.last);
            return None;
        }
        self.open.get(self.last)
    }

    /// The window of this key, to be used without the connection.
    pub(crate) fn reach(&mut self, key: u64) -> Result<Option<Reached>> {
        if self.serves(key).is_some() {
            return Err(Reached::SERVED);
        }
        let ended = self.ended.clone();
        let Some(window) = self.get(key) else {
            return Ok(None);
        };
        if window.heeds {
            return Err(Reached::HEEDED);
        }
        let memory = Arc::new(Held {
            area: window.area.clone(),
            ended,
        });
        Ok(Some(Reached {
            memory,
            access: window.access,
        }))
    }

    /// Whether the peer serves the region of this key; and if, whether it wants to hear of what is
    /// done there.
    pub(crate) fn serves(&self, key: u64) -> Option<bool> {
        self.served
            .iter()
            .find(|(served, _)| *served == key)
            .map(|(_, heeds)| *heeds)
    }

    /// The peer has said that it serves the region of this key.
    pub(crate) fn served(&mut self, key: u64, heeds: bool) {
        self.asked.retain(|(asked, _)| *asked != key);
        self.served.push((key, heeds));
    }

    /// The peer knows nothing of this key any more.
    pub(crate) fn unserved(&mut self, key: u64) {
        self.served.retain(|(served, _)| *served != key);
    }

    /// Asks for a key, once: whether the question is to be said now. An error when the peer has
    /// answered that there is nothing.
    pub(crate) fn ask(&mut self, key: u64) -> Result<bool> {
        match self.asked.iter().position(|(asked, _)| *asked == key) {
            None => Ok(true),
            Some(at) => match self.asked[at].1 {
                Asked::Said => Ok(false),
                Asked::Denied(why) => {
                    self.asked.swap_remove(at);
                    Err(Error::Key { key, why })
                }
            },
        }
    }

    /// The question was said.
    pub(crate) fn said(&mut self, key: u64) {
        self.asked.push((key, Asked::Said));
    }

    /// Whether this key was asked for, and no answer has come: an operation on it cannot move.
    pub(crate) fn awaits(&self, key: u64) -> bool {
        self.asked.contains(&(key, Asked::Said))
    }

    /// Answers that there is nothing are for those who asked.
    pub(crate) fn forget_denials(&mut self, wanted: impl Fn(u64) -> bool) {
        self.asked
            .retain(|(key, asked)| *asked == Asked::Said || wanted(*key));
    }

    /// The peer's answer to the question, or why it is of no use; `wanted` when an operation waits
    /// for it.
    pub(crate) fn answered(
        &mut self,
        key: u64,
        window: Result<Window, &'static str>,
        wanted: bool,
    ) {
        self.asked.retain(|(asked, _)| *asked != key);
        // Regions that their owner has closed since.
        self.open.retain(|window| window.area.is_lent());
        match window {
            Ok(window) if window.area.is_lent() => {
                match self.open.binary_search_by_key(&key, |window| window.key) {
                    Ok(at) => self.open[at] = window,
                    Err(at) => self.open.insert(at, window),
                }
            }
            // Asking again would have the same answer, again and again.
            Ok(_) if wanted => self.asked.push((key, Asked::Denied("was withdrawn"))),
            Err(why) if wanted => self.asked.push((key, Asked::Denied(why))),
            _ => {}
        }
    }
}

impl Windows {
    /// The connection ends for this reason: windows in the hands of the user say it from now on.
    pub(crate) fn end(&self, why: &Error) {
        let why = match why {
            // By this side, and no operation was cancelled.
            Error::Canceled => Error::Closed(Class::Endpoint),
            why => why.clone(),
        };
        // The first reason stands.
        let _ = self.ended.set(why);
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        self.end(&Error::Closed(Class::Endpoint));
    }
}

impl Memory for Held {
    fn len(&self) -> usize {
        self.area.len()
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        self.area.read(at, out);
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        self.area.write(at, bytes);
    }

    fn execute(
        &self,
        at: usize,
        op: AtomicOp,
        datatype: Datatype,
        operand: u64,
        comparand: u64,
    ) -> u64 {
        self.area.execute(at, op, datatype, operand, comparand)
    }

    fn close(&self) {}

    fn is_open(&self) -> bool {
        self.area.is_lent() && self.ended.get().is_none()
    }

    fn unreachable(&self) -> Option<Error> {
        self.ended.get().cloned()
    }
}

impl Window {
    /// Checks an access; returns where it begins.
    #[inline]
    pub(crate) fn check(&self, kind: OpKind, remote: &Remote, len: usize) -> Result<usize> {
        let atomic = remote.atomic;
        check_access(
            self.key,
            self.access,
            wanted(kind, atomic.map(|atomic| atomic.op)),
        )?;
        let offset = remote.offset.wrapping_sub(self.base);
        check_range(
            self.area.len(),
            offset,
            len,
            atomic.map_or(1, |atomic| atomic.datatype.size()),
        )
    }

    /// Whether the peer is to be told of this access.
    pub(crate) fn tells(&self, spec: &SendSpec) -> bool {
        self.heeds || spec.data.is_some()
    }

    /// Copies into the region.
    pub(crate) fn write(&self, at: usize, payload: Payload<'_>) {
        payload.for_each(|position, piece| self.area.write(at + position, piece));
    }

    /// Copies out of the region into a buffer with the room for it.
    pub(crate) fn read(&self, at: usize, len: usize, into: &mut AnyBuf) {
        into.receive(&self.area.part(at, len))
            .unwrap_or_else(|_| unreachable!("the room was reserved when the read was posted"));
    }

    /// Part of the region.
    pub(crate) fn part(&self, at: usize, len: usize) -> impl Source {
        self.area.part(at, len)
    }

    /// Executes an atomic operation.
    pub(crate) fn execute(&self, at: usize, remote: &Remote, operands: &[u8], result: &mut [u8]) {
        execute(&*self.area, at, remote, operands, result);
    }
}
