//! [`AnyBuf`]: one type for every buffer that an operation can own.
//!
//! Decision: buffers are an enum, not a trait object. `AnyBuf` holds the usual types without
//! allocation and other types boxed. Transports reach the bytes of queued operations through the
//! engine, under the lock. A vector of buffers is a buffer too: `Gather` and `Scatter` are two more
//! variants, which a ring or a mapped region reads piece by piece.
#![allow(unsafe_code)] // sets the length of a filled vector; the contract of `CustomBuf`

use std::any::Any;
use std::fmt;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::{
    CopySource, DeviceBuffer, Gather, InlineBuf, IoBuf, Loan, LoanedBuf, Payload, PooledBuf,
    Scatter,
};
use crate::error::Result;
use crate::mr::{LocalRegistration, LocalUse};

/// A buffer type of the user: pinned, from an arena, on a device.
///
/// # Safety
/// The addresses of the bytes behind `bytes` and `writable` must stay the same while the value is
/// moved, until it is dropped or a method with `&mut self` is called.
///
/// The number of bytes must not change either while an operation or a registration owns the
/// buffer. A registered buffer that is shorter than at its registration is closed to peers: their
/// accesses fail with [`Error::Key`](crate::Error::Key).
///
/// The methods run while a domain is locked: they must not call into the fabric, and should not
/// block or panic. A buffer whose `writable` or `set_filled` panics receives no bytes: the receive
/// fails with [`Error::Truncated`](crate::Error::Truncated).
pub unsafe trait CustomBuf: Send + Sync + Any {
    /// Returns the bytes to send, or the bytes received so far.
    fn bytes(&self) -> &[u8];
    /// Returns the memory to receive into; `None` when the buffer can only be sent.
    fn writable(&mut self) -> Option<&mut [u8]>;
    /// Records that a message of `len` bytes is at the start of the writable memory.
    fn set_filled(&mut self, len: usize);
}

/// The buffer of an operation, of any type that implements [`IoBuf`](super::IoBuf).
#[derive(Default)]
#[non_exhaustive]
pub enum AnyBuf {
    /// No buffer.
    #[default]
    None,
    /// `Vec<u8>`.
    Vec(Vec<u8>),
    /// `Box<[u8]>`, or an array that is too long to be stored inline.
    Boxed(Box<[u8]>),
    /// An array of up to [`InlineBuf::CAPACITY`] bytes.
    Inline(InlineBuf),
    /// `Arc<[u8]>`; can be sent only.
    Shared(Arc<[u8]>),
    /// `bytes::Bytes`; can be sent only.
    Bytes(Bytes),
    /// `bytes::BytesMut`.
    BytesMut(BytesMut),
    /// Static bytes; can be sent only.
    Static(&'static [u8]),
    /// Static text; can be sent only.
    Str(&'static str),
    /// `String`; can be sent only.
    String(String),
    /// A buffer that the process keeps for reuse.
    Pooled(PooledBuf),
    /// Memory for a loan; can be sent only.
    Loan(Loan),
    /// A received loan: a message in its sender's memory.
    Loaned(LoanedBuf),
    /// Several buffers, to send as one message.
    Gather(Gather),
    /// Several buffers, to receive one message into.
    Scatter(Scatter),
    /// Memory of a device.
    Device(DeviceBuffer),
    /// A buffer of the user's own type.
    Custom(Box<dyn CustomBuf>),
}

impl AnyBuf {
    /// Returns the bytes to send, or the bytes received; none for a vector of buffers, whose bytes
    /// are not contiguous, and for a message in its sender's memory, which may change.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::None | Self::Gather(_) | Self::Scatter(_) => &[],
            Self::Vec(buf) => buf,
            Self::Boxed(buf) => buf,
            Self::Inline(buf) => buf.as_slice(),
            Self::Shared(buf) => buf,
            Self::Bytes(buf) => buf,
            Self::BytesMut(buf) => buf,
            Self::Static(buf) => buf,
            Self::Str(buf) => buf.as_bytes(),
            Self::String(buf) => buf.as_bytes(),
            Self::Pooled(buf) => buf,
            Self::Loan(buf) => buf,
            Self::Loaned(buf) => buf.as_copied().unwrap_or_default(),
            Self::Device(buf) => buf.bytes(),
            Self::Custom(buf) => buf.bytes(),
        }
    }

