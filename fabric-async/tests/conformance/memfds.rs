//! Memory of the program with a descriptor (`memfd_create(2)`), registered in place.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use fabric_async::buf::Memfd;
use fabric_async::extension::ShmExtension;
use fabric_async::{Access, Error, FiAddr};
use rustix::fs::{FallocateFlags, MemfdFlags};

use crate::endpoint_fixture::{EndpointFixture, endpoint_pair};
use crate::harness::skip_scenario;
use crate::payload::pattern;
use crate::setup::Setup;
use crate::skip::Facility;

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
/// Longer than an access that is executed at once, and no multiple of a page.
const LEN: usize = 300_001;

/// Returns the bytes of the memory, as its file has them.
fn file_bytes(memory: &Memfd) -> Vec<u8> {
    let file = File::from(memory.as_fd().try_clone_to_owned().unwrap());
    let mut bytes = vec![0; memory.len()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Returns how many regions the endpoint's process has mapped of the peer, over shared memory.
fn mapped_regions(setup: &Setup, ep: &EndpointFixture, peer: FiAddr) -> Option<usize> {
    setup.shares_memory().then(|| {
        let shm: ShmExtension = ep.domain.extension().unwrap();
        shm.info(&ep.ep, peer).unwrap().unwrap().regions
    })
}

/// Operations of peers, the region and the file have the same bytes.
pub(crate) async fn memory_is_accessed_in_place(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let memory = Memfd::create(LEN).unwrap();
    let mut expected = pattern(LEN, 1).to_vec();
    let file = File::from(memory.as_fd().try_clone_to_owned().unwrap());
    file.write_all_at(&expected, 0).unwrap();
    let region = b.domain.register_memfd(&memory, READ_WRITE, None).unwrap();
    let remote = region.remote();
    assert_eq!((remote.len, region.memfd().len()), (LEN as u64, LEN));
    let read = a.ep.read(to_b, remote.slice(..)).await.unwrap();
    assert!(read[..] == expected, "the memory keeps its bytes");
    for (at, len) in [(0, 1), (7, 4096), (4095, 2), (11, 270_000), (LEN - 3, 3)] {
        let bytes = pattern(len, at);
        a.ep.write(to_b, remote.at(at as u64), bytes).await.unwrap();
        expected[at..at + len].copy_from_slice(bytes);
        assert!(file_bytes(&memory) == expected, "{len} bytes at {at}");
    }
    let word = u64::from_le_bytes(expected[800..808].try_into().unwrap());
    let added = a.ep.fetch_add(to_b, remote.at(800), 5u64).await;
    assert_eq!(added, Ok(word));
    assert_eq!(region.load::<u64>(800), Ok(word.wrapping_add(5)));
    region.write(800, b"the same").unwrap();
    expected[800..808].copy_from_slice(b"the same");
    assert!(file_bytes(&memory) == expected);
    assert!(a.ep.read(to_b, remote.slice(..)).await.unwrap()[..] == expected);
    for (offset, len) in [(LEN, 1), (LEN - 1, 2), (0, LEN + 1)] {
        let refused = a.ep.write(to_b, remote.at(offset as u64), vec![9; len]);
        let error = refused.await.unwrap_err().error;
        let is_out_of_bounds = matches!(error, Error::OutOfBounds { limit: LEN, .. });
        assert!(is_out_of_bounds, "{error}");
    }
    if let Some(mapped) = mapped_regions(&setup, &a, to_b) {
        assert_eq!(mapped, 1, "the peer maps the memory");
        let window = a.ep.window(to_b, remote).await.unwrap();
        window.write(LEN - 6, b"window").unwrap();
        assert_eq!(&file_bytes(&memory)[LEN - 6..], b"window");
    }
}

/// A registration ends without the memory and without other registrations of it.
pub(crate) async fn registrations_of_one_memory_are_independent(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let memory = Memfd::create(10_000).unwrap();
    let register = || b.domain.register_memfd(&memory, READ_WRITE, None).unwrap();
    let (first, second) = (register(), register());
    assert_ne!(first.key(), second.key());
    let remotes = [first.remote(), second.remote()];
    for (at, remote) in remotes.iter().enumerate() {
        let to = remote.at(at as u64);
        a.ep.write(to_b, to, [b'x' + at as u8]).await.unwrap();
    }
    let stale = first.remote();
    first.close().unwrap();
    let refused = a.ep.write(to_b, stale.at(0), "z").await.unwrap_err();
    assert!(
        matches!(refused.error, Error::Key { .. }),
        "{}",
        refused.error
    );
    let read = a.ep.read(to_b, remotes[1].slice(..3)).await.unwrap();
    assert_eq!(&read[..], b"xy\0");
    drop(second);
    let third = register();
    drop(memory.clone());
    let read = a.ep.read(to_b, third.remote().slice(..3)).await.unwrap();
    assert_eq!(&read[..], b"xy\0", "the memory outlives its regions");
    let taken = b
        .domain
        .register_memfd(&memory, READ_WRITE, Some(third.key()));
    assert!(matches!(taken, Err(Error::Key { .. })), "{taken:?}");
    let no_access = b.domain.register_memfd(&memory, Access::empty(), None);
    assert!(
        matches!(no_access, Err(Error::BadFlags { .. })),
        "{no_access:?}"
    );
}

/// The seals of the first registration decide which regions peers map; the others work too.
pub(crate) async fn peers_get_only_the_rights_of_the_region(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let taken = b.domain.alloc(8, READ_WRITE).unwrap();
    let write_twice = async |first: Access, mapped: [usize; 2]| {
        let memory = Memfd::create(10_000).unwrap();
        let register = |access| b.domain.register_memfd(&memory, access, None).unwrap();
        let second = if first == READ_WRITE {
            Access::REMOTE_READ
        } else {
            READ_WRITE
        };
        // A refused registration does not count.
        for (access, key) in [(second, Some(taken.key())), (Access::empty(), None)] {
            b.domain.register_memfd(&memory, access, key).unwrap_err();
        }
        for (access, expected_mapped) in [first, second].into_iter().zip(mapped) {
            let region = register(access);
            region.write(0, b"by owner").unwrap();
            let remote = region.remote();
            let read = a.ep.read(to_b, remote.slice(..8)).await.unwrap();
            assert_eq!(&read[..], b"by owner");
            let written = a.ep.write(to_b, remote.at(0), "by peer!").await;
            if access == READ_WRITE {
                written.unwrap();
                assert_eq!(&file_bytes(&memory)[..8], b"by peer!");
            } else {
                let error = written.unwrap_err().error;
                assert!(
                    matches!(
                        error,
                        Error::Key {
                            why: "does not grant REMOTE_WRITE",
                            ..
                        }
                    ),
                    "{error}"
                );
                assert_eq!(&file_bytes(&memory)[..8], b"by owner");
            }
            if let Some(mapped) = mapped_regions(&setup, &a, to_b) {
                assert_eq!(mapped, expected_mapped, "{access:?} after {first:?}");
            }
        }
    };
    write_twice(Access::REMOTE_READ, [1, 0]).await;
    write_twice(READ_WRITE, [1, 0]).await;
}

/// An awaited registration does in another thread what the synchronous call does.
pub(crate) async fn memory_is_registered_asynchronously(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let memory = Memfd::create(LEN).unwrap();
    let request = b.domain.register_memfd_async(&memory, READ_WRITE);
    let region = request.await.unwrap();
    let remote = region.remote();
    a.ep.write(to_b, remote.at(5), "there").await.unwrap();
    assert_eq!(&file_bytes(&memory)[5..10], b"there");
    let same_key = b.domain.register_memfd_async(&memory, READ_WRITE);
    let refused = same_key.key(region.key()).await;
    assert!(matches!(refused, Err(Error::Key { .. })), "{refused:?}");
}

/// Huge pages are mapped by peers that only read them. Regions that can be written are served by
/// the owner, because a peer could free pages.
pub(crate) async fn huge_pages_are_registered_in_place(setup: Setup) {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        number.unwrap_or(0usize)
    };
    let len = 1024 * field("Hugepagesize:");
    if field("HugePages_Free:") == 0 || len == 0 {
        skip_scenario(Facility::HugePages, "no huge page is free");
    }
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    // Of memory that ends within a huge page, a mapping would change the length.
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    let partial = rustix::fs::memfd_create("partial", flags).unwrap();
    rustix::fs::fallocate(&partial, FallocateFlags::empty(), 0, 10_000).unwrap();
    for refused in [Memfd::create_huge(len + 1), Memfd::new(partial)] {
        let refused = refused.unwrap_err();
        assert!(refused.to_string().contains(&len.to_string()), "{refused}");
    }
    for (access, expected_mapped) in [(Access::REMOTE_READ, 1), (READ_WRITE, 0)] {
        let memory = match Memfd::create_huge(len) {
            Ok(memory) => memory,
            Err(error) => skip_scenario(Facility::HugePages, &error.to_string()),
        };
        assert_eq!((memory.len(), memory.page_len()), (len, len));
        let region = b.domain.register_memfd(&memory, access, None).unwrap();
        region.write(len - 4, b"page").unwrap();
        let last = region.remote().slice(len as u64 - 4..);
        assert_eq!(&a.ep.read(to_b, last).await.unwrap()[..], b"page");
        if access == READ_WRITE {
            let to = region.remote().at(0);
            a.ep.write(to_b, to, "huge").await.unwrap();
            let mut written = [0; 4];
            region.read(0, &mut written).unwrap();
            assert_eq!(&written, b"huge");
        }
        assert_eq!(mapped_regions(&setup, &a, to_b), Some(expected_mapped));
    }
}
