//! What is aimed at over shared memory: figures of ours, each held against another that is measured in the same minute.
//!
//! Every figure is measured several times, in turn with all others, and the median of the runs is taken. Ratios are what a
//! machine with other cores and other neighbours can be expected to show as well; times are not. What libfabric's program
//! prints is a mean, and held against means.

use std::time::Duration;

use crate::choice::{Api, Bench, Drive, Op, Wait};
use crate::floor::Floor;
use crate::output::print;
use crate::peers::{Case, FiPingpong, Ours, Peer, UcxPerftest};
use crate::pin::Pin;
use crate::record::Record;
use crate::samples::median;
use crate::size::Size;
use crate::stop::Stop;
use crate::{Result, progress, table};

/// Something that is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Figure {
    /// The fabric, in the way that is compared everywhere.
    Ours(Bench, Op, usize),
    /// The fabric, its completions taken from a queue, as many at a time as there are.
    Batch(Op, usize),
    /// The fabric, by calls on a window instead of operations.
    Window(Op, usize),
    /// Half a round trip of the fabric, waiting and moved on like this.
    Driven(Wait, Drive, usize),
    /// Somebody else's program.
    Theirs(Whose, Bench, Op, usize),
    /// A cache line from core to core.
    Line,
    /// One core that copies memory.
    Memcpy(usize),
}

/// Whose program.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Whose {
    Libfabric,
    Ucx,
    UcxAm,
}

/// How the two figures have to relate.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    /// Ours is at most so many times the other.
    AtMost(f64),
    /// Ours is at least so many times the other.
    AtLeast(f64),
    /// Ours is at most so many nanoseconds more.
    Above(f64),
}

