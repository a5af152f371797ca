//! RMA requests: accesses to a registered buffer, or to a region that peers may write and not read.
//! Its owner executes them, because no peer maps the memory.
//!
//! The initiator creates a *bounce buffer*, shared memory that both sides can write, and grants it
//! to the owner before its first request. A request is a record in the ring. The initiator puts the
//! bytes to be written into the bounce buffer; the owner puts the bytes that were read there. The
//! owner then writes the status, and last the id of the request, which publishes the response. A
//! connection has one request at a time, of at most [`MAX_REQUEST_LEN`] bytes; longer accesses take
//! several requests.
//!
//! The owner executes requests under the domain's lock, and not while the application holds a
//! `RegisteredGuard`: the record then stays in the ring, and dropping the guard makes a pass.
//!
//! # Trust
//!
//! Either side can write the bounce buffer at any time. The owner takes the request from the ring,
//! the initiator copies the status out of the bounce buffer; both are copied once and then checked.
//! The bytes of an access are not interpreted.

use fabric_core::Result;
use fabric_core::atomic::{AtomicCall, AtomicSpec, MAX_ATOMIC_BYTES};
use fabric_core::buf::{CopySource, Payload};
use fabric_core::completion::OpKind;
use fabric_core::flags::Access;
use fabric_core::mr::{AccessError, PeerAccess, RegionBytes, execute_atomic_array};
use fabric_core::transport::{EndpointContext, EngineContext, RmaIov};

use super::shared_memory::SharedMemory;
use crate::sys::mapping::SharedMapping;

/// Maximum bytes of one request.
pub(crate) const MAX_REQUEST_LEN: usize = 64 * 1024;

// Layout of the bounce buffer, in bytes.

/// Id of the last executed request.
const RESPONSE_ID_AT: usize = 0;
/// Status of that request: 0, or the code of an `AccessError`.
const STATUS_AT: usize = 8;
/// Argument of the `AccessError`.
const DETAIL_AT: usize = 16;
/// Operands of the request, or bytes of the response.
const DATA_AT: usize = 64;
pub(crate) const BOUNCE_BUFFER_LEN: usize = DATA_AT + MAX_REQUEST_LEN;

/// Bytes of an encoded request, which is the payload of an `RMA_REQUEST` record.
pub(crate) const REQUEST_LEN: usize = 48;

/// Status and detail of a request that was executed.
const STATUS_OK: (u64, u64) = (0, 0);

/// Kinds of requests; the index is the code in an encoded request.
const OP_KINDS: [OpKind; 4] = [
    OpKind::Write,
    OpKind::Read,
    OpKind::Atomic,
    OpKind::FetchAtomic,
];

/// A request that the owner of a region executes an operation, or a piece of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RmaRequest {
    pub(crate) kind: OpKind,
    /// The range to access, at most [`MAX_REQUEST_LEN`] bytes.
    pub(crate) remote: RmaIov,
    /// Bytes of the operation's range that this and later requests access. The owner checks that
    /// all of them are in bounds, so that an operation that exceeds the region moves no bytes.
    pub(crate) remaining: usize,
    /// Number of the request on this connection, from 1.
    pub(crate) id: u64,
}

