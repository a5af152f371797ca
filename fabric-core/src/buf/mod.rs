//! Owned buffers that are moved into an operation and returned by its completion.
//!
//! While an operation is posted, its buffer is in the operation's slot as an [`AnyBuf`], never in
//! the future: a dropped or forgotten future cannot free memory that a transport still uses. The
//! usual buffer types are variants of an enum, so that posting one allocates nothing.

mod any;
mod array;
mod device;
mod loan;
mod loaned;
mod payload;
mod pool;
mod source;
mod vectored;

pub(crate) use any::append;
pub use any::{AnyBuf, CustomBuf};
pub use array::InlineBuf;
pub use device::{DeviceBuffer, DeviceCopy, DeviceMemory, MemoryInterface};
pub use loan::{Loan, LoanMemory};
pub use loaned::{LoanedBuf, PeerMemory};
pub use payload::{LoanedPayload, Payload, VectoredPayload};
pub use pool::PooledBuf;
pub(crate) use pool::buffer_size;
pub use source::CopySource;
pub use vectored::{Gather, Scatter};

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::mr::{LocalUse, registration_of};

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// A buffer whose bytes can be sent: `Vec<u8>`, `Box<[u8]>`, `Arc<[u8]>`, `[u8; N]`, `Bytes`,
/// `BytesMut`, `&'static [u8]`, `&'static str`, `String`, [`PooledBuf`], [`Loan`], [`LoanedBuf`],
/// a [`DeviceBuffer`], or the user's own type with [`CustomBuf`]; or a vector of buffers:
/// [`Gather`].
///
/// An array of up to 31 bytes is stored in the operation itself, a longer one is moved to the heap
/// when its operation has to wait.
///
/// Sealed, because its methods run while a domain is locked.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the buffer of an operation",
    note = "an operation owns its buffer until it completes: pass a `Vec<u8>`, `Bytes`, \
            `String` or the like, or call `inject()` for borrowed bytes"
)]
pub trait IoBuf: sealed::Sealed + Send + Unpin + Sized + 'static {
    /// Whether a send gives the memory to the peer.
    #[doc(hidden)]
    const IS_LOAN: bool = false;
    /// Whether the bytes are staged: in memory of this process only while an operation needs them.
    #[doc(hidden)]
    const IS_STAGED: bool = false;
    /// Stages the bytes before a post, without a lock. `is_source` says whether the operation takes
    /// its bytes from the buffer.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory); those of the copy from the device.
    #[doc(hidden)]
    fn stage(&mut self, _is_source: bool) -> crate::Result<()> {
        Ok(())
    }
    /// Ends the staging after an operation that moved `len` bytes, without a lock: received bytes
    /// go to the device.
    ///
    /// # Errors
    /// Those of the copy to the device.
    #[doc(hidden)]
    fn unstage(&mut self, _len: usize) -> crate::Result<()> {
        Ok(())
    }
    /// Returns the key of memory that a send gives to the peer without a copy.
    #[doc(hidden)]
    #[inline]
    fn loan_key(&self) -> Option<u64> {
        None
    }
    /// Drops memory that a send has given to the peer.
    #[doc(hidden)]
    fn drop_loan(&mut self) {}
    /// Returns the bytes to send.
    fn payload(&self) -> Payload<'_>;
    /// Returns the number of buffers.
    #[doc(hidden)]
    fn count(&self) -> usize {
        1
    }
    /// Returns whether the memory is registered for this use (`FI_MR_LOCAL`). Memory of this
    /// library needs no registration, nor does a buffer without memory.
    #[doc(hidden)]
    fn is_registered(&self, _: &LocalUse<'_>) -> bool {
        false
    }
    /// Converts the buffer into the form that operations own.
    fn into_any(self) -> AnyBuf;
    /// Copies the bytes of a received loan to memory of this process, for a transport that has no
    /// loans.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    #[doc(hidden)]
    fn copy_from_peer(&mut self) -> crate::Result<()> {
        Ok(())
    }
    /// Converts the buffer back from an operation.
    ///
    /// # Errors
    /// The buffer itself when it is of another type.
    fn from_any(any: AnyBuf) -> Result<Self, AnyBuf>;
}