    /// Returns the bytes to send, or the bytes received, contiguous or not.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> Payload<'_> {
        match self {
            Self::Gather(parts) => parts.payload(),
            Self::Scatter(parts) => parts.payload(),
            Self::Loaned(buf) => buf.payload(),
            buf => Payload::Contiguous(buf.bytes()),
        }
    }

    /// Returns whether the memory is registered for this use ([`IoBuf::is_registered`]).
    pub(crate) fn is_registered(&self, usage: &LocalUse<'_>) -> bool {
        match self {
            Self::None => true,
            Self::Vec(buf) => buf.is_registered(usage),
            Self::Boxed(buf) => buf.is_registered(usage),
            Self::Pooled(buf) => buf.is_registered(usage),
            Self::Loan(buf) => buf.is_registered(usage),
            Self::Loaned(buf) => buf.is_registered(usage),
            Self::Gather(parts) => parts.is_registered(usage),
            Self::Scatter(parts) => parts.is_registered(usage),
            Self::Custom(buf) => buf.is_registered(usage),
            _ => false,
        }
    }

    /// Returns the bytes for writing in place; none for a buffer that can only be sent.
    #[doc(hidden)]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Vec(buf) => buf,
            Self::Boxed(buf) => buf,
            Self::Inline(buf) => buf.as_mut_slice(),
            Self::BytesMut(buf) => buf,
            Self::Pooled(buf) => buf.vec_mut(),
            Self::Device(buf) => buf.bytes_mut(),
            Self::Custom(buf) => {
                let len = buf.bytes().len();
                buf.writable()
                    .and_then(|writable| writable.get_mut(..len))
                    .unwrap_or_default()
            }
            _ => &mut [],
        }
    }

    /// Returns the first `len` bytes for writing in place; `None` if the buffer has fewer, which
    /// only a custom buffer changes after its post, or if a method of a custom buffer panics.
    #[doc(hidden)]
    pub fn first_bytes_mut(&mut self, len: usize) -> Option<&mut [u8]> {
        match self {
            Self::Custom(buf) => {
                catch_user_panic(|| buf.writable()).and_then(|bytes| bytes.get_mut(..len))
            }
            buf => buf.bytes_mut().get_mut(..len),
        }
    }

    /// Returns the segments of a memory region with these bytes: the buffers of a [`Scatter`], or
    /// the buffer itself.
    #[doc(hidden)]
    #[must_use]
    pub fn segments(&self) -> &[Self] {
        match self {
            Self::Scatter(parts) => parts.parts(),
            buf => std::slice::from_ref(buf),
        }
    }

    /// As [`segments`](Self::segments), for writing in place.
    #[doc(hidden)]
    pub fn segments_mut(&mut self) -> &mut [Self] {
        match self {
            Self::Scatter(parts) => parts.parts_mut(),
            buf => std::slice::from_mut(buf),
        }
    }

    /// Ends the use of the buffer as a memory region: its owner sees all bytes.
    #[doc(hidden)]
    #[must_use]
    pub fn into_filled(mut self) -> Self {
        if let Self::Scatter(parts) = &mut self {
            parts.fill();
        }
        self
    }

    /// Returns how many bytes can be received; `usize::MAX` when the buffer grows to the message, 0
    /// when it cannot receive.
    #[doc(hidden)]
    #[inline]
    pub fn recv_capacity(&mut self) -> usize {
        let Self::Vec(buf) = self else {
            return self.recv_capacity_slow();
        };
        buf.capacity()
    }

    fn recv_capacity_slow(&mut self) -> usize {
        match self {
            Self::Vec(buf) => buf.capacity(),
            Self::Boxed(buf) => buf.len(),
            Self::Inline(buf) => buf.as_slice().len(),
            Self::BytesMut(buf) => buf.capacity(),
            Self::Pooled(_) | Self::Loaned(_) => usize::MAX,
            Self::Scatter(parts) => parts.recv_capacity(),
            Self::Device(buf) => buf.bytes().len(),
            Self::Custom(buf) => {
                catch_user_panic(|| buf.writable()).map_or(0, |memory| memory.len())
            }
            _ => 0,
        }
    }

    /// Prepares for a message of `len` bytes: a growing buffer reserves memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    #[doc(hidden)]
    pub fn begin_fill(&mut self, len: usize) -> Result<()> {
        match self {
            Self::Pooled(buf) => buf.begin_fill(len),
            Self::Loaned(buf) => buf.pooled_mut().begin_fill(len),
            Self::Scatter(parts) => parts.begin_fill(len),
            _ => Ok(()),
        }
    }

    /// Copies `count` bytes of `source`, from offset `from` on, to offset `at` of the buffer. Bytes
    /// are written in order: `at` is the sum of the counts written before.
    ///
    /// # Panics
    /// When the bytes exceed the buffer or the source.
    #[doc(hidden)]
    pub fn write_at(&mut self, at: usize, source: &dyn CopySource, from: usize, count: usize) {
        match self {
            Self::Vec(buf) => append(buf, at, source, from, count),
            Self::Pooled(buf) => buf.write_at(at, source, from, count),
            Self::Loaned(buf) => buf.pooled_mut().write_at(at, source, from, count),
            Self::BytesMut(buf) => {
                buf.truncate(at);
                assert_eq!(buf.len(), at, "bytes are written in order");
                let spare = &mut buf.spare_capacity_mut()[..count];
                fill(source, from, spare);
                // SAFETY: `fill` initialized the `count` bytes behind the current length `at`.
                unsafe { buf.set_len(at + count) };
            }
            Self::Boxed(buf) => source.copy_to_init(from, &mut buf[at..at + count]),
            Self::Inline(buf) => source.copy_to_init(from, &mut buf.as_mut_slice()[at..at + count]),
            Self::Scatter(parts) => parts.write_at(at, source, from, count),
            Self::Device(buf) => source.copy_to_init(from, &mut buf.bytes_mut()[at..at + count]),
            Self::Custom(buf) => {
                let memory = catch_user_panic(|| buf.writable());
                if let Some(memory) = memory.and_then(|memory| memory.get_mut(at..at + count)) {
                    source.copy_to_init(from, memory);
                }
            }
            _ => assert_eq!(count, 0, "a buffer without capacity receives no bytes"),
        }
    }

    /// Receives a whole message, or as much of it as fits; returns the number of bytes.
    ///
    /// # Errors
    /// As [`AnyBuf::begin_fill`].
    #[doc(hidden)]
    #[inline]
    pub fn receive(&mut self, source: &impl CopySource) -> Result<usize> {
        let Self::Vec(buf) = self else {
            return self.receive_slow(source);
        };
        let count = source.len().min(buf.capacity());
        append(buf, 0, source, 0, count);
        Ok(count)
    }

    /// Receives a whole message, if it fits and memory is available; returns whether it was
    /// received.
    #[doc(hidden)]
    #[inline(always)] // on the small-message path
    pub fn receive_whole(&mut self, source: &impl CopySource) -> bool {
        let len = source.len();
        // One test after the other: a `match` finds out first which of all variants this is.
        if let Self::Vec(buf) = self
            && len <= buf.capacity()
        {
            append(buf, 0, source, 0, len);
            return true;
        }
        if let Self::Boxed(buf) = self
            && len <= buf.len()
        {
            source.copy_to_init(0, &mut buf[..len]);
            return true;
        }
        matches!(self.receive_slow(source), Ok(count) if count == len)
    }

    fn receive_slow(&mut self, source: &dyn CopySource) -> Result<usize> {
        let len = source.len();
        let pooled = match self {
            Self::Pooled(buf) => Some(buf),
            Self::Loaned(buf) => {
                if buf.take_in_place(source) {
                    return Ok(len);
                }
                Some(buf.pooled_mut())
            }
            _ => None,
        };
        if let Some(buf) = pooled {
            buf.begin_fill(len)?;
            append(buf.vec_mut(), 0, source, 0, len);
            return Ok(len);
        }
        self.begin_fill(len)?;
        let count = self.recv_capacity().min(len);
        self.write_at(0, source, 0, count);
        self.finish(count);
        Ok(count)
    }

    /// Completes the message: `len` bytes are at the start of the buffer.
    #[doc(hidden)]
    pub fn finish(&mut self, len: usize) {
        match self {
            Self::Vec(buf) => buf.truncate(len),
            Self::BytesMut(buf) => buf.truncate(len),
            Self::Pooled(buf) => buf.vec_mut().truncate(len),
            Self::Loaned(buf) => buf.truncate(len),
            Self::Scatter(parts) => parts.finish(len),
            Self::Custom(buf) => {
                catch_user_panic(|| {
                    buf.set_filled(len);
                    None::<()>
                });
            }
            _ => {}
        }
    }

    /// Empties the buffer after an incomplete message, keeping its capacity. Memory that was taken
    /// from a pool for the message is returned, for the caller to drop.
    #[doc(hidden)]
    #[must_use]
    pub fn clear(&mut self) -> Option<PooledBuf> {
        let pooled = match self {
            Self::Pooled(buf) => buf,
            Self::Loaned(buf) => buf.pooled_mut(),
            _ => {
                self.finish(0);
                return None;
            }
        };
        Some(std::mem::take(pooled))
    }
}

