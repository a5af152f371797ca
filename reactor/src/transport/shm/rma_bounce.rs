//! Accesses that the owner of a region makes for its peers, because its memory is its own: a
//! registered buffer.
//!
//! Whoever asks makes a *desk*, an area that both can write, and gives it to the owner with its
//! first request. A request is a record in the ring; the bytes to be written lie on the desk, or
//! those that were read are put there. Then the answer is put there too: how it went, and behind
//! that the number of the request, which publishes it. There is one request at a time, of so many
//! bytes as the desk has room for; what is longer takes several.
//!
//! # Trust
//!
//! Both sides write the desk. Each copies what it takes from there once, and checks it: the owner
//! the request, which comes in the ring anyway, the other the code of the answer. Bytes mean
//! nothing to either.

use fabric_core::Result;
use fabric_core::atomic::{AtomicCall, AtomicSpec, MAX_ATOMIC_BYTES};
use fabric_core::buf::{CopySource, Payload};
use fabric_core::completion::OpKind;
use fabric_core::flags::Access;
use fabric_core::mr::{AccessError, RegionMemory, execute_atomic_array};
use fabric_core::transport::{EngineContext, RmaIov};

use super::shared_memory::{SharedMapping, SharedMemory};

/// Bytes that are asked for in one go.
pub(crate) const MAX_REQUEST_LEN: usize = 64 * 1024;
/// The desk: the number of the request that was answered, how it went, a number to that; then the
/// bytes.
const ANSWERED_AT: usize = 0;
const STATUS_AT: usize = 8;
const DETAIL_AT: usize = 16;
const DATA_AT: usize = 64;
pub(crate) const BOUNCE_BUFFER_LEN: usize = DATA_AT + MAX_REQUEST_LEN;

/// The words of a request, in a record.
pub(crate) const REQUEST_LEN: usize = 48;

const STATUS_OK: (u64, u64) = (0, 0);

const OP_KINDS: [OpKind; 4] = [
    OpKind::Write,
    OpKind::Read,
    OpKind::Atomic,
    OpKind::FetchAtomic,
];

/// Part of an operation, as it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RmaRequest {
    pub(crate) kind: OpKind,
    /// What is accessed now. All of it lies on the desk at once.
    pub(crate) remote: RmaIov,
    /// How much follows, from there on: a range is out of bounds as a whole.
    pub(crate) remaining: usize,
    /// Which request of this connection this is.
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

    /// `None` when there is no such request.
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

    /// How many bytes it takes along: operands, and comparands behind them.
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

    /// Does what is asked for; false when that cannot be done just now.
    pub(crate) fn execute(&self, desk: &SharedMapping, host: &dyn EngineContext) -> bool {
        let RmaIov { key, len, .. } = self.remote;
        let (region, at) =
            match AccessError::check(host.region(key), self.kind, &self.remote, self.remaining) {
                Ok(found) => found,
                Err(denied) => {
                    self.write_answer(desk, denied.to_words());
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
                desk.read(DATA_AT, &mut bytes);
                region.memory.write(at, &bytes);
            }
            _ => {
                desk.read(DATA_AT, &mut bytes);
                let mut result = vec![0; if self.kind.fills_buffer() { len } else { 0 }];
                execute_atomic_array(&*region.memory, at, &self.remote, &bytes, &mut result);
                bytes = result;
            }
        }
        region.memory.end_access();
        if self.kind.fills_buffer() {
            desk.write(DATA_AT, &bytes);
        }
        self.write_answer(desk, STATUS_OK);
        true
    }

    fn write_answer(&self, desk: &SharedMapping, (code, detail): (u64, u64)) {
        desk.write(STATUS_AT, &code.to_ne_bytes());
        desk.write(DETAIL_AT, &detail.to_ne_bytes());
        // One aligned word, written with release: whoever reads it sees what was written before.
        desk.write(ANSWERED_AT, &self.id.to_ne_bytes());
    }
}

/// The desk, with who asks.
#[derive(Debug)]
pub(crate) struct RmaBounceBuffer {
    memory: SharedMemory,
    /// The requests so far.
    last_id: u64,
    /// The last of them, until its answer was read.
    pending: Option<RmaRequest>,
}

impl RmaBounceBuffer {
    pub(crate) fn new() -> Result<Self> {
        let area = SharedMemory::create(
            BOUNCE_BUFFER_LEN,
            Access::REMOTE_READ | Access::REMOTE_WRITE,
        )?;
        Ok(Self {
            memory: area,
            last_id: 0,
            pending: None,
        })
    }

    /// What to give to the owner.
    pub(crate) fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// A request, with the bytes that it takes along. It is asked once its record is in the ring.
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

    pub(crate) fn on_request_sent(&mut self, request: RmaRequest) {
        self.last_id = request.id;
        self.pending = Some(request);
    }

    /// A request has not been answered.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending
            .is_some_and(|request| self.read_word(ANSWERED_AT) != request.id)
    }

    /// The request, once it was answered, and how that went.
    pub(crate) fn take_answer(&mut self) -> Option<(RmaRequest, Result<()>)> {
        if self.is_pending() {
            return None;
        }
        let request = self.pending.take()?;
        let denied = AccessError::from_words(self.read_word(STATUS_AT), self.read_word(DETAIL_AT));
        let answer = denied.map_or(Ok(()), |denied| {
            Err(denied.to_error(&request.remote, request.remaining))
        });
        Some((request, answer))
    }

    /// The bytes of the answer.
    pub(crate) fn answer_bytes(&self, len: usize) -> impl CopySource {
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
        let is_one = |change: (usize, u64)| {
            let mut all: [u64; 6] = good;
            all[change.0] = change.1;
            RmaRequest::from_words(|at| all[at]).is_some()
        };
        assert!(is_one((0, 7)));
        // Longer than the desk, than what follows; of no kind; no operation, on no type, in no
        // call; not a whole value.
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
            assert!(!is_one(change), "{change:?}");
        }
        assert!(is_one((4, sum(2, 7, 0, 2))));
        let uneven: [u64; 6] = [7, 0, 7, 8, sum(2, 7, 0, 2), 1];
        assert!(RmaRequest::from_words(|at| uneven[at]).is_none());
    }
}
