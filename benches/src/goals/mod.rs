//! Goals of a provider: metrics of the fabric, each compared with a reference that is measured in
//! the same minute.
//!
//! Every metric is measured several times, in turn with all others, and the medians of the runs are
//! compared. Ratios can be expected to hold on a machine with other cores and other load; times
//! cannot. `fi_pingpong` prints a mean, and is compared with means.
//!
//! Virtual cores move between places that pass a cache line in 40 and in 140 ns, and every ratio of
//! small messages depends on the place. So the time of a cache line is read before and after each
//! measurement, and a run counts for a goal only if all readings around both of its measurements
//! agree. The runs of each placement are shown in a row of their own.
//!
//! | file | subject |
//! |---|---|
//! | `table` | the goals |
//! | `calls` | the goals of remote procedure calls |
//! | `metric` | what is measured for them, and how it is shown |

#[cfg(feature = "rpc")]
mod calls;
mod metric;
mod table;

use std::time::Duration;

use crate::floor::{self, Floor};
use crate::options::{Bench, BenchOp};
use crate::output::print;
use crate::peer_process::current_program;
use crate::peers::{BenchCase, FabricLibrary, FabricUdp, MeasuredLibrary};
use crate::pin::CorePinning;
use crate::record::{self, Record};
use crate::samples::median;
use crate::size::Size;
use crate::stop::Stop;
use crate::{Error, Result, congestion, progress_bar, table as tables};

use Bench::{Bw, Lat, Rate};
use metric::{FabricCase, Goal, GoalBound, Metric, PeerProgram};

/// How much two readings of the cache line may differ and still be of the same place.
const MAX_LINE_CHANGE: f64 = 1.5;
/// The time of a cache line at which the two cores count as far apart: two halves of one physical
/// core, or two cores that share a cache, take about 50 ns, others more than 100 ns.
const FAR_LINE_NS: f64 = 80.0;

/// Checks that this provider has goals.
///
/// # Errors
/// [`Error::InvalidRequest`] if it has none, with the providers that have.
pub fn check_provider(provider: &str) -> Result<()> {
    match table::for_provider(provider)[..] {
        [] => Err(Error::InvalidRequest(format!(
            "no goals for the provider {provider}; known: shm, tcp, udp"
        ))),
        _ => Ok(()),
    }
}

/// Measures every metric of this provider `repeat` times for about this long, and prints whether
/// the goals are met. Metrics that cannot be measured here are listed with the reason. After a
/// stop, what was measured is shown.
///
/// # Errors
/// The fabric's error; [`Error::Interrupted`]; the output cannot be written.
pub fn run_goals(
    provider: &str,
    repeat: usize,
    time: Duration,
    pin: &CorePinning,
    stop: &Stop,
) -> Result<()> {
    let goals = table::for_provider(provider);
    let mut runner = GoalRunner {
        provider,
        time,
        cores: pin.worker_cores(0),
        stop,
        metrics: distinct_metrics(&goals),
        unavailable: Vec::new(),
    };
    let mut result = Ok(());
    for round in 0..repeat {
        result = runner.run_round(round, repeat);
        if result.is_err() {
            break;
        }
    }
    progress_bar::clear();
    print(&format!(
        "\ngoals over {provider}: medians of the fabric and of what it is compared with, and their \
         ratio or difference\n"
    ))?;
    let widths = [15, 8, 12, 18, 12, 9, 9, 4, 6, 11];
    let line = |cells: [String; 10]| tables::format_cells(cells.into_iter().zip(widths));
    print(&line(
        [
            "",
            "size",
            "fabric",
            "compared with",
            "",
            "result",
            "goal",
            "met",
            "runs",
            "line",
        ]
        .map(str::to_owned),
    ))?;
    goals
        .iter()
        .flat_map(|goal| runner.table_rows(goal))
        .try_for_each(|row| print(&line(row)))?;
    print(&format!(
        "\nline: a cache line from core to core, read before and after each run; near: below \
         {FAR_LINE_NS:.0} ns, far: the others.\nRuns around which the readings differ by half or \
         more are left out."
    ))?;
    runner
        .unavailable
        .iter()
        .try_for_each(|reason| print(reason))?;
    congestion::describe(provider, None).map_or(Ok(()), |note| print(&note))?;
    result
}

