//! Memory of this process that peers reach only through its transport.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{RegionBytes, RegionMemory, assert_aligned};
use crate::atomic::{AtomicOp, Datatype, bits_at};
use crate::error::{Error, Result, fi_errno};

/// The largest number of bytes copied under the lock at a time, so that an access does not block
/// other accesses for long.
const COPY_CHUNK: usize = 256 << 10;

/// Memory of this process alone: peers reach it through a transport inside this process.
#[derive(Debug)]
pub struct LocalMemory {
    bytes: Mutex<Vec<u8>>,
    len: usize,
    closed: AtomicBool,
}

impl LocalMemory {
    /// Allocates memory of this many bytes, zeroed.
    ///
    /// # Errors
    /// [`Error::Os`] when the allocation fails.
    pub fn new(len: usize) -> Result<Self> {
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(len)
            .map_err(|_| Error::os("malloc", fi_errno::ENOMEM))?;
        bytes.resize(len, 0);
        Ok(Self {
            bytes: bytes.into(),
            len,
            closed: AtomicBool::new(false),
        })
    }

    /// Calls `access` with all bytes, under the lock.
    fn with_bytes<T>(&self, access: impl FnOnce(&mut [u8]) -> T) -> T {
        access(&mut self.bytes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl RegionBytes for LocalMemory {
    fn len(&self) -> usize {
        self.len
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        for (index, chunk) in out.chunks_mut(COPY_CHUNK).enumerate() {
            let at = at + index * COPY_CHUNK;
            self.with_bytes(|bytes| chunk.copy_from_slice(&bytes[at..at + chunk.len()]));
        }
    }

    fn write(&self, at: usize, from: &[u8]) {
        for (index, chunk) in from.chunks(COPY_CHUNK).enumerate() {
            let at = at + index * COPY_CHUNK;
            self.with_bytes(|bytes| bytes[at..at + chunk.len()].copy_from_slice(chunk));
        }
    }

    fn execute_atomic(
        &self,
        at: usize,
        op: AtomicOp,
        datatype: Datatype,
        operand: u128,
        comparand: u128,
    ) -> u128 {
        let size = datatype.size();
        assert_aligned(at, size);
        self.with_bytes(|bytes| {
            let bytes = &mut bytes[at..at + size];
            let old = bits_at(bytes, 0, size);
            let new = op.compute(datatype, old, operand, comparand);
            bytes.copy_from_slice(&new.to_le_bytes()[..size]);
            old
        })
    }

    fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
    }
}

impl RegionMemory for LocalMemory {
    fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    fn address(&self) -> u64 {
        self.with_bytes(|bytes| bytes.as_ptr().addr() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::super::PeerAccess;
    use super::*;

    #[test]
    fn no_access_begins_to_closed_memory() {
        let memory = LocalMemory::new(8).unwrap();
        PeerAccess::begin(&memory).unwrap().write(0, b"open");
        assert!(PeerAccess::is_possible(&memory));
        memory.close();
        assert!(!memory.begin_access() && PeerAccess::begin(&memory).is_none());
        assert!(
            PeerAccess::is_possible(&memory),
            "to fail, it need not wait"
        );
    }
}
