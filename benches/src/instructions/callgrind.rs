//! Counting with Valgrind's callgrind: instructions, those of the benchmark's own loop, and atomic
//! read-modify-writes.
//!
//! Callgrind counts how often each instruction was executed, and names the source file of each. It
//! does not tell what an instruction is: [`Executable`] reads that from the files of the program
//! and of its libraries.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory of the benchmarks, whose instructions are the *loop* around the measured calls.
const LOOP_DIRECTORY: &str = "micro/";

/// What a run has executed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// All instructions.
    pub instructions: f64,
    /// Those whose source file is a benchmark.
    pub in_loop: f64,
    /// Those that read and write memory atomically: `lock`-prefixed ones, and `xchg` with memory.
    pub atomics: f64,
}

/// A profile of callgrind.
#[derive(Debug, PartialEq)]
pub(super) struct Profile {
    pub(super) counts: Counts,
    /// Addresses of the program's instructions whose source file is a benchmark.
    pub(super) loop_addresses: HashSet<u64>,
}

impl Counts {
    /// Returns the counts of one of so many operations.
    #[must_use]
    pub fn per_operation(self, operations: u64) -> Self {
        let per_operation = |count| count / operations as f64;
        Self {
            instructions: per_operation(self.instructions),
            in_loop: per_operation(self.in_loop),
            atomics: per_operation(self.atomics),
        }
    }
}

/// Runs this program with these arguments under callgrind. `functions` is a pattern of the
/// functions to which counting is limited, with all that they call.
///
/// # Errors
/// Describes what failed: starting Valgrind, or reading what it wrote.
pub fn count(args: &[&str], functions: &str) -> Result<Counts, String> {
    profile(args, functions).map(|profile| profile.counts)
}

/// Runs this program as [`count`] does, and returns what callgrind has counted.
pub(super) fn profile(args: &[&str], functions: &str) -> Result<Profile, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    // Several threads may count.
    let (id, work) = (std::process::id(), args.join(""));
    let output_file = std::env::temp_dir().join(format!("fabric-callgrind.{id}{work}.out"));
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--dump-instr=yes"])
        .args(["--compress-pos=no", "--compress-strings=no"])
        .arg(format!("--callgrind-out-file={}", output_file.display()));
    command.arg(format!("--toggle-collect={functions}"));
    let output = command
        .arg(&program)
        .args(args)
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    let text = std::fs::read_to_string(&output_file).unwrap_or_default();
    let _ = std::fs::remove_file(&output_file);
    let profile = parse_profile(&text, &program.to_string_lossy(), Executable::open);
    if !output.status.success() || profile.counts.instructions == 0.0 {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!(
            "valgrind ({}) counted nothing:\n{text}",
            output.status
        ));
    }
    Ok(profile)
}

/// Adds up a profile of callgrind, whose lines are `ADDRESS LINE COUNT` under the object and the
/// source file that precede them. The line behind `calls=` counts what the callee has executed,
/// which stands in lines of the callee as well. Objects that cannot be opened have no atomic
/// instructions.
fn parse_profile(
    text: &str,
    program: &str,
    open: impl Fn(&Path) -> Result<Executable, String>,
) -> Profile {
    let (mut counts, mut loop_addresses) = (Counts::default(), HashSet::new());
    let mut objects: HashMap<&str, Option<Executable>> = HashMap::new();
    let (mut object, mut in_loop, mut follows_call) = ("", false, false);
    for line in text.lines() {
        if let Some(path) = line.strip_prefix("ob=") {
            object = path;
            objects
                .entry(path)
                .or_insert_with(|| open(&PathBuf::from(path)).ok());
        } else if let Some(file) = ["fl=", "fi=", "fe="]
            .iter()
            .find_map(|key| line.strip_prefix(key))
        {
            in_loop = file.contains(LOOP_DIRECTORY);
        } else if line.starts_with("calls=") {
            follows_call = true;
        } else if let Some(cost) = line.strip_prefix("0x") {
            if std::mem::take(&mut follows_call) {
                continue;
            }
            let mut fields = cost.split(' ');
            let address = fields
                .next()
                .and_then(|hex| u64::from_str_radix(hex, 16).ok());
            let count = fields.nth(1).and_then(|count| count.parse::<f64>().ok());
            let (Some(address), Some(count)) = (address, count) else {
                continue;
            };
            counts.instructions += count;
            if in_loop {
                counts.in_loop += count;
                if object == program {
                    loop_addresses.insert(address);
                }
            }
            let executable = objects.get(object).and_then(Option::as_ref);
            if executable.is_some_and(|executable| executable.is_atomic(address)) {
                counts.atomics += count;
            }
        }
    }
    Profile {
        counts,
        loop_addresses,
    }
}

/// The code of an ELF file.
pub(super) struct Executable {
    bytes: Vec<u8>,
    /// The loaded segments: virtual address, offset in the file, length.
    segments: Vec<(u64, u64, u64)>,
}