/// The result of one measurement.
#[derive(Clone, Copy, Debug)]
struct Measurement {
    /// The median of a latency, or the rate.
    typical: f64,
    mean: Option<f64>,
}

/// A measurement, and the time of a cache line in nanoseconds before and after. There are no
/// readings where both sides share a core.
#[derive(Clone, Copy, Debug)]
struct Run {
    measurement: Measurement,
    line_ns: [Option<f64>; 2],
}

/// A metric and its runs, one for each round that has measured the metric.
type MetricRuns = (Metric, Vec<Option<Run>>);

/// Returns each metric of the goals once, in their order.
fn distinct_metrics(goals: &[Goal]) -> Vec<MetricRuns> {
    let mut metrics: Vec<MetricRuns> = Vec::new();
    for metric in goals
        .iter()
        .flat_map(|(_, fabric, other, _)| [*fabric, *other])
    {
        if metrics.iter().all(|(known, _)| *known != metric) {
            metrics.push((metric, Vec::new()));
        }
    }
    metrics
}

struct GoalRunner<'a> {
    provider: &'a str,
    time: Duration,
    cores: (Option<usize>, Option<usize>),
    stop: &'a Stop,
    metrics: Vec<MetricRuns>,
    /// Why peers could not be measured.
    unavailable: Vec<String>,
}

