//! Runs every microbenchmark many times, and checks that each does its work.

#[path = "../micro/idle_peers.rs"]
mod idle_peers;
#[path = "../micro/messages.rs"]
mod messages;
#[path = "../micro/suite.rs"]
mod suite;

#[test]
fn every_microbenchmark_runs() {
    for (name, mut work) in suite::all() {
        for time in 1..=1000 {
            assert!(work() > 0, "{name} failed at repetition {time}");
        }
    }
}
