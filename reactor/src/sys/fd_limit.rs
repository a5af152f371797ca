//! The limit of descriptors of the process (`RLIMIT_NOFILE`).

use rustix::process::{Resource, getrlimit};

/// Returns how many descriptors this process may have.
pub(crate) fn max_descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| {
        usize::try_from(limit).unwrap_or(usize::MAX)
    })
}

/// Returns one part of `parts` equal parts of these descriptors, but at least 1 and at most `max`.
pub(crate) fn part_of_descriptors(parts: usize, max: usize) -> usize {
    (max_descriptors() / parts).clamp(1, max)
}
