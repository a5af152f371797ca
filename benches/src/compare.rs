//! The comparison: measures every peer in turn, then all again, so that a noisy minute affects all
//! alike.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::measure::default_window;
use crate::options::{Bench, BenchOp, name};
use crate::output::{Output, print};
use crate::peers::{BenchCase, MeasuredLibrary};
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
    /// Sizes of message rates, in bytes; only calls have them.
    pub rates: Vec<usize>,
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
    peers: &[Box<dyn MeasuredLibrary>],
    config: &CompareConfig,
    json: bool,
    stop: &Stop,
) -> Result<()> {
    let mut output = Output::new(json);
    let mut excluded: Vec<Option<String>> = peers.iter().map(|peer| peer.unavailable()).collect();
    let cases: Vec<BenchCase> = bench_cases(config);
    let mut runs = RunsByCase::new();
    let total = (config.repeat * cases.len() * peers.len()) as f64;
    let mut done = 0.0;
    let mut result = Ok(());
    'runs: for _ in 0..config.repeat {
        for (case_index, case) in cases.iter().enumerate() {
            for (peer_index, peer) in peers.iter().enumerate() {
                done += 1.0;
                if excluded[peer_index].is_some() || !peer.supports(case) {
                    continue;
                }
                progress_bar::show(
                    &format!("{} {}", peer.name(), Size(case.size)),
                    done / total,
                );
                let measured = peer.measure(case, stop);
                result = stop.check();
                if result.is_err() {
                    break 'runs;
                }
                match measured {
                    Ok(record) => {
                        if json {
                            output.emit(&record)?;
                        }
                        runs.entry((case_index, peer_index))
                            .or_default()
                            .push(record);
                    }
                    Err(error) if peer_index == 0 => {
                        result = Err(error);
                        break 'runs;
                    }
                    Err(error) => excluded[peer_index] = Some(error.to_string()),
                }
            }
        }
    }
    progress_bar::clear();
    if !json {
        for bench in [Bench::Lat, Bench::Rate, Bench::Bw] {
            print_table(&runs, &cases, bench)?;
        }
        let mut timers: Vec<f64> = runs
            .values()
            .flatten()
            .filter_map(|record| record.timer_ns)
            .collect();
        if let Some(timer) = median(&mut timers) {
            output.note(&match config.op {
                BenchOp::Rpc => format!(
                    "Reading the clock takes {timer:.0} ns, once in each call that is made alone, \
                     and twice in each\nround of the others."
                ),
                _ => format!(
                    "Reading the clock takes {timer:.0} ns. Half of it is in each half round trip \
                     of the fabric, and of the\npeers that this program measures itself."
                ),
            })?;
        }
    }
    for (peer, reason) in peers.iter().zip(excluded) {
        if let Some(reason) = reason {
            output.note(&format!("{} is left out: {reason}", peer.name()))?;
        }
    }
    if let (false, Err(error)) = (json, &result) {
        output.note(&format!("The results are incomplete: {error}"))?;
    }
    result
}

fn bench_cases(config: &CompareConfig) -> Vec<BenchCase> {
    let case = |bench| {
        move |size: &usize| BenchCase {
            bench,
            op: config.op,
            size: *size,
            time: config.time,
            cores: config.pin.worker_cores(0),
        }
    };
    let latencies = config.latencies.iter().map(case(Bench::Lat));
    latencies
        .chain(config.rates.iter().map(case(Bench::Rate)))
        .chain(config.streams.iter().map(case(Bench::Bw)))
        .collect()
}

fn print_table(runs: &RunsByCase, cases: &[BenchCase], bench: Bench) -> Result<()> {
    let rows: Vec<_> = table_rows(runs, cases, bench);
    if rows.is_empty() {
        return Ok(());
    }
    let in_flight = format!(
        "calls, {} in flight, more is better",
        default_window(Bench::Rate, BenchOp::Rpc)
    );
    let is_calls = cases.iter().all(|case| case.op == BenchOp::Rpc);
    let (title, unit) = match bench {
        Bench::Lat if is_calls => ("calls, one at a time, less is better", "us"),
        Bench::Rate if is_calls => (&in_flight[..], "k/s"),
        Bench::Bw if is_calls => (
            "calls with a long argument, one at a time, more is better",
            "GB/s",
        ),
        Bench::Lat if cases.iter().all(|case| !case.op.is_ping_pong()) => {
            ("whole operations, less is better", "us")
        }
        Bench::Lat => ("half round trips, less is better", "us"),
        Bench::Rate => ("messages in one direction, more is better", "k/s"),
        Bench::Bw => ("streams in one direction, more is better", "GB/s"),
    };
    let spread = format!("lowest..highest {unit}");
    let titles = [
        "size",
        "",
        &format!("median {unit}"),
        &spread,
        if is_calls { "x native" } else { "x fabric" },
        "runs",
        "figure",
    ];
    print(&format!("\n{title}: median and range of the runs\n"))?;
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
    MessageRate,
    Bandwidth,
}

