//! Congestion control of TCP connections: this machine's default, and a note for comparisons.

use fabric_async::SocketOptions;

/// Returns the congestion control of connections that configure none; `None` without `/proc`.
#[must_use]
pub fn system_default() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").ok()?;
    Some(name.trim().to_owned())
}

/// Returns a note on both sides of a comparison over this provider, the fabric with the configured
/// algorithm or its default; `None` for providers without congestion control.
#[must_use]
pub fn describe(provider: &str, configured: Option<&str>) -> Option<String> {
    let default = system_default().unwrap_or_else(|| "unknown".into());
    (provider == "tcp").then(|| {
        let fabric = configured.unwrap_or(SocketOptions::LOCAL_CONGESTION_CONTROL);
        format!(
            "Congestion control: the fabric uses {fabric}, but {default} in goals of streams; all \
             others use {default}."
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn description_names_both_algorithms() {
        let text = describe("tcp", Some("vegas")).expect("tcp has congestion control");
        assert!(text.contains("the fabric uses vegas"), "{text}");
        assert!(
            system_default().is_none_or(|name| text.contains(&format!("all others use {name}"))),
            "{text}"
        );
        assert_eq!(super::describe("shm", None), None);
    }
}
