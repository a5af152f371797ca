//! The corpora of `fuzz`: every file is accepted or rejected as its name says, and no mutation of a
//! file panics.

use std::path::Path;

use fabric_core::tcp::ByteOrder;

use crate::{SeededRng, fuzz_input};

/// Returns all files of a corpus: name, expected validity, and bytes.
fn corpus_files(corpus: &str) -> Vec<(String, bool, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fuzz/corpora")
        .join(corpus);
    let files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| {
            let path = file.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (
                name.clone(),
                name.starts_with("good"),
                std::fs::read(path).unwrap(),
            )
        })
        .collect();
    assert!(
        files.iter().any(|(_, good, _)| *good) && files.iter().any(|(_, good, _)| !good),
        "the corpus has files of both kinds"
    );
    files
}

/// Calls `check` with `count` mutations that differ in a few bytes or in length.
fn for_each_mutation(
    bytes: &[u8],
    count: usize,
    rng: &mut SeededRng,
    mut check: impl FnMut(&[u8]),
) {
    for _ in 0..if cfg!(miri) {
        count.div_ceil(100)
    } else {
        count
    } {
        let mut changed = bytes.to_vec();
        for _ in 0..=rng.next(3) {
            if !changed.is_empty() {
                let at = rng.next(changed.len());
                changed[at] ^= rng.next(256) as u8;
            }
        }
        changed.truncate(rng.next(changed.len() + 1));
        check(&changed);
    }
}

fn replay(corpus: &str, seed: u64, is_good: impl Fn(&[u8]) -> bool) {
    let mut rng = SeededRng(seed);
    for (name, expected, bytes) in corpus_files(corpus) {
        assert_eq!(is_good(&bytes), expected, "{name}");
        // Files found by a fuzzer are many, and mutations themselves.
        let count = if name.contains("found") { 20 } else { 2000 };
        for_each_mutation(&bytes, count, &mut rng, |changed| {
            is_good(changed);
        });
    }
}

#[test]
fn control_corpus_is_replayed() {
    replay("tcp-control", 1, fuzz_input::control);
}

#[test]
fn stream_corpus_is_replayed() {
    replay("tcp-stream", 2, fuzz_input::stream);
}

/// Frames that only peers of this library exchange.
#[test]
fn vendor_extension_corpus_is_replayed() {
    replay("tcp-extension", 2, fuzz_input::vendor_stream);
}

/// RXM packets.
#[test]
fn rxm_corpus_is_replayed() {
    if ByteOrder::NATIVE == ByteOrder::Little {
        replay("tcp-rxm", 2, fuzz_input::rxm);
    }
}
