//! Custom buffers whose drop is observed, or that break the contract of `CustomBuf`.
#![allow(unsafe_code)] // implements `CustomBuf`

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fabric_async::buf::CustomBuf;
use fabric_async::{Access, Error};

use crate::endpoint_fixture::endpoint_pair;
use crate::payload::{LONG_LEN, poll_once};
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
            let _ = poll_once(&mut reads[15]).await;
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
