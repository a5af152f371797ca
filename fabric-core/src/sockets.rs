//! What can be set on the sockets of a domain.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::error::{Error, Result};

/// The largest buffer that a socket can be asked for, in bytes: the kernel doubles it, and counts
/// with 31 bits.
const MAX_SOCKET_BUFFER: usize = 1 << 30;

/// How long a peer may be silent, at least and at most.
const IDLE_TIMEOUT_RANGE: RangeInclusive<Duration> =
    Duration::from_secs(4)..=Duration::from_secs(32_000);

/// What is set on the sockets of a domain, where its provider has some. What is not said stays as
/// the machine has it.
///
/// ```
/// # use fabric_core as fabric_async;
/// use fabric_async::SocketOptions;
/// let options = SocketOptions::new().congestion_control("reno").receive_buffer(1 << 20).ports(7000..=7099);
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
    /// See [`ports`](Self::ports).
    pub port_range: Option<RangeInclusive<u16>>,
    /// See [`silence`](Self::silence).
    pub idle_timeout: Option<Duration>,
    /// See [`zero_copy_from`](Self::zero_copy_from).
    pub zero_copy_threshold: Option<usize>,
    /// Zero copy goes on where the kernel copies all the same, to be tested and measured.
    #[doc(hidden)]
    pub force_zero_copy: bool,
}

impl SocketOptions {
    /// The congestion control of connections inside this machine, unless another is
    /// [said](Self::congestion_control).
    pub const LOCAL_CONGESTION_CONTROL: &'static str = "reno";

    /// Everything as usual.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How connections over TCP decide how fast they may send, by the name that the kernel has for
    /// it, as in `/proc/sys/net/ipv4/tcp_available_congestion_control`.
    ///
    /// Where nothing is said, connections inside this machine take `reno`, which every Linux has:
    /// there is no network that could be congested, and a pace that is measured, as `bbr` does it,
    /// halves the bandwidth. Connections to elsewhere have what the machine has by default.
    /// Datagrams have none.
    #[doc(alias = "TCP_CONGESTION")]
    #[must_use]
    pub fn congestion_control(mut self, name: impl Into<String>) -> Self {
        self.congestion_control = Some(name.into());
        self
    }

    /// How many bytes the kernel keeps of what was sent on one socket and has not arrived. Linux
    /// takes twice that, for its own needs too, and no more than `net.core.wmem_max`; it stops
    /// adapting the size by itself.
    #[doc(alias = "SO_SNDBUF")]
    #[must_use]
    pub fn send_buffer(mut self, bytes: usize) -> Self {
        self.send_buffer = Some(bytes);
        self
    }

    /// How many bytes the kernel keeps of what has arrived on one socket and was not looked at.
    /// Linux takes twice that, for its own needs too, and no more than `net.core.rmem_max`; it
    /// stops adapting the size by itself. Datagrams that come when it is full are lost; without a
    /// word they have 4 MiB, or as much of that as there may be.
    #[doc(alias = "SO_RCVBUF")]
    #[must_use]
    pub fn receive_buffer(mut self, bytes: usize) -> Self {
        self.receive_buffer = Some(bytes);
        self
    }

    /// Where an endpoint listens that asks for any port (0): at a free one of these, for walls that
    /// have holes. Tried from one by chance on, so that those who start at once do not get in each
    /// other's way.
    #[doc(alias = "FI_TCP_PORT_LOW_RANGE")]
    #[doc(alias = "FI_TCP_PORT_HIGH_RANGE")]
    #[must_use]
    pub fn port_range(mut self, ports: RangeInclusive<u16>) -> Self {
        self.port_range = Some(ports);
        self
    }

    /// How long a peer over TCP may be silent, in whole seconds, before it is held to be gone: the
    /// machine or the network between may have gone without a word. While nothing comes the kernels
    /// ask each other, without waking anybody, and who is there answers, however busy. 30 seconds
    /// unless said. While something is on its way that does not arrive, it is the network that
    /// gives up, and later.
    #[doc(alias = "SO_KEEPALIVE")]
    #[must_use]
    pub fn idle_timeout(mut self, at_most: Duration) -> Self {
        self.idle_timeout = Some(at_most);
        self
    }

