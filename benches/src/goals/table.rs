//! What is aimed at, by provider.

use super::figure::Bound::{Above, AtLeast, AtMost};
use super::figure::Figure::{
    Alike, AlikeBatch, Batch, Bounce, Crowd, Datagram, Driven, Limit, Line, Memcpy, Ours as Us,
    PerConnection, Pingpong, Sends, Theirs, Window,
};
use super::figure::Goal;
use super::figure::Whose::{Libfabric, LibfabricTcp, LibfabricUdp, Tokio, Ucx, UcxAm};
use crate::choice::Bench::{Bw, Lat, Rate};
use crate::choice::{Drive, Op, Wait};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Peers that are connected and silent.
const CROWD: usize = 1000;

/// The goals of this provider, as they are printed; none where nothing is aimed at.
pub(super) fn of(provider: &str) -> &'static [Goal] {
    match provider {
        "shm" => SHM,
        "tcp" => TCP,
        "udp" => UDP,
        _ => &[],
    }
}

const SHM: &[Goal] = &[
    ("send", Us(Lat, Op::Send, 8), Line, AtMost(1.8)),
    (
        "",
        Us(Lat, Op::Send, 8),
        Theirs(Libfabric, Lat, Op::Send, 8),
        AtMost(0.45),
    ),
    (
        "",
        Us(Lat, Op::Send, 8),
        Theirs(Ucx, Lat, Op::Send, 8),
        AtMost(0.75),
    ),
    (
        "",
        Us(Lat, Op::Send, 64),
        Theirs(Libfabric, Lat, Op::Send, 64),
        AtMost(0.45),
    ),
    (
        "",
        Us(Lat, Op::Send, 256),
        Theirs(Libfabric, Lat, Op::Send, 256),
        AtMost(0.45),
    ),
    (
        "",
        Us(Lat, Op::Send, 4 * KIB),
        Theirs(Libfabric, Lat, Op::Send, 4 * KIB),
        AtMost(0.4),
    ),
    (
        "",
        Us(Lat, Op::Send, 4 * KIB),
        Theirs(UcxAm, Lat, Op::Send, 4 * KIB),
        AtMost(1.0),
    ),
    (
        "",
        Us(Lat, Op::Send, 64 * KIB),
        Theirs(Libfabric, Lat, Op::Send, 64 * KIB),
        AtMost(1.0),
    ),
    (
        "",
        Us(Lat, Op::Send, MIB),
        Theirs(Libfabric, Lat, Op::Send, MIB),
        AtMost(1.0),
    ),
    (
        "loan",
        Us(Lat, Op::Loan, 64 * KIB),
        Theirs(Libfabric, Lat, Op::Send, 64 * KIB),
        AtMost(0.6),
    ),
    (
        "",
        Us(Lat, Op::Loan, MIB),
        Theirs(Libfabric, Lat, Op::Send, MIB),
        AtMost(0.7),
    ),
    (
        "",
        Us(Lat, Op::Loan, MIB),
        Us(Lat, Op::Send, 8),
        AtMost(3.0),
    ),
    (
        "send, batches",
        Batch(Op::Send, 8),
        Theirs(Ucx, Bw, Op::Send, 8),
        AtLeast(1.0),
    ),
    ("write", Us(Lat, Op::Write, 8), Line, AtMost(1.3)),
    (
        "",
        Us(Lat, Op::Write, 8),
        Theirs(Ucx, Lat, Op::Write, 8),
        AtMost(1.0),
    ),
    (
        "",
        Us(Rate, Op::Write, 8),
        Theirs(Ucx, Bw, Op::Write, 8),
        AtLeast(1.0),
    ),
    (
        "",
        Us(Bw, Op::Write, 4 * KIB),
        Memcpy(4 * KIB),
        AtLeast(0.9),
    ),
    (
        "",
        Us(Bw, Op::Write, 64 * KIB),
        Memcpy(64 * KIB),
        AtLeast(0.9),
    ),
    ("", Us(Bw, Op::Write, MIB), Memcpy(MIB), AtLeast(0.9)),
    (
        "",
        Us(Bw, Op::Write, 4 * KIB),
        Theirs(Ucx, Bw, Op::Write, 4 * KIB),
        AtLeast(1.0),
    ),
    (
        "",
        Us(Bw, Op::Write, 64 * KIB),
        Theirs(Ucx, Bw, Op::Write, 64 * KIB),
        AtLeast(1.0),
    ),
    (
        "",
        Us(Bw, Op::Write, MIB),
        Theirs(Ucx, Bw, Op::Write, MIB),
        AtLeast(1.0),
    ),
    (
        "write, window",
        Window(Lat, Op::Write, 8),
        Line,
        AtMost(1.3),
    ),
    (
        "",
        Window(Lat, Op::Write, 8),
        Theirs(Ucx, Lat, Op::Write, 8),
        AtMost(1.0),
    ),
    (
        "",
        Window(Rate, Op::Write, 8),
        Theirs(Ucx, Bw, Op::Write, 8),
        AtLeast(1.0),
    ),
    (
        "",
        Window(Bw, Op::Write, 4 * KIB),
        Memcpy(4 * KIB),
        AtLeast(0.9),
    ),
    (
        "",
        Window(Bw, Op::Write, 4 * KIB),
        Theirs(Ucx, Bw, Op::Write, 4 * KIB),
        AtLeast(1.0),
    ),
    (
        "",
        Window(Bw, Op::Write, 64 * KIB),
        Memcpy(64 * KIB),
        AtLeast(0.9),
    ),
    (
        "read",
        Us(Bw, Op::Read, 4 * KIB),
        Memcpy(4 * KIB),
        AtLeast(0.9),
    ),
    (
        "",
        Us(Bw, Op::Read, 64 * KIB),
        Memcpy(64 * KIB),
        AtLeast(0.9),
    ),
    ("", Us(Bw, Op::Read, MIB), Memcpy(MIB), AtLeast(0.9)),
    ("fetch-add", Us(Lat, Op::Atomic, 8), Line, Above(50.0)),
    (
        "send, adaptive",
        Driven(Wait::Adaptive, Drive::Manual, 8),
        Us(Lat, Op::Send, 8),
        AtMost(1.3),
    ),
    (
        "send, auto",
        Driven(Wait::Spin, Drive::Auto, 8),
        Us(Lat, Op::Send, 8),
        AtMost(1.3),
    ),
];

