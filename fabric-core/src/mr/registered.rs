//! Registered buffers: buffers of the application that peers access by a key. The process of the
//! owner executes the accesses.

use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::{RegionBytes, RegionMemory, assert_aligned};
use crate::atomic::{AtomicOp, Datatype, bits_at};
use crate::buf::AnyBuf;
use crate::error::{Error, Result};

/// The size of the longest atomic value.
const MAX_VALUE_LEN: usize = 16;

/// A registered buffer, or several: the segments of the memory, one after the other in the order of
/// their offsets, wherever they are. Peers can access the memory while its owner does not hold the
/// buffer. A custom buffer that becomes shorter than it was at its registration is closed to peers,
/// with all segments.
///
/// An atomic value may begin in one segment and end in another, because all accesses exclude each
/// other.
#[derive(Debug)]
pub struct RegisteredMemory {
    state: Mutex<RegisteredState>,
    /// Notified when an access has ended.
    access_ended: Condvar,
    segment_lens: Box<[usize]>,
    /// The sum of the lengths of the segments.
    len: usize,
}

#[derive(Debug)]
struct RegisteredState {
    /// `None` while the owner holds the buffer.
    buf: Option<AnyBuf>,
    /// The last known address of each segment, for when the owner holds the buffer.
    addresses: Box<[u64]>,
    /// How often an address was seen to have changed.
    moves: u64,
    /// Accesses that have begun and not ended.
    accesses: usize,
    closed: bool,
}

impl RegisteredState {
    /// Returns the segments; none while the owner holds the buffer.
    fn segments(&mut self) -> &mut [AnyBuf] {
        let buf = self.buf.as_mut();
        buf.map(AnyBuf::segments_mut).unwrap_or_default()
    }

    /// Closes the memory if a segment is shorter than at its registration. Returns whether the
    /// memory is open.
    fn check_open(&mut self, lens: &[usize]) -> bool {
        let mut segments = self.segments().iter_mut().zip(lens);
        let is_short = segments.any(|(segment, len)| segment.first_bytes_mut(*len).is_none());
        self.closed |= is_short;
        !self.closed
    }

    /// Notes where the segments are, unless the owner holds the buffer.
    fn note_addresses(&mut self, lens: &[usize]) {
        let Self { buf, addresses, .. } = self;
        let segments = buf.as_mut().map(AnyBuf::segments_mut).unwrap_or_default();
        let mut has_moved = false;
        for ((segment, len), address) in segments.iter_mut().zip(lens).zip(addresses) {
            if let Some(bytes) = segment.first_bytes_mut(*len) {
                let present = bytes.as_ptr().addr() as u64;
                has_moved |= std::mem::replace(address, present) != present;
            }
        }
        self.moves += u64::from(has_moved);
    }
}

/// Returns the segments that `len` bytes from offset `at` on are in, by index, with the part of
/// each.
fn pieces(lens: &[usize], at: usize, len: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let (mut skipped, mut left) = (at, len);
    lens.iter().enumerate().filter_map(move |(index, len)| {
        let from = skipped.min(*len);
        let count = left.min(len - from);
        skipped -= from;
        left -= count;
        (count > 0).then(|| (index, from..from + count))
    })
}

/// Returns the lengths of the segments, and their sum.
fn checked_lens(segments: &mut [AnyBuf]) -> Result<(Box<[usize]>, usize)> {
    let mut lens = Vec::with_capacity(segments.len());
    for segment in segments {
        let len = segment.bytes().len();
        if segment.bytes_mut().len() != len {
            return Err(Error::Invalid {
                what: "buffer to register",
                why: "its bytes are not writable in place; use Vec<u8> or BytesMut".into(),
            });
        }
        lens.push(len);
    }
    let sum = sum_of(&lens)?;
    Ok((lens.into(), sum))
}

/// Returns the sum of the lengths of segments.
fn sum_of(lens: &[usize]) -> Result<usize> {
    let limit = isize::MAX as usize;
    let len = (lens.iter()).fold(0usize, |sum, len| sum.saturating_add(*len));
    if len > limit {
        let what = "memory region";
        return Err(Error::TooLong { what, len, limit });
    }
    Ok(len)
}

impl RegisteredMemory {
    /// Registers a buffer, all of whose bytes must be writable in place, or the buffers of a
    /// `Scatter`.
    ///
    /// # Errors
    /// With the buffer: [`Error::Invalid`] when it has bytes that are not writable;
    /// [`Error::TooLong`] when the sum of the lengths overflows.
    pub fn new(mut buf: AnyBuf) -> Result<Self, (Error, AnyBuf)> {
        let (segment_lens, len) = match checked_lens(buf.segments_mut()) {
            Ok(lens) => lens,
            Err(error) => return Err((error, buf)),
        };
        let mut state = RegisteredState {
            buf: Some(buf),
            addresses: vec![0; segment_lens.len()].into(),
            moves: 0,
            accesses: 0,
            closed: false,
        };
        state.note_addresses(&segment_lens);
        Ok(Self {
            state: state.into(),
            access_ended: Condvar::new(),
            segment_lens,
            len,
        })
    }

