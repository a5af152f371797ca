//! Memory regions of several segments (`fi_mr_regv`).

use fabric_async::buf::Scatter;
use fabric_async::{Access, Domain, Endpoint, Error, FiAddr, RemoteAddr, RemoteRegion};

use crate::endpoint_fixture::endpoint_pair;
use crate::payload::pattern;
use crate::regions::open_virt_addr_owner;
use crate::setup::Setup;

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
/// Lengths of segments: an atomic value is in two of them, and a request of 64 KiB is in three.
const LENS: [usize; 4] = [3001, 2, 70_000, 5];
const TOTAL: usize = 3001 + 2 + 70_000 + 5;

/// Returns segments with the bytes of a pattern, and spare capacity, which is no part of a region.
fn segments(lens: &[usize]) -> (Scatter, Vec<u8>) {
    let bytes = pattern(lens.iter().sum(), 3).to_vec();
    let mut at = 0;
    let bufs = lens.iter().map(|len| {
        let mut buf = Vec::with_capacity(len + 100);
        buf.extend_from_slice(&bytes[at..at + len]);
        at += len;
        buf
    });
    (bufs.collect(), bytes)
}

/// Writes and reads ranges around every border between segments. `expected` has the bytes of the
/// region.
async fn access_every_border(
    ep: &Endpoint,
    peer: FiAddr,
    remote: RemoteRegion,
    expected: &mut [u8],
) {
    assert_eq!(remote.len, expected.len() as u64);
    let mut border = 0;
    for len in [0].into_iter().chain(LENS) {
        border += len;
        for (before, after) in [(1, 1), (0, 5), (5, 0), (2999, 3), (3, 69_999), (2, 70_004)] {
            let start = border.saturating_sub(before);
            let end = (border + after).min(TOTAL);
            let bytes = pattern(end - start, border + after);
            let done = ep
                .write(peer, remote.at(start as u64), bytes)
                .await
                .unwrap();
            assert_eq!(done.len(), end - start);
            expected[start..end].copy_from_slice(bytes);
            let around = start.saturating_sub(9)..(end + 9).min(TOTAL);
            let slice = remote.slice(around.start as u64..around.end as u64);
            let read = ep.read(peer, slice).await.unwrap();
            assert!(read[..] == expected[around.clone()], "{around:?}");
        }
    }
    // 3000..3008 is in three segments.
    let value = |bytes: &[u8]| u64::from_le_bytes(bytes[3000..3008].try_into().unwrap());
    let at = remote.at(3000);
    let before = value(expected);
    assert_eq!(ep.fetch_add(peer, at, 5u64).await, Ok(before));
    let after = before.wrapping_add(5);
    assert_eq!(ep.compare_swap(peer, at, after, 77u64).await, Ok(after));
    expected[3000..3008].copy_from_slice(&77u64.to_le_bytes());
    for (offset, len) in [(TOTAL, 1), (TOTAL - 1, 2), (0, TOTAL + 1), (3001, TOTAL)] {
        let refused = ep.write(peer, remote.at(offset as u64), vec![9; len]).await;
        let error = refused.unwrap_err().error;
        assert!(
            matches!(error, Error::OutOfBounds { limit: TOTAL, .. }),
            "{error}"
        );
    }
    assert!(ep.read(peer, remote.slice(..)).await.unwrap()[..] == *expected);
}

/// Checks that a region gave the segments back, with these bytes.
fn check_returned(scatter: Scatter, expected: &[u8]) -> Vec<Vec<u8>> {
    assert!(scatter.pieces().collect::<Vec<_>>().concat() == expected);
    let bufs = scatter.into_parts::<Vec<u8>>().unwrap();
    assert_eq!(bufs.iter().map(Vec::len).collect::<Vec<_>>(), LENS);
    bufs
}

/// Offsets run through the segments in order, for peers and for the owner.
pub(crate) async fn operations_cross_borders_of_segments(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();

    let (scatter, mut expected) = segments(&LENS);
    let region = b.domain.alloc_from(scatter, READ_WRITE, None).unwrap();
    access_every_border(&a.ep, to_b, region.remote(), &mut expected).await;
    let mut read = vec![0; TOTAL - 2999];
    region.read(2999, &mut read).unwrap();
    assert!(read == expected[2999..]);
    region.write(2999, b"borders").unwrap();
    expected[2999..3006].copy_from_slice(b"borders");
    assert!(region.write(TOTAL - 1, b"xy").is_err());
    if setup.shares_memory() {
        let window = a.ep.window(to_b, region.remote()).await.unwrap();
        window.write(72_999, b"of segments").unwrap_err();
        window.write(72_999, b"segments").unwrap();
        expected[72_999..73_007].copy_from_slice(b"segments");
        let mut there = [0; 7];
        window.read(2999, &mut there).unwrap();
        assert_eq!(&there, b"borders");
    }
    check_returned(region.into_buf().unwrap(), &expected);

    let (scatter, mut expected) = segments(&LENS);
    let addresses: Vec<_> = scatter_addresses(&scatter);
    let mut region = b.domain.register(scatter, READ_WRITE, None).unwrap();
    access_every_border(&a.ep, to_b, region.remote(), &mut expected).await;
    let guard = region.lock();
    let lens = guard.segments().map(<[u8]>::len);
    assert_eq!(lens.collect::<Vec<_>>(), LENS);
    assert!(guard.segments().collect::<Vec<_>>().concat() == expected);
    drop(guard);
    for segment in region.lock().segments_mut() {
        segment[0] = 0xaa;
    }
    for first in [0, 3001, 3003, 73_003] {
        expected[first] = 0xaa;
    }
    let all = region.remote().slice(..);
    assert!(a.ep.read(to_b, all).await.unwrap()[..] == expected);
    let bufs = check_returned(region.into_buf().unwrap(), &expected);
    let returned: Vec<_> = bufs.iter().map(|buf| buf.as_ptr().addr()).collect();
    assert_eq!(returned, addresses, "the same memory, not a copy");
}

