//! Remote accesses that the owner of a region executes, because its memory is a registered buffer
//! that no peer maps.
//!
//! The initiator creates a bounce buffer, an area that both sides can write, and passes it to the
//! owner with its first request. A request is a record in the ring; bytes to be written are put
//! into the bounce buffer, and bytes that were read are put there by the owner. The owner then
//! writes the status, and last the id of the request, which publishes the response. There is one
//! request at a time, of at most the size of the bounce buffer; longer accesses take several.
//!
//! The owner executes requests under the domain's lock, and not while the application holds a
//! `RegisteredGuard`: the record then stays in the ring, and dropping the guard makes a pass.
//!
//! # Trust
//!
//! Both sides write the bounce buffer. Each copies what it reads once and checks it: the owner the
//! request, which comes in the ring, the initiator the status. The bytes themselves are not
//! interpreted.

use fabric_core::Result;
use fabric_core::atomic::{AtomicCall, AtomicSpec, MAX_ATOMIC_BYTES};
use fabric_core::buf::{CopySource, Payload};
use fabric_core::completion::OpKind;
use fabric_core::flags::Access;
use fabric_core::mr::{AccessError, RegionMemory, execute_atomic_array};
use fabric_core::transport::{EngineContext, RmaIov};

use super::shared_memory::{SharedMapping, SharedMemory};

/// Maximum bytes of one request.
pub(crate) const MAX_REQUEST_LEN: usize = 64 * 1024;
/// Layout of the bounce buffer: id of the last executed request, its status, a detail of the
/// status, and the bytes.
const RESPONSE_ID_AT: usize = 0;
const STATUS_AT: usize = 8;
const DETAIL_AT: usize = 16;
const DATA_AT: usize = 64;
pub(crate) const BOUNCE_BUFFER_LEN: usize = DATA_AT + MAX_REQUEST_LEN;

/// Bytes of the words of a request in a record.
pub(crate) const REQUEST_LEN: usize = 48;

const STATUS_OK: (u64, u64) = (0, 0);

const OP_KINDS: [OpKind; 4] = [
    OpKind::Write,
    OpKind::Read,
    OpKind::Atomic,
    OpKind::FetchAtomic,
];

/// A request: a part of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RmaRequest {
    pub(crate) kind: OpKind,
    /// The range to access. All of it fits in the bounce buffer.
    pub(crate) remote: RmaIov,
    /// Bytes of the operation from this range on: a range is out of bounds as a whole.
    pub(crate) remaining: usize,
    /// Id of the request on this connection.
    pub(crate) id: u64,
}

