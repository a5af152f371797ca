//! The corpora of `fuzz`: every file is understood or refused as its name says, and no variant of
//! one is more than that.

use std::path::Path;

use fabric_core::tcp::Order;

use crate::{Numbers, fuzzed};

/// Every file of a corpus: whether it is good, and its bytes.
fn files(corpus: &str) -> Vec<(String, bool, Vec<u8>)> {
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
fn variants(bytes: &[u8], most: usize, numbers: &mut Numbers, mut each: impl FnMut(&[u8])) {
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
    let mut numbers = Numbers(seed);
    for (name, expected, bytes) in files(corpus) {
        assert_eq!(is_good(&bytes), expected, "{name}");
        // Those a fuzzer has found are many, and variants themselves.
        let most = if name.contains("found") { 20 } else { 2000 };
        variants(&bytes, most, &mut numbers, |changed| {
            is_good(changed);
        });
    }
}

#[test]
fn beginnings_are_replayed() {
    replay("tcp-control", 1, fuzzed::control);
}

#[test]
fn streams_are_replayed() {
    replay("tcp-stream", 2, fuzzed::stream);
}

/// What peers of this library say to each other.
#[test]
fn streams_of_kin_are_replayed() {
    replay("tcp-kin", 2, fuzzed::kin);
}

/// What is said in the other dialect.
#[test]
fn streams_of_rxm_are_replayed() {
    if Order::NATIVE == Order::Little {
        replay("tcp-rxm", 2, fuzzed::rxm);
    }
}