/// A goal: what, which figure of ours, what it is held against, and how.
type Goal = (&'static str, Figure, Figure, Bound);

use Bench::{Bw, Lat, Rate};
use Bound::{Above, AtLeast, AtMost};
use Figure::{Batch, Driven, Line, Memcpy, Ours as Us, Theirs, Window};
use Whose::{Libfabric, Ucx, UcxAm};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// All goals, as they are printed.
const GOALS: &[Goal] = &[
    ("send", Us(Lat, Op::Send, 8), Line, AtMost(1.8)),
    ("", Us(Lat, Op::Send, 8), Theirs(Libfabric, Lat, Op::Send, 8), AtMost(0.45)),
    ("", Us(Lat, Op::Send, 8), Theirs(Ucx, Lat, Op::Send, 8), AtMost(0.75)),
    ("", Us(Lat, Op::Send, 64), Theirs(Libfabric, Lat, Op::Send, 64), AtMost(0.45)),
    ("", Us(Lat, Op::Send, 256), Theirs(Libfabric, Lat, Op::Send, 256), AtMost(0.45)),
    ("", Us(Lat, Op::Send, 4 * KIB), Theirs(Libfabric, Lat, Op::Send, 4 * KIB), AtMost(0.4)),
    ("", Us(Lat, Op::Send, 4 * KIB), Theirs(UcxAm, Lat, Op::Send, 4 * KIB), AtMost(1.0)),
    ("", Us(Lat, Op::Send, 64 * KIB), Theirs(Libfabric, Lat, Op::Send, 64 * KIB), AtMost(1.0)),
    ("", Us(Lat, Op::Send, MIB), Theirs(Libfabric, Lat, Op::Send, MIB), AtMost(1.0)),
    ("loan", Us(Lat, Op::Loan, 64 * KIB), Theirs(Libfabric, Lat, Op::Send, 64 * KIB), AtMost(0.6)),
    ("", Us(Lat, Op::Loan, MIB), Theirs(Libfabric, Lat, Op::Send, MIB), AtMost(0.7)),
    ("", Us(Lat, Op::Loan, MIB), Us(Lat, Op::Send, 8), AtMost(3.0)),
    ("send, batches", Batch(Op::Send, 8), Theirs(Ucx, Bw, Op::Send, 8), AtLeast(1.0)),
    ("write", Us(Lat, Op::Write, 8), Line, AtMost(1.3)),
    ("", Us(Lat, Op::Write, 8), Theirs(Ucx, Lat, Op::Write, 8), AtMost(1.0)),
    ("", Us(Rate, Op::Write, 8), Theirs(Ucx, Bw, Op::Write, 8), AtLeast(1.0)),
    ("", Us(Bw, Op::Write, 4 * KIB), Memcpy(4 * KIB), AtLeast(0.9)),
    ("", Us(Bw, Op::Write, 64 * KIB), Memcpy(64 * KIB), AtLeast(0.9)),
    ("", Us(Bw, Op::Write, MIB), Memcpy(MIB), AtLeast(0.9)),
    ("", Us(Bw, Op::Write, 4 * KIB), Theirs(Ucx, Bw, Op::Write, 4 * KIB), AtLeast(1.0)),
    ("", Us(Bw, Op::Write, 64 * KIB), Theirs(Ucx, Bw, Op::Write, 64 * KIB), AtLeast(1.0)),
    ("", Us(Bw, Op::Write, MIB), Theirs(Ucx, Bw, Op::Write, MIB), AtLeast(1.0)),
    ("write, window", Window(Op::Write, 8), Theirs(Ucx, Bw, Op::Write, 8), AtLeast(1.0)),
    ("read", Us(Bw, Op::Read, 4 * KIB), Memcpy(4 * KIB), AtLeast(0.9)),
    ("", Us(Bw, Op::Read, 64 * KIB), Memcpy(64 * KIB), AtLeast(0.9)),
    ("", Us(Bw, Op::Read, MIB), Memcpy(MIB), AtLeast(0.9)),
    ("fetch-add", Us(Lat, Op::Atomic, 8), Line, Above(50.0)),
    ("send, adaptive", Driven(Wait::Adaptive, Drive::Manual, 8), Us(Lat, Op::Send, 8), AtMost(1.3)),
    ("send, auto", Driven(Wait::Spin, Drive::Auto, 8), Us(Lat, Op::Send, 8), AtMost(1.3)),
];

/// Measures every figure `repeat` times for about this long, and prints how they relate. What cannot be measured here is
/// named with the reason. What was measured until it is told to stop is shown.
///
/// # Errors
/// The fabric fails; [`Error::Interrupted`](crate::Error::Interrupted); nothing can be printed.
pub fn goals(repeat: usize, time: Duration, pin: &Pin, stop: &Stop) -> Result<()> {
    let mut board = Board { time, cores: pin.lane(0), stop, values: figures(), missing: Vec::new() };
    let mut ended = Ok(());
    for round in 0..repeat {
        ended = board.round(round, repeat);
        if ended.is_err() {
            break;
        }
    }
    progress::clear();
    print("\ngoals over shared memory: medians, and what they are to be\n")?;
    let widths = [15, 8, 12, 18, 12, 9, 9, 4];
    let line = |cells: [String; 8]| table::line(cells.into_iter().zip(widths));
    print(&line(["", "size", "ours", "beside", "", "ratio", "goal", "met"].map(str::to_owned)))?;
    GOALS.iter().try_for_each(|goal| print(&line(board.row(goal))))?;
    board.missing.iter().try_for_each(|why| print(why))?;
    ended
}

/// What one measurement said.
#[derive(Clone, Copy, Debug)]
struct Value {
    /// The median of a latency, or the rate.
    typical: f64,
    mean: Option<f64>,
}

/// Each figure of the goals once, in their order.
fn figures() -> Vec<(Figure, Vec<Value>)> {
    let mut figures: Vec<(Figure, Vec<Value>)> = Vec::new();
    for figure in GOALS.iter().flat_map(|(_, ours, other, _)| [*ours, *other]) {
        if figures.iter().all(|(known, _)| *known != figure) {
            figures.push((figure, Vec::new()));
        }
    }
    figures
}

struct Board<'a> {
    time: Duration,
    cores: (Option<usize>, Option<usize>),
    stop: &'a Stop,
    values: Vec<(Figure, Vec<Value>)>,
    /// Why something could not be measured.
    missing: Vec<String>,
}