/// Converts a buffer back to the type with which its operation was posted.
///
/// # Panics
/// If the buffer was of another type.
#[doc(hidden)]
#[inline(always)] // on the small-message path
#[must_use]
pub fn restore_buffer<B: IoBuf>(buf: AnyBuf) -> B {
    B::from_any(buf).unwrap_or_else(|_| unreachable!("the buffer was of this type"))
}

/// A buffer with contiguous bytes that can be borrowed: any but a [`Gather`], a [`Scatter`] or a
/// [`LoanedBuf`].
pub trait FlatBuf: IoBuf {
    /// Returns the bytes to send, or the bytes received.
    fn bytes(&self) -> &[u8];
}

/// A buffer that can be received into.
///
/// The capacity of a `Vec<u8>` or `BytesMut` limits the message, and its length becomes that of the
/// message. The length of a `Box<[u8]>` or `[u8; N]` limits the message, and does not change. A
/// [`PooledBuf`] grows to the message. A [`Scatter`] is several buffers.
///
/// A `String` cannot be received into, because a peer may send bytes that are not UTF-8: receive
/// into a vector and check it with [`String::from_utf8`]. The bytes of an `Arc<[u8]>` are shared.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be received into",
    note = "an operation owns its buffer until it completes: pass a `Vec<u8>`, `Box<[u8]>` \
            or `BytesMut`, or use `recv()`"
)]
pub trait IoBufMut: IoBuf {}

/// A buffer whose bytes can become a memory region: one with contiguous bytes, or a [`Scatter`] of
/// several, the segments of the region (`fi_mr_regv`).
///
/// The region has the bytes of the buffers, not the spare capacity of vectors.
#[doc(alias = "fi_mr_regv")]
pub trait RegionBuf: IoBufMut {
    /// Returns the bytes of the region.
    #[doc(hidden)]
    fn region_bytes(&self) -> Payload<'_>;
}

impl<B: IoBufMut + FlatBuf> RegionBuf for B {
    fn region_bytes(&self) -> Payload<'_> {
        Payload::Contiguous(self.bytes())
    }
}

macro_rules! impl_flat_buf {
    ($(
        $type:ty => $variant:ident, |$buf:ident| $bytes:expr
        $(, registered: |$usage:ident| $registered:expr)?;
    )*) => {$(
        impl sealed::Sealed for $type {}
        impl IoBuf for $type {
            #[inline]
            fn payload(&self) -> Payload<'_> {
                Payload::Contiguous(FlatBuf::bytes(self))
            }
            $(fn is_registered(&self, $usage: &LocalUse<'_>) -> bool {
                let $buf = self;
                $registered
            })?
            fn into_any(self) -> AnyBuf {
                AnyBuf::$variant(self)
            }
            fn from_any(any: AnyBuf) -> Result<Self, AnyBuf> {
                if let AnyBuf::$variant(buf) = any { Ok(buf) } else { Err(any) }
            }
        }
        impl FlatBuf for $type {
            fn bytes(&self) -> &[u8] {
                let $buf = self;
                $bytes
            }
        }
    )*};
}

impl_flat_buf! {
    Vec<u8> => Vec, |buf| buf, registered: |_usage| buf.capacity() == 0;
    Box<[u8]> => Boxed, |buf| buf, registered: |_usage| buf.is_empty();
    Arc<[u8]> => Shared, |buf| buf;
    Bytes => Bytes, |buf| buf;
    BytesMut => BytesMut, |buf| buf;
    &'static [u8] => Static, |buf| buf;
    &'static str => Str, |buf| buf.as_bytes();
    String => String, |buf| buf.as_bytes();
    PooledBuf => Pooled, |_buf| _buf, registered: |_usage| true;
}

impl sealed::Sealed for Box<dyn CustomBuf> {}
impl IoBuf for Box<dyn CustomBuf> {
    #[inline]
    fn payload(&self) -> Payload<'_> {
        Payload::Contiguous(FlatBuf::bytes(self))
    }
    fn is_registered(&self, usage: &LocalUse<'_>) -> bool {
        registration_of(&**self).is_some_and(|of| of.allows(usage))
    }
    fn into_any(self) -> AnyBuf {
        AnyBuf::Custom(self)
    }
    fn from_any(any: AnyBuf) -> Result<Self, AnyBuf> {
        match any {
            AnyBuf::Custom(buf) => Ok(buf),
            other => Err(other),
        }
    }
}
impl FlatBuf for Box<dyn CustomBuf> {
    fn bytes(&self) -> &[u8] {
        CustomBuf::bytes(&**self)
    }
}