    /// Takes the buffer for its owner, until it is [put back](Self::put_back); `None` when the
    /// owner holds it already. Waits for accesses that are in progress, which are short.
    pub fn take(&self) -> Option<AnyBuf> {
        let state = self.lock();
        let ended = self
            .access_ended
            .wait_while(state, |state| state.accesses > 0);
        ended.unwrap_or_else(PoisonError::into_inner).buf.take()
    }

    /// Puts the buffer back, for peers to access.
    pub fn put_back(&self, buf: AnyBuf) {
        self.lock().buf = Some(buf);
    }

    fn lock(&self) -> MutexGuard<'_, RegisteredState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `access` with each piece of `len` bytes from offset `at` on, in order, and with the
    /// offset of the piece from `at`. Returns whether all pieces were accessed. Closes the memory
    /// if a custom buffer is shorter than at its registration or panics, or if the owner holds the
    /// buffer, which it does not between `begin_access` and `end_access`.
    ///
    /// # Panics
    /// When the range exceeds the memory.
    fn access_pieces(
        &self,
        state: &mut RegisteredState,
        at: usize,
        len: usize,
        mut access: impl FnMut(usize, &mut [u8]),
    ) -> bool {
        assert!(
            at <= self.len && len <= self.len - at,
            "{len} bytes at {at} exceed the {} bytes of the memory",
            self.len
        );
        let segments = state.segments();
        let mut done = 0;
        for (index, piece) in pieces(&self.segment_lens, at, len) {
            let segment = segments.get_mut(index);
            let bytes = segment.and_then(|of| of.first_bytes_mut(self.segment_lens[index]));
            let Some(bytes) = bytes else { break };
            let count = piece.len();
            access(done, &mut bytes[piece]);
            done += count;
        }
        state.closed |= done < len;
        done == len
    }
}

impl RegionBytes for RegisteredMemory {
    fn len(&self) -> usize {
        self.len
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        let is_read = self.access_pieces(&mut self.lock(), at, out.len(), |done, piece| {
            out[done..done + piece.len()].copy_from_slice(piece);
        });
        if !is_read {
            out.fill(0);
        }
    }

    fn write(&self, at: usize, from: &[u8]) {
        self.access_pieces(&mut self.lock(), at, from.len(), |done, piece| {
            piece.copy_from_slice(&from[done..done + piece.len()]);
        });
    }

    fn execute_atomic(
        &self,
        at: usize,
        op: AtomicOp,
        datatype: Datatype,
        operand: u128,
        comparand: u128,
    ) -> u128 {
        let size = datatype.size();
        assert_aligned(at, size);
        let mut value = [0; MAX_VALUE_LEN];
        let state = &mut *self.lock();
        if !self.access_pieces(state, at, size, |done, piece| {
            value[done..done + piece.len()].copy_from_slice(piece);
        }) {
            return 0;
        }
        let old = bits_at(&value, 0, size);
        let new = op.compute(datatype, old, operand, comparand).to_le_bytes();
        self.access_pieces(state, at, size, |done, piece| {
            piece.copy_from_slice(&new[done..done + piece.len()]);
        });
        old
    }

    fn is_open(&self) -> bool {
        self.lock().check_open(&self.segment_lens)
    }
}

impl RegionMemory for RegisteredMemory {
    fn close(&self) {
        self.lock().closed = true;
    }

    fn address(&self) -> u64 {
        let mut state = self.lock();
        state.note_addresses(&self.segment_lens);
        // Segments before the first byte may be empty.
        let first = pieces(&self.segment_lens, 0, 1).next();
        first.map_or(0, |(index, _)| state.addresses[index])
    }

    fn addresses(&self, range: Range<usize>) -> Vec<(u64, usize)> {
        let mut state = self.lock();
        state.note_addresses(&self.segment_lens);
        pieces(&self.segment_lens, range.start, range.len())
            .map(|(index, piece)| (state.addresses[index] + piece.start as u64, piece.len()))
            .collect()
    }

    fn moves(&self) -> u64 {
        let mut state = self.lock();
        state.note_addresses(&self.segment_lens);
        state.moves
    }

    fn begin_access(&self) -> bool {
        let mut state = self.lock();
        let accessible = state.check_open(&self.segment_lens) && state.buf.is_some();
        state.accesses += usize::from(accessible);
        accessible
    }