impl Board<'_> {
    fn round(&mut self, round: usize, rounds: usize) -> Result<()> {
        let count = self.values.len();
        for at in 0..count {
            let figure = self.values[at].0;
            let done = (round * count + at) as f64 / (rounds * count) as f64;
            progress::show(&figure.name(), done);
            let value = self.measure(figure);
            self.stop.check()?;
            self.values[at].1.extend(value?);
        }
        Ok(())
    }

    /// Measures it once, in nanoseconds, bytes or messages per second. Nothing where it cannot be measured.
    fn measure(&mut self, figure: Figure) -> Result<Option<Value>> {
        let case = |bench, op, size| Case { bench, op, size, time: self.time, cores: self.cores };
        let ours = Ours::new("shm");
        let (bench, record) = match figure {
            Us(bench, op, size) => (bench, ours.measure(&case(bench, op, size), self.stop)?),
            Batch(op, size) | Window(op, size) => {
                let mut plan = ours.plan(&case(Rate, op, size));
                plan.api = if matches!(figure, Batch(..)) { Api::Batch } else { Api::Window };
                (Rate, ours.run(&plan, self.stop)?)
            }
            Driven(wait, drive, size) => {
                let mut plan = ours.plan(&case(Lat, Op::Send, size));
                (plan.wait, plan.progress) = (wait, drive);
                (Lat, ours.run(&plan, self.stop)?)
            }
            Theirs(whose, bench, op, size) => {
                let peer = whose.peer();
                let measured = match peer.missing() {
                    Some(why) => Err(why),
                    None => {
                        peer.measure(&case(bench, op, size), self.stop).map_err(|error| error.to_string())
                    }
                };
                match measured {
                    Ok(record) => (bench, record),
                    Err(why) => {
                        self.note(format!("{} is left out: {why}", peer.name()));
                        return Ok(None);
                    }
                }
            }
            Line => {
                let floor = Floor::new(self.cores, self.stop);
                floor.look();
                return Ok(floor.line_ns().map(Value::of));
            }
            Memcpy(size) => {
                let floor = Floor::new(self.cores, self.stop);
                return Ok(floor.copy_ns(size).map(|ns| Value::of(size as f64 / ns * 1e9)));
            }
        };
        Ok(value(bench, figure.size(), &record))
    }

    fn note(&mut self, why: String) {
        if !self.missing.contains(&why) {
            self.missing.push(why);
        }
    }

    /// The median of what was measured: of means, where the other says no more.
    fn value(&self, figure: Figure, means: bool) -> Option<f64> {
        let (_, values) = self.values.iter().find(|(known, _)| *known == figure)?;
        let of = |value: &Value| if means { value.mean } else { None }.unwrap_or(value.typical);
        median(&mut values.iter().map(of).collect::<Vec<_>>())
    }

    fn row(&self, (what, ours, other, bound): &Goal) -> [String; 8] {
        let means = matches!(other, Theirs(Libfabric, ..));
        let (mine, theirs) = (self.value(*ours, means), self.value(*other, means));
        let shown = |value: Option<f64>| value.map_or_else(|| "-".into(), |value| ours.show(value));
        let goal = match bound {
            AtMost(times) => format!("<= {times}"),
            AtLeast(times) => format!(">= {times}"),
            Above(ns) => format!("+{ns:.0} ns"),
        };
        let met = mine.zip(theirs).map(|(mine, theirs)| bound.holds(mine, theirs));
        [
            (*what).to_owned(),
            Size(ours.size()).to_string(),
            shown(mine),
            other.name(),
            shown(theirs),
            table::ratio(mine, theirs),
            goal,
            met.map_or("-", |met| if met { "yes" } else { "no" }).to_owned(),
        ]
    }
}

