//! What only shows between processes: sudden death, strangers, and messages that must survive a
//! careless receiver.
//!
//! A test starts this program again as its peer: the variable `FABRIC_ROLE` says which part it
//! plays.

mod census;
mod churn;
mod copying;
mod forks;
mod fuzz;
mod guide;
mod hostile;
mod kill;
mod leaving;
mod lending;
mod levels;
mod limits;
mod lingering;
mod multi;
mod onesided;
mod probes;
mod restart;
mod role;
mod runtime;
mod scale;
mod scribbler;
mod select;
mod serving;
mod sharing;
mod sockets;
mod stages;
mod stopped;
mod tcp;
mod udp;
mod vectors;
mod witness;

use std::future::Future;
use std::time::Duration;

/// Runs a test on a current-thread runtime. The limit is there to find hangs, not to measure.
fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(100), test)
            .await
            .expect("the test hangs")
    })
}

/// Not a test of its own: the entry of the peers.
#[test]
fn peer() {
    role::play();
}