// SAFETY: the bytes are those of a buffer of this crate, which keeps their addresses while it is in
// the registration's box, or of a custom buffer, with the same contract.
unsafe impl CustomBuf for LocalRegistration {
    fn bytes(&self) -> &[u8] {
        Self::bytes(self)
    }

    fn writable(&mut self) -> Option<&mut [u8]> {
        Some(self.registered_bytes())
    }

    fn set_filled(&mut self, len: usize) {
        Self::set_filled(self, len);
    }
}

impl fmt::Debug for AnyBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::None => "None",
            Self::Vec(_) => "Vec",
            Self::Boxed(_) => "Boxed",
            Self::Inline(_) => "Inline",
            Self::Shared(_) => "Shared",
            Self::Bytes(_) => "Bytes",
            Self::BytesMut(_) => "BytesMut",
            Self::Static(_) => "Static",
            Self::Str(_) => "Str",
            Self::String(_) => "String",
            Self::Pooled(_) => "Pooled",
            Self::Loan(_) => "Loan",
            Self::Loaned(_) => "LoanedBuf",
            Self::Gather(_) => "Gather",
            Self::Scatter(_) => "Scatter",
            Self::Device(_) => "Device",
            Self::Custom(_) => "Custom",
        };
        write!(f, "{kind}({} bytes)", self.payload().len())
    }
}

