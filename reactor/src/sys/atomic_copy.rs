//! Copies of memory that other threads and processes may access at the same time.
//!
//! Safe code can make two threads access the same bytes of a region, so these copies are relaxed
//! atomic accesses: a concurrent access yields wrong bytes at most. Each byte of the shared memory
//! is in one access. If both ranges have the same alignment modulo eight, each whole aligned word
//! of eight bytes in the shared memory is one access. No order is guaranteed.
//!
//! On x86-64 long copies are inline assembly. A loop over atomics takes up to four times as long as
//! `memcpy`, because the compiler neither merges nor vectorises atomic accesses. The instructions
//! are those of `memcpy`: vector moves and `rep movsb`. Processors split the accesses of both at
//! the ends of cache lines. These are ends of words if both ranges have the same alignment.
//! Otherwise `rep movsb` may also split a shared word where a cache line of the private range ends.
//!
//! # Safety
//!
//! The callers guarantee that both ranges are valid and do not overlap, and that no other thread
//! accesses the private range. Accesses of different sizes to the same shared bytes are defined by
//! the processor: each byte has the value of one of the stores.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bytes of a word.
const WORD: usize = size_of::<u64>();

/// Copies `count` bytes from shared memory to private memory.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `count` bytes, and the ranges do not overlap.
/// No other thread accesses the range at `to`.
#[inline(never)] // keeps the path of single words short in the callers
pub(super) unsafe fn load(from: *const u8, to: *mut u8, count: usize) {
    let byte = |from: *const u8, to: *mut u8| {
        // SAFETY: within the ranges, by `copy`. The pointer is only used to load.
        unsafe { to.write(AtomicU8::from_ptr(from.cast_mut()).load(Ordering::Relaxed)) }
    };
    let word = |from: *const u8, to: *mut u8| {
        // SAFETY: as above, and `from` is aligned.
        unsafe {
            let word = AtomicU64::from_ptr(from.cast_mut().cast()).load(Ordering::Relaxed);
            to.cast::<u64>().write_unaligned(word);
        }
    };
    // SAFETY: the caller guarantees both ranges.
    unsafe {
        if !copy_by_rep_movsb(from, to, count) {
            copy(from, to, count, from.align_offset(WORD), byte, word);
        }
    }
}

/// Copies `count` bytes from private memory to shared memory.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `count` bytes, and the ranges do not overlap.
/// No other thread writes the range at `from`.
#[inline(never)] // as `load`
pub(super) unsafe fn store(from: *const u8, to: *mut u8, count: usize) {
    let byte = |from: *const u8, to: *mut u8| {
        // SAFETY: within the ranges, by `copy`.
        unsafe { AtomicU8::from_ptr(to).store(from.read(), Ordering::Relaxed) }
    };
    let word = |from: *const u8, to: *mut u8| {
        // SAFETY: as above, and `to` is aligned.
        unsafe {
            let word = from.cast::<u64>().read_unaligned();
            AtomicU64::from_ptr(to.cast()).store(word, Ordering::Relaxed);
        }
    };
    // SAFETY: the caller guarantees both ranges.
    unsafe {
        if !copy_by_rep_movsb(from, to, count) {
            copy(from, to, count, to.align_offset(WORD), byte, word);
        }
    }
}

/// Copies `count` bytes: `head` bytes up to an aligned word of the shared range, words, and the
/// bytes of the last incomplete word.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `count` bytes. `byte` copies one byte, and
/// `word` eight bytes, of which the shared side is aligned.
#[inline(always)]
unsafe fn copy(
    mut from: *const u8,
    mut to: *mut u8,
    count: usize,
    head: usize,
    byte: impl Fn(*const u8, *mut u8),
    word: impl Fn(*const u8, *mut u8),
) {
    let head = head.min(count);
    let words = (count - head) / WORD * WORD;
    let tail = count - head - words;
    // SAFETY: the pointers stay within the ranges: `head + words + tail` is `count`.
    unsafe {
        for _ in 0..head {
            byte(from, to);
            (from, to) = (from.add(1), to.add(1));
        }
        let copied = copy_by_vectors(from, to, words);
        (from, to) = (from.add(copied), to.add(copied));
        for _ in 0..(words - copied) / WORD {
            word(from, to);
            (from, to) = (from.add(WORD), to.add(WORD));
        }
        for _ in 0..tail {
            byte(from, to);
            (from, to) = (from.add(1), to.add(1));
        }
    }
}

