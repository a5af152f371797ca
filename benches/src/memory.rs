//! Memory of the machine and of this process.

/// Returns the bytes that can be allocated without swapping (`MemAvailable`); `None` without
/// `/proc`.
#[must_use]
pub fn available() -> Option<u64> {
    from_meminfo(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

/// Returns the resident memory of this process in bytes; `None` without `/proc`.
#[must_use]
pub fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

fn from_meminfo(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_parsed() {
        let text = "MemTotal:       8000000 kB\nMemFree:  1 kB\n\
                    MemAvailable:    6000000 kB\nBuffers: 7 kB\n";
        assert_eq!(from_meminfo(text), Some(6_000_000 * 1024));
        assert_eq!(from_meminfo("MemTotal: 8 kB\n"), None);
        assert!(available().is_some() && resident().is_some_and(|bytes| bytes > 1 << 16));
    }
}