impl Executable {
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let segments = load_segments(&bytes)
            .ok_or_else(|| format!("{}: not a 64-bit ELF file", path.display()))?;
        Ok(Self { bytes, segments })
    }

    /// Returns whether the x86-64 instruction at this virtual address reads and writes memory
    /// atomically. On other architectures nothing is recognised.
    pub(super) fn is_atomic(&self, address: u64) -> bool {
        let Some(code) = self.segments.iter().find_map(|(start, offset, len)| {
            let within = address.checked_sub(*start).filter(|at| at < len)?;
            self.bytes.get((offset + within) as usize..)
        }) else {
            return false;
        };
        cfg!(target_arch = "x86_64") && starts_with_atomic(code)
    }
}

/// Returns the `PT_LOAD` segments of a little-endian 64-bit ELF file.
fn load_segments(bytes: &[u8]) -> Option<Vec<(u64, u64, u64)>> {
    const PT_LOAD: u64 = 1;
    let number = |at: usize, len: usize| {
        let field = bytes.get(at..at + len)?;
        Some(
            field
                .iter()
                .rfold(0, |sum, byte| sum << 8 | u64::from(*byte)),
        )
    };
    if bytes.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (table, entry_size, entries) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let mut segments = Vec::new();
    for entry in 0..entries {
        let at = (table + entry * entry_size) as usize;
        if number(at, 4)? == PT_LOAD {
            segments.push((number(at + 16, 8)?, number(at + 8, 8)?, number(at + 32, 8)?));
        }
    }
    Some(segments)
}

/// Returns whether x86-64 code starts with a `lock`-prefixed instruction, or with an `xchg` of a
/// register and memory, which locks without the prefix.
fn starts_with_atomic(code: &[u8]) -> bool {
    const LOCK: u8 = 0xF0;
    let is_prefix = |byte: &&u8| matches!(byte, 0x66 | 0xF2 | 0xF3 | 0x2E | 0x36 | 0x3E | 0x26);
    let prefixes = code.iter().take_while(is_prefix).count();
    let code = &code[prefixes..];
    let after_rex = match code {
        [0x40..=0x4F, rest @ ..] => rest,
        rest => rest,
    };
    // The two highest bits of the second byte are 11 when both operands are registers.
    code.first() == Some(&LOCK) || matches!(after_rex, [0x86 | 0x87, 0..=0xBF, ..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atomic_instructions_are_recognised() {
        let atomic: [&[u8]; 4] = [
            &[0xF0, 0x0F, 0xB1, 0x0F],       // lock cmpxchg %ecx,(%rdi)
            &[0xF0, 0x48, 0xFF, 0x07],       // lock incq (%rdi)
            &[0x48, 0x87, 0x07],             // xchg %rax,(%rdi)
            &[0x66, 0xF0, 0x0F, 0xC1, 0x07], // lock xadd %ax,(%rdi)
        ];
        let plain: [&[u8]; 4] = [
            &[0x48, 0x87, 0xC3], // xchg %rax,%rbx
            &[0x48, 0x89, 0x07], // mov %rax,(%rdi)
            &[0x90],             // nop
            &[],
        ];
        assert!(atomic.iter().all(|code| starts_with_atomic(code)));
        assert!(!plain.iter().any(|code| starts_with_atomic(code)));
    }

    #[test]
    fn profile_counts_each_instruction_once() {
        let profile = "positions: instr line\nevents: Ir\n\n\
            ob=/bench\nfl=benches/micro/messages.rs\nfn=trip\n0x10 4 3\n\
            fi=reactor/src/post.rs\n0x14 9 5\ncob=/lib/libc.so\ncfn=memcpy\ncalls=2 0x800\n\
            0x18 9 40\nfe=benches/micro/messages.rs\n0x1c 5 1\n\
            ob=/lib/libc.so\nfl=memcpy.S\nfn=memcpy\n0x10 7 40\n0x14 8 2\n";
        // `lock incl (%rdi)` at the address 0x14 of both objects, and `nop` elsewhere.
        let open = |_: &Path| {
            Ok(Executable {
                bytes: [&[0x90; 4][..], &[0xF0, 0xFF, 0x07, 0x90], &[0x90; 8]].concat(),
                segments: vec![(0x10, 0, 16)],
            })
        };
        let is_x86 = cfg!(target_arch = "x86_64");
        let expected = Profile {
            counts: Counts {
                instructions: 51.0,
                in_loop: 4.0,
                atomics: if is_x86 { 7.0 } else { 0.0 },
            },
            loop_addresses: HashSet::from([0x10, 0x1c]),
        };
        assert_eq!(parse_profile(profile, "/bench", open), expected);
        let unreadable = |_: &Path| Err(String::new());
        let without_files = parse_profile(profile, "/bench", unreadable);
        assert_eq!(without_files.counts.atomics.to_bits(), 0);
    }

    #[test]
    fn own_executable_has_loaded_segments() {
        let program = std::env::current_exe().expect("the test program");
        let executable = Executable::open(&program).expect("an ELF file");
        assert!(!executable.segments.is_empty());
        assert!(load_segments(b"#!/bin/sh").is_none());
    }
}