/// Calls code of the user, such as a method of a buffer type; `None` if it panics. A panic must not
/// unwind through the engine, whose state is being changed. The payload of the panic is leaked,
/// because its drop is user code that may panic too.
#[cold]
pub(super) fn catch_user_panic<T>(method: impl FnOnce() -> Option<T>) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(method)) {
        Ok(returned) => returned,
        Err(payload) => {
            std::mem::forget(payload);
            None
        }
    }
}

/// Copies `count` bytes of `source`, from offset `from` on, behind the first `at` bytes of `buf`.
///
/// # Panics
/// When `buf` has fewer than `at` bytes or no capacity for `count` more.
#[inline]
pub(crate) fn append(
    buf: &mut Vec<u8>,
    at: usize,
    source: &(impl CopySource + ?Sized),
    from: usize,
    count: usize,
) {
    buf.truncate(at);
    assert_eq!(buf.len(), at, "bytes are written in order");
    fill(source, from, &mut buf.spare_capacity_mut()[..count]);
    // SAFETY: `fill` initialized the `count` bytes behind the current length `at`.
    unsafe { buf.set_len(at + count) };
}

/// Fills `spare` and checks that the source filled exactly that slice.
#[inline]
fn fill(source: &(impl CopySource + ?Sized), from: usize, spare: &mut [MaybeUninit<u8>]) {
    let (start, count) = (spare.as_ptr().cast::<u8>(), spare.len());
    let filled = source.copy_to(from, spare);
    assert!(
        std::ptr::eq(filled.as_ptr(), start) && filled.len() == count,
        "the source filled another slice"
    );
}
