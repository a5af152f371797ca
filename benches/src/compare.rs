//! The comparison: every peer in turn, and all of them again, so that a noisy minute hits all alike.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::choice::Bench;
use crate::output::{Output, print};
use crate::peers::{Case, Peer};
use crate::pin::Pin;
use crate::record::Record;
use crate::size::Size;
use crate::stop::Stop;
use crate::{Error, Result, progress, table};

/// What is compared.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Sizes of the half round trips, in bytes.
    pub latencies: Vec<usize>,
    /// Sizes of the streams, in bytes.
    pub streams: Vec<usize>,
    /// How often everything is done.
    pub repeat: usize,
    /// The time of one measurement.
    pub time: Duration,
    /// Where the two sides run.
    pub pin: Pin,
}

/// The runs of one peer, by what was measured.
type Runs = BTreeMap<(usize, usize), Vec<Record>>;

/// Compares these peers; the first is the one that ratios are to. In JSON every single run is printed when it is there,
/// otherwise the tables at the end.
///
/// A peer that is missing or fails is left out of the rest, and named with the reason.
///
/// # Errors
/// The first peer is missing or fails; nothing can be printed.
pub fn compare(peers: &[Box<dyn Peer>], scope: &Scope, json: bool, stop: &Stop) -> Result<()> {
    let mut output = Output::new(json);
    let mut left_out: Vec<Option<String>> = peers.iter().map(|peer| peer.missing()).collect();
    let cases: Vec<Case> = cases(scope);
    let mut runs = Runs::new();
    let total = (scope.repeat * cases.len() * peers.len()) as f64;
    let mut done = 0.0;
    for _ in 0..scope.repeat {
        for (at, case) in cases.iter().enumerate() {
            for (number, peer) in peers.iter().enumerate() {
                done += 1.0;
                if stop.raised() || left_out[number].is_some() || !peer.measures(case) {
                    continue;
                }
                progress::show(&format!("{} {}", peer.name(), Size(case.size)), done / total);
                match peer.measure(case) {
                    Ok(record) => {
                        if json {
                            output.emit(&record)?;
                        }
                        runs.entry((at, number)).or_default().push(record);
                    }
                    Err(error) if number == 0 => return Err(error),
                    Err(error) => left_out[number] = Some(error.to_string()),
                }
            }
        }
    }
    progress::clear();
    if !json {
        for bench in [Bench::Lat, Bench::Bw] {
            show(&runs, &cases, bench)?;
        }
    }
    for (peer, why) in peers.iter().zip(left_out) {
        if let Some(why) = why {
            output.note(&format!("{} is left out: {why}", peer.name()))?;
        }
    }
    Ok(())
}

fn cases(scope: &Scope) -> Vec<Case> {
    let case =
        |bench| move |size: &usize| Case { bench, size: *size, time: scope.time, cores: scope.pin.lane(0) };
    let latencies = scope.latencies.iter().map(case(Bench::Lat));
    latencies.chain(scope.streams.iter().map(case(Bench::Bw))).collect()
}

fn show(runs: &Runs, cases: &[Case], bench: Bench) -> Result<()> {
    let rows: Vec<_> = rows(runs, cases, bench);
    if rows.is_empty() {
        return Ok(());
    }
    let (what, unit) = match bench {
        Bench::Lat => ("half round trips, less is better", "us"),
        Bench::Bw | Bench::Rate => ("streams in one direction, more is better", "GB/s"),
    };
    let spread = format!("lowest..highest {unit}");
    let titles = ["size", "", &format!("median {unit}"), &spread, "x ours", "runs", "of what"];
    print(&format!("\n{what}: the median of the runs, and all between which they lie\n"))?;
    let widths = [8, 17, 12, 20, 8, 5, 8];
    let line = |cells: [String; 7]| table::line(cells.into_iter().zip(widths));
    print(&line(titles.map(str::to_owned)))?;
    rows.into_iter().try_for_each(|row| print(&line(row)))
}

fn rows(runs: &Runs, cases: &[Case], bench: Bench) -> Vec<[String; 7]> {
    let mut rows = Vec::new();
    for ((at, number), records) in runs {
        let case = &cases[*at];
        if case.bench != bench {
            continue;
        }
        // Who does not say the median is compared by means.
        let by_median = bench != Bench::Lat || records.iter().all(|record| record.p50_ns.is_some());
        let value = |record: &Record| match (bench, by_median) {
            (Bench::Lat, true) => record.p50_ns.map(|ns| ns / 1e3),
            (Bench::Lat, false) => record.mean_ns.map(|ns| ns / 1e3),
            _ => record.bytes_per_s.map(|rate| rate / 1e9),
        };
        let Some((low, median, high)) = spread(records.iter().filter_map(value)) else { continue };
        let ours = runs.get(&(*at, 0)).and_then(|ours| spread(ours.iter().filter_map(value)));
        let what = match (bench, by_median) {
            (Bench::Lat, true) => "p50",
            (Bench::Lat, false) => "mean",
            _ => "rate",
        };
        rows.push([
            if *number == 0 { Size(case.size).to_string() } else { String::new() },
            records.first().map_or_else(String::new, |record| record.provider.clone()),
            format!("{median:.3}"),
            format!("{low:.3}..{high:.3}"),
            table::ratio(Some(median), ours.map(|ours| ours.1)),
            records.len().to_string(),
            what.into(),
        ]);
    }
    rows
}

/// The lowest, the median and the highest.
fn spread(values: impl Iterator<Item = f64>) -> Option<(f64, f64, f64)> {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    Some((*values.first()?, values[values.len() / 2], *values.last()?))
}

/// Those of the peers that are asked for by name, besides the first; all when none is.
///
/// # Errors
/// [`Error::Refused`] for a name nobody has; it lists the known ones.
pub fn choose(mut peers: Vec<Box<dyn Peer>>, names: &[String]) -> Result<Vec<Box<dyn Peer>>> {
    for asked in names {
        if !peers.iter().any(|peer| peer.name().contains(&asked[..])) {
            let known: Vec<_> = peers.iter().skip(1).map(|peer| peer.name()).collect();
            return Err(Error::Refused(format!("unknown peer {asked:?}; known: {}", known.join(", "))));
        }
    }
    let ours = peers.first().map(|peer| peer.name().to_owned());
    peers.retain(|peer| {
        names.is_empty()
            || Some(peer.name()) == ours.as_deref()
            || names.iter().any(|asked| peer.name().contains(&asked[..]))
    });
    Ok(peers)
}
