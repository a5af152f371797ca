//! Custom buffers whose drop is observed, that block, or that break the contract of `CustomBuf`.
#![allow(unsafe_code)] // implements `CustomBuf`

use std::os::fd::OwnedFd;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fabric_async::buf::{CustomBuf, Scatter};
use fabric_async::info::MrMode;
use fabric_async::{Access, Error};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::endpoint_fixture::endpoint_pair;
use crate::payload::{LONG_LEN, let_other_tasks_run, poll_once};
use crate::setup::Setup;

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// A buffer that has at most as many bytes as its atomic value says, and sets that value to 0 when
/// it is dropped.
#[derive(Debug)]
struct ShrinkingBuf {
    bytes: Vec<u8>,
    limit: Arc<AtomicUsize>,
}

/// Returns a buffer of `len` bytes, and the value that limits its length.
fn shrinking_buf(len: usize) -> (Box<dyn CustomBuf>, Arc<AtomicUsize>) {
    let limit = Arc::new(AtomicUsize::new(len));
    let buf = ShrinkingBuf {
        bytes: vec![5; len],
        limit: limit.clone(),
    };
    (Box::new(buf), limit)
}

impl ShrinkingBuf {
    fn len(&self) -> usize {
        self.limit.load(Ordering::Relaxed).min(self.bytes.len())
    }
}

impl Drop for ShrinkingBuf {
    fn drop(&mut self) {
        self.limit.store(0, Ordering::Relaxed);
    }
}

// SAFETY: the vector does not grow, so its bytes stay where they are.
unsafe impl CustomBuf for ShrinkingBuf {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len()]
    }

    fn writable(&mut self) -> Option<&mut [u8]> {
        let len = self.len();
        Some(&mut self.bytes[..len])
    }

    fn set_filled(&mut self, _: usize) {}
}

/// What blocks the reader of a [gated buffer](gated_buf).
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate(Arc<(Mutex<GateState>, Condvar)>);

#[derive(Debug, Default)]
struct GateState {
    is_reached: bool,
    is_open: bool,
    panics: bool,
    is_buffer_dropped: bool,
}

/// A blocked reader continues after this time, so that a test in which it blocks the thread of the
/// test fails.
const GATE_TIMEOUT: Duration = Duration::from_secs(20);

impl Gate {
    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when a thread reads the buffer, and blocks.
    pub(crate) async fn wait_until_reached(&self) {
        while !self.lock().is_reached {
            let_other_tasks_run().await;
        }
    }

    /// Lets threads read the buffer.
    pub(crate) fn open(&self) {
        self.lock().is_open = true;
        self.0.1.notify_all();
    }

    /// Makes reads of the buffer panic.
    pub(crate) fn open_with_panic(&self) {
        self.lock().panics = true;
        self.open();
    }

    pub(crate) fn is_buffer_dropped(&self) -> bool {
        self.lock().is_buffer_dropped
    }

    /// Blocks until the gate is open.
    fn pass(&self) {
        let mut state = self.lock();
        state.is_reached = true;
        let passed = self
            .0
            .1
            .wait_timeout_while(state, GATE_TIMEOUT, |state| !state.is_open);
        let panics = passed.unwrap_or_else(PoisonError::into_inner).0.panics;
        if panics {
            resume_unwind(Box::new("a read of the buffer panics"));
        }
    }
}

/// A buffer whose bytes are read when its gate is open.
#[derive(Debug)]
struct GatedBuf {
    bytes: Vec<u8>,
    gate: Gate,
}

/// Returns a buffer with these bytes, and its gate.
pub(crate) fn gated_buf(bytes: &[u8]) -> (Box<dyn CustomBuf>, Gate) {
    let gate = Gate::default();
    let buf = GatedBuf {
        bytes: bytes.to_vec(),
        gate: gate.clone(),
    };
    (Box::new(buf), gate)
}

impl Drop for GatedBuf {
    fn drop(&mut self) {
        self.gate.lock().is_buffer_dropped = true;
    }
}

// SAFETY: the vector does not grow, so its bytes stay where they are.
unsafe impl CustomBuf for GatedBuf {
    fn bytes(&self) -> &[u8] {
        self.gate.pass();
        &self.bytes
    }

    fn writable(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.bytes)
    }

    fn set_filled(&mut self, _: usize) {}
}