impl GoalRunner<'_> {
    fn run_round(&mut self, round: usize, rounds: usize) -> Result<()> {
        let count = self.metrics.len();
        let mut before = self.line_ns();
        for at in 0..count {
            let metric = self.metrics[at].0;
            let done = (round * count + at) as f64 / (rounds * count) as f64;
            progress_bar::show(&metric.name(self.provider), done);
            let measured = self.measure(metric);
            self.stop.check()?;
            let after = self.line_ns();
            let run = measured?.map(|measurement| Run {
                measurement,
                line_ns: [before, after],
            });
            self.metrics[at].1.push(run);
            before = after;
        }
        Ok(())
    }

    /// Reads the time of a cache line between the cores, in nanoseconds.
    fn line_ns(&self) -> Option<f64> {
        let floor = Floor::new(self.cores, self.stop);
        floor.sample();
        floor.cache_line_ns()
    }

    /// Measures a metric once, in nanoseconds, bytes or messages per second; `None` if it cannot be
    /// measured.
    fn measure(&mut self, metric: Metric) -> Result<Option<Measurement>> {
        let case = |bench, op, size| BenchCase {
            bench,
            op,
            size,
            time: self.time,
            cores: self.cores,
        };
        let (bench, record) = match metric {
            Metric::Fabric(fabric_case) => {
                let FabricCase {
                    bench, op, size, ..
                } = fabric_case;
                let fabric = FabricLibrary::new(self.provider);
                let mut plan = fabric.plan(&case(bench, op, size));
                fabric_case.apply_to(&mut plan);
                (bench, fabric.run(&plan, self.stop)?)
            }
            Metric::BytesPerIdleConnection(count) => {
                return Ok(self
                    .bytes_per_connection(count)?
                    .map(Measurement::from_typical));
            }
            Metric::FabricDatagram(size) => (
                Lat,
                FabricUdp.measure(&case(Lat, BenchOp::Send, size), self.stop)?,
            ),
            Metric::Peer(program, bench, op, size) => {
                let Some(record) = self.measure_peer(program, &case(bench, op, size)) else {
                    return Ok(None);
                };
                (bench, record)
            }
            Metric::PeerPingPong(program, size) => {
                let record = self.measure_peer(program, &case(Lat, BenchOp::Send, size));
                let ns = record.and_then(|record| record.mean_ns);
                return Ok(ns.map(|ns| Measurement::from_typical(size as f64 / ns * 1e9)));
            }
            Metric::TcpSpinPingPong => {
                return Ok(floor::tcp_half_round_trip(self.cores, self.time)?
                    .map(Measurement::from_typical));
            }
            Metric::TcpSendRate => {
                return Ok(Some(Measurement::from_typical(floor::tcp_message_rate(
                    self.cores, self.time,
                )?)));
            }
            Metric::Constant(bytes) => return Ok(Some(Measurement::from_typical(bytes as f64))),
            Metric::CacheLine => {
                let floor = Floor::new(self.cores, self.stop);
                floor.sample();
                return Ok(floor.cache_line_ns().map(Measurement::from_typical));
            }
            Metric::Memcpy(size) => {
                let floor = Floor::new(self.cores, self.stop);
                return Ok(floor
                    .copy_ns(size)
                    .map(|ns| Measurement::from_typical(size as f64 / ns * 1e9)));
            }
        };
        Ok(measurement(bench, metric.size(), &record))
    }

    /// Measures a peer; `None` if it cannot be measured.
    fn measure_peer(&mut self, program: PeerProgram, case: &BenchCase) -> Option<Record> {
        let peer = program.peer();
        let measured = match peer.unavailable() {
            Some(reason) => Err(reason),
            None => peer
                .measure(case, self.stop)
                .map_err(|error| error.to_string()),
        };
        measured
            .map_err(|reason| {
                self.add_unavailable(format!("{} is left out: {reason}", peer.name()))
            })
            .ok()
    }

    /// Measures in a fresh process: this one has memory left from earlier measurements.
    fn bytes_per_connection(&self, count: usize) -> Result<Option<f64>> {
        let mut command = current_program()?;
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
            _ => Err(Error::Malformed {
                origin: "fabric-bench lat".into(),
                text: text + &String::from_utf8_lossy(&output.stderr),
            }),
        }
    }

    fn add_unavailable(&mut self, reason: String) {
        if !self.unavailable.contains(&reason) {
            self.unavailable.push(reason);
        }
    }

    /// Returns the runs of the rounds in which both metrics were measured and the cache line kept
    /// its speed.
    fn comparable_runs(&self, fabric: Metric, other: Metric) -> Vec<(Run, Run)> {
        let runs_of = |metric: Metric| {
            let found = self.metrics.iter().find(|(known, _)| *known == metric);
            found.map_or(&[][..], |(_, runs)| runs)
        };
        let both = runs_of(fabric).iter().zip(runs_of(other));
        both.filter_map(|(fabric, other)| (*fabric).zip(*other))
            .filter(line_kept_speed)
            .collect()
    }

    /// Returns a row for each placement that has runs, or one without figures.
    fn table_rows(&self, goal: &Goal) -> Vec<[String; 10]> {
        let runs = self.comparable_runs(goal.1, goal.2);
        let placements = [Some(Placement::Near), Some(Placement::Far), None];
        let mut rows: Vec<_> = placements
            .into_iter()
            .map(|placement| (placement, runs_at(&runs, placement)))
            .filter(|(_, runs)| !runs.is_empty())
            .map(|(placement, runs)| self.table_row(goal, placement, &runs))
            .collect();
        if rows.is_empty() {
            rows.push(self.table_row(goal, None, &[]));
        }
        for row in &mut rows[1..] {
            row[0].clear();
        }
        rows
    }

    fn table_row(
        &self,
        (what, fabric, other, bound): &Goal,
        placement: Option<Placement>,
        runs: &[(Run, Run)],
    ) -> [String; 10] {
        let means = matches!(other, Metric::Peer(program, ..) if program.reports_only_means());
        let figure = |run: &Run| {
            let mean = if means { run.measurement.mean } else { None };
            mean.unwrap_or(run.measurement.typical)
        };
        let median_of = |values: Vec<f64>| median(&mut { values });
        let fabric_value = median_of(runs.iter().map(|(fabric, _)| figure(fabric)).collect());
        let other_value = median_of(runs.iter().map(|(_, other)| figure(other)).collect());
        let line_ns = median_of(runs.iter().flat_map(line_readings).collect());
        let format = |value: Option<f64>| {
            value.map_or_else(|| "-".into(), |value| fabric.format_value(value))
        };
        let goal = match bound {
            GoalBound::MaxRatio(times) => format!("<= {times}"),
            GoalBound::MinRatio(times) => format!(">= {times}"),
            GoalBound::MaxExcessNs(ns) => format!("<= {ns:+.0} ns"),
        };
        let values = fabric_value.zip(other_value);
        let result = match (bound, values) {
            (GoalBound::MaxExcessNs(_), Some((fabric_value, other_value))) => {
                format!("{:+.0} ns", fabric_value - other_value)
            }
            _ => tables::ratio(fabric_value, other_value),
        };
        let met = values.map(|(fabric_value, other_value)| bound.is_met(fabric_value, other_value));
        let rounds = self.metrics.first().map_or(0, |(_, runs)| runs.len());
        let line = line_ns.zip(placement);
        [
            (*what).to_owned(),
            Size(fabric.size()).to_string(),
            format(fabric_value),
            other.name(self.provider),
            format(other_value),
            result,
            goal,
            met.map_or("-", |met| if met { "yes" } else { "no" })
                .to_owned(),
            format!("{}/{rounds}", runs.len()),
            line.map_or_else(
                || "-".into(),
                |(ns, placement)| format!("{} {ns:.0} ns", placement.name()),
            ),
        ]
    }
}

