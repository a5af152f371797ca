//! How connections over TCP decide how fast they may send: what this machine does unless told
//! otherwise.

use fabric_async::SocketOptions;

/// What connections have here that say nothing; `None` without `/proc`.
#[must_use]
pub fn system_default() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").ok()?;
    Some(name.trim().to_owned())
}

/// A line on both sides of a comparison over this provider, ours having been told this or nothing.
/// Only connections over TCP have any.
#[must_use]
pub fn describe(provider: &str, told: Option<&str>) -> Option<String> {
    let machine = system_default().unwrap_or_else(|| "unknown".into());
    (provider == "tcp").then(|| {
        let ours = told.unwrap_or(SocketOptions::LOCAL_CONGESTION_CONTROL);
        format!("Congestion control: {ours} of the fabric, unless it is said to be as others; {machine} of all others.")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn description_names_both_algorithms() {
        let note = describe("tcp", Some("vegas")).expect("it has one");
        assert!(note.contains("vegas of the fabric"), "{note}");
        assert!(
            system_default().is_none_or(|name| note.contains(&format!("{name} of all others"))),
            "{note}"
        );
        assert_eq!(super::describe("shm", None), None);
    }
}