/// The call that drops a registered buffer drops its memory, even if responses to reads of it were
/// not sent yet: these responses would drop it under the lock of the domain.
pub(crate) async fn drop_of_registered_buffer_drops_its_memory(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    for round in 0..3 {
        let (buf, limit) = shrinking_buf(LONG_LEN);
        let region = b.domain.register(buf, READ_WRITE, None).unwrap();
        let remote = region.remote();
        let start = |_| a.ep.read(to_b, remote.slice(..)).start().unwrap();
        let mut reads: Vec<_> = (0..16).map(start).collect();
        for _ in 0..round * 5 {
            // Responses are written as far as the connection has room.
            if poll_once(&mut reads[15]).await.is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        if round == 1 {
            region.close().unwrap();
        } else {
            drop(region);
        }
        assert_eq!(limit.load(Ordering::Relaxed), 0, "the memory was dropped");
        drop(reads);
        let failed = a.ep.read(to_b, remote.slice(..8)).await.unwrap_err();
        assert!(matches!(failed.error, Error::Key { .. }), "{failed}");
    }
}

/// A registered buffer that becomes shorter is closed to peers. The domain works on, and the owner
/// gets the buffer back.
pub(crate) async fn registered_buffer_that_shrinks_is_closed_to_peers(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    for access in 0..3 {
        let (buf, limit) = shrinking_buf(5000);
        let region = b.domain.register(buf, READ_WRITE, None).unwrap();
        let remote = region.remote();
        assert_eq!(
            a.ep.read(to_b, remote.slice(..)).await.unwrap()[..],
            [5; 5000]
        );
        limit.store(10, Ordering::Relaxed);
        let error = match access {
            0 => a.ep.read(to_b, remote.slice(..)).await.unwrap_err().error,
            1 => {
                a.ep.write(to_b, remote.at(8), vec![1; 100])
                    .await
                    .unwrap_err()
                    .error
            }
            _ => a.ep.fetch_add(to_b, remote.at(0), 1u64).await.unwrap_err(),
        };
        assert!(matches!(error, Error::Key { .. }), "{error}");
        limit.store(5000, Ordering::Relaxed);
        assert_eq!(region.into_buf().unwrap().bytes(), [5; 5000]);
        let other = b.domain.register(vec![7; 8], READ_WRITE, None).unwrap();
        let read = a.ep.read(to_b, other.remote().slice(..)).await;
        assert_eq!(read.unwrap()[..], [7; 8]);
    }
}

/// A buffer that becomes shorter after some calls of `writable`.
struct ShorterAfterCalls {
    bytes: Vec<u8>,
    calls_left: Arc<AtomicUsize>,
}

// SAFETY: the vector does not grow, so its bytes stay where they are.
unsafe impl CustomBuf for ShorterAfterCalls {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn writable(&mut self) -> Option<&mut [u8]> {
        let left = self.calls_left.load(Ordering::Relaxed);
        self.calls_left
            .store(left.saturating_sub(1), Ordering::Relaxed);
        let len = if left == 0 { 10 } else { self.bytes.len() };
        Some(&mut self.bytes[..len])
    }

    fn set_filled(&mut self, _: usize) {}
}

/// A registered buffer that becomes shorter while an access of a peer begins or is under way ends
/// the access: the peer does not wait for it.
pub(crate) async fn buffer_that_shrinks_during_an_access_ends_the_access(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let mut refused = 0;
    for (calls, is_write) in (0..8).flat_map(|calls| [(calls, true), (calls, false)]) {
        let calls_left = Arc::new(AtomicUsize::new(usize::MAX));
        let buf: Box<dyn CustomBuf> = Box::new(ShorterAfterCalls {
            bytes: vec![5; 100_000],
            calls_left: calls_left.clone(),
        });
        let region = b.domain.register(buf, READ_WRITE, None).unwrap();
        let remote = region.remote();
        calls_left.store(calls, Ordering::Relaxed);
        let error = if is_write {
            let write = a.ep.write(to_b, remote.at(0), vec![1; 60_000]);
            write.await.err().map(|failed| failed.error)
        } else {
            a.ep.fetch_add(to_b, remote.at(8), 1u64).await.err()
        };
        let is_expected = matches!(error, None | Some(Error::Key { .. }));
        assert!(is_expected, "after {calls} calls: {error:?}");
        refused += usize::from(error.is_some());
    }
    assert!(refused > 0, "the buffer shrinks in some of the accesses");
}

/// A buffer that moves to its other half when it is accessed for writing after `is_second` has
/// changed.
#[derive(Debug)]
struct MovingBuf {
    halves: [Vec<u8>; 2],
    half: usize,
    is_second: Arc<AtomicUsize>,
}

// SAFETY: the vectors stay where they are, and the half changes only in `writable`.
unsafe impl CustomBuf for MovingBuf {
    fn bytes(&self) -> &[u8] {
        &self.halves[self.half]
    }

    fn writable(&mut self) -> Option<&mut [u8]> {
        self.half = self.is_second.load(Ordering::Relaxed);
        Some(&mut self.halves[self.half])
    }

    fn set_filled(&mut self, _: usize) {}
}

/// With `FI_MR_MMU_NOTIFY`, memory that has moved is refreshed before peers access it again, and
/// only memory with pages is refreshed.
pub(crate) async fn fi_mr_mmu_notify_moved_memory_is_refreshed(setup: Setup) {
    let a = setup.open_endpoint().await;
    let b = setup.requiring(MrMode::MMU_NOTIFY).open_endpoint().await;
    let _progress = b.spawn_progress();
    let to_b = a.add_peer(&b).await;
    let is_second = Arc::new(AtomicUsize::new(0));
    let buf: Box<dyn CustomBuf> = Box::new(MovingBuf {
        halves: [vec![1; 100], vec![2; 100]],
        half: 0,
        is_second: is_second.clone(),
    });
    let mut region = b.domain.register(buf, READ_WRITE, None).unwrap();
    let remote = region.remote();
    for half in [0, 1, 0] {
        is_second.store(half, Ordering::Relaxed);
        let refused = a.ep.read(to_b, remote.slice(..)).await.unwrap_err();
        assert!(matches!(refused.error, Error::Key { .. }), "{refused}");
        region.refresh(..).unwrap();
        let read = a.ep.read(to_b, remote.slice(..)).await.unwrap();
        assert_eq!(read[..], [half as u8 + 1; 100]);
    }

    let mapped = MappedFile::new();
    let file = mapped.file.try_clone().unwrap();
    let buf: Box<dyn CustomBuf> = Box::new(mapped);
    let mut region = b.domain.register(buf, READ_WRITE, None).unwrap();
    ftruncate(&file, page_size() as u64).unwrap();
    region.refresh(..page_size()).unwrap();
    let refused = region.refresh(..).unwrap_err();
    assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
    let remote = region.remote();
    a.ep.write(to_b, remote.at(0), vec![1; page_size()])
        .await
        .unwrap();
    let refused = a.ep.read(to_b, remote.slice(..)).await.unwrap_err();
    assert!(matches!(refused.error, Error::Key { .. }), "{refused}");
}

/// Two pages of a file that may be shorter.
#[derive(Debug)]
struct MappedFile {
    file: OwnedFd,
    bytes: &'static mut [u8],
}

impl MappedFile {
    /// Maps two pages of an empty file.
    fn new() -> Self {
        let file = memfd_create("mapped-file", MemfdFlags::CLOEXEC).unwrap();
        let (len, protection) = (2 * page_size(), ProtFlags::READ | ProtFlags::WRITE);
        let any = std::ptr::null_mut();
        // SAFETY: the mapping is new, and the drop removes it. Its pages are accessed only while
        // the file has them.
        let bytes = unsafe {
            let start = mmap(any, len, protection, MapFlags::SHARED, &file, 0).unwrap();
            std::slice::from_raw_parts_mut(start.cast(), len)
        };
        Self { file, bytes }
    }
}

fn page_size() -> usize {
    rustix::param::page_size()
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: `new` has made the mapping.
        unsafe { munmap(self.bytes.as_mut_ptr().cast(), self.bytes.len()) }.unwrap();
    }
}

