//! Message contents that identify themselves, and small helpers.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::Poll;

/// Returns lengths around the borders of cache lines, ring records, segments and budgets.
pub(crate) fn lengths() -> impl Iterator<Item = usize> {
    let short = [0, 1, 8].into_iter().chain(47..=60);
    let middle = [511, 512, 513, 4095, 4096, 4097, 8191, 8192, 8193, 16 << 10];
    let long = [
        (128 << 10) - 1,
        128 << 10,
        (128 << 10) + 1,
        1 << 20,
        LONG_LEN,
    ];
    short.chain(middle).chain(long)
}

/// The length of a message that travels in many segments with every provider.
pub(crate) const LONG_LEN: usize = 5 << 20;

/// Returns `len` bytes that depend on their position and on `which`, which is at most 4095.
pub(crate) fn pattern(len: usize, which: usize) -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let bytes = BYTES.get_or_init(|| {
        let mut rng = TestRng::new(1);
        (0..(LONG_LEN + 4096) / 8)
            .flat_map(|_| rng.next().to_le_bytes())
            .collect()
    });
    &bytes[which..which + len]
}

/// Compares two byte strings; panics with the position of the first difference.
#[track_caller]
pub(crate) fn assert_bytes(got: &[u8], expected: &[u8]) {
    if got != expected {
        let at = got
            .iter()
            .zip(expected)
            .position(|(got, expected)| got != expected);
        panic!(
            "{} bytes instead of {}, first difference at {at:?}",
            got.len(),
            expected.len()
        );
    }
}

/// Returns whether all bytes equal `byte`. Compares chunks, because a loop over single bytes takes
/// seconds in a debug build.
pub(crate) fn all_bytes_equal(bytes: &[u8], byte: u8) -> bool {
    let piece = [byte; 4096];
    bytes
        .chunks(piece.len())
        .all(|chunk| chunk == &piece[..chunk.len()])
}

/// Returns the length of the common prefix.
pub(crate) fn common_prefix_len(one: &[u8], other: &[u8]) -> usize {
    let whole = one
        .chunks(4096)
        .zip(other.chunks(4096))
        .take_while(|(one, other)| one == other);
    let at = whole.map(|(chunk, _)| chunk.len()).sum();
    at + one[at..]
        .iter()
        .zip(&other[at..])
        .take_while(|(one, other)| one == other)
        .count()
}

/// Returns a message that begins with a number.
pub(crate) fn numbered_message(number: u64, len: usize) -> Vec<u8> {
    let mut bytes = pattern(len.max(8), (number % 4096) as usize).to_vec();
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Returns the number of such a message, which must be whole.
#[track_caller]
pub(crate) fn message_number(bytes: &[u8]) -> u64 {
    let number = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes at least"));
    assert_bytes(
        &bytes[8..],
        &pattern(bytes.len(), (number % 4096) as usize)[8..],
    );
    number
}

/// Polls a future once. The poll needs none of the task's cooperative budget, without which it
/// would post nothing.
pub(crate) async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    let poll = poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx)));
    tokio::task::coop::unconstrained(poll).await
}

/// Yields to other tasks `count` times.
pub(crate) async fn yield_times(count: u64) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}

/// Lets other tasks and threads run for some milliseconds, so that a scenario reaches the state
/// under test more often. No assertion depends on the time.
pub(crate) async fn let_other_tasks_run() {
    wait_until_stable(|| 0).await;
}

/// Waits until `value` has not changed for some milliseconds, so that a scenario reaches the state
/// under test more often; returns the value. No assertion depends on the time.
pub(crate) async fn wait_until_stable(value: impl Fn() -> u64) -> u64 {
    let (mut last, mut same) = (value(), 0);
    while same < 10 {
        yield_times(50).await;
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        let now = value();
        same = if now == last { same + 1 } else { 0 };
        last = now;
    }
    last
}

/// A small pseudo-random generator with a fixed sequence.
pub(crate) struct TestRng(u64);

impl TestRng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 to `end`, without `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Shuffles `items`.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at + 1));
        }
    }
}