impl RmaRequest {
    /// Encodes the request as six words: key, offset, length, remaining, operation, id.
    pub(crate) fn to_bytes(self) -> [u8; REQUEST_LEN] {
        let kind = OP_KINDS
            .iter()
            .position(|kind| *kind == self.kind)
            .map_or(0xff, |at| at as u64);
        let operation = self
            .remote
            .atomic
            .map_or(kind, |atomic| kind | u64::from(atomic.to_code()) << 8);
        let RmaIov {
            key, offset, len, ..
        } = self.remote;
        let words = [
            key,
            offset,
            len as u64,
            self.remaining as u64,
            operation,
            self.id,
        ];
        let mut bytes = [0; REQUEST_LEN];
        for (at, word) in words.into_iter().enumerate() {
            bytes[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes a request, of which `word` returns the word with an index; `None` if it is invalid.
    pub(crate) fn from_words(word: impl Fn(usize) -> u64) -> Option<Self> {
        let [len, remaining] = [2, 3].map(|at| usize::try_from(word(at)).unwrap_or(usize::MAX));
        let operation = word(4);
        let kind = *OP_KINDS.get(operation as usize & 0xff)?;
        let atomic = match kind {
            OpKind::Write | OpKind::Read => None,
            _ => {
                let atomic = AtomicSpec::from_code((operation >> 8) as u32)?;
                let fits = len.is_multiple_of(atomic.datatype.size()) && len <= MAX_ATOMIC_BYTES;
                fits.then_some(())?;
                Some(atomic)
            }
        };
        let remote = RmaIov {
            key: word(0),
            offset: word(1),
            len,
            atomic,
        };
        (len <= MAX_REQUEST_LEN && len <= remaining).then_some(Self {
            kind,
            remote,
            remaining,
            id: word(5),
        })
    }

    /// Returns how many bytes the initiator puts into the bounce buffer: the bytes to write, or the
    /// operands followed by the comparands of an atomic operation.
    pub(crate) fn operand_len(&self) -> usize {
        match self.remote.atomic {
            _ if self.kind == OpKind::Read => 0,
            Some(AtomicSpec {
                call: AtomicCall::Compare,
                ..
            }) => 2 * self.remote.len,
            _ => self.remote.len,
        }
    }

    /// Executes the request at the owner and writes the response. Returns false, without an access,
    /// while the application holds a guard of the region.
    pub(crate) fn execute(
        &self,
        bounce_buffer: &SharedMapping,
        ctx: &EndpointContext<'_, impl EngineContext>,
    ) -> bool {
        let RmaIov { key, len, .. } = self.remote;
        let region = ctx.region(key);
        let checked = AccessError::check(region.as_ref(), self.kind, &self.remote, self.remaining);
        let (region, at) = match checked {
            Ok(found) => found,
            Err(error) => {
                self.write_response(bounce_buffer, error.to_words());
                return true;
            }
        };
        let Some(access) = PeerAccess::begin(&*region.memory) else {
            return false;
        };
        let mut bytes = vec![
            0;
            if self.kind == OpKind::Read {
                len
            } else {
                self.operand_len()
            }
        ];
        match self.kind {
            OpKind::Read => access.read(at, &mut bytes),
            OpKind::Write => {
                bounce_buffer.read(DATA_AT, &mut bytes);
                access.write(at, &bytes);
            }
            _ => {
                bounce_buffer.read(DATA_AT, &mut bytes);
                let mut result = vec![0; if self.kind.fills_buffer() { len } else { 0 }];
                execute_atomic_array(&*access, at, &self.remote, &bytes, &mut result);
                bytes = result;
            }
        }
        drop(access);
        if self.kind.fills_buffer() {
            bounce_buffer.write(DATA_AT, &bytes);
        }
        self.write_response(bounce_buffer, STATUS_OK);
        true
    }

    /// Writes the status and the detail, and publishes the response.
    fn write_response(&self, bounce_buffer: &SharedMapping, (code, detail): (u64, u64)) {
        bounce_buffer.write(STATUS_AT, &code.to_ne_bytes());
        bounce_buffer.write(DETAIL_AT, &detail.to_ne_bytes());
        // SYNC: `write` stores one aligned word with release, which pairs with the acquire of
        // `read` in `RmaBounceBuffer::is_pending`.
        bounce_buffer.write(RESPONSE_ID_AT, &self.id.to_ne_bytes());
    }
}

/// The bounce buffer, at the initiator.
#[derive(Debug)]
pub(crate) struct RmaBounceBuffer {
    memory: SharedMemory,
    /// Id of the last request that was sent; 0 before the first.
    last_id: u64,
    /// The last request, until its response was taken.
    pending: Option<RmaRequest>,
}

impl RmaBounceBuffer {
    /// Returns the bytes of the buffer.
    pub(crate) fn len(&self) -> usize {
        self.memory.mapping().len()
    }

    pub(crate) fn new() -> Result<Self> {
        let memory = SharedMemory::create(
            BOUNCE_BUFFER_LEN,
            Access::REMOTE_READ | Access::REMOTE_WRITE,
        )?;
        Ok(Self {
            memory,
            last_id: 0,
            pending: None,
        })
    }

    /// Returns the memory to grant to the owner.
    pub(crate) fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Creates a request and writes its operands, the first bytes of `bytes`, into the bounce
    /// buffer.
    pub(crate) fn prepare(
        &self,
        kind: OpKind,
        remote: RmaIov,
        remaining: usize,
        bytes: Payload<'_>,
    ) -> RmaRequest {
        let request = RmaRequest {
            kind,
            remote,
            remaining,
            id: self.last_id + 1,
        };
        let operands = bytes.slice(0, request.operand_len().min(bytes.len()));
        operands.for_each(|at, piece| self.memory.write(DATA_AT + at, piece));
        request
    }

    /// Records that the request's record is in the ring: the request is pending.
    pub(crate) fn on_request_sent(&mut self, request: RmaRequest) {
        self.last_id = request.id;
        self.pending = Some(request);
    }

    /// Returns whether the pending request has no response yet.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending
            .is_some_and(|request| self.read_word(RESPONSE_ID_AT) != request.id)
    }

    /// Takes the request whose response has arrived, and its result.
    pub(crate) fn take_response(&mut self) -> Option<(RmaRequest, Result<(), AccessError>)> {
        if self.is_pending() {
            return None;
        }
        let request = self.pending.take()?;
        let error = AccessError::from_words(self.read_word(STATUS_AT), self.read_word(DETAIL_AT));
        Some((request, error.map_or(Ok(()), Err)))
    }

    /// Returns the first `len` bytes of the response.
    pub(crate) fn response_bytes(&self, len: usize) -> impl CopySource {
        self.memory.mapping().range(DATA_AT, len)
    }

    fn read_word(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        self.memory.read(at, &mut word);
        u64::from_ne_bytes(word)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn word_reader(bytes: &[u8]) -> impl Fn(usize) -> u64 {
        |at| u64::from_le_bytes(bytes[8 * at..8 * at + 8].try_into().unwrap())
    }

    #[test]
    fn rma_requests_round_trip() {
        let remote = |atomic| RmaIov {
            key: 1 << 63,
            offset: 9,
            len: 16,
            atomic,
        };
        let mut all = vec![(OpKind::Write, remote(None)), (OpKind::Read, remote(None))];
        for atomic in (0..1 << 18).filter_map(AtomicSpec::from_code) {
            let kind = if atomic.call == AtomicCall::Base {
                OpKind::Atomic
            } else {
                OpKind::FetchAtomic
            };
            all.push((kind, remote(Some(atomic))));
        }
        assert!(all.len() > 200);
        for (kind, remote) in all {
            let request = RmaRequest {
                kind,
                remote,
                remaining: 17,
                id: 3,
            };
            assert_eq!(
                RmaRequest::from_words(word_reader(&request.to_bytes())),
                Some(request)
            );
        }
    }

    #[test]
    fn invalid_rma_requests_are_rejected() {
        let valid: [u64; 6] = [7, 0, 8, 8, 0, 1];
        let is_valid_with = |index: usize, word: u64| {
            let mut words = valid;
            words[index] = word;
            RmaRequest::from_words(|at| words[at]).is_some()
        };
        assert!(is_valid_with(0, 7));
        let atomic = |op: u64, datatype: u64, call: u64, kind: u64| {
            kind | op << 8 | datatype << 16 | call << 24
        };
        for (index, word, defect) in [
            (2, MAX_REQUEST_LEN as u64 + 1, "longer than the buffer"),
            (2, u64::MAX, "longer than the buffer"),
            (2, 9, "longer than the operation"),
            (4, 4, "unknown kind"),
            (4, atomic(19, 0, 0, 2), "unknown atomic operation"),
            (4, atomic(2, 12, 0, 2), "long double"),
            (4, atomic(2, 18, 0, 2), "unknown datatype"),
            (4, atomic(0, 10, 0, 2), "complex values have no order"),
            (4, atomic(2, 0, 3, 2), "unknown call"),
            (4, atomic(12, 0, 0, 2), "call does not fit the operation"),
        ] {
            assert!(!is_valid_with(index, word), "{defect}");
        }
        assert!(is_valid_with(4, atomic(2, 7, 0, 2)));
        let partial_value: [u64; 6] = [7, 0, 7, 8, atomic(2, 7, 0, 2), 1];
        assert!(RmaRequest::from_words(|at| partial_value[at]).is_none());
    }
}
