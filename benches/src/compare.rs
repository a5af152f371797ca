//! The comparison: measures every peer in turn, then all again, so that a noisy minute affects all
//! alike.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::options::{Bench, BenchOp};
use crate::output::{Output, print};
use crate::peers::{BenchCase, BenchPeer};
use crate::pin::CorePinning;
use crate::record::Record;
use crate::samples::median;
use crate::size::Size;
use crate::stop::Stop;
use crate::{Error, Result, progress_bar, table};

/// What to compare, and how.
#[derive(Clone, Debug)]
pub struct CompareConfig {
    /// The operation; peers without an equivalent are not measured.
    pub op: BenchOp,
    /// Sizes of latency measurements, in bytes.
    pub latencies: Vec<usize>,
    /// Sizes of streams, in bytes.
    pub streams: Vec<usize>,
    /// How often each measurement is repeated.
    pub repeat: usize,
    /// The time of one measurement.
    pub time: Duration,
    /// The cores of the two sides.
    pub pin: CorePinning,
}

/// The runs, by index of the case and of the peer.
type RunsByCase = BTreeMap<(usize, usize), Vec<Record>>;

/// Compares these peers; ratios are to the first one. With JSON every run is printed when it ends,
/// otherwise tables at the end.
///
/// A peer that is unavailable or fails is left out from then on, and listed with the reason. The
/// results from before the first peer's failure, or before the stop, are shown; a run that was cut
/// short is not.
///
/// # Errors
/// The error of the first peer; [`Error::Interrupted`]; the output cannot be written.
pub fn compare(
    peers: &[Box<dyn BenchPeer>],
    scope: &CompareConfig,
    json: bool,
    stop: &Stop,
) -> Result<()> {
    let mut output = Output::new(json);
    let mut left_out: Vec<Option<String>> = peers.iter().map(|peer| peer.unavailable()).collect();
    let cases: Vec<BenchCase> = bench_cases(scope);
    let mut runs = RunsByCase::new();
    let total = (scope.repeat * cases.len() * peers.len()) as f64;
    let mut done = 0.0;
    let mut ended = Ok(());
    'runs: for _ in 0..scope.repeat {
        for (at, case) in cases.iter().enumerate() {
            for (number, peer) in peers.iter().enumerate() {
                done += 1.0;
                if left_out[number].is_some() || !peer.supports(case) {
                    continue;
                }
                progress_bar::show(
                    &format!("{} {}", peer.name(), Size(case.size)),
                    done / total,
                );
                let measured = peer.measure(case, stop);
                ended = stop.check();
                if ended.is_err() {
                    break 'runs;
                }
                match measured {
                    Ok(record) => {
                        if json {
                            output.emit(&record)?;
                        }
                        runs.entry((at, number)).or_default().push(record);
                    }
                    Err(error) if number == 0 => {
                        ended = Err(error);
                        break 'runs;
                    }
                    Err(error) => left_out[number] = Some(error.to_string()),
                }
            }
        }
    }
    progress_bar::clear();
    if !json {
        for bench in [Bench::Lat, Bench::Bw] {
            print_table(&runs, &cases, bench)?;
        }
        let mut timers: Vec<f64> = runs
            .values()
            .flatten()
            .filter_map(|record| record.timer_ns)
            .collect();
        if let Some(timer) = median(&mut timers) {
            output.note(&format!(
                "Looking at the clock takes {timer:.0} ns, half of which is in each of our half round trips, and of \
                 those peers that\nare measured by this program. Programs of others look at it in their own way."
            ))?;
        }
    }
    for (peer, why) in peers.iter().zip(left_out) {
        if let Some(why) = why {
            output.note(&format!("{} is left out: {why}", peer.name()))?;
        }
    }
    if let (false, Err(error)) = (json, &ended) {
        output.note(&format!("This is not all: {error}"))?;
    }
    ended
}

fn bench_cases(scope: &CompareConfig) -> Vec<BenchCase> {
    let case = |bench| {
        move |size: &usize| BenchCase {
            bench,
            op: scope.op,
            size: *size,
            time: scope.time,
            cores: scope.pin.worker_cores(0),
        }
    };
    let latencies = scope.latencies.iter().map(case(Bench::Lat));
    latencies
        .chain(scope.streams.iter().map(case(Bench::Bw)))
        .collect()
}

fn print_table(runs: &RunsByCase, cases: &[BenchCase], bench: Bench) -> Result<()> {
    let rows: Vec<_> = table_rows(runs, cases, bench);
    if rows.is_empty() {
        return Ok(());
    }
    let (what, unit) = match bench {
        Bench::Lat if cases.iter().all(|case| !case.op.is_ping_pong()) => {
            ("whole operations, less is better", "us")
        }
        Bench::Lat => ("half round trips, less is better", "us"),
        Bench::Bw | Bench::Rate => ("streams in one direction, more is better", "GB/s"),
    };
    let spread = format!("lowest..highest {unit}");
    let titles = [
        "size",
        "",
        &format!("median {unit}"),
        &spread,
        "x ours",
        "runs",
        "of what",
    ];
    print(&format!(
        "\n{what}: the median of the runs, and all between which they lie\n"
    ))?;
    let widths = [8, 17, 12, 20, 8, 5, 8];
    let line = |cells: [String; 7]| table::format_cells(cells.into_iter().zip(widths));
    print(&line(titles.map(str::to_owned)))?;
    rows.into_iter().try_for_each(|row| print(&line(row)))
}

