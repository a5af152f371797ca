//! The goals of remote procedure calls.
//!
//! A goal for the rate of calls that are made one at a time is one for their time, so its bound is
//! the inverse.

use super::metric::GoalBound::{MaxRatio, MinRatio};
use super::metric::Metric::{Fabric as Us, Peer};
use super::metric::{FabricCase, Goal, Metric, PeerProgram};
use crate::options::Bench::{self, Bw, Lat, Rate};
use crate::options::BenchOp;
use crate::peers::CallService::{
    self, NativeShm, TarpcShm, TarpcUnixStream, TonicShm, TonicTcp, TonicTcpStream, TonicUnixStream,
};

const SHORT: usize = 64;
const LONG: usize = 1 << 20;

const fn calls(service: CallService, bench: Bench, size: usize) -> Metric {
    Peer(PeerProgram::Calls(service), bench, BenchOp::Rpc, size)
}

/// Returns the goals of calls over this provider in the order of printing.
pub(super) fn for_provider(provider: &str) -> &'static [Goal] {
    match provider {
        "shm" => SHM,
        "tcp" => TCP,
        _ => &[],
    }
}

const SHM: &[Goal] = &[
    (
        "native call",
        calls(NativeShm, Lat, SHORT),
        Us(FabricCase::new(Lat, BenchOp::Send, 8)),
        MaxRatio(2.6),
    ),
    (
        "64 in flight",
        calls(NativeShm, Rate, SHORT),
        Us(FabricCase::new(Rate, BenchOp::Send, 8).with_window()),
        MinRatio(0.4),
    ),
    (
        "",
        calls(NativeShm, Rate, SHORT),
        calls(TonicUnixStream, Rate, SHORT),
        MinRatio(30.0),
    ),
    (
        "lent argument",
        calls(NativeShm, Bw, LONG),
        calls(TonicUnixStream, Bw, LONG),
        MinRatio(10.0),
    ),
    (
        "tonic call",
        calls(TonicShm, Lat, SHORT),
        calls(TonicUnixStream, Lat, SHORT),
        MaxRatio(0.77),
    ),
    (
        "tarpc call",
        calls(TarpcShm, Lat, SHORT),
        calls(TarpcUnixStream, Lat, SHORT),
        MaxRatio(0.67),
    ),
];

const TCP: &[Goal] = &[(
    "tonic call",
    calls(TonicTcp, Lat, SHORT),
    calls(TonicTcpStream, Lat, SHORT),
    MaxRatio(1.0),
)];
