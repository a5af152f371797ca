//! Counting the instructions between two record headers: from the load that sees the header of a
//! request to the store that publishes the header of its reply.
//!
//! Both accesses are within functions that the compiler inlines and that do more before and after,
//! so callgrind, which counts whole functions, cannot delimit the path. Valgrind's lackey prints
//! every instruction with the addresses that it loads and stores, in order. The benchmark marks
//! three [`Section`]s of each message by stores to known addresses. In the trace:
//!
//! * the request's header is the last store of eight bytes to the start of a line of shared memory
//!   within [`Section::Request`]: a record begins with its header, and the header is stored last;
//! * the header is seen by the first load of these bytes within [`Section::Reply`];
//! * the reply is published by the last such store within [`Section::Reply`], which counts only if
//!   these bytes are loaded within [`Section::Answer`].
//!
//! The two ends of a ring map the same file at two addresses, so places are compared by file and
//! offset. The path excludes the load and includes the store.

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use super::callgrind::{Counts, Executable, profile};

/// Bytes of a line of a ring, and of a record's header.
const LINE_LEN: u64 = 64;
const HEADER_LEN: u64 = 8;
/// What the description of a process begins with; the address of the marks follows.
const MARKS_KEY: &str = "marks ";

/// The address of each mark stands for one section.
static MARKS: [AtomicU64; SECTIONS.len()] = [const { AtomicU64::new(0) }; SECTIONS.len()];

/// A section of a message's way, which a benchmark marks in the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Work that is not of interest.
    Outside,
    /// The request is sent.
    Request,
    /// The other side receives the request and sends the reply.
    Reply,
    /// The reply is received.
    Answer,
}

const SECTIONS: [Section; 4] = [
    Section::Outside,
    Section::Request,
    Section::Reply,
    Section::Answer,
];

impl Section {
    /// Marks in the trace that this section begins.
    #[inline]
    pub fn begin(self) {
        MARKS[self as usize].store(1, Ordering::Relaxed);
    }
}

/// Describes what the trace of this process does not tell: the addresses of the marks and of all
/// mappings. The traced program prints the description on its standard output.
///
/// # Errors
/// The mappings cannot be read.
pub fn describe_process() -> Result<String, String> {
    let maps = std::fs::read_to_string("/proc/self/maps")
        .map_err(|error| format!("/proc/self/maps: {error}"))?;
    Ok(format!("{MARKS_KEY}{:x}\n{maps}", MARKS.as_ptr() as usize))
}

/// Counts the path from header to header: the mean of the last `messages` of a run. The program is
/// run twice: with `counted_args` under callgrind, which knows the source files of the instructions
/// within `functions`, and with `traced_args` under lackey.
///
/// # Errors
/// Describes what failed: starting Valgrind, reading what it wrote, or finding the path.
pub fn count_critical_path(
    counted_args: &[&str],
    functions: &str,
    traced_args: &[&str],
    messages: usize,
) -> Result<Counts, String> {
    let loop_addresses = profile(counted_args, functions)?.loop_addresses;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let (id, work) = (std::process::id(), traced_args.join(""));
    let trace_file = std::env::temp_dir().join(format!("fabric-lackey.{id}{work}.out"));
    let output = Command::new("valgrind")
        .args(["--tool=lackey", "--trace-mem=yes", "--basic-counts=no"])
        .arg(format!("--log-file={}", trace_file.display()))
        .arg(&program)
        .args(traced_args)
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    let trace = std::fs::read_to_string(&trace_file).unwrap_or_default();
    let _ = std::fs::remove_file(&trace_file);
    let description = String::from_utf8_lossy(&output.stdout);
    let process = TracedProcess::parse(&description, &program.to_string_lossy())
        .ok_or_else(|| format!("valgrind ({}) traced nothing", output.status))?;
    let executable = Executable::open(&program)?;
    let paths = process.paths(&trace);
    let Some(first) = paths.len().checked_sub(messages).filter(|_| messages > 0) else {
        return Err(format!(
            "the trace shows {} replies, {messages} are needed",
            paths.len()
        ));
    };
    let mut counts = Counts::default();
    for address in paths[first..].iter().flatten() {
        let address = address.wrapping_sub(process.load_address);
        counts.instructions += 1.0;
        counts.in_loop += f64::from(u8::from(loop_addresses.contains(&address)));
        counts.atomics += f64::from(u8::from(executable.is_atomic(address)));
    }
    Ok(counts.per_operation(messages as u64))
}

