//! Skips tests whose facilities the machine or the provider lacks.
//!
//! [`skip`] prints `skipped: TEST: reason` on the real standard error, which libtest does not
//! capture, and appends `FACILITY<tab>TEST<tab>reason` to `skipped-tests.tsv` in cargo's directory
//! for files of tests (`target/tmp`), so that `.ci/run` can count and list the skips of all test
//! programs. `FABRIC_REQUIRE`, a comma-separated list of facilities (`interop,uring,netns,ipv6`),
//! turns skips because of these facilities into failures.
//!
//! Test programs, and the unit tests of `reactor`, include this file with `#[path]`.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::panic::Location;
use std::path::PathBuf;

/// The environment variable that lists facilities whose absence fails tests.
const REQUIRE_ENV: &str = "FABRIC_REQUIRE";

/// A facility that some tests need; without it they are skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "no test program needs all of them")]
pub(crate) enum Facility {
    /// Debian's libfabric-bin (`fi_pingpong`, `fi_info`), and libfabric-dev and gcc, which build
    /// `interop/peer.c`.
    Interop,
    /// A kernel that allows `io_uring_setup(2)`.
    Uring,
    /// Namespaces of network, mounts and processes: root, `ip` and `unshare`.
    Netns,
    /// An IPv6 loopback address.
    Ipv6,
    /// Root, to start processes of another user or to open raw sockets.
    Root,
    /// A limit of open files (`RLIMIT_NOFILE`) that is high enough.
    Descriptors,
    /// Huge pages that are free (`/proc/sys/vm/nr_hugepages`).
    HugePages,
    /// A capability that the provider under test, the kernel or the installed libfabric does not
    /// offer.
    Capability,
}

impl Facility {
    const ALL: [Self; 8] = [
        Self::Interop,
        Self::Uring,
        Self::Netns,
        Self::Ipv6,
        Self::Root,
        Self::Descriptors,
        Self::HugePages,
        Self::Capability,
    ];

    /// Returns the name of this facility in `FABRIC_REQUIRE`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Interop => "interop",
            Self::Uring => "uring",
            Self::Netns => "netns",
            Self::Ipv6 => "ipv6",
            Self::Root => "root",
            Self::Descriptors => "descriptors",
            Self::HugePages => "hugepages",
            Self::Capability => "capability",
        }
    }

    /// Returns whether `FABRIC_REQUIRE` lists this facility.
    ///
    /// # Panics
    ///
    /// When the list has a name that is no facility.
    pub(crate) fn is_required(self) -> bool {
        std::env::var(REQUIRE_ENV).is_ok_and(|list| self.is_in(&list))
    }

    /// Returns whether a value of `FABRIC_REQUIRE` lists this facility.
    ///
    /// # Panics
    ///
    /// When the list has a name that is no facility.
    fn is_in(self, list: &str) -> bool {
        let names = || {
            list.split(',')
                .map(str::trim)
                .filter(|name| !name.is_empty())
        };
        for name in names() {
            assert!(
                Self::ALL.iter().any(|known| known.name() == name),
                "{REQUIRE_ENV} lists {name:?}; the facilities are {}",
                Self::ALL.map(Self::name).join(", ")
            );
        }
        names().any(|name| name == self.name())
    }
}

/// Records that the running test, or a part of it, is skipped because this facility is missing.
///
/// # Panics
///
/// When `FABRIC_REQUIRE` lists the facility.
#[track_caller]
pub(crate) fn skip(facility: Facility, reason: impl Display) {
    let thread = std::thread::current();
    // libtest names its threads by their tests. With one test thread the tests run on the main
    // thread, and other threads may have no name: the place in the source then stands for the test.
    let test = match thread.name() {
        Some(name) if name != "main" => format!("{}::{name}", env!("CARGO_CRATE_NAME")),
        _ => Location::caller().to_string(),
    };
    assert!(
        !facility.is_required(),
        "{test}: {REQUIRE_ENV} lists {}, and it is missing: {reason}",
        facility.name()
    );
    report(facility, &test, reason);
}

/// Prints and records that `subject`, one test or several, is skipped because this facility is
/// missing, whether `FABRIC_REQUIRE` lists the facility or not.
pub(crate) fn report(facility: Facility, subject: &str, reason: impl Display) {
    let reason = reason.to_string().replace(['\n', '\t'], " ");
    // `eprintln!` would be captured.
    let _ = writeln!(std::io::stderr(), "skipped: {subject}: {reason}");
    if let Some(dir) = tmp_dir() {
        let path = dir.join("skipped-tests.tsv");
        let line = format!("{}\t{subject}\t{reason}\n", facility.name());
        // One write to a file that is open for appending is not interleaved with other writes.
        let written = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(line.as_bytes()));
        if let Err(error) = written {
            // Processes of another user may not write there.
            let _ = writeln!(std::io::stderr(), "{}: {error}", path.display());
        }
    }
}

/// Returns cargo's directory for files of tests. Cargo sets `CARGO_TARGET_TMPDIR` only for
/// integration tests; unit tests run from `target/debug/deps/TEST`, and the directory is
/// `target/tmp`.
fn tmp_dir() -> Option<PathBuf> {
    if let Some(dir) = option_env!("CARGO_TARGET_TMPDIR") {
        return Some(dir.into());
    }
    let dir = std::env::current_exe()
        .ok()?
        .ancestors()
        .nth(3)?
        .join("tmp");
    dir.is_dir().then_some(dir)
}
