//! Owned buffers that are moved into an operation and returned by its completion.
//!
//! While an operation is posted, its buffer is in the operation's slot as an [`AnyBuf`], never in
//! the future: a dropped or forgotten future cannot free memory that a transport still uses. The
//! usual buffer types are variants of an enum, so that posting one allocates nothing.

mod any;
mod loan;
mod payload;
mod pool;
mod source;
mod vectored;

pub(crate) use any::append;
pub use any::{AnyBuf, CustomBuf};
pub use loan::{Loan, LoanMemory, LoanedBuf, PeerMemory};
pub use payload::{Payload, VectoredPayload};
pub use pool::{BufferPool, PooledBuf};
pub use source::CopySource;
pub use vectored::{Gather, Scatter};

use bytes::{Bytes, BytesMut};

mod sealed {
    pub trait Sealed {}
}

/// A buffer whose bytes can be sent: `Vec<u8>`, `Box<[u8]>`, `Bytes`, `BytesMut`, `&'static [u8]`,
/// `&'static str`, `String`, [`PooledBuf`], [`Loan`], [`LoanedBuf`], or the user's own type with
/// [`CustomBuf`]; or a vector of buffers: [`Gather`].
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
    const IS_LENT: bool = false;
    /// Returns the key of memory that a send gives to the peer without a copy.
    #[doc(hidden)]
    #[inline]
    fn lent_key(&self) -> Option<u64> {
        None
    }
    /// Drops memory that a send has given to the peer.
    #[doc(hidden)]
    fn take_lent(&mut self) {}
    /// Returns the bytes to send.
    fn payload(&self) -> Payload<'_>;
    /// Returns the number of buffers.
    #[doc(hidden)]
    fn count(&self) -> usize {
        1
    }
    /// Converts the buffer into the form that operations own.
    fn into_any(self) -> AnyBuf;
    /// Converts the buffer back from an operation.
    ///
    /// # Errors
    /// The buffer itself when it is of another type.
    fn from_any(any: AnyBuf) -> Result<Self, AnyBuf>;
}

/// A buffer with contiguous bytes: any but a [`Gather`] or [`Scatter`].
pub trait FlatBuf: IoBuf {
    /// Returns the bytes to send, or the bytes received.
    fn bytes(&self) -> &[u8];
}

/// A buffer that can be received into.
///
/// The capacity of a `Vec<u8>` or `BytesMut` limits the message, and its length becomes that of the
/// message. The length of a `Box<[u8]>` limits the message, and does not change. A [`PooledBuf`]
/// grows to the message. A [`Scatter`] is several buffers.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be received into",
    note = "an operation owns its buffer until it completes: pass a `Vec<u8>`, `Box<[u8]>` \
            or `BytesMut`, or use `recv()`"
)]
pub trait IoBufMut: IoBuf {}

macro_rules! impl_flat_buf {
    ($($type:ty => $variant:ident, |$buf:ident| $bytes:expr;)*) => {$(
        impl sealed::Sealed for $type {}
        impl IoBuf for $type {
            #[inline]
            fn payload(&self) -> Payload<'_> {
                Payload::Contiguous(FlatBuf::bytes(self))
            }
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
    Vec<u8> => Vec, |buf| buf;
    Box<[u8]> => Boxed, |buf| buf;
    Bytes => Bytes, |buf| buf;
    BytesMut => BytesMut, |buf| buf;
    &'static [u8] => Static, |buf| buf;
    &'static str => Str, |buf| buf.as_bytes();
    String => String, |buf| buf.as_bytes();
    PooledBuf => Pooled, |buf| buf;
    LoanedBuf => Loaned, |buf| buf;
    Box<dyn CustomBuf> => Custom, |buf| CustomBuf::bytes(&**buf);
}

impl IoBufMut for Vec<u8> {}
impl IoBufMut for Box<[u8]> {}
impl IoBufMut for BytesMut {}
impl IoBufMut for PooledBuf {}
impl IoBufMut for LoanedBuf {}
impl IoBufMut for Box<dyn CustomBuf> {}

impl sealed::Sealed for Loan {}
impl FlatBuf for Loan {
    fn bytes(&self) -> &[u8] {
        self
    }
}
impl IoBuf for Loan {
    const IS_LENT: bool = true;

    fn lent_key(&self) -> Option<u64> {
        self.key()
    }
    fn take_lent(&mut self) {
        *self = Self::empty();
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
    use super::*;

    fn round_trip<B: FlatBuf + PartialEq + std::fmt::Debug + Clone>(buf: B) {
        let any = buf.clone().into_any();
        assert_eq!(any.bytes(), buf.bytes());
        assert_eq!(B::from_any(any).ok(), Some(buf));
    }

    #[test]
    fn every_buffer_type_round_trips() {
        round_trip(vec![1u8, 2]);
        round_trip(vec![1u8].into_boxed_slice());
        round_trip(Bytes::from_static(b"ab"));
        round_trip(BytesMut::from(&b"ab"[..]));
        round_trip(b"abc".as_slice());
        round_trip(b"abc");
        round_trip("abc");
        round_trip(String::from("abc"));
        assert!(String::from_any(AnyBuf::Vec(vec![1])).is_err());
        assert!(<&[u8; 2]>::from_any(AnyBuf::Static(b"abc")).is_err());
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

        let mut any = vec![7u8; 4].into_any();
        any.finish(0);
        assert_eq!(any.bytes(), b"", "an empty message leaves an empty vector");
    }

    #[test]
    fn write_behind_a_gap_panics() {
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
    fn pooled_buffers_grow_and_return_to_the_pool() {
        let pool = BufferPool::new();
        let mut any = PooledBuf::empty(&pool).into_any();
        any.begin_fill(3000).unwrap();
        for at in 0..3000 {
            any.write_at(at, &b"x".as_slice(), 0, 1);
        }
        any.finish(3000);
        let buf = PooledBuf::from_any(any).unwrap();
        let at = buf.as_ptr();
        assert_eq!(buf.len(), 3000);
        drop(buf);
        let again = pool.take(3000);
        assert_eq!(
            (again.len(), again.as_ptr()),
            (0, at),
            "the memory is reused"
        );
        let bytes = again.into_bytes();
        assert!(bytes.is_empty());
    }
}
