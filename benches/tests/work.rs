//! Runs every microbenchmark many times, and checks that each does its work.

#[path = "../micro/message.rs"]
mod message;
#[path = "../micro/peers.rs"]
mod peers;
#[path = "../micro/work.rs"]
mod work;

#[test]
fn every_microbenchmark_runs() {
    for (name, mut work) in work::all() {
        for time in 1..=1000 {
            assert!(work() > 0, "{name}: nothing came of it at time {time}");
        }
    }
}