    fn end_access(&self) {
        self.lock().accesses -= 1;
        self.access_ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::{IoBuf, Loan, Scatter};

    #[test]
    fn owner_and_peer_access_are_exclusive() {
        let memory = RegisteredMemory::new(vec![0; 16].into_any()).unwrap();
        assert!(memory.begin_access() && memory.begin_access());
        memory.write(8, &7u64.to_le_bytes());
        assert_eq!(
            memory.execute_atomic(8, AtomicOp::Sum, Datatype::U64, 5, 0),
            7
        );
        let mut value = [0; 8];
        memory.read(8, &mut value);
        assert_eq!(value, 12u64.to_le_bytes());
        let taken = std::thread::scope(|scope| {
            let owner = scope.spawn(|| memory.take());
            memory.end_access();
            memory.end_access();
            owner.join().unwrap()
        });
        assert!(
            !memory.begin_access() && memory.take().is_none(),
            "the owner holds the buffer"
        );
        let mut buf = Vec::from_any(taken.unwrap()).unwrap();
        buf[0] = 1;
        memory.put_back(buf.into_any());
        assert!(memory.begin_access());
        memory.end_access();
        memory.close();
        assert!(!memory.begin_access() && !memory.is_open());
        assert_eq!(memory.take().unwrap().bytes()[0], 1);
    }

    #[test]
    fn buffers_that_cannot_be_written_are_refused() {
        let refused = |buf: AnyBuf| RegisteredMemory::new(buf).unwrap_err();
        let (error, buf) = refused("text".into_any());
        assert!(matches!(error, Error::Invalid { .. }) && buf.bytes() == b"text");
        refused(Loan::from_heap(8).unwrap().into_any());
        assert!(RegisteredMemory::new(bytes::BytesMut::from(&b"abc"[..]).into_any()).is_ok());
        assert!(RegisteredMemory::new(vec![1; 3].into_boxed_slice().into_any()).is_ok());
    }

    /// Every range of three segments, one of them empty, is read and written as one of contiguous
    /// memory would be.
    #[test]
    fn ranges_run_through_segments_in_order() {
        let segments = [vec![0; 3], vec![0; 0], vec![0; 5], vec![0; 1]];
        let memory = RegisteredMemory::new(Scatter::from(segments).into_any()).unwrap();
        assert_eq!(memory.len(), 9);
        let mut expected = [0; 9];
        for at in 0..=9 {
            for len in 0..=9 - at {
                let bytes: Vec<u8> = (1..=len as u8).map(|byte| byte + at as u8 * 10).collect();
                memory.write(at, &bytes);
                expected[at..at + len].copy_from_slice(&bytes);
                let mut read = [0xee; 9];
                memory.read(0, &mut read);
                assert_eq!(read, expected);
                memory.read(at, &mut read[..len]);
                assert_eq!(read[..len], bytes);
                let addresses = memory.addresses(at..at + len);
                assert_eq!(addresses.iter().map(|of| of.1).sum::<usize>(), len);
            }
        }
        assert!(memory.is_open() && memory.moves() == 1);
        let filled = Scatter::from_any(memory.take().unwrap().into_filled()).unwrap();
        assert_eq!(
            filled.pieces().collect::<Vec<_>>(),
            [&expected[..3], &[], &expected[3..8], &expected[8..]]
        );
    }

    #[test]
    fn address_is_that_of_the_first_byte() {
        let segments = [vec![0u8; 0], vec![], vec![0; 5], vec![0; 1]];
        let first = segments[2].as_ptr().addr() as u64;
        let memory = RegisteredMemory::new(Scatter::from(segments).into_any()).unwrap();
        assert_eq!(memory.address(), first);
        assert_eq!(memory.addresses(0..5), [(first, 5)]);
    }

    #[test]
    fn atomic_values_may_be_in_several_segments() {
        let segments = [vec![0u8; 9], vec![0; 2], vec![0; 21]];
        let memory = RegisteredMemory::new(Scatter::from(segments).into_any()).unwrap();
        for (at, datatype) in [(8, Datatype::U64), (8, Datatype::U32), (0, Datatype::U128)] {
            let max = u128::MAX >> (128 - 8 * datatype.size());
            let atomic = |op, operand| memory.execute_atomic(at, op, datatype, operand, 0);
            atomic(AtomicOp::Write, max - 1);
            assert_eq!(atomic(AtomicOp::Sum, 3), max - 1);
            assert_eq!(atomic(AtomicOp::Read, 0), 1);
        }
        let mut byte = [1];
        memory.read(11, &mut byte);
        assert_eq!(byte, [0], "bytes behind a value do not change");
    }

    #[test]
    fn sum_of_lengths_that_overflows_is_refused() {
        let max = isize::MAX as usize;
        assert_eq!(sum_of(&[max - 1, 0, 1]), Ok(max));
        for lens in [[max, 1, 0], [max, max, max]] {
            let refused = sum_of(&lens);
            assert!(matches!(refused, Err(Error::TooLong { limit, .. }) if limit == max));
        }
    }
}
