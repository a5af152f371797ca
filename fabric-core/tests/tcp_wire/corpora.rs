//! The corpora of `fuzz`: every file is understood or refused as its name says, and no variant of one is more than that.

use std::path::Path;

use fabric_core::tcp::{Control, Order, Outbox};

use crate::Numbers;
use crate::host::{Receiver, UNTAGGED};

/// Every file of a corpus: whether it is good, and its bytes.
fn files(corpus: &str) -> Vec<(String, bool, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpora").join(corpus);
    let files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| {
            let path = file.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name.clone(), name.starts_with("good"), std::fs::read(path).unwrap())
        })
        .collect();
    assert!(
        files.iter().any(|(_, good, _)| *good) && files.iter().any(|(_, good, _)| !good),
        "the corpus is there"
    );
    files
}

/// Many that differ in a few bytes, or in length.
fn variants(bytes: &[u8], numbers: &mut Numbers, mut each: impl FnMut(&[u8])) {
    for _ in 0..if cfg!(miri) { 20 } else { 2000 } {
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

#[test]
fn beginnings_are_replayed() {
    let mut numbers = Numbers(1);
    for (name, is_good, bytes) in files("tcp-control") {
        let read = Control::decode(&bytes);
        assert_eq!(matches!(read, Ok(Some(_))), is_good, "{name}: {read:?}");
        variants(&bytes, &mut numbers, |changed| {
            if let Ok(Some((control, len))) = Control::decode(changed) {
                assert!(len <= changed.len() && control.private().len() + 32 == len, "{changed:?}");
            }
        });
    }
}

#[test]
fn streams_are_replayed() {
    replayed("tcp-stream", false);
}

/// What peers of this library say to each other.
#[test]
fn streams_of_kin_are_replayed() {
    replayed("tcp-kin", true);
}

fn replayed(corpus: &str, is_kin: bool) {
    let receiver = |budget| {
        let mut receiver = Receiver::new(Order::Little, budget);
        if is_kin {
            receiver.inbox.kin();
        }
        // Of which one answer may come.
        receiver.asks_to_read(8);
        receiver
    };
    let mut numbers = Numbers(2);
    for (name, is_good, bytes) in files(corpus) {
        let mut whole = receiver(1 << 20);
        let taken = whole.take(&bytes);
        let is_whole =
            taken.as_ref().is_ok_and(|taken| taken.bytes == bytes.len()) && whole.inbox.end().is_none();
        assert_eq!(is_whole, is_good, "{name}: {taken:?}");
        variants(&bytes, &mut numbers, |changed| {
            let mut receiver = receiver(1 << 16);
            let _ = receiver.post(UNTAGGED, Some(16));
            let cut = numbers_cut(changed);
            let Ok(taken) = receiver.take(&changed[..cut]) else { return };
            assert!(taken.bytes <= cut);
            if !taken.held {
                let _ = receiver.take(&changed[taken.bytes..]);
            }
            assert!(receiver.rx.unexpected().1 <= 1 << 16);
            let _ = receiver.answers(&mut Outbox::new(Order::Little), 1 << 16);
        });
    }
}

/// Somewhere within, the same for the same bytes.
fn numbers_cut(bytes: &[u8]) -> usize {
    bytes.iter().map(|byte| usize::from(*byte)).sum::<usize>() % (bytes.len() + 1)
}