/// Returns the address of each buffer. Its pieces are empty before the first operation.
fn scatter_addresses(scatter: &Scatter) -> Vec<usize> {
    scatter
        .pieces()
        .map(|piece| piece.as_ptr().addr())
        .collect()
}

/// Checks that an error says that a region has too many segments.
fn assert_too_many(error: &Error, count: usize, limit: usize) {
    let Error::TooMany { what, .. } = error else {
        panic!("{error}")
    };
    assert!(what.contains("mr_iov_limit"), "{error}");
    let numbers = format!("{count} {what} exceed the limit of {limit}");
    assert_eq!(error.to_string(), numbers);
}

/// A region has at most `mr_iov_limit` segments, and at least one. A refusal returns the buffers.
pub(crate) async fn segments_are_limited_by_mr_iov_limit(setup: Setup) {
    let (fabric, mut info) = setup.fabric().await;
    assert_eq!(info.domain.mr_iov_limit, 4);
    let check = |domain: &Domain, limit: usize| {
        let bufs = |count| Scatter::from(vec![vec![1u8; 10]; count]);
        for count in 1..=limit {
            let region = domain.register(bufs(count), READ_WRITE, None).unwrap();
            assert_eq!(region.remote().len, 10 * count as u64);
            domain.alloc_from(bufs(count), READ_WRITE, None).unwrap();
        }
        let refused = domain
            .register(bufs(limit + 1), READ_WRITE, None)
            .unwrap_err();
        assert_too_many(&refused.error, limit + 1, limit);
        let bufs_back = refused.buf.into_parts::<Vec<u8>>().unwrap();
        assert_eq!(bufs_back, vec![vec![1; 10]; limit + 1]);
        let refused = domain
            .alloc_from(bufs(limit + 1), READ_WRITE, None)
            .unwrap_err();
        assert_too_many(&refused.error, limit + 1, limit);
        let refused = domain
            .register(Scatter::new(), READ_WRITE, None)
            .unwrap_err();
        assert!(matches!(refused.error, Error::Invalid { .. }), "{refused}");
        let refused = domain
            .alloc_from(Scatter::new(), READ_WRITE, None)
            .unwrap_err();
        assert!(matches!(refused.error, Error::Invalid { .. }), "{refused}");
    };
    check(&setup.open_domain(&fabric, &info), 4);
    info.domain.mr_iov_limit = 2;
    check(&setup.open_domain(&fabric, &info), 2);
}

/// Asynchronous registrations take segments, with the same limit.
pub(crate) async fn segments_are_registered_asynchronously(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let (scatter, mut expected) = segments(&LENS);
    let region = b.domain.register_async(scatter, READ_WRITE).await.unwrap();
    access_every_border(&a.ep, to_b, region.remote(), &mut expected).await;
    check_returned(region.into_buf().unwrap(), &expected);
    let (scatter, expected) = segments(&LENS);
    let region = b
        .domain
        .alloc_from_async(scatter, READ_WRITE)
        .await
        .unwrap();
    check_returned(region.into_buf().unwrap(), &expected);

    let bufs = || Scatter::from(vec![vec![1u8; 10]; 5]);
    let refused = b
        .domain
        .register_async(bufs(), READ_WRITE)
        .await
        .unwrap_err();
    assert_too_many(&refused.error, 5, 4);
    let refused = b
        .domain
        .alloc_from_async(bufs(), READ_WRITE)
        .await
        .unwrap_err();
    assert_too_many(&refused.error, 5, 4);
    assert_eq!(refused.buf.into_parts::<Vec<u8>>().unwrap().len(), 5);
}

/// With `FI_MR_VIRT_ADDR`, the addresses of a region are those of its first segment and go on
/// behind it, wherever the other segments are.
pub(crate) async fn virtual_addresses_continue_behind_the_first_segment(setup: Setup) {
    let (domain, owner, progress_task) = open_virt_addr_owner(&setup).await;
    let a = setup.open_endpoint().await;
    let to_b = a.ep.add_peer(owner.name()).await.unwrap();
    let (scatter, mut expected) = segments(&LENS);
    let base = scatter_addresses(&scatter)[0] as u64;
    let mut region = domain.register(scatter, READ_WRITE, None).unwrap();
    let remote = region.remote();
    assert_eq!(remote.base, base);
    let key = remote.key;
    for at in [0, 3000, 3002, 73_002] {
        let to = RemoteAddr {
            key,
            offset: base + at as u64,
        };
        a.ep.write(to_b, to, b"vwxyz").await.unwrap();
        expected[at..at + 5].copy_from_slice(b"vwxyz");
    }
    for outside in [0, base - 1, base + TOTAL as u64] {
        let to = RemoteAddr {
            key,
            offset: outside,
        };
        let error = a.ep.write(to_b, to, "x").await.unwrap_err().error;
        assert!(
            matches!(error, Error::OutOfBounds { limit: TOTAL, .. }),
            "{error}"
        );
    }
    assert!(region.lock().segments().collect::<Vec<_>>().concat() == expected);
    progress_task.abort();
}
