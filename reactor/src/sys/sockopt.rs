//! Socket options that `rustix` lacks: of Unix sockets the credentials and pidfd of the peer, and
//! whether the peer may send descriptors; the information on a TCP connection.
#![allow(unsafe_code)] // `getsockopt` and `setsockopt`, and ownership of a new descriptor

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use fabric_core::Result;
use fabric_core::extension::TcpInfo;
use rustix::io::Errno;

use super::os_error::{last_errno, os_error};

/// Option that returns a pidfd of the peer (Linux 6.5), which the libraries lack.
const SO_PEERPIDFD: libc::c_int = 77;
/// Option that permits the peer to send descriptors (Linux 6.16), which the libraries lack.
/// Accepted connections inherit it from their listener.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Credentials of the peer, as the kernel reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerCredentials {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// `None` for a process that is not visible in this PID namespace.
    pub(crate) pid: Option<i32>,
    /// A number that no other process has while this one exists; `None` if it is not known.
    pub(crate) process: Option<u64>,
}

/// Set in the number of a process that is not visible, to tell it from process ids.
const INVISIBLE_PROCESS: u64 = 1 << 62;

/// Returns the credentials of the peer (`SO_PEERCRED`). The type of `rustix` cannot express the
/// process id of an invisible process, which is 0.
///
/// # Errors
/// Errors of `getsockopt`.
pub(crate) fn peer_credentials(socket: impl AsFd) -> Result<PeerCredentials> {
    let credentials = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    // SAFETY: the fields are integers, which may have any value.
    let peer = unsafe { get_option(&socket, libc::SOL_SOCKET, libc::SO_PEERCRED, credentials) }
        .map_err(os_error("getsockopt(SO_PEERCRED)"))?;
    let pid = (peer.pid != 0).then_some(peer.pid);
    Ok(PeerCredentials {
        uid: peer.uid,
        gid: peer.gid,
        pid,
        process: match pid {
            Some(pid) => u64::try_from(pid).ok(),
            None => pidfd_inode(&socket).map(|inode| inode | INVISIBLE_PROCESS),
        },
    })
}

/// Returns the inode number of the pidfd of the peer, which is unique for a process. `None` on
/// kernels before 6.9.
fn pidfd_inode(socket: impl AsFd) -> Option<u64> {
    const PIDFS_MAGIC: u64 = 0x5049_4446;
    let pidfd = peer_pidfd(socket).ok()?;
    let file_system = rustix::fs::fstatfs(&pidfd).ok()?;
    // Older kernels have one inode for all pidfds.
    let is_unique = file_system.f_type as u64 == PIDFS_MAGIC;
    is_unique.then_some(rustix::fs::fstat(&pidfd).ok()?.st_ino)
}

/// Returns a pidfd of the peer's process.
///
/// # Errors
/// Errors of `getsockopt`; `ENOPROTOOPT` on kernels before 6.5.
pub(crate) fn peer_pidfd(socket: impl AsFd) -> Result<OwnedFd, Errno> {
    // SAFETY: an integer may have any value.
    let fd: libc::c_int = unsafe { get_option(socket, libc::SOL_SOCKET, SO_PEERPIDFD, -1) }?;
    if fd < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the kernel has just created this descriptor, for this call.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets whether the peer may send descriptors. Kernels before 6.16 lack the option and always
/// permit descriptors.
pub(crate) fn set_passrights(socket: impl AsFd, permitted: bool) {
    let value = libc::c_int::from(permitted);
    // SAFETY: the kernel reads an integer of the given length.
    unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        );
    }
}

/// The beginning of `struct tcp_info` of Linux, of which `libc` has an older part. Older kernels
/// fill less, and the rest stays 0. The integers of 32 and 64 bits are named; the bytes in front of
/// them are states and flags.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct KernelTcpInfo {
    state: u8,
    ca_state: u8,
    retransmits: u8,
    probes: u8,
    flags: [u8; 4],
    rto: u32,
    ato: u32,
    snd_mss: u32,
    rcv_mss: u32,
    unacked: u32,
    sacked: u32,
    lost: u32,
    retrans: u32,
    fackets: u32,
    last_data_sent: u32,
    last_ack_sent: u32,
    last_data_recv: u32,
    last_ack_recv: u32,
    pmtu: u32,
    rcv_ssthresh: u32,
    rtt: u32,
    rttvar: u32,
    snd_ssthresh: u32,
    snd_cwnd: u32,
    advmss: u32,
    reordering: u32,
    rcv_rtt: u32,
    rcv_space: u32,
    total_retrans: u32,
    pacing_rate: u64,
    max_pacing_rate: u64,
    bytes_acked: u64,
    bytes_received: u64,
    segs_out: u32,
    segs_in: u32,
    notsent_bytes: u32,
    min_rtt: u32,
    data_segs_in: u32,
    data_segs_out: u32,
    delivery_rate: u64,
    busy_time: u64,
    rwnd_limited: u64,
    sndbuf_limited: u64,
    delivered: u32,
    delivered_ce: u32,
    bytes_sent: u64,
    bytes_retrans: u64,
}

// The offset of the last field in `linux/tcp.h`.
const _: () = assert!(std::mem::offset_of!(KernelTcpInfo, bytes_retrans) == 208);

/// Returns what the kernel knows about a TCP connection (`TCP_INFO`).
///
/// # Errors
/// Errors of `getsockopt`.
pub(crate) fn tcp_info(socket: impl AsFd) -> Result<TcpInfo> {
    let empty = KernelTcpInfo::default();
    // SAFETY: the fields are integers, which may have any value.
    let kernel = unsafe { get_option(socket, libc::IPPROTO_TCP, libc::TCP_INFO, empty) }
        .map_err(os_error("getsockopt(TCP_INFO)"))?;
    let micros = |value: u32| Duration::from_micros(value.into());
    let mut info = TcpInfo::default();
    info.rtt = micros(kernel.rtt);
    info.rtt_deviation = micros(kernel.rttvar);
    info.min_rtt = micros(kernel.min_rtt);
    info.retransmission_timeout = micros(kernel.rto);
    info.send_mss = kernel.snd_mss;
    info.path_mtu = kernel.pmtu;
    info.congestion_window = kernel.snd_cwnd;
    info.slow_start_threshold = kernel.snd_ssthresh;
    info.retransmits = kernel.retransmits.into();
    info.total_retransmits = kernel.total_retrans;
    info.unacked_segments = kernel.unacked;
    info.lost_segments = kernel.lost;
    let sent_once = kernel.bytes_sent.saturating_sub(kernel.bytes_retrans);
    let in_flight = sent_once.saturating_sub(kernel.bytes_acked);
    info.bytes_in_flight = if kernel.unacked == 0 { 0 } else { in_flight };
    info.bytes_unsent = kernel.notsent_bytes.into();
    info.bytes_sent = kernel.bytes_sent;
    info.bytes_retransmitted = kernel.bytes_retrans;
    info.bytes_received = kernel.bytes_received;
    info.delivery_rate = kernel.delivery_rate;
    Ok(info)
}

/// Returns the value of an option of this level. What the kernel does not fill keeps its bytes.
///
/// # Safety
/// Every bit pattern must be a valid `T`.
unsafe fn get_option<T>(
    socket: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    mut value: T,
) -> Result<T, Errno> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `value`, which remains valid.
    let status = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            (&raw mut value).cast(),
            &raw mut len,
        )
    };
    if status == 0 {
        Ok(value)
    } else {
        Err(last_errno())
    }
}
