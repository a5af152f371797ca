//! What the extension of provider `tcp` reports.

use std::time::Duration;

/// What the kernel knows about a TCP connection (`TCP_INFO`), of one moment. Fields that the kernel
/// does not report are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "TCP_INFO")]
#[doc(alias = "tcp_info")]
pub struct TcpInfo {
    /// The smoothed round-trip time.
    pub rtt: Duration,
    /// The mean deviation of the round-trip time.
    pub rtt_deviation: Duration,
    /// The shortest round-trip time that was measured.
    pub min_rtt: Duration,
    /// The retransmission timeout.
    pub retransmission_timeout: Duration,
    /// The maximum segment size for sending, in bytes.
    pub send_mss: u32,
    /// The path MTU, in bytes.
    pub path_mtu: u32,
    /// The congestion window, in segments.
    pub congestion_window: u32,
    /// The slow start threshold, in segments.
    pub slow_start_threshold: u32,
    /// The retransmissions of the oldest unacknowledged segment that were made in a row.
    pub retransmits: u32,
    /// All retransmitted segments of the connection.
    pub total_retransmits: u32,
    /// Sent segments that the peer has not acknowledged.
    pub unacked_segments: u32,
    /// Segments that are considered lost.
    pub lost_segments: u32,
    /// Sent bytes that the peer has not acknowledged. On the side that has connected, the value is
    /// one too small.
    pub bytes_in_flight: u64,
    /// Bytes in the socket's buffer that were not sent yet.
    pub bytes_unsent: u64,
    /// All sent bytes, including retransmitted ones.
    pub bytes_sent: u64,
    /// All retransmitted bytes.
    pub bytes_retransmitted: u64,
    /// All received bytes.
    pub bytes_received: u64,
    /// The most recent rate at which the peer acknowledged, in bytes per second.
    pub delivery_rate: u64,
}