/// A place in shared memory: the number of the mapped file, and the offset.
type Place = (u64, u64);

/// The description of a traced process.
#[derive(Debug, PartialEq)]
struct TracedProcess {
    marks: u64,
    /// The address at which the program is mapped.
    load_address: u64,
    /// Shared mappings of files: first address, end, place of the first byte.
    shared: Vec<(u64, u64, Place)>,
}

impl TracedProcess {
    /// Parses what [`describe_process`] has printed: behind the marks, lines as of
    /// `/proc/PID/maps`, which are `START-END PERMISSIONS OFFSET DEVICE INODE PATH`.
    fn parse(description: &str, program: &str) -> Option<Self> {
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (marks, maps) = description.strip_prefix(MARKS_KEY)?.split_once('\n')?;
        let (mut load_address, mut shared) = (None, Vec::new());
        for line in maps.lines() {
            let fields: Vec<_> = line.split_ascii_whitespace().collect();
            let [range, permissions, offset, _, inode, path @ ..] = &fields[..] else {
                continue;
            };
            let (start, end) = range.split_once('-')?;
            let (start, end, offset) = (hex(start)?, hex(end)?, hex(offset)?);
            if *path == [program] && offset == 0 {
                load_address = load_address.or(Some(start));
            }
            if permissions.ends_with('s') {
                shared.push((start, end, (inode.parse().ok()?, offset)));
            }
        }
        Some(Self {
            marks: hex(marks)?,
            load_address: load_address?,
            shared,
        })
    }

    /// Returns the section that begins with a store to this address.
    fn section_at(&self, address: u64) -> Option<Section> {
        let index = address.checked_sub(self.marks)? / size_of::<AtomicU64>() as u64;
        SECTIONS.get(index as usize).copied()
    }

    /// Returns the place in shared memory at this address.
    fn place_at(&self, address: u64) -> Option<Place> {
        let (start, _, (file, offset)) = self
            .shared
            .iter()
            .find(|(start, end, _)| (start..end).contains(&&address))?;
        Some((*file, offset + (address - start)))
    }

    /// Returns the addresses of the executed instructions of each path from header to header.
    fn paths(&self, trace: &str) -> Vec<Vec<u64>> {
        let mut paths = Vec::new();
        let mut section = Section::Outside;
        let mut path = PathInTrace::default();
        for (kind, address, size) in trace.lines().filter_map(parse_access) {
            if kind == TracedAccess::Instruction {
                if section == Section::Reply && path.is_seen {
                    path.instructions.push(address);
                }
                continue;
            }
            if let Some(next) = self
                .section_at(address)
                .filter(|_| kind != TracedAccess::Load)
            {
                if next == Section::Request {
                    path = PathInTrace::default();
                }
                if next == Section::Outside && path.is_answered {
                    path.instructions.truncate(path.published_at);
                    paths.push(std::mem::take(&mut path.instructions));
                }
                section = next;
                continue;
            }
            let Some(place) = self.place_at(address) else {
                continue;
            };
            let is_header_store =
                kind == TracedAccess::Store && size == HEADER_LEN && place.1 % LINE_LEN == 0;
            match section {
                Section::Request if is_header_store => path.request = Some(place),
                Section::Reply if !path.is_seen => {
                    path.is_seen = kind == TracedAccess::Load && path.request == Some(place);
                }
                Section::Reply if is_header_store => {
                    (path.reply, path.published_at) = (Some(place), path.instructions.len());
                }
                Section::Answer if kind == TracedAccess::Load && path.reply == Some(place) => {
                    path.is_answered = true;
                }
                _ => {}
            }
        }
        paths
    }
}

