//! Registered buffers: buffers of the application that peers access by a key. The process of the
//! owner executes the accesses.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::{RegionMemory, execute_atomic_locked};
use crate::atomic::{AtomicOp, Datatype};
use crate::buf::AnyBuf;
use crate::error::{Error, Result};

/// A registered buffer. Peers can access the buffer while its owner does not hold it. A custom
/// buffer that becomes shorter than it was at its registration is closed to peers.
#[derive(Debug)]
pub struct RegisteredMemory {
    state: Mutex<RegisteredState>,
    /// Notified when an access has ended.
    access_ended: Condvar,
    len: usize,
}

#[derive(Debug)]
struct RegisteredState {
    /// `None` while the owner holds the buffer.
    buf: Option<AnyBuf>,
    /// The last known address of the bytes, for when the owner holds the buffer.
    address: u64,
    /// Accesses that have begun and not ended.
    accesses: usize,
    closed: bool,
}

impl RegisteredState {
    /// Closes the memory if its buffer is shorter than `len`, the length at its registration.
    /// Returns whether the memory is open.
    fn check_open(&mut self, len: usize) -> bool {
        if let Some(buf) = &mut self.buf {
            self.closed |= buf.first_bytes_mut(len).is_none();
        }
        !self.closed
    }
}

impl RegisteredMemory {
    /// Registers a buffer, all of whose bytes must be writable in place.
    ///
    /// # Errors
    /// [`Error::Invalid`], with the buffer, when the buffer has bytes that are not writable.
    pub fn new(mut buf: AnyBuf) -> Result<Self, (Error, AnyBuf)> {
        let len = buf.bytes().len();
        if buf.bytes_mut().len() != len {
            let why = "its bytes are not writable in place; use Vec<u8> or BytesMut".into();
            return Err((
                Error::Invalid {
                    what: "buffer to register",
                    why,
                },
                buf,
            ));
        }
        let state = RegisteredState {
            buf: Some(buf),
            address: 0,
            accesses: 0,
            closed: false,
        };
        Ok(Self {
            state: state.into(),
            access_ended: Condvar::new(),
            len,
        })
    }

    /// Takes the buffer for its owner, until it is [put back](Self::put_back); `None` when the
    /// owner holds it already. Waits for accesses that are in progress, which are short.
    pub fn take(&self) -> Option<AnyBuf> {
        let state = self.lock();
        let ended = self
            .access_ended
            .wait_while(state, |state| state.accesses > 0);
        ended.unwrap_or_else(PoisonError::into_inner).buf.take()
    }

    /// Puts the buffer back, for peers to access.
    pub fn put_back(&self, buf: AnyBuf) {
        self.lock().buf = Some(buf);
    }

    fn lock(&self) -> MutexGuard<'_, RegisteredState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `access` with all bytes, under the lock. Without the call, closes the memory and
    /// returns `None` if a custom buffer is shorter than at its registration or panics, or if the
    /// owner holds the buffer, which it does not between `begin_access` and `end_access`.
    fn with_bytes<T>(&self, access: impl FnOnce(&mut [u8]) -> T) -> Option<T> {
        let mut state = self.lock();
        let RegisteredState { buf, closed, .. } = &mut *state;
        let bytes = buf.as_mut().and_then(|buf| buf.first_bytes_mut(self.len));
        *closed |= bytes.is_none();
        bytes.map(access)
    }
}

impl RegionMemory for RegisteredMemory {
    fn len(&self) -> usize {
        self.len
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        if self
            .with_bytes(|bytes| out.copy_from_slice(&bytes[at..at + out.len()]))
            .is_none()
        {
            out.fill(0);
        }
    }

    fn write(&self, at: usize, from: &[u8]) {
        self.with_bytes(|bytes| bytes[at..at + from.len()].copy_from_slice(from));
    }

    fn execute_atomic(
        &self,
        at: usize,
        op: AtomicOp,
        datatype: Datatype,
        operand: u128,
        comparand: u128,
    ) -> u128 {
        self.with_bytes(|bytes| execute_atomic_locked(bytes, at, op, datatype, operand, comparand))
            .unwrap_or_default()
    }

    fn close(&self) {
        self.lock().closed = true;
    }

    fn is_open(&self) -> bool {
        self.lock().check_open(self.len)
    }

    fn address(&self) -> u64 {
        let state = &mut *self.lock();
        let bytes = state.buf.as_mut().map(|buf| buf.first_bytes_mut(self.len));
        if let Some(Some(bytes)) = bytes {
            state.address = bytes.as_ptr().addr() as u64;
        }
        state.address
    }

    fn is_served_by_owner(&self) -> bool {
        true
    }

    fn begin_access(&self) -> bool {
        let mut state = self.lock();
        let accessible = state.check_open(self.len) && state.buf.is_some();
        state.accesses += usize::from(accessible);
        accessible
    }

    fn end_access(&self) {
        self.lock().accesses -= 1;
        self.access_ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::{IoBuf, Loan};

    #[test]
    fn owner_and_peer_access_are_exclusive() {
        let memory = RegisteredMemory::new(vec![0; 16].into_any()).unwrap();
        assert!(memory.begin_access() && memory.begin_access());
        memory.write(8, &7u64.to_le_bytes());
        assert_eq!(
            memory.execute_atomic(8, AtomicOp::Sum, Datatype::U64, 5, 0),
            7
        );
        let mut value = [0; 8];
        memory.read(8, &mut value);
        assert_eq!(value, 12u64.to_le_bytes());
        let taken = std::thread::scope(|scope| {
            let owner = scope.spawn(|| memory.take());
            memory.end_access();
            memory.end_access();
            owner.join().unwrap()
        });
        assert!(
            !memory.begin_access() && memory.take().is_none(),
            "the owner holds the buffer"
        );
        let mut buf = Vec::from_any(taken.unwrap()).unwrap();
        buf[0] = 1;
        memory.put_back(buf.into_any());
        assert!(memory.begin_access());
        memory.end_access();
        memory.close();
        assert!(!memory.begin_access() && !memory.is_open());
        assert_eq!(memory.take().unwrap().bytes()[0], 1);
    }

    #[test]
    fn buffers_that_cannot_be_written_are_refused() {
        let refused = |buf: AnyBuf| RegisteredMemory::new(buf).unwrap_err();
        let (error, buf) = refused("text".into_any());
        assert!(matches!(error, Error::Invalid { .. }) && buf.bytes() == b"text");
        refused(Loan::from_heap(8).unwrap().into_any());
        assert!(RegisteredMemory::new(bytes::BytesMut::from(&b"abc"[..]).into_any()).is_ok());
        assert!(RegisteredMemory::new(vec![1; 3].into_boxed_slice().into_any()).is_ok());
    }
}
