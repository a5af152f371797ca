//! What is aimed at over a provider: figures of ours, each held against another that is measured in
//! the same minute.
//!
//! Every figure is measured several times, in turn with all others, and the median of the runs is
//! taken. Ratios are what a machine with other cores and other neighbours can be expected to show
//! as well; times are not. What libfabric's program prints is a mean, and held against means.
//!
//! | file | subject |
//! |---|---|
//! | `table` | the goals |
//! | `figure` | what is measured for them, and how it is shown |

mod figure;
mod table;

use std::time::Duration;

use crate::choice::{Api, Bench, Op};
use crate::floor::{self, Floor};
use crate::output::print;
use crate::pair::program;
use crate::peers::{Case, Datagrams, Ours, Peer};
use crate::pin::Pin;
use crate::record::{self, Record};
use crate::samples::median;
use crate::size::Size;
use crate::stop::Stop;
use crate::{Error, Result, congestion, progress, table as tables};

use Bench::{Bw, Lat, Rate};
use figure::{Bound, Figure, Goal, Whose};

/// Messages under way in streams over sockets.
const UNDER_WAY: usize = 64;

/// Whether anything is aimed at over this provider.
///
/// # Errors
/// [`Error::Refused`], with those over which something is.
pub fn check(provider: &str) -> Result<()> {
    match table::of(provider) {
        [] => Err(Error::Refused(format!(
            "nothing is aimed at over {provider}; known: shm, tcp, udp"
        ))),
        _ => Ok(()),
    }
}