/// A path as far as the trace has shown it.
#[derive(Default)]
struct PathInTrace {
    /// Where the request's header was published.
    request: Option<Place>,
    is_seen: bool,
    /// Where the reply's header was published.
    reply: Option<Place>,
    is_answered: bool,
    /// The instructions since the request's header was seen.
    instructions: Vec<u64>,
    /// How many of them were executed when the reply was published.
    published_at: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TracedAccess {
    Instruction,
    Load,
    Store,
    Modify,
}

/// Parses a line of the trace, `KIND ADDRESS,SIZE`.
fn parse_access(line: &str) -> Option<(TracedAccess, u64, u64)> {
    let (kind, rest) = line.trim_start().split_once(' ')?;
    let kind = match kind {
        "I" => TracedAccess::Instruction,
        "L" => TracedAccess::Load,
        "S" => TracedAccess::Store,
        "M" => TracedAccess::Modify,
        _ => return None,
    };
    let (address, size) = rest.trim_start().split_once(',')?;
    Some((
        kind,
        u64::from_str_radix(address, 16).ok()?,
        size.parse().ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DESCRIPTION: &str = "marks 1000\n\
        00400000-00402000 r-xp 00000000 08:01 77 /bench\n\
        00402000-00403000 r-xp 00002000 08:01 77 /bench\n\
        00500000-00501000 rw-s 00001000 00:01 5 /memfd:ring (deleted)\n\
        00600000-00602000 rw-s 00000000 00:01 5 /memfd:ring (deleted)\n\
        00700000-00701000 rw-p 00000000 00:00 0\n";

    fn process() -> TracedProcess {
        TracedProcess::parse(DESCRIPTION, "/bench").expect("a description")
    }

    #[test]
    fn description_of_a_process_is_parsed() {
        let process = process();
        assert_eq!((process.marks, process.load_address), (0x1000, 0x40_0000));
        assert_eq!(process.place_at(0x50_0040), Some((5, 0x1040)));
        assert_eq!(process.place_at(0x60_1040), Some((5, 0x1040)));
        assert_eq!(process.place_at(0x70_0000), None);
        assert_eq!(process.section_at(0x1010), Some(Section::Reply));
        assert_eq!(process.section_at(0x1020), None);
        assert!(TracedProcess::parse("", "/bench").is_none());
        let own = describe_process().expect("mappings");
        let program = std::env::current_exe().expect("the test program");
        assert!(TracedProcess::parse(&own, &program.to_string_lossy()).is_some());
    }

    #[test]
    fn path_is_from_the_load_to_the_store() {
        let request = " S 00001008,8\nI  00400000,3\n S 00500048,8\n S 00500040,8\n S 00001010,8\n";
        // Two loads of the request's header, the released position, payload, the reply's header,
        // and what follows.
        let reply = "I  00400100,3\n L 00601040,8\nI  00400103,3\n L 00601040,8\n\
            I  00400106,3\n S 00600080,8\nI  00400109,3\n S 00600108,8\n\
            I  0040010c,3\n S 00600100,8\nI  0040010f,4\n M 00700000,4\n";
        let answer = " S 00001018,8\nI  00400200,3\n L 00600100,8\n S 00001000,8\n";
        let unanswered = " S 00001018,8\nI  00400200,3\n S 00001000,8\n";
        let trace = [
            "==1== Lackey\n",
            request,
            reply,
            answer,
            request,
            reply,
            unanswered,
        ];
        assert_eq!(
            process().paths(&trace.concat()),
            [[0x40_0103, 0x40_0106, 0x40_0109, 0x40_010c]]
        );
    }
}
