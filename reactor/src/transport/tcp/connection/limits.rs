//! Limits of what a connection sends in a pass, in a call, and without a queue.

/// Longest message that is copied into the write buffer, in bytes; a longer one is sent from its
/// own buffer.
pub(super) const MAX_BUFFERED_MESSAGE: usize = 16 << 10;
// io_uring keeps pointers into longer payloads, and the bytes of an `InlineBuf` may move.
const _: () = assert!(MAX_BUFFERED_MESSAGE >= fabric_core::buf::InlineBuf::CAPACITY);
// To peers that use RXM, a message without a queue is sent as an eager packet.
const _: () = assert!(MAX_BUFFERED_MESSAGE <= fabric_core::tcp::rxm::EAGER_LIMIT);
/// Maximum bytes of batched messages: a message that would exceed them causes a write at once.
pub(super) const WRITE_BUFFER_LIMIT: usize = 64 << 10;
/// Maximum bytes that one pass sends to one peer.
pub(super) const MAX_BYTES_PER_PASS: usize = 1 << 20;
/// Bytes after which responses give way to queued operations, and operations to responses, at the
/// end of a frame.
pub(super) const SCHEDULING_QUANTUM: usize = WRITE_BUFFER_LIMIT;
/// Maximum number of parts (`iovec`s) that one call sends, the pending bytes included.
pub(super) const MAX_IOVECS: usize = 16;