/// Streams are held against a ping-pong, because libfabric comes with no program that streams over
/// TCP; both have the congestion control of the machine.
const TCP: &[Goal] = &[
    (
        "send",
        Us(Lat, Op::Send, 8),
        Theirs(LibfabricTcp, Lat, Op::Send, 8),
        AtMost(1.0),
    ),
    ("", Us(Lat, Op::Send, 8), Bounce, AtMost(1.15)),
    (
        "send, parked",
        Driven(Wait::Park, Drive::Manual, 8),
        Theirs(Tokio, Lat, Op::Send, 8),
        AtMost(1.05),
    ),
    (
        "stream",
        Alike(Bw, Op::Send, 64 * KIB),
        Pingpong(LibfabricTcp, 64 * KIB),
        AtLeast(1.2),
    ),
    (
        "",
        Alike(Bw, Op::Send, 64 * KIB),
        Theirs(Tokio, Bw, Op::Send, 64 * KIB),
        AtLeast(1.0),
    ),
    (
        "",
        Alike(Bw, Op::Send, MIB),
        Pingpong(LibfabricTcp, MIB),
        AtLeast(1.2),
    ),
    (
        "",
        Alike(Bw, Op::Send, MIB),
        Theirs(Tokio, Bw, Op::Send, MIB),
        AtLeast(1.0),
    ),
    ("rate", Alike(Rate, Op::Send, 8), Sends, AtLeast(5.0)),
    (
        "rate, batches",
        AlikeBatch(Op::Send, 8),
        Sends,
        AtLeast(5.0),
    ),
    (
        "1000 silent",
        Crowd(CROWD, 8),
        Us(Lat, Op::Send, 8),
        AtMost(1.2),
    ),
    (
        "memory of each",
        PerConnection(CROWD),
        Limit(32 * KIB),
        AtMost(1.0),
    ),
];

const UDP: &[Goal] = &[(
    "send",
    Datagram(8),
    Theirs(LibfabricUdp, Lat, Op::Send, 8),
    AtMost(1.0),
)];
