//! Socket options of a domain.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::error::{Error, Result};

/// The largest socket buffer that can be requested, in bytes: the kernel doubles the value and
/// stores it in 31 bits.
const MAX_SOCKET_BUFFER: usize = (1 << 30) - 1;

/// The range of the idle timeout.
const IDLE_TIMEOUT_RANGE: RangeInclusive<Duration> =
    Duration::from_secs(4)..=Duration::from_secs(32_000);

/// Socket options of a domain whose provider uses sockets. Options that are not set keep the
/// system's defaults. Over shared memory only the limits of connections apply.
///
/// ```
/// # use fabric_core as fabric_async;
/// use fabric_async::SocketOptions;
/// let options = SocketOptions::new()
///     .congestion_control("reno")
///     .receive_buffer(1 << 20)
///     .port_range(7000..=7099);
/// # drop(options);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct SocketOptions {
    /// See [`congestion_control`](Self::congestion_control).
    pub congestion_control: Option<String>,
    /// See [`send_buffer`](Self::send_buffer).
    pub send_buffer: Option<usize>,
    /// See [`receive_buffer`](Self::receive_buffer).
    pub receive_buffer: Option<usize>,
    /// See [`port_range`](Self::port_range).
    pub port_range: Option<RangeInclusive<u16>>,
    /// See [`idle_timeout`](Self::idle_timeout).
    pub idle_timeout: Option<Duration>,
    /// See [`max_inbound`](Self::max_inbound).
    pub max_inbound: Option<usize>,
    /// See [`max_inbound_per_source`](Self::max_inbound_per_source).
    pub max_inbound_per_source: Option<usize>,
    /// See [`zero_copy_threshold`](Self::zero_copy_threshold).
    pub zero_copy_threshold: Option<usize>,
    /// Keeps zero copy on even if the kernel copies; for tests and measurements.
    #[doc(hidden)]
    pub force_zero_copy: bool,
}

impl SocketOptions {
    /// The congestion control of connections inside this machine, unless [another
    /// one](Self::congestion_control) is set.
    pub const LOCAL_CONGESTION_CONTROL: &'static str = "reno";

    /// Creates options with all defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the congestion control of TCP connections, by its name in
    /// `/proc/sys/net/ipv4/tcp_available_congestion_control`.
    ///
    /// By default, connections inside this machine use `reno`, which every Linux has: no network
    /// can be congested there, and a measured pacing rate, as with `bbr`, halves the bandwidth.
    /// Other connections use the system's default. Datagrams have no congestion control.
    #[doc(alias = "TCP_CONGESTION")]
    #[must_use]
    pub fn congestion_control(mut self, name: impl Into<String>) -> Self {
        self.congestion_control = Some(name.into());
        self
    }

    /// Sets the size of a socket's send buffer in bytes: data that was sent and not acknowledged
    /// yet. Linux doubles the value for its own overhead, limits it to `net.core.wmem_max`, and
    /// stops auto-tuning the buffer.
    #[doc(alias = "SO_SNDBUF")]
    #[must_use]
    pub fn send_buffer(mut self, bytes: usize) -> Self {
        self.send_buffer = Some(bytes);
        self
    }

    /// Sets the size of a socket's receive buffer in bytes: data that arrived and was not read yet.
    /// Linux doubles the value for its own overhead, limits it to `net.core.rmem_max`, and stops
    /// auto-tuning the buffer. Datagrams that arrive while the buffer is full are lost; the default
    /// for datagrams is 4 MiB, limited by the system.
    ///
    /// The window that Linux announces to a TCP sender is at most about the size set here, and
    /// segments over the loopback interface have up to 64 KiB. A sender whose window is shorter
    /// than a segment sends a part of one each 200 ms only: set at least 128 KiB there.
    #[doc(alias = "SO_RCVBUF")]
    #[must_use]
    pub fn receive_buffer(mut self, bytes: usize) -> Self {
        self.receive_buffer = Some(bytes);
        self
    }

    /// Sets the ports for endpoints that listen on any port (0): a free port of this range, for
    /// firewalls that admit a range. The search starts at a random port of the range, so that
    /// endpoints that are opened at the same time seldom collide.
    #[doc(alias = "FI_TCP_PORT_LOW_RANGE")]
    #[doc(alias = "FI_TCP_PORT_HIGH_RANGE")]
    #[must_use]
    pub fn port_range(mut self, ports: RangeInclusive<u16>) -> Self {
        self.port_range = Some(ports);
        self
    }