/// Measures every figure of this provider `repeat` times for about this long, and prints how they
/// relate. What cannot be measured here is named with the reason. What was measured until it is
/// told to stop is shown.
///
/// # Errors
/// The fabric fails; [`Error::Interrupted`]; nothing can be printed.
pub fn goals(provider: &str, repeat: usize, time: Duration, pin: &Pin, stop: &Stop) -> Result<()> {
    let goals = table::of(provider);
    let mut board = Board {
        provider,
        time,
        cores: pin.lane(0),
        stop,
        values: figures(goals),
        missing: Vec::new(),
    };
    let mut ended = Ok(());
    for round in 0..repeat {
        ended = board.round(round, repeat);
        if ended.is_err() {
            break;
        }
    }
    progress::clear();
    print(&format!(
        "\ngoals over {provider}: medians, and what they are to be\n"
    ))?;
    let widths = [15, 8, 12, 18, 12, 9, 9, 4];
    let line = |cells: [String; 8]| tables::line(cells.into_iter().zip(widths));
    print(&line(
        ["", "size", "ours", "beside", "", "ratio", "goal", "met"].map(str::to_owned),
    ))?;
    goals
        .iter()
        .try_for_each(|goal| print(&line(board.row(goal))))?;
    board.missing.iter().try_for_each(|why| print(why))?;
    congestion::note(provider, None).map_or(Ok(()), |note| print(&note))?;
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
fn figures(goals: &[Goal]) -> Vec<(Figure, Vec<Value>)> {
    let mut figures: Vec<(Figure, Vec<Value>)> = Vec::new();
    for figure in goals.iter().flat_map(|(_, ours, other, _)| [*ours, *other]) {
        if figures.iter().all(|(known, _)| *known != figure) {
            figures.push((figure, Vec::new()));
        }
    }
    figures
}

struct Board<'a> {
    provider: &'a str,
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
            progress::show(&figure.name(self.provider), done);
            let value = self.measure(figure);
            self.stop.check()?;
            self.values[at].1.extend(value?);
        }
        Ok(())
    }

    /// Measures it once, in nanoseconds, bytes or messages per second. Nothing where it cannot be
    /// measured.
    fn measure(&mut self, figure: Figure) -> Result<Option<Value>> {
        let case = |bench, op, size| Case {
            bench,
            op,
            size,
            time: self.time,
            cores: self.cores,
        };
        let ours = Ours::new(self.provider);
        let (bench, record) = match figure {
            Figure::Ours(bench, op, size) => {
                (bench, ours.measure(&case(bench, op, size), self.stop)?)
            }
            Figure::Batch(op, size) => {
                let mut plan = ours.plan(&case(Rate, op, size));
                plan.api = Api::Batch;
                (Rate, ours.run(&plan, self.stop)?)
            }
            Figure::Window(bench, op, size) => {
                let mut plan = ours.plan(&case(bench, op, size));
                plan.api = Api::Window;
                (bench, ours.run(&plan, self.stop)?)
            }
            Figure::Driven(wait, drive, size) => {
                let mut plan = ours.plan(&case(Lat, Op::Send, size));
                (plan.wait, plan.progress) = (wait, drive);
                (Lat, ours.run(&plan, self.stop)?)
            }
            Figure::Alike(bench, op, size) => {
                let mut plan = ours.plan(&case(bench, op, size));
                (plan.window, plan.congestion) = (UNDER_WAY, congestion::machine());
                (bench, ours.run(&plan, self.stop)?)
            }
            Figure::AlikeBatch(op, size) => {
                let mut plan = ours.plan(&case(Rate, op, size));
                (plan.window, plan.congestion, plan.api) =
                    (UNDER_WAY, congestion::machine(), Api::Batch);
                (Rate, ours.run(&plan, self.stop)?)
            }
            Figure::Crowd(count, size) => {
                let mut plan = ours.plan(&case(Lat, Op::Send, size));
                plan.idle = count;
                (Lat, ours.run(&plan, self.stop)?)
            }
            Figure::PerConnection(count) => return Ok(self.per_connection(count)?.map(Value::of)),
            Figure::Datagram(size) => (
                Lat,
                Datagrams.measure(&case(Lat, Op::Send, size), self.stop)?,
            ),
            Figure::Theirs(whose, bench, op, size) => {
                let Some(record) = self.theirs(whose, &case(bench, op, size)) else {
                    return Ok(None);
                };
                (bench, record)
            }
            Figure::Pingpong(whose, size) => {
                let record = self.theirs(whose, &case(Lat, Op::Send, size));
                let ns = record.and_then(|record| record.mean_ns);
                return Ok(ns.map(|ns| Value::of(size as f64 / ns * 1e9)));
            }
            Figure::Bounce => return Ok(floor::bounced(self.cores, self.time)?.map(Value::of)),
            Figure::Sends => return Ok(Some(Value::of(floor::sent(self.cores, self.time)?))),
            Figure::Limit(bytes) => return Ok(Some(Value::of(bytes as f64))),
            Figure::Line => {
                let floor = Floor::new(self.cores, self.stop);
                floor.look();
                return Ok(floor.line_ns().map(Value::of));
            }
            Figure::Memcpy(size) => {
                let floor = Floor::new(self.cores, self.stop);
                return Ok(floor
                    .copy_ns(size)
                    .map(|ns| Value::of(size as f64 / ns * 1e9)));
            }
        };
        Ok(value(bench, figure.size(), &record))
    }

    /// What somebody else's program says; nothing where it cannot be measured.
    fn theirs(&mut self, whose: Whose, case: &Case) -> Option<Record> {
        let peer = whose.peer();
        let measured = match peer.missing() {
            Some(why) => Err(why),
            None => peer
                .measure(case, self.stop)
                .map_err(|error| error.to_string()),
        };
        measured
            .map_err(|why| self.note(format!("{} is left out: {why}", peer.name())))
            .ok()
    }

    /// Measured in a fresh process: this one has memory left from what it did before.
    fn per_connection(&self, count: usize) -> Result<Option<f64>> {
        let mut command = program()?;
        command.args([
            "lat",
            "--provider",
            self.provider,
            "--size",
            "8",
            "--iters",
            "100",
            "--json",
        ]);
        let output = command.args(["--idle", &count.to_string()]).output();
        let output = output.map_err(Error::io("starting a process"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        match record::parse(&text) {
            Ok(records) if output.status.success() => {
                Ok(records.first().and_then(|record| record.idle_bytes))
            }
            _ => Err(Error::NotUnderstood {
                who: "fabric-bench lat".into(),
                text: text + &String::from_utf8_lossy(&output.stderr),
            }),
        }
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
        let means = matches!(other, Figure::Theirs(whose, ..) if whose.says_means());
        let (mine, theirs) = (self.value(*ours, means), self.value(*other, means));
        let shown = |value: Option<f64>| value.map_or_else(|| "-".into(), |value| ours.show(value));
        let goal = match bound {
            Bound::AtMost(times) => format!("<= {times}"),
            Bound::AtLeast(times) => format!(">= {times}"),
            Bound::Above(ns) => format!("+{ns:.0} ns"),
        };
        let met = mine
            .zip(theirs)
            .map(|(mine, theirs)| bound.holds(mine, theirs));
        [
            (*what).to_owned(),
            Size(ours.size()).to_string(),
            shown(mine),
            other.name(self.provider),
            shown(theirs),
            tables::ratio(mine, theirs),
            goal,
            met.map_or("-", |met| if met { "yes" } else { "no" })
                .to_owned(),
        ]
    }
}

impl Value {
    fn of(typical: f64) -> Self {
        Self {
            typical,
            mean: None,
        }
    }
}

/// What a run says about this. Small messages are counted, large ones weighed.
fn value(bench: Bench, size: usize, record: &Record) -> Option<Value> {
    match bench {
        Lat => record.typical_ns().map(|typical| Value {
            typical,
            mean: record.mean_ns,
        }),
        Bw if size >= 1024 => record.bytes_per_s.map(Value::of),
        Rate | Bw => record.msgs_per_s.map(Value::of),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_met_on_its_side_of_the_bound() {
        use Bound::{Above, AtLeast, AtMost};
        assert!(AtMost(0.5).holds(5.0, 10.0) && !AtMost(0.5).holds(5.1, 10.0));
        assert!(AtLeast(0.9).holds(9.0, 10.0) && !AtLeast(0.9).holds(8.9, 10.0));
        assert!(Above(50.0).holds(150.0, 100.0) && !Above(50.0).holds(151.0, 100.0));
    }

    #[test]
    fn both_figures_of_a_goal_have_one_unit() {
        for (what, ours, other, _) in ["shm", "tcp", "udp"].into_iter().flat_map(table::of) {
            let unit = |figure: Figure| figure.show(1.0).rsplit(' ').next().map(str::to_owned);
            let counted = matches!(other, Figure::Theirs(_, Bw, _, size) if *size < 1024);
            assert!(
                counted || unit(*ours) == unit(*other),
                "{what}: {ours:?} and {other:?}"
            );
        }
    }

    #[test]
    fn rows_show_what_was_measured_and_what_was_not() {
        let (stop, goals) = (Stop::default(), table::of("shm"));
        let mut board = Board {
            provider: "shm",
            time: Duration::ZERO,
            cores: (None, None),
            stop: &stop,
            values: figures(goals),
            missing: Vec::new(),
        };
        let row = board.row(&goals[0]);
        assert_eq!(row[2..].join(" "), "- cache line - - <= 1.8 -");
        let of = |typical| Value {
            typical,
            mean: Some(400.0),
        };
        board.values[0].1 = vec![of(300.0), of(200.0), of(100.0)];
        board.values[1].1 = vec![Value::of(100.0)];
        board.values[2].1 = vec![of(900.0)];
        assert_eq!(
            board.row(&goals[0]).join(" "),
            "send 8B 0.200 us cache line 0.100 us 2.00 <= 1.8 no"
        );
        let means = board.row(&goals[1]).join(" ");
        assert_eq!(
            means,
            " 8B 0.400 us fi_pingpong shm 0.400 us 1.00 <= 0.45 no"
        );
    }
}