// SAFETY: the mapping stays where it is until the drop, with its length.
unsafe impl CustomBuf for MappedFile {
    fn bytes(&self) -> &[u8] {
        self.bytes
    }

    fn writable(&mut self) -> Option<&mut [u8]> {
        Some(self.bytes)
    }

    fn set_filled(&mut self, _: usize) {}
}

/// With `FI_MR_ALLOCATED`, memory without pages is not registered, and the buffer comes back.
pub(crate) async fn fi_mr_allocated_memory_is_backed_by_pages(setup: Setup) {
    let owner = setup.requiring(MrMode::ALLOCATED).open_endpoint().await;
    let mapped = MappedFile::new();
    let set_pages = |file: &OwnedFd, count: usize| {
        ftruncate(file, (count * page_size()) as u64).unwrap();
    };
    let file = mapped.file.try_clone().unwrap();
    let mut buf: Box<dyn CustomBuf> = Box::new(mapped);
    for pages in 0..2 {
        set_pages(&file, pages);
        let failed = owner.domain.register(buf, READ_WRITE, None).unwrap_err();
        assert!(matches!(failed.error, Error::Invalid { .. }), "{failed}");
        buf = failed.buf;
    }
    set_pages(&file, 2);
    let region = owner.domain.register(buf, READ_WRITE, None).unwrap();
    assert_eq!(region.remote().len, 2 * page_size() as u64);
    drop(region);
    // Buffers of Rust and memory of the domain are always backed.
    for len in [0, 1, 1 << 20] {
        owner
            .domain
            .register(vec![0u8; len], READ_WRITE, None)
            .unwrap();
        owner.domain.alloc(len, READ_WRITE).unwrap();
    }
}

