//! Latency, bandwidth and rate over the fabric, between two processes.
//!
//! A measurement has lanes, one per thread: an endpoint on this side, and one or several on the
//! other, each side with a domain and a runtime of its own. They work in rounds of about a tenth of
//! a second. The other side is told what a round is made of and answers when it is ready, then
//! messages move, then the next round is planned. Between rounds of latency, while the other side
//! sleeps for a moment, the floor is looked at.
//!
//! * **Latency** is the half round trip of a ping-pong, or a whole operation where nothing comes
//!   back of the other side's doing: reads and atomics. After each trip the clock is looked at
//!   once.
//! * **Streams** go in one direction, a window of messages under way. A round ends when the
//!   receiver has said that it has all of it. A sample is the mean time of a message in one round.
//!
//! | file | subject |
//! |---|---|
//! | `plan` | what is to be measured, and who refuses it |
//! | `rounds` | how long a round is, and when it is enough |
//! | `station` | an endpoint with its queues |
//! | `onesided` | operations on the other side's memory |
//! | `near` | the measuring side of a lane |
//! | `far` | the other side |

mod endpoint;
mod initiator;
mod onesided;
mod plan;
pub(crate) mod responder;
pub(crate) mod rounds;

pub use plan::{Budget, DEFAULT_WINDOW, Plan};

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

/// Measures all sizes of the plan; each result is passed on when it is there. Ends early, with what
/// it has, when it is told to stop.
///
/// # Errors
/// The other side died or failed.
pub fn measure(
    plan: &Plan,
    pair: &mut PeerProcess,
    stop: &Stop,
    mut emit: impl FnMut(Record) -> Result<()>,
) -> Result<()> {
    let here = plan.cores.first().and_then(|cores| cores.0);
    let timer = pin::run_on_core(here, timer_cost);
    let floor = Arc::new(Floor::new(
        plan.cores.first().copied().unwrap_or_default(),
        stop,
    ));
    let ended = start_workers(plan, pair, stop, &floor).and_then(|lanes| {
        for size in plan.sizes.iter().copied() {
            if stop.raised() {
                break;
            }
            let copy = floor.copy_ns(size);
            let mut record = measure_size(plan, pair, &lanes, size)?;
            let least = match plan.bench {
                Bench::Lat => floor
                    .cache_line_ns()
                    .zip(copy)
                    .map(|(line, copy)| line + copy),
                Bench::Bw | Bench::Rate => copy,
            };
            record.floor_ns = least.map(round_to_tenths);
            record.timer_ns = Some(round_to_tenths(timer));
            if record.samples > 0 {
                progress_bar::clear();
                emit(record)?;
            }
        }
        pair.shutdown()
    });
    progress_bar::clear();
    ended.map_err(|error| pair.or_death_error(error))
}

/// The first lane looks at the floor and shows progress.
fn start_workers(
    plan: &Plan,
    pair: &mut PeerProcess,
    stop: &Stop,
    floor: &Arc<Floor>,
) -> Result<Vec<Worker>> {
    let names = pair.start_workers(plan)?;
    let lanes = names.into_iter().enumerate();
    let leads = |number| (number == 0).then(|| floor.clone());
    lanes
        .map(|(number, names)| Worker::start(plan, number, names, (stop.clone(), leads(number))))
        .collect()
}

fn measure_size(
    plan: &Plan,
    pair: &mut PeerProcess,
    lanes: &[Worker],
    size: usize,
) -> Result<Record> {
    let cpu = |pair: &mut PeerProcess| Ok::<_, crate::Error>((CpuTime::now(), pair.cpu_time()?));
    let before = cpu(pair)?;
    lanes.iter().for_each(|lane| lane.start_size(size));
    let outcomes: Vec<_> = lanes.iter().map(Worker::finish).collect::<Result<_>>()?;
    let after = cpu(pair)?;
    let mut record = plan.empty_record(size);
    rounds::fill_record(&outcomes, &mut record);
    if let ((Some(here), Some(there)), (Some(here_after), Some(there_after))) = (before, after) {
        let spent = (here_after - here) + (there_after - there);
        (record.cpu_user_s, record.cpu_sys_s) = (
            Some(round_to_hundredths(spent.user)),
            Some(round_to_hundredths(spent.sys)),
        );
    }
    Ok(record)
}

/// Rounded to the kernel's clock ticks, of which the differences are made.
fn round_to_hundredths(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}