impl RmaRequest {
    pub(crate) fn to_bytes(self) -> [u8; REQUEST_LEN] {
        let kind = OP_KINDS
            .iter()
            .position(|kind| *kind == self.kind)
            .map_or(0xff, |at| at as u64);
        let what = self
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
            what,
            self.id,
        ];
        let mut bytes = [0; REQUEST_LEN];
        for (at, word) in words.into_iter().enumerate() {
            bytes[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes a request; `None` if it is invalid.
    pub(crate) fn from_words(word: impl Fn(usize) -> u64) -> Option<Self> {
        let [len, rest] = [2, 3].map(|at| usize::try_from(word(at)).unwrap_or(usize::MAX));
        let what = word(4);
        let kind = *OP_KINDS.get(what as usize & 0xff)?;
        let atomic = match kind {
            OpKind::Write | OpKind::Read => None,
            _ => {
                let atomic = AtomicSpec::from_code((what >> 8) as u32)?;
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
        (len <= MAX_REQUEST_LEN && len <= rest).then_some(Self {
            kind,
            remote,
            remaining: rest,
            id: word(5),
        })
    }

    /// Returns how many bytes the request needs in the bounce buffer: operands, followed by
    /// comparands.
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

    /// Executes the request and writes the response. Returns false if the region is locked now.
    pub(crate) fn execute(
        &self,
        bounce_buffer: &SharedMapping,
        engine: &impl EngineContext,
    ) -> bool {
        let RmaIov { key, len, .. } = self.remote;
        let (region, at) =
            match AccessError::check(engine.region(key), self.kind, &self.remote, self.remaining) {
                Ok(region) => region,
                Err(error) => {
                    self.write_response(bounce_buffer, error.to_words());
                    return true;
                }
            };
        if !region.memory.begin_access() {
            return false;
        }
        let mut bytes = vec![
            0;
            if self.kind == OpKind::Read {
                len
            } else {
                self.operand_len()
            }
        ];
        match self.kind {
            OpKind::Read => region.memory.read(at, &mut bytes),
            OpKind::Write => {
                bounce_buffer.read(DATA_AT, &mut bytes);
                region.memory.write(at, &bytes);
            }
            _ => {
                bounce_buffer.read(DATA_AT, &mut bytes);
                let mut result = vec![0; if self.kind.fills_buffer() { len } else { 0 }];
                execute_atomic_array(&*region.memory, at, &self.remote, &bytes, &mut result);
                bytes = result;
            }
        }
        region.memory.end_access();
        if self.kind.fills_buffer() {
            bounce_buffer.write(DATA_AT, &bytes);
        }
        self.write_response(bounce_buffer, STATUS_OK);
        true
    }

    fn write_response(&self, bounce_buffer: &SharedMapping, (code, detail): (u64, u64)) {
        bounce_buffer.write(STATUS_AT, &code.to_ne_bytes());
        bounce_buffer.write(DETAIL_AT, &detail.to_ne_bytes());
        // One aligned word, written with release: a reader that sees it sees the earlier writes.
        bounce_buffer.write(RESPONSE_ID_AT, &self.id.to_ne_bytes());
    }
}

/// The bounce buffer, at the initiator.
#[derive(Debug)]
pub(crate) struct RmaBounceBuffer {
    memory: SharedMemory,
    /// Number of requests so far.
    last_id: u64,
    /// The last request, until its response was read.
    pending: Option<RmaRequest>,
}

impl RmaBounceBuffer {
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

    /// Creates a request and writes its operands. It is pending once its record is in the ring.
    pub(crate) fn prepare(
        &self,
        kind: OpKind,
        remote: RmaIov,
        rest: usize,
        bytes: Payload<'_>,
    ) -> RmaRequest {
        let request = RmaRequest {
            kind,
            remote,
            remaining: rest,
            id: self.last_id + 1,
        };
        let bytes = bytes.slice(0, request.operand_len().min(bytes.len()));
        bytes.for_each(|at, piece| self.memory.write(DATA_AT + at, piece));
        request
    }

    /// Records that the request's record is in the ring.
    pub(crate) fn on_request_sent(&mut self, request: RmaRequest) {
        self.last_id = request.id;
        self.pending = Some(request);
    }

    /// Returns whether a request has no response yet.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending
            .is_some_and(|request| self.read_word(RESPONSE_ID_AT) != request.id)
    }

    /// Takes the request whose response has arrived, and its result.
    pub(crate) fn take_response(&mut self) -> Option<(RmaRequest, Result<()>)> {
        if self.is_pending() {
            return None;
        }
        let request = self.pending.take()?;
        let error = AccessError::from_words(self.read_word(STATUS_AT), self.read_word(DETAIL_AT));
        let result = error.map_or(Ok(()), |error| {
            Err(error.to_error(&request.remote, request.remaining))
        });
        Some((request, result))
    }

    /// Returns the bytes of the response.
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
        let good = [7, 0, 8, 8, 0, 1];
        let is_valid = |change: (usize, u64)| {
            let mut all: [u64; 6] = good;
            all[change.0] = change.1;
            RmaRequest::from_words(|at| all[at]).is_some()
        };
        assert!(is_valid((0, 7)));
        // Longer than the bounce buffer, or than the operation; unknown kind; unknown atomic
        // operation, datatype or call; not a whole value.
        let sum = |op: u64, datatype: u64, call: u64, kind: u64| {
            kind | op << 8 | datatype << 16 | call << 24
        };
        for change in [
            (2, MAX_REQUEST_LEN as u64 + 1),
            (2, u64::MAX),
            (2, 9),
            (4, 4),
            (4, sum(19, 0, 0, 2)),
            (4, sum(2, 10, 0, 2)),
            (4, sum(2, 0, 3, 2)),
            (4, sum(12, 0, 0, 2)),
        ] {
            assert!(!is_valid(change), "{change:?}");
        }
        assert!(is_valid((4, sum(2, 7, 0, 2))));
        let uneven: [u64; 6] = [7, 0, 7, 8, sum(2, 7, 0, 2), 1];
        assert!(RmaRequest::from_words(|at| uneven[at]).is_none());
    }
}
