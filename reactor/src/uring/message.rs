//! What a send is made of: bytes of its own, and behind them bytes that lie elsewhere.
#![allow(unsafe_code)] // a header for the kernel, all of whose fields may be zero

use std::ptr;

/// Parts of one send.
pub(super) const PARTS: usize = 16;
/// The longest send. A completion tells its length in 31 bits.
pub(super) const LONGEST: usize = 1 << 30;

/// A header with everything it points to, which does not move until the send has ended.
pub(super) struct Message {
    header: libc::msghdr,
    parts: [libc::iovec; PARTS],
    own: Box<[u8]>,
}

// SAFETY: the pointers are to memory that belongs to no thread.
unsafe impl Send for Message {}

impl Message {
    /// Own bytes and, behind them, as much of the others as can be told of at once.
    pub(super) fn new(own: Box<[u8]>, others: &[&[u8]]) -> Box<Self> {
        let none = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        // SAFETY: no name, no control data, no flags: all zero.
        let header = unsafe { std::mem::zeroed() };
        let mut message = Box::new(Self { header, parts: [none; PARTS], own });
        let (mut count, mut room) = (0, LONGEST);
        let own: *const [u8] = &raw const *message.own;
        // SAFETY: what was boxed does not move with its box.
        let own = unsafe { &*own };
        for bytes in std::iter::once(own).chain(others.iter().copied()).filter(|bytes| !bytes.is_empty()) {
            if count == PARTS || room == 0 {
                break;
            }
            let len = bytes.len().min(room);
            message.parts[count] = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: len };
            (count, room) = (count + 1, room - len);
        }
        message.header.msg_iov = message.parts.as_mut_ptr();
        message.header.msg_iovlen = count as _;
        message
    }

    pub(super) fn header(&self) -> *const libc::msghdr {
        &raw const self.header
    }

    /// The bytes that were given away with it.
    pub(super) fn into_own(self) -> Box<[u8]> {
        self.own
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn len(&self) -> usize {
        self.parts.iter().map(|part| part.iov_len).sum()
    }
}
