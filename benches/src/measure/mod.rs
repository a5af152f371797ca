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

pub(crate) mod far;
mod near;
mod onesided;
mod plan;
pub(crate) mod rounds;
mod station;

pub use plan::{Budget, Plan, WINDOW};

use std::sync::Arc;

use crate::choice::Bench;
use crate::cpu::Cpu;
use crate::floor::Floor;
use crate::pair::Pair;
use crate::record::Record;
use crate::samples::{tenths, timer_cost};
use crate::stop::Stop;
use crate::{Result, pin, progress};
use near::Lane;

/// Measures all sizes of the plan; each result is passed on when it is there. Ends early, with what
/// it has, when it is told to stop.
///
/// # Errors
/// The other side died or failed.
pub fn measure(
    plan: &Plan,
    pair: &mut Pair,
    stop: &Stop,
    mut emit: impl FnMut(Record) -> Result<()>,
) -> Result<()> {
    let here = plan.cores.first().and_then(|cores| cores.0);
    let timer = pin::on(here, timer_cost);
    let floor = Arc::new(Floor::new(
        plan.cores.first().copied().unwrap_or_default(),
        stop,
    ));
    let ended = lanes(plan, pair, stop, &floor).and_then(|lanes| {
        for size in plan.sizes.iter().copied() {
            if stop.raised() {
                break;
            }
            let copy = floor.copy_ns(size);
            let mut record = one_size(plan, pair, &lanes, size)?;
            let least = match plan.bench {
                Bench::Lat => floor.line_ns().zip(copy).map(|(line, copy)| line + copy),
                Bench::Bw | Bench::Rate => copy,
            };
            record.floor_ns = least.map(tenths);
            record.timer_ns = Some(tenths(timer));
            if record.samples > 0 {
                progress::clear();
                emit(record)?;
            }
        }
        pair.end()
    });
    progress::clear();
    ended.map_err(|error| pair.explain(error))
}

/// The first lane looks at the floor and shows progress.
fn lanes(plan: &Plan, pair: &mut Pair, stop: &Stop, floor: &Arc<Floor>) -> Result<Vec<Lane>> {
    let names = pair.set_up(plan)?;
    let lanes = names.into_iter().enumerate();
    let leads = |number| (number == 0).then(|| floor.clone());
    lanes
        .map(|(number, names)| Lane::start(plan, number, names, (stop.clone(), leads(number))))
        .collect()
}

fn one_size(plan: &Plan, pair: &mut Pair, lanes: &[Lane], size: usize) -> Result<Record> {
    let cpu = |pair: &mut Pair| Ok::<_, crate::Error>((Cpu::now(), pair.cpu()?));
    let before = cpu(pair)?;
    lanes.iter().for_each(|lane| lane.begin(size));
    let outcomes: Vec<_> = lanes.iter().map(Lane::finish).collect::<Result<_>>()?;
    let after = cpu(pair)?;
    let mut record = plan.record(size);
    rounds::describe(&outcomes, &mut record);
    if let ((Some(here), Some(there)), (Some(here_after), Some(there_after))) = (before, after) {
        let spent = (here_after - here) + (there_after - there);
        (record.cpu_user_s, record.cpu_sys_s) = (Some(cents(spent.user)), Some(cents(spent.sys)));
    }
    Ok(record)
}

/// Rounded to the kernel's clock ticks, of which the differences are made.
fn cents(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}
