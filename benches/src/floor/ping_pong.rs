//! A ping-pong between two threads, each on its own core.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::pin;
use crate::samples::{Samples, TimeStamps};

/// Most round trips of a round; it ends earlier when the time is over.
const MAX_TRIPS_PER_ROUND: usize = 256;

/// One end of a ping-pong.
pub(super) trait PingPongEnd: Send {
    /// Wakes the other end.
    fn signal(&mut self) -> io::Result<()>;
    /// Waits for the other end.
    fn wait(&mut self) -> io::Result<()>;
}

/// Measures half round trips for about this long; the first round is warm-up.
pub(super) fn ping_pong(
    (local_core, remote_core): (Option<usize>, Option<usize>),
    (mut local, mut remote): (impl PingPongEnd, impl PingPongEnd),
    time: Duration,
) -> io::Result<Samples> {
    let is_over = AtomicBool::new(false);
    let respond = || {
        remote_core.map(pin::pin_to_core);
        loop {
            remote.wait()?;
            // SYNC: raised in `initiate` before its last signal.
            let last = is_over.load(Ordering::Acquire);
            remote.signal()?;
            if last {
                return Ok(());
            }
        }
    };
    let initiate = || {
        local_core.map(pin::pin_to_core);
        let (mut samples, mut stamps) = (Samples::new(), TimeStamps::new(MAX_TRIPS_PER_ROUND));
        let mut rounds = || {
            let mut began = None;
            while began.is_none_or(|began: Instant| began.elapsed() < time) {
                stamps.begin();
                for _ in 0..MAX_TRIPS_PER_ROUND {
                    local.signal()?;
                    local.wait()?;
                    stamps.stamp();
                    if stamps.elapsed() > time {
                        break;
                    }
                }
                match began {
                    Some(_) => samples.add_stamps(&stamps, 2),
                    None => began = Some(Instant::now()),
                }
            }
            Ok(())
        };
        let result: io::Result<()> = rounds();
        is_over.store(true, Ordering::Release);
        local.signal()?;
        result.map(|()| samples)
    };
    thread::scope(|scope| {
        let respond = scope.spawn(respond);
        let died = |_| io::Error::other("a measuring thread panicked");
        let samples = scope.spawn(initiate).join().map_err(died)??;
        respond.join().map_err(died)?.map(|()| samples)
    })
}