/// Copies a range that is long enough for `rep movsb`. Returns whether the range was copied.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `count` bytes.
#[inline(always)]
unsafe fn copy_by_rep_movsb(from: *const u8, to: *mut u8, count: usize) -> bool {
    /// Length from which `rep movsb` is not slower than vector moves of 16 bytes.
    const MIN_LEN: usize = 2048;
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if count >= MIN_LEN {
        // SAFETY: copies the range and changes nothing else: the direction flag is clear, as it is
        // at every assembly block.
        unsafe {
            std::arch::asm!(
                "rep movsb",
                inout("rcx") count => _,
                inout("rsi") from => _,
                inout("rdi") to => _,
                options(nostack, preserves_flags)
            );
        }
        return true;
    }
    let _ = (from, to, count, MIN_LEN);
    false
}

/// Copies the first bytes of a range by vector moves. Returns their number, a multiple of the word.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes.
#[inline(always)]
unsafe fn copy_by_vectors(from: *const u8, to: *mut u8, len: usize) -> usize {
    /// Bytes that one round copies.
    const ROUND: usize = 64;
    let copied = len / ROUND * ROUND;
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if copied > 0 {
        // SAFETY: copies the first `copied` bytes, at most `len`, and changes nothing else.
        unsafe {
            std::arch::asm!(
                "22:",
                "movups {a}, [{from}]",
                "movups {b}, [{from} + 16]",
                "movups {c}, [{from} + 32]",
                "movups {d}, [{from} + 48]",
                "movups [{to}], {a}",
                "movups [{to} + 16], {b}",
                "movups [{to} + 32], {c}",
                "movups [{to} + 48], {d}",
                "add {from}, 64",
                "add {to}, 64",
                "sub {left}, 64",
                "jnz 22b",
                from = inout(reg) from => _,
                to = inout(reg) to => _,
                left = inout(reg) copied => _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack)
            );
        }
        return copied;
    }
    let _ = (from, to, copied);
    0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Lengths around those at which the copy changes its method.
    const LENGTHS: [usize; 18] = [
        0, 1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 130, 511, 2047, 2048, 2055, 4096, 65_537,
    ];

    #[test]
    fn every_length_and_alignment_is_copied() {
        const GUARD: u8 = 0xee;
        let source: Vec<u8> = (0..70_000).map(|at| (at % 251) as u8).collect();
        let copies: [unsafe fn(*const u8, *mut u8, usize); 2] = [load, store];
        for len in LENGTHS {
            for (from, to) in (0..9).flat_map(|from| (0..9).map(move |to| (from, to))) {
                for copy in copies {
                    let mut target = vec![GUARD; to + len + 16];
                    assert!(from + len <= source.len());
                    // SAFETY: both ranges are within their vectors.
                    unsafe { copy(source[from..].as_ptr(), target[to..].as_mut_ptr(), len) };
                    assert!(target[to..to + len] == source[from..from + len], "{len}");
                    let around = target[..to].iter().chain(&target[to + len..]);
                    assert!(around.into_iter().all(|byte| *byte == GUARD), "{len}");
                }
            }
        }
    }

    /// Threads that store and load the same words at the same time see whole words: all ranges are
    /// aligned.
    #[test]
    fn aligned_words_are_copied_whole() {
        const LEN: usize = 4096 + 512;
        let shared: Vec<AtomicU64> = (0..LEN / WORD).map(|_| AtomicU64::new(0)).collect();
        let rounds = if cfg!(miri) { 2 } else { 2000 };
        let memory = &shared;
        std::thread::scope(|scope| {
            for byte in [0x11u8, 0x22] {
                scope.spawn(move || {
                    let words = vec![u64::from_ne_bytes([byte; WORD]); LEN / WORD];
                    for len in (0..rounds).flat_map(|_| [LEN, 512, 24]) {
                        let to = memory.as_ptr().cast::<u8>().cast_mut();
                        // SAFETY: within the shared memory, which consists of atomics.
                        unsafe { store(words.as_ptr().cast(), to, len) };
                    }
                });
            }
            scope.spawn(move || {
                let mut words = vec![0u64; LEN / WORD];
                for len in (0..rounds).flat_map(|_| [LEN, 512, 24]) {
                    let to = words.as_mut_ptr().cast();
                    // SAFETY: as above; the words belong to this thread.
                    unsafe { load(memory.as_ptr().cast(), to, len) };
                    for word in &words {
                        let bytes = word.to_ne_bytes();
                        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "{word:#x}");
                    }
                }
            });
        });
    }
}
