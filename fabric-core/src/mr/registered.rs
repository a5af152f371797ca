//! A buffer under a key: it stays where it is, and peers reach it by way of its owner's process.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::Memory;
use crate::atomic::{AtomicOp, Datatype, bits_at};
use crate::buf::AnyBuf;
use crate::error::{Error, Result};

/// A buffer that peers reach as long as its owner has not got it in hand.
#[derive(Debug)]
pub struct Registered {
    state: Mutex<State>,
    /// An access has ended.
    ended: Condvar,
    len: usize,
}

#[derive(Debug)]
struct State {
    /// Nothing while the owner has it.
    buf: Option<AnyBuf>,
    /// Accesses that have begun and not ended.
    under_way: usize,
    closed: bool,
}

impl Registered {
    /// The bytes of this buffer, which must all be writable where they lie.
    ///
    /// # Errors
    /// [`Error::Invalid`], with the buffer, when they are not.
    pub fn new(mut buf: AnyBuf) -> Result<Self, (Error, AnyBuf)> {
        let len = buf.bytes().len();
        if buf.bytes_mut().len() != len {
            let why = "its bytes cannot be written where they lie".into();
            return Err((
                Error::Invalid {
                    what: "buffer to register",
                    why,
                },
                buf,
            ));
        }
        let state = State {
            buf: Some(buf),
            under_way: 0,
            closed: false,
        };
        Ok(Self {
            state: state.into(),
            ended: Condvar::new(),
            len,
        })
    }

    /// The buffer, in the hands of its owner until it is [put back](Self::put); nothing when it is
    /// there already. Waits for accesses that are under way, which are short.
    pub fn take(&self) -> Option<AnyBuf> {
        let state = self.state();
        let ended = self.ended.wait_while(state, |state| state.under_way > 0);
        ended.unwrap_or_else(PoisonError::into_inner).buf.take()
    }

    /// Gives the buffer back to its peers.
    pub fn put(&self, buf: AnyBuf) {
        self.state().buf = Some(buf);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn access<T>(&self, access: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut state = self.state();
        let buf = state
            .buf
            .as_mut()
            .expect("an access begins before it reaches for the bytes");
        access(buf.bytes_mut())
    }
}

impl Memory for Registered {
    fn len(&self) -> usize {
        self.len
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        self.access(|bytes| out.copy_from_slice(&bytes[at..at + out.len()]));
    }

    fn write(&self, at: usize, from: &[u8]) {
        self.access(|bytes| bytes[at..at + from.len()].copy_from_slice(from));
    }

    fn execute(
        &self,
        at: usize,
        op: AtomicOp,
        datatype: Datatype,
        operand: u64,
        comparand: u64,
    ) -> u64 {
        let size = datatype.size();
        assert!(
            at.is_multiple_of(size),
            "a value lies at a multiple of its size"
        );
        self.access(|bytes| {
            let value = bits_at(&bytes[at..at + size], 0, size);
            let new = op.compute(datatype, value, operand, comparand);
            bytes[at..at + size].copy_from_slice(&new.to_le_bytes()[..size]);
            value
        })
    }

    fn close(&self) {
        self.state().closed = true;
    }

    fn is_open(&self) -> bool {
        !self.state().closed
    }

    fn address(&self) -> u64 {
        self.access(|bytes| bytes.as_ptr().addr() as u64)
    }

    fn is_served(&self) -> bool {
        true
    }

    fn begin(&self) -> bool {
        let mut state = self.state();
        let is_there = state.buf.is_some() && !state.closed;
        state.under_way += usize::from(is_there);
        is_there
    }

    fn end(&self) {
        self.state().under_way -= 1;
        self.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::{IoBuf, Loan};

    #[test]
    fn owner_and_peers_take_turns() {
        let memory = Registered::new(vec![0; 16].into_any()).unwrap();
        assert!(memory.begin() && memory.begin());
        memory.write(8, &7u64.to_le_bytes());
        assert_eq!(memory.execute(8, AtomicOp::Sum, Datatype::U64, 5, 0), 7);
        let mut value = [0; 8];
        memory.read(8, &mut value);
        assert_eq!(value, 12u64.to_le_bytes());
        let taken = std::thread::scope(|scope| {
            let owner = scope.spawn(|| memory.take());
            memory.end();
            memory.end();
            owner.join().unwrap()
        });
        assert!(
            !memory.begin() && memory.take().is_none(),
            "it is in the owner's hands"
        );
        let mut buf = Vec::from_any(taken.unwrap()).unwrap();
        buf[0] = 1;
        memory.put(buf.into_any());
        assert!(memory.begin());
        memory.end();
        memory.close();
        assert!(!memory.begin() && !memory.is_open());
        assert_eq!(memory.take().unwrap().bytes()[0], 1);
    }

    #[test]
    fn what_cannot_be_written_is_refused() {
        let refused = |buf: AnyBuf| Registered::new(buf).unwrap_err();
        let (error, buf) = refused("text".into_any());
        assert!(matches!(error, Error::Invalid { .. }) && buf.bytes() == b"text");
        refused(Loan::copied(8).unwrap().into_any());
        assert!(Registered::new(bytes::BytesMut::from(&b"abc"[..]).into_any()).is_ok());
        assert!(Registered::new(vec![1; 3].into_boxed_slice().into_any()).is_ok());
    }
}