impl IoBufMut for Vec<u8> {}
impl IoBufMut for Box<[u8]> {}
impl IoBufMut for BytesMut {}
impl IoBufMut for PooledBuf {}
impl IoBufMut for Box<dyn CustomBuf> {}

impl sealed::Sealed for Loan {}
impl FlatBuf for Loan {
    fn bytes(&self) -> &[u8] {
        self
    }
}
impl IoBuf for Loan {
    const IS_LOAN: bool = true;

    fn loan_key(&self) -> Option<u64> {
        self.key()
    }
    fn drop_loan(&mut self) {
        *self = Self::empty();
    }
    fn is_registered(&self, _: &LocalUse<'_>) -> bool {
        true
    }
    fn payload(&self) -> Payload<'_> {
        Payload::Contiguous(self)
    }
    fn into_any(self) -> AnyBuf {
        AnyBuf::Loan(self)
    }
    fn from_any(any: AnyBuf) -> Result<Self, AnyBuf> {
        match any {
            AnyBuf::Loan(buf) => Ok(buf),
            other => Err(other),
        }
    }
}

impl<const N: usize> sealed::Sealed for &'static [u8; N] {}
impl<const N: usize> FlatBuf for &'static [u8; N] {
    fn bytes(&self) -> &[u8] {
        *self
    }
}
impl<const N: usize> IoBuf for &'static [u8; N] {
    fn payload(&self) -> Payload<'_> {
        Payload::Contiguous(*self)
    }
    fn into_any(self) -> AnyBuf {
        AnyBuf::Static(self)
    }
    fn from_any(any: AnyBuf) -> Result<Self, AnyBuf> {
        match any {
            AnyBuf::Static(bytes) => bytes.try_into().map_err(|_| AnyBuf::Static(bytes)),
            other => Err(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use super::*;

    /// Memory that can be copied from but not borrowed.
    struct CopyOnly(Vec<u8>);

    impl CopySource for CopyOnly {
        fn len(&self) -> usize {
            self.0.len()
        }
        fn copy_to<'d>(&self, from: usize, dst: &'d mut [MaybeUninit<u8>]) -> &'d mut [u8] {
            (&self.0[..]).copy_to(from, dst)
        }
        fn copy_to_init(&self, from: usize, dst: &mut [u8]) {
            (&self.0[..]).copy_to_init(from, dst);
        }
        fn peer_memory(&self) -> Option<Arc<dyn PeerMemory>> {
            Some(Arc::new(Self(self.0.clone())))
        }
    }

    impl PeerMemory for CopyOnly {
        #[allow(unsafe_code)] // not called
        unsafe fn bytes(&self) -> &[u8] {
            unreachable!("the memory of a peer was borrowed")
        }
    }

    #[test]
    fn loaned_bytes_are_copied_without_a_borrow() {
        let bytes: Vec<u8> = (0..10_000).map(|at| at as u8).collect();
        let mut any = LoanedBuf::empty().into_any();
        assert_eq!(any.receive(&CopyOnly(bytes.clone())).unwrap(), 10_000);
        any.finish(9_999);
        let payload = any.payload();
        assert!(payload.peer_memory().is_some() && payload.as_contiguous().is_none());
        assert!(payload.slice(1, 3).peer_memory().is_none());
        assert_eq!(
            (payload.len(), payload.to_vec()),
            (9_999, bytes[..9_999].to_vec())
        );
        assert_eq!(
            payload.slice(4090, 5000).slice(1, 4000).to_vec(),
            bytes[4091..8091]
        );

        let mut buf = LoanedBuf::from_any(any).unwrap();
        for in_place in [true, false] {
            assert_eq!((buf.is_in_place(), buf.len()), (in_place, 9_999));
            let mut out = [0; 100];
            assert_eq!(buf.read_at(4000, &mut out), 100);
            assert_eq!(out, bytes[4000..4100]);
            assert_eq!(buf.read_at(9_990, &mut out), 9);
            assert_eq!(out[..9], bytes[9_990..9_999]);
            assert_eq!(buf.read_at(usize::MAX, &mut out), 0);
            let mut chunks = Vec::new();
            buf.for_each_chunk(|chunk| chunks.push(chunk.to_vec()));
            assert!(chunks.iter().all(|chunk| chunk.len() <= 4096));
            assert_eq!(
                (chunks.concat(), buf.to_vec()),
                (bytes[..9_999].to_vec(), chunks.concat())
            );
            buf.copy_from_peer().unwrap();
        }
    }

    fn round_trip<B: FlatBuf + PartialEq + std::fmt::Debug + Clone>(buf: B) {
        let any = buf.clone().into_any();
        assert_eq!(any.bytes(), buf.bytes());
        assert_eq!(B::from_any(any).ok(), Some(buf));
    }

    #[test]
    fn every_buffer_type_round_trips() {
        round_trip(vec![1u8, 2]);
        round_trip(vec![1u8].into_boxed_slice());
        round_trip(Arc::<[u8]>::from(&b"ab"[..]));
        round_trip([0u8; 0]);
        round_trip([7u8; 3]);
        round_trip([7u8; InlineBuf::CAPACITY]);
        round_trip([7u8; InlineBuf::CAPACITY + 1]);
        round_trip([7u8; 5000]);
        round_trip(Bytes::from_static(b"ab"));
        round_trip(BytesMut::from(&b"ab"[..]));
        round_trip(b"abc".as_slice());
        round_trip(b"abc");
        round_trip("abc");
        round_trip(String::from("abc"));
        assert!(String::from_any(AnyBuf::Vec(vec![1])).is_err());
        assert!(<&[u8; 2]>::from_any(AnyBuf::Static(b"abc")).is_err());
        assert!(<[u8; 2]>::from_any([1u8; 3].into_any()).is_err());
        assert!(<[u8; 50]>::from_any([1u8; 51].into_any()).is_err());
        assert!(<[u8; 3]>::from_any(AnyBuf::Vec(vec![1; 3])).is_err());
    }

    #[test]
    fn receiving_sets_length_within_capacity() {
        let source: &[u8] = b"hello";
        let mut any = Vec::with_capacity(8).into_any();
        assert!(any.recv_capacity() >= 8);
        any.write_at(0, &source, 0, 5);
        any.write_at(5, &source, 1, 3);
        any.finish(8);
        assert_eq!(Vec::from_any(any).unwrap(), b"helloell");

        let mut any = vec![9u8; 4].into_boxed_slice().into_any();
        assert_eq!(any.recv_capacity(), 4);
        any.write_at(0, &source, 0, 3);
        any.finish(3);
        assert_eq!(any.bytes(), [b'h', b'e', b'l', 9]);

        for mut any in [[9u8; 4].into_any(), [9u8; 400].into_any()] {
            let len = any.bytes().len();
            assert_eq!((any.recv_capacity(), any.bytes_mut().len()), (len, len));
            any.write_at(0, &source, 0, 2);
            any.write_at(2, &source, 2, 1);
            any.finish(3);
            assert_eq!(any.bytes()[..4], [b'h', b'e', b'l', 9]);
            assert_eq!(any.bytes().len(), len, "an array keeps its length");
        }

        let mut any = vec![7u8; 4].into_any();
        any.finish(0);
        assert_eq!(any.bytes(), b"", "an empty message leaves an empty vector");
    }

    #[test]
    fn write_at_beyond_the_filled_bytes_panics() {
        let source: &[u8] = b"abcd";
        for any in [
            Vec::with_capacity(64).into_any(),
            BytesMut::with_capacity(64).into_any(),
        ] {
            let mut any = any;
            let placed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                any.write_at(32, &source, 0, 4)
            }));
            assert!(placed.is_err());
        }
    }

    #[test]
    fn pooled_buffers_grow_and_are_reused() {
        let mut any = PooledBuf::empty().into_any();
        any.begin_fill(3000).unwrap();
        for at in 0..3000 {
            any.write_at(at, &b"x".as_slice(), 0, 1);
        }
        any.finish(3000);
        let buf = PooledBuf::from_any(any).unwrap();
        let at = buf.as_ptr();
        assert_eq!(buf.len(), 3000);
        drop(buf);
        let again = PooledBuf::with_capacity(3000);
        assert_eq!(
            (again.len(), again.as_ptr()),
            (0, at),
            "the memory is reused"
        );
        let bytes = again.into_bytes();
        assert!(bytes.is_empty());
    }
}
