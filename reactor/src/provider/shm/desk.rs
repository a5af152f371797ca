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
use fabric_core::atomic::{AtomicCall, AtomicSpec, MAX_ATOMIC};
use fabric_core::buf::{Payload, Source};
use fabric_core::completion::OpKind;
use fabric_core::flags::Access;
use fabric_core::mr::{Denied, Memory, execute};
use fabric_core::provider::{Host, Remote};

use super::area::{Area, OwnArea};

/// Bytes that are asked for in one go.
pub(crate) const AT_ONCE: usize = 64 * 1024;
/// The desk: the number of the request that was answered, how it went, a number to that; then the
/// bytes.
const ANSWERED: usize = 0;
const CODE: usize = 8;
const DETAIL: usize = 16;
const BYTES: usize = 64;
pub(crate) const DESK: usize = BYTES + AT_ONCE;

/// The words of a request, in a record.
pub(crate) const REQUEST_BYTES: usize = 48;

const DONE: (u64, u64) = (0, 0);

const KINDS: [OpKind; 4] = [
    OpKind::Write,
    OpKind::Read,
    OpKind::Atomic,
    OpKind::FetchAtomic,
];

/// Part of an operation, as it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) kind: OpKind,
    /// What is accessed now. All of it lies on the desk at once.
    pub(crate) remote: Remote,
    /// How much follows, from there on: a range is out of bounds as a whole.
    pub(crate) rest: usize,
    /// Which request of this connection this is.
    pub(crate) number: u64,
}