/// Where the two cores are, by the time of a cache line between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placement {
    Near,
    Far,
}

impl Placement {
    fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
        }
    }

    /// Returns the placement during two runs of a goal; `None` without readings of the line.
    fn of_runs(runs: &(Run, Run)) -> Option<Self> {
        let line_ns = median(&mut line_readings(runs).collect::<Vec<_>>())?;
        Some(if line_ns < FAR_LINE_NS {
            Self::Near
        } else {
            Self::Far
        })
    }
}

/// Returns the runs of this placement, or those without a placement.
fn runs_at(runs: &[(Run, Run)], placement: Option<Placement>) -> Vec<(Run, Run)> {
    runs.iter()
        .filter(|runs| Placement::of_runs(runs) == placement)
        .copied()
        .collect()
}

/// Returns the readings of the cache line around two runs.
fn line_readings((fabric, other): &(Run, Run)) -> impl Iterator<Item = f64> + use<> {
    let all = fabric.line_ns.into_iter().chain(other.line_ns);
    all.flatten()
}

/// Returns whether all readings of the cache line around these two runs agree.
fn line_kept_speed(runs: &(Run, Run)) -> bool {
    let slowest = line_readings(runs).fold(0.0, f64::max);
    line_readings(runs).all(|ns| slowest <= ns * MAX_LINE_CHANGE)
}

impl Measurement {
    fn from_typical(typical: f64) -> Self {
        Self {
            typical,
            mean: None,
        }
    }
}

