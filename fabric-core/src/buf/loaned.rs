//! Loans for the receiver: a message in memory of its sender.
//!
//! The sender could still write to the memory, so no reference to it is made but by
//! [`LoanedBuf::as_slice`], which is unsafe: bytes are copied out, or written to a descriptor by
//! the kernel. A transport that sends a [`LoanedBuf`] gets a [`Payload::Loaned`] and passes the
//! memory on, or copies it.

use std::any::Any;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use bytes::Bytes;

use super::{AnyBuf, CopySource, IoBuf, IoBufMut, LoanedPayload, Payload, PooledBuf};
use super::{payload::copy_in_chunks, sealed};
use crate::error::Result;
use crate::mr::LocalUse;

/// A received message. A loaned message is in its sender's memory, which is returned when the
/// `LoanedBuf` is dropped; any other message is in a [`PooledBuf`].
///
/// Another process may write to the memory of a loan, so safe code cannot borrow the memory:
/// [`read_at`](Self::read_at), [`to_vec`](Self::to_vec) and
/// [`for_each_chunk`](Self::for_each_chunk) copy bytes out, and [`write_to`](Self::write_to) has
/// the kernel copy them. A program that trusts its peers borrows the memory with
/// [`as_slice`](Self::as_slice).
///
/// A loan that is sent on over shared memory, in the domain that received it, stays a loan.
pub struct LoanedBuf(LoanedStorage);

/// The memory of the message. It must not enlarge `AnyBuf`, which is moved with every message.
enum LoanedStorage {
    /// A copy of the message in memory of the pool.
    Copied {
        buf: PooledBuf,
        /// Whether the next message may be taken in place.
        accepts_loan: bool,
    },
    /// The first `len` bytes of the sender's memory.
    InPlace {
        memory: Arc<dyn PeerMemory>,
        len: usize,
    },
}

/// Memory of a peer that stays valid until its last owner drops it. [`CopySource`] copies from it.
pub trait PeerMemory: CopySource + Send + Sync + Any {
    /// Returns the bytes; no bytes if they are not mapped here.
    ///
    /// # Safety
    /// The peer must not write to the memory while the result lives.
    #[allow(unsafe_code)] // only declares a contract
    unsafe fn bytes(&self) -> &[u8] {
        &[]
    }