impl Statistic {
    /// Returns the figure that all these runs have. Peers that report no median are compared by
    /// means.
    fn common_to(bench: Bench, records: &[Record]) -> Self {
        match bench {
            Bench::Lat if records.iter().all(|record| record.p50_ns.is_some()) => Self::P50,
            Bench::Lat => Self::Mean,
            Bench::Rate => Self::MessageRate,
            Bench::Bw => Self::Bandwidth,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::P50 => "p50",
            Self::Mean => "mean",
            Self::MessageRate | Self::Bandwidth => "rate",
        }
    }

    fn value(self, record: &Record) -> Option<f64> {
        match self {
            Self::P50 => record.p50_ns.map(|ns| ns / 1e3),
            Self::Mean => record.mean_ns.map(|ns| ns / 1e3),
            Self::MessageRate => record.msgs_per_s.map(|rate| rate / 1e3),
            Self::Bandwidth => record.bytes_per_s.map(|rate| rate / 1e9),
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
    for (case_index, case) in cases
        .iter()
        .enumerate()
        .filter(|(_, case)| case.bench == bench)
    {
        let case_runs = || {
            runs.range((case_index, 0)..(case_index + 1, 0))
                .map(|((_, peer_index), records)| (*peer_index, &records[..]))
        };
        let fabric_runs: &[Record] = runs
            .get(&(case_index, 0))
            .map_or(&[], |records| &records[..]);
        let by_mean =
            case_runs().any(|(_, records)| Statistic::common_to(bench, records) == Statistic::Mean);
        let mut size = Size(case.size).to_string();
        for (peer_index, records) in case_runs() {
            let statistic = Statistic::common_to(bench, records);
            // Peers that report only means are compared with the fabric's mean, in a row of
            // its own.
            let mean_row = (peer_index == 0 && by_mean && statistic != Statistic::Mean)
                .then_some(Statistic::Mean);
            for statistic in [Some(statistic), mean_row].into_iter().flatten() {
                let Some((low, median, high)) = statistic.min_median_max(records) else {
                    continue;
                };
                rows.push([
                    std::mem::take(&mut size),
                    records
                        .first()
                        .map_or_else(String::new, |record| record.provider.clone()),
                    format!("{median:.3}"),
                    format!("{low:.3}..{high:.3}"),
                    table::ratio(
                        Some(median),
                        statistic.min_median_max(fabric_runs).map(|range| range.1),
                    ),
                    records.len().to_string(),
                    statistic.name().into(),
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
    mut peers: Vec<Box<dyn MeasuredLibrary>>,
    op: BenchOp,
    names: &[String],
) -> Result<Vec<Box<dyn MeasuredLibrary>>> {
    let matches = |peer: &dyn MeasuredLibrary, part: &str| {
        !part.is_empty() && peer.name().to_lowercase().contains(&part.to_lowercase())
    };
    for part in names {
        if !peers.iter().any(|peer| matches(&**peer, part)) {
            let known: Vec<_> = peers.iter().skip(1).map(|peer| peer.name()).collect();
            return Err(Error::InvalidRequest(format!(
                "unknown peer {part:?} of --op {}; known: {}",
                name(op),
                known.join(", ")
            )));
        }
    }
    let mut peer_index = 0;
    peers.retain(|peer| {
        peer_index += 1;
        peer_index == 1 || names.is_empty() || names.iter().any(|part| matches(&**peer, part))
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
        let fabric_runs = vec![
            run("ours", Some(1000.0), 1500.0),
            run("ours", Some(3000.0), 2500.0),
        ];
        let theirs = vec![run("theirs", None, 4000.0)];
        let runs = RunsByCase::from([((0, 0), fabric_runs), ((0, 1), theirs)]);
        let expected = [
            ["8B", "ours", "2.000", "1.000..3.000", "1.00", "2", "p50"],
            ["", "ours", "2.000", "1.500..2.500", "1.00", "2", "mean"],
            ["", "theirs", "4.000", "4.000..4.000", "2.00", "1", "mean"],
        ];
        assert_eq!(table_rows(&runs, &[case], Bench::Lat), expected);
        assert!(table_rows(&runs, &[case], Bench::Bw).is_empty());
    }
}