/// Returns the figure of a run: messages per second of small messages, bytes per second of large
/// ones.
fn measurement(bench: Bench, size: usize, record: &Record) -> Option<Measurement> {
    match bench {
        Lat => record.typical_ns().map(|typical| Measurement {
            typical,
            mean: record.mean_ns,
        }),
        Bw if size >= 1024 => record.bytes_per_s.map(Measurement::from_typical),
        Rate | Bw => record.msgs_per_s.map(Measurement::from_typical),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_met_on_the_right_side_of_the_bound() {
        use GoalBound::{MaxExcessNs, MaxRatio, MinRatio};
        assert!(MaxRatio(0.5).is_met(5.0, 10.0) && !MaxRatio(0.5).is_met(5.1, 10.0));
        assert!(MinRatio(0.9).is_met(9.0, 10.0) && !MinRatio(0.9).is_met(8.9, 10.0));
        assert!(MaxExcessNs(50.0).is_met(150.0, 100.0) && !MaxExcessNs(50.0).is_met(151.0, 100.0));
    }

    #[test]
    fn both_metrics_of_a_goal_have_the_same_unit() {
        for (what, fabric, other, _) in ["shm", "tcp", "udp"]
            .into_iter()
            .flat_map(table::for_provider)
        {
            let unit = |metric: Metric| {
                metric
                    .format_value(1.0)
                    .rsplit(' ')
                    .next()
                    .map(str::to_owned)
            };
            let counted = matches!(other, Metric::Peer(_, Bw, _, size) if size < 1024);
            assert!(
                counted || unit(fabric) == unit(other),
                "{what}: {fabric:?} and {other:?}"
            );
        }
    }

    #[test]
    fn table_rows_show_measured_and_missing_values() {
        let (stop, goals) = (Stop::default(), table::for_provider("shm"));
        let mut runner = GoalRunner {
            provider: "shm",
            time: Duration::ZERO,
            cores: (None, None),
            stop: &stop,
            metrics: distinct_metrics(&goals),
            unavailable: Vec::new(),
        };
        let find = |metric: Metric| {
            let goal = goals.iter().find(|(_, _, other, _)| *other == metric);
            *goal.expect("a goal of that metric")
        };
        let line = find(Metric::CacheLine);
        let libfabric = find(Metric::Peer(PeerProgram::Libfabric, Lat, BenchOp::Send, 8));
        assert_eq!(line.1, libfabric.1, "both goals are of the same metric");
        let [row] = &runner.table_rows(&line)[..] else {
            panic!("one row without figures");
        };
        assert_eq!(row[2..6].join(" "), "- cache line - -");
        assert_eq!(row[7..].join(" "), "- 0/0 -");

        fn set_runs(
            runner: &mut GoalRunner<'_>,
            metric: Metric,
            values: [f64; 3],
            lines: [[f64; 2]; 3],
        ) {
            let run = |(typical, line_ns): (f64, [f64; 2])| {
                let mean = Some(400.0);
                Some(Run {
                    measurement: Measurement { typical, mean },
                    line_ns: line_ns.map(Some),
                })
            };
            let found = runner.metrics.iter_mut().find(|known| known.0 == metric);
            let runs = values.into_iter().zip(lines).map(run).collect();
            found.expect("the metric of a goal").1 = runs;
        }

        let (near, far) = ([45.0, 50.0], [130.0, 140.0]);
        // The line of the second run moves.
        set_runs(
            &mut runner,
            line.1,
            [300.0, 900.0, 100.0],
            [near, [45.0, 140.0], near],
        );
        set_runs(&mut runner, line.2, [100.0, 100.0, 100.0], [near; 3]);
        set_runs(&mut runner, libfabric.2, [900.0; 3], [near, near, far]);
        let [row] = &runner.table_rows(&line)[..] else {
            panic!("one placement");
        };
        assert_eq!(
            row[..7].join(" "),
            "send 8B 0.200 us cache line 0.100 us +100 ns <= +45 ns"
        );
        assert_eq!(row[8..].join(" "), "2/3 near 48 ns");
        let [means] = &runner.table_rows(&libfabric)[..] else {
            panic!("one placement");
        };
        assert_eq!(
            means[2..6].join(" "),
            "0.400 us fi_pingpong shm 0.400 us 1.00"
        );
        assert_eq!(means[8], "1/3");
        // The cores move between the runs.
        set_runs(
            &mut runner,
            line.1,
            [300.0, 140.0, 100.0],
            [far, near, near],
        );
        set_runs(
            &mut runner,
            line.2,
            [200.0, 100.0, 100.0],
            [far, near, near],
        );
        let [near_row, far_row] = &runner.table_rows(&line)[..] else {
            panic!("two placements");
        };
        assert_eq!(
            near_row[5..].join(" "),
            "+20 ns <= +45 ns yes 2/3 near 48 ns"
        );
        assert_eq!(far_row[..2].join(" "), " 8B");
        assert_eq!(
            far_row[5..].join(" "),
            "+100 ns <= +45 ns no 1/3 far 135 ns"
        );
    }
}
