//! Parsers of what peers write, applied to arbitrary bytes: for the fuzz targets, and for the tests
//! that replay their corpora.

use super::cm::{CmAnswer, CmClientMessage, parse_answer, parse_client_message};
use super::control::parse_hello;
use super::record::RecordLayout;
use super::ring::{Consumer, HEADER_LEN, LINE_LEN, RingMemory};
use super::ring_heap::HeapRing;
use crate::sys::closer::{self, PeerFd};
use crate::sys::fd_reserve;
use crate::sys::sync::Ordering;

/// Lines of the ring in [`ring`].
const RING_LINES: usize = 64;

/// Parses a hello. Returns whether it is valid.
///
/// # Panics
/// If a hello without a descriptor is accepted, which is the defect that the target looks for, or
/// if this process has no descriptor left.
pub fn hello(bytes: &[u8]) -> bool {
    if let Ok(hello) = parse_hello(bytes, Vec::new()) {
        panic!("a hello without descriptors was accepted: {hello:?}");
    }
    parse_hello(bytes, vec![received_fd()]).is_ok()
}

/// Parses the bytes as a connection request to a passive endpoint, and as the answer of a passive
/// endpoint. Returns whether the bytes are valid as one of the two.
///
/// # Panics
/// If a request or an accept without its descriptor is accepted, which is the defect that the
/// target looks for, or if this process has no descriptor left.
pub fn connect(bytes: &[u8]) -> bool {
    let client_without_fd = parse_client_message(bytes, Vec::new());
    if let Ok(CmClientMessage::Request(request)) = client_without_fd {
        panic!("a request without a descriptor was accepted: {request:?}");
    }
    let answer_without_fd = parse_answer(bytes, Vec::new());
    if let Ok(CmAnswer::Accepted(accept)) = answer_without_fd {
        panic!("an accept without a descriptor was accepted: {accept:?}");
    }
    let client_with_fd = parse_client_message(bytes, vec![received_fd()]);
    let answer_with_fd = parse_answer(bytes, vec![received_fd()]);
    client_without_fd.is_ok()
        || answer_without_fd.is_ok()
        || client_with_fd.is_ok()
        || answer_with_fd.is_ok()
}

/// Returns a descriptor as if a peer had sent it. Waits while many of them are being closed.
fn received_fd() -> PeerFd {
    closer::wait_for_room();
    let fd = fd_reserve::create().expect("eventfd for the reserve descriptor");
    fd.into()
}

/// Consumes the records of a ring whose memory holds these bytes, followed by zeros, and of a ring
/// that begins with half of the lines. Returns the number of records of the first ring; `None`
/// after a protocol violation.
///
/// # Panics
/// If a record lies outside of the ring or is too short for its parts, or if the records do not
/// end.
pub fn ring(bytes: &[u8]) -> Option<usize> {
    consume_records(&HeapRing::growing(RING_LINES / 2, RING_LINES, true), bytes);
    consume_records(&HeapRing::new(RING_LINES), bytes)
}

/// Consumes the records of one ring.
fn consume_records(heap: &HeapRing, bytes: &[u8]) -> Option<usize> {
    for (at, word) in bytes.chunks(8).take(RING_LINES * LINE_LEN / 8).enumerate() {
        let mut whole = [0; 8];
        whole[..word.len()].copy_from_slice(word);
        heap.0.words[at].store(u64::from_le_bytes(whole), Ordering::Relaxed);
    }
    let mut consumer = Consumer::new(heap.clone());
    // A record takes at least one line, and each line holds a header of one lap.
    for count in 0..=RING_LINES {
        let Some(record) = consumer.peek().ok()? else {
            return Some(count);
        };
        let len = record.header.len as usize;
        assert!(
            len >= HEADER_LEN && record.start + len <= consumer.memory().lines() * LINE_LEN,
            "{record:?}"
        );
        assert_eq!(consumer.memory().payload(record).len(), len - HEADER_LEN);
        if let Some(layout) = RecordLayout::for_record(record.header.kind, record.header.flags, len)
        {
            let words = [layout.tag, layout.data, layout.full_len];
            assert!(
                words
                    .into_iter()
                    .flatten()
                    .all(|at| at + 8 <= layout.payload),
                "{record:?}: {layout:?}"
            );
            assert!(layout.payload <= len, "{record:?}: {layout:?}");
        }
        consumer.consume(record);
    }
    panic!("the ring returned more records than it has lines");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses every file of a corpus, which must be valid exactly if its name starts with `good`.
    /// Also parses mutations of each file in one byte and in length, which must not panic.
    fn replay_corpus(corpus: &str, is_good: impl Fn(&[u8]) -> bool) {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../fuzz/corpora")
            .join(corpus);
        let (mut seed, mut good, mut bad) = (1u64, 0, 0);
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            let bytes = std::fs::read(&path).unwrap();
            let expected = path
                .file_name()
                .unwrap()
                .to_string_lossy()
                .starts_with("good");
            assert_eq!(is_good(&bytes), expected, "{}", path.display());
            (good, bad) = (good + u32::from(expected), bad + u32::from(!expected));
            for _ in 0..2000 {
                seed = seed
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let mut changed = bytes.clone();
                if !changed.is_empty() {
                    let at = (seed >> 40) as usize % changed.len();
                    changed[at] ^= (seed >> 32) as u8;
                    changed.truncate(1 + (seed >> 16) as usize % changed.len());
                }
                is_good(&changed);
            }
        }
        assert!(good > 0 && bad > 0, "corpus holds valid and invalid files");
    }

    #[test]
    fn hello_corpus_is_parsed_without_panic() {
        replay_corpus("shm-hello", hello);
    }

    #[test]
    fn connect_corpus_is_parsed_without_panic() {
        replay_corpus("shm-connect", connect);
    }

    #[test]
    fn ring_corpus_is_read_without_panic() {
        replay_corpus("shm-ring", |bytes| {
            ring(bytes).is_some_and(|count| count > 0)
        });
    }
}
