//! Latency, bandwidth and rate over the fabric, between two processes.
//!
//! A measurement has workers, one per thread: an endpoint on this side (the initiator), and one or
//! several on the other (the responder), each side with its own domain and runtime. With several
//! endpoints on this side, each has a task of its own and peers of its own, or all have the same
//! peer (*fan-in*). They work in rounds of about a tenth of a second. The initiator sends what the
//! round consists of, the responder replies when it is ready, messages move, and the next round is
//! planned. Between rounds of latency, while the responder sleeps for a moment, the floor is
//! sampled.
//!
//! * **Latency** is the half round trip of a ping-pong, or a whole operation for reads and atomics,
//!   which the responder does not answer. The clock is read once after each trip.
//! * **Streams** go in one direction, with a window of messages in flight. A round ends when the
//!   receiver has reported that all messages have arrived. A sample is the mean time of a message
//!   in one round.
//!
//! | file | subject |
//! |---|---|
//! | `plan` | what is measured, checked against the provider's offer |
//! | `rounds` | how long a round is, and when the measurement ends |
//! | `endpoint` | an endpoint with its completion queues |
//! | `onesided` | one-sided operations |
//! | `initiator` | the measuring side of a worker |
//! | `client` | an endpoint of the measuring side with its peers |
//! | `responder` | the other side |

mod client;
mod endpoint;
mod initiator;
mod onesided;
mod plan;
pub(crate) mod responder;
pub(crate) mod rounds;

#[cfg(feature = "rpc")]
pub(crate) use plan::MAX_CALL_ARGUMENT;
pub use plan::{Budget, DEFAULT_WINDOW, Plan, default_window};

use std::sync::Arc;

use crate::cpu::CpuTime;
use crate::floor::Floor;
use crate::options::Bench;
use crate::peer_process::PeerProcess;
use crate::record::Record;
use crate::samples::{round_to_tenths, timer_cost};
use crate::stop::Stop;
use crate::{Result, pin, progress_bar};
use initiator::Worker;

/// Measures all sizes of the plan; passes each result to `emit` when it is there. After a stop it
/// ends early, with the results so far.
///
/// # Errors
/// The responder died or failed; those of `emit`.
pub fn measure(
    plan: &Plan,
    peer_process: &mut PeerProcess,
    stop: &Stop,
    mut emit: impl FnMut(Record) -> Result<()>,
) -> Result<()> {
    let local = plan.cores.first().and_then(|cores| cores.0);
    let timer_ns = pin::run_on_core(local, timer_cost);
    let floor = Arc::new(Floor::new(
        plan.cores.first().copied().unwrap_or_default(),
        stop,
    ));
    let result = start_workers(plan, peer_process, stop, &floor).and_then(|workers| {
        for size in plan.sizes.iter().copied() {
            if stop.raised() {
                break;
            }
            let copy = floor.copy_ns(size);
            let mut record = measure_size(plan, peer_process, &workers, size)?;
            let floor_ns = match plan.bench {
                Bench::Lat => floor
                    .cache_line_ns()
                    .zip(copy)
                    .map(|(line, copy)| line + copy),
                Bench::Bw | Bench::Rate => copy,
            };
            record.floor_ns = floor_ns.map(round_to_tenths);
            record.timer_ns = Some(round_to_tenths(timer_ns));
            if record.samples > 0 {
                progress_bar::clear();
                emit(record)?;
            }
        }
        peer_process.shutdown()
    });
    progress_bar::clear();
    result.map_err(|error| peer_process.or_death_error(error))
}

/// Starts both sides' workers. The first worker samples the floor and shows progress.
fn start_workers(
    plan: &Plan,
    peer_process: &mut PeerProcess,
    stop: &Stop,
    floor: &Arc<Floor>,
) -> Result<Vec<Worker>> {
    let names = peer_process.start_workers(plan)?;
    let workers = names.into_iter().enumerate();
    let floor_for = |index| (index == 0).then(|| floor.clone());
    workers
        .map(|(index, names)| Worker::start(plan, index, names, (stop.clone(), floor_for(index))))
        .collect()
}

fn measure_size(
    plan: &Plan,
    peer_process: &mut PeerProcess,
    workers: &[Worker],
    size: usize,
) -> Result<Record> {
    let cpu = |peer_process: &mut PeerProcess| {
        Ok::<_, crate::Error>((CpuTime::now(), peer_process.cpu_time()?))
    };
    let before = cpu(peer_process)?;
    workers.iter().for_each(|worker| worker.start_size(size));
    let outcomes: Vec<_> = workers.iter().map(Worker::finish).collect::<Result<_>>()?;
    let after = cpu(peer_process)?;
    let mut record = plan.empty_record(size);
    rounds::fill_record(&outcomes, &mut record);
    if let ((Some(local), Some(remote)), (Some(local_after), Some(remote_after))) = (before, after)
    {
        let cpu_time = (local_after - local) + (remote_after - remote);
        (record.cpu_user_s, record.cpu_sys_s) = (
            Some(round_to_hundredths(cpu_time.user)),
            Some(round_to_hundredths(cpu_time.sys)),
        );
        let messages: u64 = outcomes.iter().map(|outcome| outcome.messages).sum();
        record.cpu_ns_per_msg = (messages > 0)
            .then(|| round_to_tenths((cpu_time.user + cpu_time.sys) * 1e9 / messages as f64));
    }
    Ok(record)
}

/// Rounds to hundredths, the resolution of the kernel's clock ticks.
fn round_to_hundredths(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}
