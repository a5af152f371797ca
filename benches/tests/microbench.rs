//! Runs every microbenchmark many times, and checks that each does its work.

#[path = "../micro/idle_peers.rs"]
mod idle_peers;
#[path = "../micro/loop_alone.rs"]
mod loop_alone;
#[path = "../micro/many_endpoints.rs"]
mod many_endpoints;
#[path = "../micro/messages.rs"]
mod messages;
#[path = "../micro/suite.rs"]
mod suite;

#[test]
fn every_microbenchmark_runs() {
    for bench in suite::all() {
        let mut work = (bench.prepare)();
        for time in 1..=1000 {
            assert!(work() > 0, "{} failed at repetition {time}", bench.name);
        }
    }
}