impl Request {
    pub(crate) fn to_bytes(self) -> [u8; REQUEST_BYTES] {
        let kind = KINDS
            .iter()
            .position(|kind| *kind == self.kind)
            .map_or(0xff, |at| at as u64);
        let what = self
            .remote
            .atomic
            .map_or(kind, |atomic| kind | u64::from(atomic.to_code()) << 8);
        let Remote {
            key, offset, len, ..
        } = self.remote;
        let words = [key, offset, len as u64, self.rest as u64, what, self.number];
        let mut bytes = [0; REQUEST_BYTES];
        for (at, word) in words.into_iter().enumerate() {
            bytes[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// `None` when there is no such request.
    pub(crate) fn from_words(word: impl Fn(usize) -> u64) -> Option<Self> {
        let [len, rest] = [2, 3].map(|at| usize::try_from(word(at)).unwrap_or(usize::MAX));
        let what = word(4);
        let kind = *KINDS.get(what as usize & 0xff)?;
        let atomic = match kind {
            OpKind::Write | OpKind::Read => None,
            _ => {
                let atomic = AtomicSpec::from_code((what >> 8) as u32)?;
                let fits = len.is_multiple_of(atomic.datatype.size()) && len <= MAX_ATOMIC;
                fits.then_some(())?;
                Some(atomic)
            }
        };
        let remote = Remote {
            key: word(0),
            offset: word(1),
            len,
            atomic,
        };
        (len <= AT_ONCE && len <= rest).then_some(Self {
            kind,
            remote,
            rest,
            number: word(5),
        })
    }

    /// How many bytes it takes along: operands, and comparands behind them.
    pub(crate) fn brings(&self) -> usize {
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
    pub(crate) fn serve(&self, desk: &Area, host: &dyn Host) -> bool {
        let Remote { key, len, .. } = self.remote;
        let (region, at) = match Denied::check(host.region(key), self.kind, &self.remote, self.rest)
        {
            Ok(found) => found,
            Err(denied) => {
                self.answer(desk, denied.to_words());
                return true;
            }
        };
        if !region.memory.begin() {
            return false;
        }
        let mut bytes = vec![
            0;
            if self.kind == OpKind::Read {
                len
            } else {
                self.brings()
            }
        ];
        match self.kind {
            OpKind::Read => region.memory.read(at, &mut bytes),
            OpKind::Write => {
                desk.read(BYTES, &mut bytes);
                region.memory.write(at, &bytes);
            }
            _ => {
                desk.read(BYTES, &mut bytes);
                let mut result = vec![0; if self.kind.fills() { len } else { 0 }];
                execute(&*region.memory, at, &self.remote, &bytes, &mut result);
                bytes = result;
            }
        }
        region.memory.end();
        if self.kind.fills() {
            desk.write(BYTES, &bytes);
        }
        self.answer(desk, DONE);
        true
    }

    fn answer(&self, desk: &Area, (code, detail): (u64, u64)) {
        desk.write(CODE, &code.to_ne_bytes());
        desk.write(DETAIL, &detail.to_ne_bytes());
        // One aligned word, written with release: whoever reads it sees what was written before.
        desk.write(ANSWERED, &self.number.to_ne_bytes());
    }
}

/// The desk, with who asks.
#[derive(Debug)]
pub(crate) struct Desk {
    area: OwnArea,
    /// The requests so far.
    count: u64,
    /// The last of them, until its answer was read.
    asked: Option<Request>,
}

impl Desk {
    pub(crate) fn new() -> Result<Self> {
        let area = OwnArea::create(DESK, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
        Ok(Self {
            area,
            count: 0,
            asked: None,
        })
    }

    /// What to give to the owner.
    pub(crate) fn memory(&self) -> &OwnArea {
        &self.area
    }

    /// A request, with the bytes that it takes along. It is asked once its record is in the ring.
    pub(crate) fn prepare(
        &self,
        kind: OpKind,
        remote: Remote,
        rest: usize,
        bytes: Payload<'_>,
    ) -> Request {
        let request = Request {
            kind,
            remote,
            rest,
            number: self.count + 1,
        };
        let bytes = bytes.part(0, request.brings().min(bytes.len()));
        bytes.for_each(|at, piece| self.area.write(BYTES + at, piece));
        request
    }

    pub(crate) fn asked(&mut self, request: Request) {
        self.count = request.number;
        self.asked = Some(request);
    }

    /// A request has not been answered.
    pub(crate) fn is_waiting(&self) -> bool {
        self.asked
            .is_some_and(|request| self.word(ANSWERED) != request.number)
    }

    /// The request, once it was answered, and how that went.
    pub(crate) fn answered(&mut self) -> Option<(Request, Result<()>)> {
        if self.is_waiting() {
            return None;
        }
        let request = self.asked.take()?;
        let denied = Denied::from_words(self.word(CODE), self.word(DETAIL));
        let answer = denied.map_or(Ok(()), |denied| {
            Err(denied.error(&request.remote, request.rest))
        });
        Some((request, answer))
    }

    /// The bytes of the answer.
    pub(crate) fn bytes(&self, len: usize) -> impl Source {
        self.area.area().part(BYTES, len)
    }

    fn word(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        self.area.read(at, &mut word);
        u64::from_ne_bytes(word)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn words(bytes: &[u8]) -> impl Fn(usize) -> u64 {
        |at| u64::from_le_bytes(bytes[8 * at..8 * at + 8].try_into().unwrap())
    }

    #[test]
    fn requests_are_read_as_they_were_written() {
        let remote = |atomic| Remote {
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
            let request = Request {
                kind,
                remote,
                rest: 17,
                number: 3,
            };
            assert_eq!(
                Request::from_words(words(&request.to_bytes())),
                Some(request)
            );
        }
    }

    #[test]
    fn what_is_no_request_is_none() {
        let good = [7, 0, 8, 8, 0, 1];
        let is_one = |change: (usize, u64)| {
            let mut all: [u64; 6] = good;
            all[change.0] = change.1;
            Request::from_words(|at| all[at]).is_some()
        };
        assert!(is_one((0, 7)));
        // Longer than the desk, than what follows; of no kind; no operation, on no type, in no
        // call; not a whole value.
        let sum = |op: u64, datatype: u64, call: u64, kind: u64| {
            kind | op << 8 | datatype << 16 | call << 24
        };
        for change in [
            (2, AT_ONCE as u64 + 1),
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
        assert!(Request::from_words(|at| uneven[at]).is_none());
    }
}