    /// Writes `len` bytes from offset `from` on to a descriptor with one `write(2)`; the kernel
    /// copies them. Returns how many bytes were written.
    ///
    /// # Errors
    /// The error of the operating system; [`io::ErrorKind::Unsupported`] for memory that is not
    /// mapped here.
    ///
    /// # Panics
    /// When the range exceeds the memory.
    fn write_to(&self, fd: BorrowedFd<'_>, from: usize, len: usize) -> io::Result<usize> {
        let _ = (fd, from, len);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns whether the memory is mapped here: mapped memory stays valid and can be read in
    /// place. Other memory can only be copied, and disappears with its owner.
    fn is_mapped(&self) -> bool {
        true
    }

    /// Checks that all bytes copied so far are the message. Call it after each copy from memory
    /// that is not mapped, before the bytes are used.
    ///
    /// # Errors
    /// The reason why the message is lost.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

impl LoanedBuf {
    /// Creates a buffer that takes the next message in place, and later messages as copies.
    #[doc(hidden)]
    #[must_use]
    pub const fn empty() -> Self {
        Self(LoanedStorage::Copied {
            buf: PooledBuf::empty(),
            accepts_loan: true,
        })
    }

    /// Returns whether a message may be taken in place.
    #[doc(hidden)]
    #[must_use]
    pub fn accepts_loan(&self) -> bool {
        matches!(
            self.0,
            LoanedStorage::Copied {
                accepts_loan: true,
                ..
            }
        )
    }

    /// Returns whether the bytes are in the sender's memory.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        matches!(self.0, LoanedStorage::InPlace { .. })
    }

    /// Returns the length of the message in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            LoanedStorage::Copied { buf, .. } => buf.len(),
            LoanedStorage::InPlace { len, .. } => *len,
        }
    }

    /// Returns whether the message has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes from offset `offset` on into `out`. Returns the number of bytes copied, which
    /// is less than the length of `out` when the message ends before.
    #[allow(clippy::must_use_candidate)] // the length of the message may be known
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> usize {
        let offset = offset.min(self.len());
        let count = out.len().min(self.len() - offset);
        let out = &mut out[..count];
        match &self.0 {
            LoanedStorage::Copied { buf, .. } => out.copy_from_slice(&buf[offset..offset + count]),
            LoanedStorage::InPlace { memory, .. } => memory.copy_to_init(offset, out),
        }
        count
    }

    /// Copies the message into a vector.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        self.payload().to_vec()
    }

    /// Shortens the message to at most `len` bytes. A message in its sender's memory stays there.
    pub fn truncate(&mut self, len: usize) {
        match &mut self.0 {
            LoanedStorage::Copied { buf, .. } => buf.truncate(len),
            LoanedStorage::InPlace { len: current, .. } => *current = len.min(*current),
        }
    }

    /// Returns the bytes, unless they are in the sender's memory.
    #[must_use]
    pub fn as_copied(&self) -> Option<&[u8]> {
        match &self.0 {
            LoanedStorage::Copied { buf, .. } => Some(buf),
            LoanedStorage::InPlace { .. } => None,
        }
    }

    /// Converts the message to `Bytes`. Copies the bytes only if they are in the sender's memory.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        match self.0 {
            LoanedStorage::Copied { buf, .. } => buf.into_bytes(),
            LoanedStorage::InPlace { .. } => self.to_vec().into(),
        }
    }

    /// Calls `act` with the bytes of the message in order, in chunks of at most 4 KiB that were
    /// copied to the stack: for a checksum, a hash, a parser.
    pub fn for_each_chunk(&self, mut act: impl FnMut(&[u8])) {
        match &self.0 {
            LoanedStorage::Copied { buf, .. } => buf
                .chunks(super::payload::LOANED_CHUNK_LEN)
                .for_each(&mut act),
            LoanedStorage::InPlace { memory, len, .. } => {
                copy_in_chunks(&**memory, 0, *len, |_, chunk| act(chunk))
            }
        }
    }

    /// Writes bytes from offset `offset` on to a file, pipe or socket with one `write(2)`, which
    /// copies them in the kernel. Returns the number of bytes written, which may be fewer than the
    /// message has.
    ///
    /// The call blocks if the descriptor does. With the sockets of Tokio call it in `try_io`.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn write_to(&self, fd: impl AsFd, offset: usize) -> io::Result<usize> {
        let offset = offset.min(self.len());
        let count = self.len() - offset;
        match &self.0 {
            LoanedStorage::Copied { buf, .. } => {
                let file = std::fs::File::from(fd.as_fd().try_clone_to_owned()?);
                io::Write::write(&mut &file, &buf[offset..])
            }
            LoanedStorage::InPlace { memory, .. } => memory.write_to(fd.as_fd(), offset, count),
        }
    }

    /// Borrows the message where it is.
    ///
    /// # Safety
    /// No process may write to the memory while the result lives. Of a message [in the sender's
    /// memory](Self::is_in_place) only the sender could, and if the message was passed on, the
    /// process that has allocated the memory. Endpoints of this crate do not; but a process of the
    /// same user can write to its own memory at any time.
    #[must_use]
    #[allow(unsafe_code)] // has the safety contract of its caller
    pub unsafe fn as_slice(&self) -> &[u8] {
        match &self.0 {
            LoanedStorage::Copied { buf, .. } => buf,
            // SAFETY: this function has the same contract.
            LoanedStorage::InPlace { memory, len, .. } => unsafe { &memory.bytes()[..*len] },
        }
    }

    /// Takes a whole message in place, if its memory is loaned. Returns true at most once.
    pub(super) fn take_in_place(&mut self, source: &dyn CopySource) -> bool {
        let LoanedStorage::Copied { accepts_loan, .. } = &mut self.0 else {
            return false;
        };
        if !std::mem::take(accepts_loan) {
            return false;
        }
        let Some(memory) = source.peer_memory().filter(|memory| memory.is_mapped()) else {
            return false;
        };
        self.0 = LoanedStorage::InPlace {
            memory,
            len: source.len(),
        };
        true
    }

    /// Returns the pooled buffer for a message that is not loaned; a loan is returned first.
    #[doc(hidden)]
    pub fn pooled_mut(&mut self) -> &mut PooledBuf {
        if let LoanedStorage::InPlace { .. } = &self.0 {
            self.0 = LoanedStorage::Copied {
                buf: PooledBuf::empty(),
                accepts_loan: false,
            };
        }
        match &mut self.0 {
            LoanedStorage::Copied { buf, .. } => buf,
            LoanedStorage::InPlace { .. } => unreachable!("the loan was returned above"),
        }
    }
}

impl sealed::Sealed for LoanedBuf {}

impl IoBufMut for LoanedBuf {}

impl IoBuf for LoanedBuf {
    fn payload(&self) -> Payload<'_> {
        match &self.0 {
            LoanedStorage::Copied { buf, .. } => Payload::Contiguous(buf),
            LoanedStorage::InPlace { memory, len, .. } => {
                Payload::Loaned(LoanedPayload::new(memory, *len))
            }
        }
    }

    fn is_registered(&self, _: &LocalUse<'_>) -> bool {
        true
    }

    fn into_any(self) -> AnyBuf {
        AnyBuf::Loaned(self)
    }

    fn from_any(any: AnyBuf) -> Result<Self, AnyBuf> {
        if let AnyBuf::Loaned(buf) = any {
            Ok(buf)
        } else {
            Err(any)
        }
    }

    fn copy_from_peer(&mut self) -> Result<()> {
        let LoanedStorage::InPlace { memory, len } = &self.0 else {
            return Ok(());
        };
        let mut buf = PooledBuf::empty();
        buf.begin_fill(*len)?;
        copy_in_chunks(&**memory, 0, *len, |_, chunk| buf.extend_from_slice(chunk));
        self.0 = LoanedStorage::Copied {
            buf,
            accepts_loan: false,
        };
        Ok(())
    }
}

impl fmt::Debug for LoanedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let location = if self.is_in_place() {
            "in the sender's memory"
        } else {
            "copied"
        };
        write!(f, "LoanedBuf({} bytes, {location})", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copied_messages_are_shortened_and_converted() {
        let mut buf = LoanedBuf::empty();
        buf.pooled_mut().extend_from_slice(b"hello, fabric");
        buf.truncate(100);
        assert_eq!(buf.as_copied(), Some(&b"hello, fabric"[..]));
        buf.truncate(5);
        assert_eq!((buf.len(), buf.as_copied()), (5, Some(&b"hello"[..])));
        assert_eq!(buf.into_bytes(), "hello");
    }
}