    /// The network takes messages and writes over TCP of this many bytes and more, but at least 16
    /// KiB, from where they lie, instead of from a copy that the kernel makes. Off unless said.
    ///
    /// It is for networks whose hardware reads the memory of programs: there it saves a copy for
    /// each byte. It costs a second completion of the kernel's for each message, and time: the
    /// operation ends, and gives its buffer back, only when the peer's machine has taken all of it,
    /// or the connection is gone, also when its endpoint is closed before: so who waits for such an
    /// operation waits for a peer that does not read. Where the way leads through memory anyway,
    /// inside this machine or over a device that cannot do it, the kernel copies all the same and
    /// says so; then it is given up for that connection, as it is where the kernel refuses it.
    /// [`EndpointStats::zero_copy`](crate::stats::EndpointStats::zero_copy) and
    /// [`copied_anyway`](crate::stats::EndpointStats::zero_copy_fallbacks) tell what has become of it.
    ///
    /// It needs [`SocketIo::IoUring`](crate::transport::SocketIo::IoUring); with epoll this says
    /// nothing. Answers to reads, messages in RXM, which its peers read, and vectors of more than
    /// 15 buffers are copied.
    #[doc(alias = "IORING_OP_SENDMSG_ZC")]
    #[doc(alias = "FI_TCP_ZEROCOPY_SIZE")]
    #[must_use]
    pub fn zero_copy_threshold(mut self, bytes: usize) -> Self {
        self.zero_copy_threshold = Some(bytes);
        self
    }

    /// Whether this can be set at all.
    ///
    /// # Errors
    /// [`Error::TooLong`] for buffers above 1 GiB; [`Error::Invalid`] for those of no bytes, for
    /// ports of which there are none or 0 is one, for a name that no congestion control has, and
    /// for a silence of less than 4 or more than 32 000 seconds.
    #[doc(hidden)]
    pub fn check(&self) -> Result<()> {
        let invalid = |what, why| Err(Error::Invalid { what, why });
        for (what, bytes) in [
            ("send buffer", self.send_buffer),
            ("receive buffer", self.receive_buffer),
        ] {
            match bytes {
                Some(0) => return invalid(what, "it has no bytes".into()),
                Some(len @ MAX_SOCKET_BUFFER..) => {
                    return Err(Error::TooLong {
                        what,
                        len,
                        limit: MAX_SOCKET_BUFFER,
                    });
                }
                _ => {}
            }
        }
        if let Some(ports) = &self.port_range
            && (ports.is_empty() || *ports.start() == 0)
        {
            let why = format!(
                "{} to {} are no ports: they begin at 1, and the low end is first",
                ports.start(),
                ports.end()
            );
            return invalid("port range", why);
        }
        if let Some(silence) = self.idle_timeout
            && !IDLE_TIMEOUT_RANGE.contains(&silence)
        {
            return invalid(
                "silence",
                format!("{silence:?} is not within 4 to 32000 seconds"),
            );
        }
        if let Some(name) = &self.congestion_control
            && (name.is_empty() || name.len() > 15 || name.contains('\0'))
        {
            return invalid(
                "congestion control",
                format!("{name:?}: names have 1 to 15 bytes"),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::reversed_empty_ranges, reason = "it is to be refused")]
    fn invalid_socket_options_are_refused_by_name() {
        let new = SocketOptions::new;
        for (options, part) in [
            (new().send_buffer(0), "send buffer"),
            (new().receive_buffer(0), "receive buffer"),
            (
                new().receive_buffer(usize::MAX),
                "receive buffer of 18446744073709551615 bytes exceeds",
            ),
            (new().port_range(0..=10), "0 to 10"),
            (new().port_range(10..=9), "10 to 9"),
            (new().idle_timeout(Duration::from_secs(3)), "3s"),
            (new().idle_timeout(Duration::MAX), "silence"),
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
            .receive_buffer(1 << 29)
            .port_range(1..=1)
            .congestion_control("bbr");
        assert_eq!(all.check(), Ok(()));
        assert_eq!(new().check(), Ok(()));
    }
}
