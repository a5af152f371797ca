//! The corpora of `fuzz`: every file is understood or refused as its name says, and no variant of
//! one is more than that.

use std::path::Path;

use fabric_core::tcp::ByteOrder;

use crate::{SeededRng, fuzz_input};

/// Every file of a corpus: whether it is good, and its bytes.
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
        "the corpus is there"
    );
    files
}

/// Many that differ in a few bytes, or in length.
fn for_each_mutation(
    bytes: &[u8],
    most: usize,
    numbers: &mut SeededRng,
    mut each: impl FnMut(&[u8]),
) {
    for _ in 0..if cfg!(miri) { most.div_ceil(100) } else { most } {
        let mut changed = bytes.to_vec();
        for _ in 0..=numbers.next(3) {
            if !changed.is_empty() {
                let at = numbers.next(changed.len());
                changed[at] ^= numbers.next(256) as u8;
            }
        }
        changed.truncate(numbers.next(changed.len() + 1));
        each(&changed);
    }
}

fn replay(corpus: &str, seed: u64, is_good: impl Fn(&[u8]) -> bool) {
    let mut numbers = SeededRng(seed);
    for (name, expected, bytes) in corpus_files(corpus) {
        assert_eq!(is_good(&bytes), expected, "{name}");
        // Those a fuzzer has found are many, and variants themselves.
        let most = if name.contains("found") { 20 } else { 2000 };
        for_each_mutation(&bytes, most, &mut numbers, |changed| {
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

/// What peers of this library say to each other.
#[test]
fn vendor_extension_corpus_is_replayed() {
    replay("tcp-extension", 2, fuzz_input::vendor_stream);
}

/// What is said in the other dialect.
#[test]
fn rxm_corpus_is_replayed() {
    if ByteOrder::NATIVE == ByteOrder::Little {
        replay("tcp-rxm", 2, fuzz_input::rxm);
    }
}
