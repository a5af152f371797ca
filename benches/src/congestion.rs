//! How connections over TCP decide how fast they may send: what this machine does unless told
//! otherwise.

use fabric_async::SocketOptions;

/// What connections have here that say nothing; `None` without `/proc`.
#[must_use]
pub fn machine() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").ok()?;
    Some(name.trim().to_owned())
}

/// A line on both sides of a comparison over this provider, ours having been told this or nothing.
/// Only connections over TCP have any.
#[must_use]
pub fn note(provider: &str, told: Option<&str>) -> Option<String> {
    let machine = machine().unwrap_or_else(|| "unknown".into());
    (provider == "tcp").then(|| {
        let ours = told.unwrap_or(SocketOptions::INSIDE);
        format!("Congestion control: {ours} of the fabric, unless it is said to be as others; {machine} of all others.")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_are_named() {
        let note = note("tcp", Some("vegas")).expect("it has one");
        assert!(note.contains("vegas of the fabric"), "{note}");
        assert!(
            machine().is_none_or(|name| note.contains(&format!("{name} of all others"))),
            "{note}"
        );
        assert_eq!(super::note("shm", None), None);
    }
}