    /// Sets how long a TCP peer may be idle before it is considered dead, in whole seconds; 30 by
    /// default. A machine or a network may vanish without closing connections. While a connection
    /// is idle, the kernels exchange keepalive probes without waking a process, and a live peer's
    /// kernel answers however busy the process is. While sent data is unacknowledged, TCP's
    /// retransmission timeout decides, which takes longer.
    #[doc(alias = "SO_KEEPALIVE")]
    #[must_use]
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = Some(timeout);
        self
    }

    /// Sets the maximum number of connections over TCP or shared memory that an endpoint has
    /// accepted from peers whose address the program has not inserted in the address vector; 4096
    /// by default. Independently, all endpoints of a process together use three quarters of
    /// `RLIMIT_NOFILE` for such connections: one descriptor each over TCP, two over shared memory.
    /// Further connections are refused, with an
    /// [`InboundRefused`](crate::event::EventKind::InboundRefused) event, and counted
    /// ([`EndpointStats::inbound_refused`](crate::stats::EndpointStats::inbound_refused)). Peers
    /// that the program has inserted are exempt. With 0, only these are accepted. The refused side
    /// gets `ConnectionRefused` with the reason `Resources`. Over TCP all clients of one machine
    /// share the limit of [`max_inbound_per_source`](Self::max_inbound_per_source) too.
    #[must_use]
    pub fn max_inbound(mut self, connections: usize) -> Self {
        self.max_inbound = Some(connections);
        self
    }

    /// Sets how many of the connections of [`max_inbound`](Self::max_inbound) one source may have;
    /// by default half of `max_inbound`, rounded up, or half of the limit of the process if that is
    /// smaller, so that no source takes the place of all others. Over TCP, a source is an IPv4
    /// address or an IPv6 network of 64 bits. The IPv4 loopback addresses are one source, which all
    /// local peers share. Over shared memory, a source is a process.
    #[must_use]
    pub fn max_inbound_per_source(mut self, connections: usize) -> Self {
        self.max_inbound_per_source = Some(connections);
        self
    }

    /// Sets the length from which messages and writes over TCP are sent without copying, in bytes;
    /// at least 16 KiB takes effect. Off by default.
    ///
    /// Zero copy is for network interfaces that read the memory of processes (DMA): it saves one
    /// copy of each byte. It costs a second completion by the kernel for each message, and time:
    /// the operation completes and returns its buffer only when the peer's machine has acknowledged
    /// all bytes, or the connection has ended, even if its endpoint is closed before. A task that
    /// awaits such an operation thus waits for a peer that does not read. Inside one machine, or
    /// with a device without scatter-gather DMA, the kernel copies nevertheless and reports that;
    /// the connection then stops requesting zero copy, as it does when the kernel refuses it.
    /// [`EndpointStats::zero_copy`](crate::stats::EndpointStats::zero_copy) and
    /// [`zero_copy_fallbacks`](crate::stats::EndpointStats::zero_copy_fallbacks) count both cases.
    ///
    /// Needs [`SocketIo::IoUring`](crate::transport::SocketIo::IoUring); with epoll the option has
    /// no effect. Responses to reads, messages of the RXM protocol that peers read, and vectors of
    /// more than 15 buffers are copied.
    #[doc(alias = "IORING_OP_SENDMSG_ZC")]
    #[doc(alias = "FI_TCP_ZEROCOPY_SIZE")]
    #[must_use]
    pub fn zero_copy_threshold(mut self, bytes: usize) -> Self {
        self.zero_copy_threshold = Some(bytes);
        self
    }

    /// Checks the options.
    ///
    /// # Errors
    /// [`Error::TooLong`] for buffers of 1 GiB or more; [`Error::Invalid`] for a buffer of 0 bytes,
    /// for an empty port range or one with port 0, for a name that no congestion control can have,
    /// and for an idle timeout below 4 or above 32 000 seconds.
    #[doc(hidden)]
    pub fn check(&self) -> Result<()> {
        let invalid = |what, why| Err(Error::Invalid { what, why });
        for (what, bytes) in [
            ("send buffer", self.send_buffer),
            ("receive buffer", self.receive_buffer),
        ] {
            match bytes {
                Some(0) => return invalid(what, "0 bytes; the smallest is 1".into()),
                Some(len) if len > MAX_SOCKET_BUFFER => {
                    return Err(Error::TooLong {
                        what,
                        len,
                        limit: MAX_SOCKET_BUFFER,
                    });
                }
                _ => {}
            }
        }
        if let Some(ports) = &self.port_range {
            let (first, last) = (ports.start(), ports.end());
            if first > last {
                let why = format!(
                    "{first} to {last} is empty: the first port must not be above the last"
                );
                return invalid("port range", why);
            }
            if *first == 0 {
                let why = format!("{first} to {last} has port 0; ports are 1 to 65535");
                return invalid("port range", why);
            }
        }
        if let Some(timeout) = self.idle_timeout
            && !IDLE_TIMEOUT_RANGE.contains(&timeout)
        {
            return invalid(
                "idle timeout",
                format!("{timeout:?} is not within 4 to 32000 seconds"),
            );
        }
        if let Some(name) = &self.congestion_control
            && (name.is_empty() || name.len() > 15 || name.contains('\0'))
        {
            return invalid(
                "congestion control",
                format!("{name:?}: a name has 1 to 15 bytes and no NUL"),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::reversed_empty_ranges, reason = "the check refuses it")]
    fn invalid_socket_options_are_refused_by_name() {
        let new = SocketOptions::new;
        for (options, part) in [
            (new().send_buffer(0), "send buffer"),
            (new().receive_buffer(0), "receive buffer"),
            (
                new().receive_buffer(usize::MAX),
                "receive buffer of 18446744073709551615 bytes exceeds",
            ),
            (
                new().send_buffer(1 << 30),
                "1073741824 bytes exceeds the limit of 1073741823 bytes",
            ),
            (new().port_range(0..=10), "0 to 10 has port 0"),
            (new().port_range(10..=9), "10 to 9 is empty"),
            (new().idle_timeout(Duration::from_secs(3)), "3s"),
            (new().idle_timeout(Duration::MAX), "idle timeout"),
            (new().congestion_control(""), "congestion control"),
            (new().congestion_control("a\0b"), "congestion control"),
            (
                new().congestion_control("sixteen-letters-"),
                "sixteen-letters-",
            ),
        ] {
            let refused = options.check().unwrap_err().to_string();
            assert!(refused.contains(part), "{refused}");
        }
        let all = new()
            .send_buffer(1)
            .receive_buffer((1 << 30) - 1)
            .port_range(1..=1)
            .congestion_control("bbr");
        assert_eq!(all.check(), Ok(()));
        assert_eq!(new().check(), Ok(()));
    }
}