/// The figure that represents a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Statistic {
    P50,
    Mean,
    Rate,
}

impl Statistic {
    /// Returns the figure that all these runs have. Peers that report no median are compared by
    /// means.
    fn common_to(bench: Bench, records: &[Record]) -> Self {
        match bench {
            Bench::Lat if records.iter().all(|record| record.p50_ns.is_some()) => Self::P50,
            Bench::Lat => Self::Mean,
            Bench::Bw | Bench::Rate => Self::Rate,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::P50 => "p50",
            Self::Mean => "mean",
            Self::Rate => "rate",
        }
    }

    fn value(self, record: &Record) -> Option<f64> {
        match self {
            Self::P50 => record.p50_ns.map(|ns| ns / 1e3),
            Self::Mean => record.mean_ns.map(|ns| ns / 1e3),
            Self::Rate => record.bytes_per_s.map(|rate| rate / 1e9),
        }
    }

    /// Returns the lowest, the median and the highest of these runs.
    fn min_median_max(self, records: &[Record]) -> Option<(f64, f64, f64)> {
        let mut values: Vec<f64> = records
            .iter()
            .filter_map(|record| self.value(record))
            .collect();
        let middle = median(&mut values)?;
        Some((*values.first()?, middle, *values.last()?))
    }
}

fn table_rows(runs: &RunsByCase, cases: &[BenchCase], bench: Bench) -> Vec<[String; 7]> {
    let mut rows = Vec::new();
    for (at, case) in cases
        .iter()
        .enumerate()
        .filter(|(_, case)| case.bench == bench)
    {
        let these = || {
            runs.range((at, 0)..(at + 1, 0))
                .map(|((_, number), records)| (*number, &records[..]))
        };
        let ours: &[Record] = runs.get(&(at, 0)).map_or(&[], |records| &records[..]);
        let by_mean =
            these().any(|(_, records)| Statistic::common_to(bench, records) == Statistic::Mean);
        let mut size = Size(case.size).to_string();
        for (number, records) in these() {
            let of = Statistic::common_to(bench, records);
            // Peers that report only means are held against the fabric's mean, in a row of its own.
            let more = (number == 0 && by_mean && of != Statistic::Mean).then_some(Statistic::Mean);
            for of in [Some(of), more].into_iter().flatten() {
                let Some((low, median, high)) = of.min_median_max(records) else {
                    continue;
                };
                rows.push([
                    std::mem::take(&mut size),
                    records
                        .first()
                        .map_or_else(String::new, |record| record.provider.clone()),
                    format!("{median:.3}"),
                    format!("{low:.3}..{high:.3}"),
                    table::ratio(Some(median), of.min_median_max(ours).map(|ours| ours.1)),
                    records.len().to_string(),
                    of.name().into(),
                ]);
            }
        }
    }
    rows
}

/// Returns the first peer, and those whose name contains one of these, ignoring case; all peers
/// without names.
///
/// # Errors
/// [`Error::InvalidRequest`] for a name that matches no peer, with the known names.
pub fn select_peers(
    mut peers: Vec<Box<dyn BenchPeer>>,
    names: &[String],
) -> Result<Vec<Box<dyn BenchPeer>>> {
    let is_asked = |peer: &dyn BenchPeer, asked: &str| {
        !asked.is_empty() && peer.name().to_lowercase().contains(&asked.to_lowercase())
    };
    for asked in names {
        if !peers.iter().any(|peer| is_asked(&**peer, asked)) {
            let known: Vec<_> = peers.iter().skip(1).map(|peer| peer.name()).collect();
            return Err(Error::InvalidRequest(format!(
                "unknown peer {asked:?}; known: {}",
                known.join(", ")
            )));
        }
    }
    let mut number = 0;
    peers.retain(|peer| {
        number += 1;
        number == 1 || names.is_empty() || names.iter().any(|asked| is_asked(&**peer, asked))
    });
    Ok(peers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_row_is_added_for_peers_that_report_only_means() {
        let case = BenchCase {
            bench: Bench::Lat,
            op: BenchOp::Send,
            size: 8,
            time: Duration::ZERO,
            cores: (None, None),
        };
        let run = |provider: &str, p50_ns, mean_ns| Record {
            provider: provider.into(),
            p50_ns,
            mean_ns: Some(mean_ns),
            ..Record::default()
        };
        let ours = vec![
            run("ours", Some(1000.0), 1500.0),
            run("ours", Some(3000.0), 2500.0),
        ];
        let theirs = vec![run("theirs", None, 4000.0)];
        let runs = RunsByCase::from([((0, 0), ours), ((0, 1), theirs)]);
        let expected = [
            ["8B", "ours", "2.000", "1.000..3.000", "1.00", "2", "p50"],
            ["", "ours", "2.000", "1.500..2.500", "1.00", "2", "mean"],
            ["", "theirs", "4.000", "4.000..4.000", "2.00", "1", "mean"],
        ];
        assert_eq!(table_rows(&runs, &[case], Bench::Lat), expected);
        assert!(table_rows(&runs, &[case], Bench::Bw).is_empty());
    }
}
