//! What a send is made of: bytes of its own, and behind them bytes that lie elsewhere.
#![allow(unsafe_code)] // a header for the kernel, all of whose fields may be zero

use std::ptr;

use fabric_core::buf::{AnyBuf, Payload};
use fabric_core::transport::OpKey;

/// Parts of one send.
pub(crate) const MAX_IOVECS: usize = 16;
/// The longest send. A completion tells its length in 31 bits.
pub(crate) const MAX_SEND_LEN: usize = 1 << 30;

/// A header with everything it points to, which does not move until the send has ended.
pub(super) struct SendMsg {
    header: libc::msghdr,
    iovecs: [libc::iovec; MAX_IOVECS],
    owned: Box<[u8]>,
    /// Whose bytes come behind its own, where they were given away as well.
    buffer: Option<(OpKey, AnyBuf)>,
}

// SAFETY: the pointers are to memory that belongs to no thread, and buffers may be sent to any.
unsafe impl Send for SendMsg {}

const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<AnyBuf>();
};

impl std::fmt::Debug for SendMsg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Message({} bytes and {:?})",
            self.owned.len(),
            self.buffer
        )
    }
}

impl SendMsg {
    /// Own bytes and, behind them, as much of the others as can be told of at once.
    pub(super) fn new(own: Box<[u8]>, others: &[&[u8]]) -> Box<Self> {
        Self::without_iovecs(own, None).with_iovecs(|add| others.iter().for_each(|part| add(part)))
    }

    /// Own bytes and, behind them, those of a buffer, likewise.
    pub(super) fn with_buffer(own: Box<[u8]>, op: OpKey, buf: AnyBuf) -> Box<Self> {
        let message = Self::without_iovecs(own, Some((op, buf)));
        let buf: *const Option<(OpKey, AnyBuf)> = &raw const message.buffer;
        // SAFETY: what was boxed does not move with its box, and nothing but the header and its
        // parts is written meanwhile.
        let payload = unsafe { &*buf }
            .as_ref()
            .map_or(Payload::Contiguous(&[]), |(_, buf)| buf.payload());
        message.with_iovecs(|add| payload.for_each(|_, part| add(part)))
    }

    fn without_iovecs(own: Box<[u8]>, buffer: Option<(OpKey, AnyBuf)>) -> Box<Self> {
        let none = libc::iovec {
            iov_base: ptr::null_mut(),
            iov_len: 0,
        };
        // SAFETY: no name, no control data, no flags: all zero.
        let header = unsafe { std::mem::zeroed() };
        Box::new(Self {
            header,
            iovecs: [none; MAX_IOVECS],
            owned: own,
            buffer,
        })
    }

    /// Points to its own bytes, and to those that are added.
    fn with_iovecs(mut self: Box<Self>, others: impl FnOnce(&mut dyn FnMut(&[u8]))) -> Box<Self> {
        let (mut count, mut room) = (0, MAX_SEND_LEN);
        let own: *const [u8] = &raw const *self.owned;
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
        // SAFETY: what was boxed does not move with its box.
        add(unsafe { &*own });
        others(&mut add);
        self.header.msg_iov = self.iovecs.as_mut_ptr();
        self.header.msg_iovlen = count as _;
        self
    }

    pub(super) fn header(&self) -> *const libc::msghdr {
        &raw const self.header
    }

    /// The bytes that were given away with it.
    pub(super) fn owned(&self) -> &[u8] {
        &self.owned
    }

    pub(super) fn has_buffer(&self) -> bool {
        self.buffer.is_some()
    }

    /// Those, and the buffer, if that was given away too.
    pub(super) fn into_parts(self) -> (Box<[u8]>, Option<(OpKey, AnyBuf)>) {
        (self.owned, self.buffer)
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn len(&self) -> usize {
        self.iovecs.iter().map(|part| part.iov_len).sum()
    }
}
