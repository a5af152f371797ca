//! The message of a send: owned bytes, followed by borrowed bytes or a buffer.
#![allow(unsafe_code)] // a zeroed `msghdr`, and pointers for the kernel

use std::ptr;

use fabric_core::buf::{AnyBuf, Payload};
use fabric_core::transport::OpKey;

/// The maximum number of parts of one send.
pub(crate) const MAX_IOVECS: usize = 16;
/// The maximum length of one send, in bytes. A completion expresses the length in 31 bits.
pub(crate) const MAX_SEND_LEN: usize = 1 << 30;

/// A `msghdr` with everything it points to, which does not move until the send has ended.
pub(super) struct SendMsg {
    header: libc::msghdr,
    iovecs: [libc::iovec; MAX_IOVECS],
    owned: Box<[u8]>,
    /// The buffer whose bytes follow the owned ones, and its operation.
    buffer: Option<(OpKey, AnyBuf)>,
}

// SAFETY: the pointers are to memory that belongs to no thread, and buffers are `Send`.
unsafe impl Send for SendMsg {}

const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<AnyBuf>();
};

impl std::fmt::Debug for SendMsg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "SendMsg({} bytes and {:?})",
            self.owned.len(),
            self.buffer
        )
    }
}

impl SendMsg {
    /// Creates a message of owned bytes followed by borrowed bytes, up to the limits of one send.
    pub(super) fn new(owned: Box<[u8]>, borrowed: &[&[u8]]) -> Box<Self> {
        Self::without_iovecs(owned, None)
            .with_iovecs(|add| borrowed.iter().for_each(|part| add(part)))
    }

    /// Creates a message of owned bytes followed by the bytes of a buffer, up to the limits of one
    /// send.
    pub(super) fn with_buffer(owned: Box<[u8]>, op: OpKey, buf: AnyBuf) -> Box<Self> {
        let message = Self::without_iovecs(owned, Some((op, buf)));
        let buf: *const Option<(OpKey, AnyBuf)> = &raw const message.buffer;
        // SAFETY: the message is boxed and does not move. While `payload` is used, only the header
        // and the iovecs are written.
        let payload = unsafe { &*buf }
            .as_ref()
            .map_or(Payload::Contiguous(&[]), |(_, buf)| buf.payload());
        message.with_iovecs(|add| payload.for_each_borrowed(add))
    }

    /// Returns a message whose header and iovecs are empty.
    fn without_iovecs(owned: Box<[u8]>, buffer: Option<(OpKey, AnyBuf)>) -> Box<Self> {
        let empty = libc::iovec {
            iov_base: ptr::null_mut(),
            iov_len: 0,
        };
        // SAFETY: no name, no control data, no flags: all fields may be zero.
        let header = unsafe { std::mem::zeroed() };
        Box::new(Self {
            header,
            iovecs: [empty; MAX_IOVECS],
            owned,
            buffer,
        })
    }

    /// Fills the iovecs with the owned bytes, and with the parts that `add_rest` adds.
    fn with_iovecs(mut self: Box<Self>, add_rest: impl FnOnce(&mut dyn FnMut(&[u8]))) -> Box<Self> {
        let (mut count, mut room) = (0, MAX_SEND_LEN);
        let owned: *const [u8] = &raw const *self.owned;
        let parts = &mut self.iovecs;
        let mut add = |bytes: &[u8]| {
            if count == MAX_IOVECS || room == 0 || bytes.is_empty() {
                return;
            }
            let len = bytes.len().min(room);
            parts[count] = libc::iovec {
                iov_base: bytes.as_ptr().cast_mut().cast(),
                iov_len: len,
            };
            (count, room) = (count + 1, room - len);
        };
        // SAFETY: the bytes are boxed and do not move.
        add(unsafe { &*owned });
        add_rest(&mut add);
        self.header.msg_iov = self.iovecs.as_mut_ptr();
        self.header.msg_iovlen = count as _;
        self
    }

    /// Returns the `msghdr` for the kernel.
    pub(super) fn header(&self) -> *const libc::msghdr {
        &raw const self.header
    }

    /// Returns the owned bytes.
    pub(super) fn owned(&self) -> &[u8] {
        &self.owned
    }

    /// Returns whether this is the message of a zero-copy send.
    pub(super) fn has_buffer(&self) -> bool {
        self.buffer.is_some()
    }

    /// Returns the owned bytes, and the buffer if the message has one.
    pub(super) fn into_parts(self) -> (Box<[u8]>, Option<(OpKey, AnyBuf)>) {
        (self.owned, self.buffer)
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn len(&self) -> usize {
        self.iovecs.iter().map(|part| part.iov_len).sum()
    }
}