impl Bound {
    fn holds(self, ours: f64, other: f64) -> bool {
        match self {
            AtMost(times) => ours <= other * times,
            AtLeast(times) => ours >= other * times,
            Above(ns) => ours <= other + ns,
        }
    }
}

impl Whose {
    fn peer(self) -> &'static dyn Peer {
        match self {
            Libfabric => &FiPingpong::SHM,
            Ucx => &UcxPerftest::TAG,
            UcxAm => &UcxPerftest::AM,
        }
    }
}

impl Figure {
    fn size(self) -> usize {
        match self {
            Us(_, _, size)
            | Batch(_, size)
            | Window(_, size)
            | Driven(_, _, size)
            | Theirs(_, _, _, size)
            | Memcpy(size) => size,
            Line => 8,
        }
    }

    fn name(self) -> String {
        match self {
            Us(..) | Batch(..) | Window(..) | Driven(..) => "fabric shm".into(),
            Theirs(whose, ..) => whose.peer().name().into(),
            Line => "cache line".into(),
            Memcpy(_) => "memcpy".into(),
        }
    }

    /// A value of this figure with its unit.
    fn show(self, value: f64) -> String {
        match self {
            Us(Lat, ..) | Theirs(_, Lat, ..) | Driven(..) | Line => format!("{:.3} us", value / 1e3),
            Us(Bw, ..) | Memcpy(_) => format!("{:.2} GB/s", value / 1e9),
            Us(Rate, ..) | Batch(..) | Window(..) => format!("{:.2} M/s", value / 1e6),
            Theirs(_, bench, op, size) => Us(bench, op, size).show(value),
        }
    }
}

impl Value {
    fn of(typical: f64) -> Self {
        Self { typical, mean: None }
    }
}

/// What a run says about this. Small messages are counted, large ones weighed.
fn value(bench: Bench, size: usize, record: &Record) -> Option<Value> {
    match bench {
        Lat => record.typical_ns().map(|typical| Value { typical, mean: record.mean_ns }),
        Bw if size >= KIB => record.bytes_per_s.map(Value::of),
        Rate | Bw => record.msgs_per_s.map(Value::of),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_met_on_its_side_of_the_bound() {
        assert!(AtMost(0.5).holds(5.0, 10.0) && !AtMost(0.5).holds(5.1, 10.0));
        assert!(AtLeast(0.9).holds(9.0, 10.0) && !AtLeast(0.9).holds(8.9, 10.0));
        assert!(Above(50.0).holds(150.0, 100.0) && !Above(50.0).holds(151.0, 100.0));
    }

    #[test]
    fn both_figures_of_a_goal_have_one_unit() {
        for (what, ours, other, _) in GOALS {
            let unit = |figure: Figure| figure.show(1.0).rsplit(' ').next().map(str::to_owned);
            let counted = matches!(other, Theirs(_, Bw, _, size) if *size < KIB);
            assert!(counted || unit(*ours) == unit(*other), "{what}: {ours:?} and {other:?}");
        }
    }

    #[test]
    fn rows_show_what_was_measured_and_what_was_not() {
        let stop = Stop::default();
        let mut board = Board {
            time: Duration::ZERO,
            cores: (None, None),
            stop: &stop,
            values: figures(),
            missing: Vec::new(),
        };
        let row = board.row(&GOALS[0]);
        assert_eq!(row[2..].join(" "), "- cache line - - <= 1.8 -");
        let of = |typical| Value { typical, mean: Some(400.0) };
        board.values[0].1 = vec![of(300.0), of(200.0), of(100.0)];
        board.values[1].1 = vec![Value::of(100.0)];
        board.values[2].1 = vec![of(900.0)];
        assert_eq!(board.row(&GOALS[0]).join(" "), "send 8B 0.200 us cache line 0.100 us 2.00 <= 1.8 no");
        let means = board.row(&GOALS[1]).join(" ");
        assert_eq!(means, " 8B 0.400 us fi_pingpong shm 0.400 us 1.00 <= 0.45 no");
    }
}