/// A segment that becomes shorter closes the whole region to peers.
pub(crate) async fn segment_that_shrinks_closes_its_region(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let (buf, limit) = shrinking_buf(5000);
    let scatter = Scatter::from((vec![5; 3], buf, vec![5; 8]));
    let region = b.domain.register(scatter, READ_WRITE, None).unwrap();
    let remote = region.remote();
    let read = a.ep.read(to_b, remote.slice(..)).await.unwrap();
    assert_eq!(read[..], [5; 5011]);
    limit.store(4999, Ordering::Relaxed);
    let failed = a.ep.read(to_b, remote.slice(..1)).await.unwrap_err();
    assert!(matches!(failed.error, Error::Key { .. }), "{failed}");
    limit.store(5000, Ordering::Relaxed);
    let failed = a.ep.fetch_add(to_b, remote.at(0), 1u64).await.unwrap_err();
    assert!(matches!(failed, Error::Key { .. }), "{failed}");
    let pieces = region.into_buf().unwrap();
    assert_eq!(pieces.pieces().collect::<Vec<_>>().concat(), [5; 5011]);
}

/// With `FI_MR_ALLOCATED`, pages are behind every segment. With `FI_MR_MMU_NOTIFY`, a region is
/// refreshed after any of its segments has moved.
pub(crate) async fn pages_and_moves_of_every_segment_are_checked(setup: Setup) {
    let owner = setup.requiring(MrMode::ALLOCATED).open_endpoint().await;
    let mapped = MappedFile::new();
    let file = mapped.file.try_clone().unwrap();
    let mapped: Box<dyn CustomBuf> = Box::new(mapped);
    let scatter = Scatter::from((vec![1; 8], mapped));
    let failed = owner.domain.register(scatter, READ_WRITE, None);
    let failed = failed.unwrap_err();
    assert!(matches!(failed.error, Error::Invalid { .. }), "{failed}");
    ftruncate(&file, 2 * page_size() as u64).unwrap();
    owner.domain.register(failed.buf, READ_WRITE, None).unwrap();

    let a = setup.open_endpoint().await;
    let b = setup.requiring(MrMode::MMU_NOTIFY).open_endpoint().await;
    let _progress = b.spawn_progress();
    let to_b = a.add_peer(&b).await;
    let is_second = Arc::new(AtomicUsize::new(0));
    let moving: Box<dyn CustomBuf> = Box::new(MovingBuf {
        halves: [vec![1; 100], vec![2; 100]],
        half: 0,
        is_second: is_second.clone(),
    });
    let scatter = Scatter::from((vec![0; 4090], moving));
    let mut region = b.domain.register(scatter, READ_WRITE, None).unwrap();
    let remote = region.remote();
    let last = remote.slice(4180..4190);
    for half in [0, 1, 0] {
        is_second.store(half, Ordering::Relaxed);
        for range in [last, remote.slice(..1)] {
            let refused = a.ep.read(to_b, range).await.unwrap_err();
            assert!(matches!(refused.error, Error::Key { .. }), "{refused}");
        }
        region.refresh(4096..).unwrap();
        let read = a.ep.read(to_b, last).await.unwrap();
        assert_eq!(read[..], [half as u8 + 1; 10]);
    }

    let mapped = MappedFile::new();
    let file = mapped.file.try_clone().unwrap();
    let mapped: Box<dyn CustomBuf> = Box::new(mapped);
    let scatter = Scatter::from((vec![1; 8], mapped));
    let mut region = b.domain.register(scatter, READ_WRITE, None).unwrap();
    ftruncate(&file, page_size() as u64).unwrap();
    region.refresh(..page_size() + 8).unwrap();
    let refused = region.refresh(..page_size() + 9).unwrap_err();
    assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
}
