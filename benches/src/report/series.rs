//! Grouping of results into lines.

use std::collections::{BTreeMap, BTreeSet};

use super::chart::ChartLine;
use crate::record::Record;
use crate::samples;
use crate::size::Size;

/// The labels of all lines of a page, in the order of their colours: the fabric first.
pub(super) struct SeriesLabels {
    labels: Vec<String>,
    /// For each provider, the attributes in which its results differ.
    distinguishing: BTreeMap<String, BTreeSet<usize>>,
}

/// The results of one label, by size.
pub(super) struct Series {
    pub(super) label: String,
    pub(super) colour: usize,
    pub(super) is_fabric: bool,
    pub(super) points: BTreeMap<usize, Record>,
    /// The floor of each run, if known.
    floors: BTreeMap<usize, Vec<f64>>,
}

/// Number of attributes of a result.
const ATTRIBUTES: usize = 14;

/// Returns the attributes in which results of one provider may differ.
fn attributes(record: &Record) -> [(&'static str, String); ATTRIBUTES] {
    [
        ("", record.op.clone()),
        ("", record.api.clone()),
        ("wait ", record.wait.clone()),
        ("progress ", record.progress.clone()),
        ("runtime ", record.runtime.clone()),
        ("threading ", record.threading.clone()),
        ("message model ", record.msg_model.clone()),
        (
            "window ",
            if record.window == 0 {
                String::new()
            } else {
                record.window.to_string()
            },
        ),
        ("peers ", record.peers.to_string()),
        ("threads ", record.threads.to_string()),
        ("endpoints ", record.endpoints.to_string()),
        (
            "",
            if record.fan_in {
                "fan-in".into()
            } else {
                String::new()
            },
        ),
        ("domains ", record.domains.clone()),
        ("streams ", record.streams.to_string()),
    ]
}

/// Only measurements of the fabric have a processor time and, with more than one core, a floor.
fn is_fabric(record: &Record) -> bool {
    record.floor_ns.or(record.cpu_user_s).is_some()
}

fn provider_label(record: &Record) -> String {
    match &record.provider {
        name if is_fabric(record) && !name.starts_with("fabric ") => format!("fabric {name}"),
        name => name.clone(),
    }
}

/// Latencies always have a window of one, so they are compared only with latencies.
fn series_kind(record: &Record) -> (String, bool) {
    (provider_label(record), record.bench == "lat")
}

impl SeriesLabels {
    pub(super) fn from_records(records: &[Record]) -> Self {
        let records: Vec<_> = records
            .iter()
            .filter(|record| record.bench != "floor")
            .collect();
        let mut first: BTreeMap<_, [(&str, String); ATTRIBUTES]> = BTreeMap::new();
        let mut distinguishing: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
        for record in &records {
            // Comparison with the first suffices: if two differ, one of them differs from the
            // first.
            let attributes = attributes(record);
            let first = first
                .entry(series_kind(record))
                .or_insert_with(|| attributes.clone());
            let differing = (0..attributes.len()).filter(|at| attributes[*at] != first[*at]);
            distinguishing
                .entry(provider_label(record))
                .or_default()
                .extend(differing);
        }
        let mut labels = Self {
            labels: Vec::new(),
            distinguishing,
        };
        for fabric_first in [true, false] {
            for record in records
                .iter()
                .filter(|record| is_fabric(record) == fabric_first)
            {
                let label = labels.label(record);
                if !labels.labels.contains(&label) {
                    labels.labels.push(label);
                }
            }
        }
        labels
    }

    fn label(&self, record: &Record) -> String {
        let (mut label, attributes) = (provider_label(record), attributes(record));
        for at in self.distinguishing.get(&label).into_iter().flatten() {
            let (name, value) = &attributes[*at];
            if !(value.is_empty() || *name == "window " && record.bench == "lat") {
                label += &format!(", {name}{value}");
            }
        }
        label
    }
}

/// Groups the picked results into lines. Of repeated runs the median one is kept; of an even
/// number, the slower of the two in the middle.
pub(super) fn group_series(
    labels: &SeriesLabels,
    records: &[Record],
    pick: impl Fn(&Record) -> bool,
) -> Vec<Series> {
    let mut runs: BTreeMap<usize, BTreeMap<usize, Vec<&Record>>> = BTreeMap::new();
    for record in records
        .iter()
        .filter(|record| record.bench != "floor" && pick(record))
    {
        let label = labels.label(record);
        if let Some(colour) = labels.labels.iter().position(|known| *known == label) {
            runs.entry(colour)
                .or_default()
                .entry(record.size)
                .or_default()
                .push(record);
        }
    }
    let lines = runs.into_iter().map(|(colour, sizes)| {
        let mut series = Series {
            label: labels.labels[colour].clone(),
            colour,
            is_fabric: false,
            points: BTreeMap::new(),
            floors: BTreeMap::new(),
        };
        for (size, runs) in sizes {
            series.is_fabric |= runs.iter().any(|record| is_fabric(record));
            let floors = runs
                .iter()
                .filter_map(|record| record.floor_ns)
                .filter(|ns| *ns > 0.0);
            series.floors.insert(size, floors.collect());
            series
                .points
                .extend(median(runs).map(|record| (size, record.clone())));
        }
        series
    });
    lines.collect()
}

fn median(mut runs: Vec<&Record>) -> Option<&Record> {
    let key = |record: &Record| match &record.bench[..] {
        "lat" => record.typical_ns().unwrap_or(f64::INFINITY),
        _ => record.bytes_per_s.unwrap_or(0.0),
    };
    runs.sort_by(|a, b| key(a).total_cmp(&key(b)));
    // Latencies are sorted from fast to slow, streams from slow to fast.
    let rising = runs.first().is_some_and(|record| record.bench == "lat");
    runs.get(if rising {
        runs.len() / 2
    } else {
        runs.len().saturating_sub(1) / 2
    })
    .copied()
}

/// Returns the floor by size in nanoseconds: the median over all runs of all lines. The floor
/// varies during a measurement, so the lowest value would not be that of most runs.
pub(super) fn floor_by_size(series: &[Series]) -> BTreeMap<usize, f64> {
    let mut floors: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for (size, found) in series.iter().flat_map(|series| &series.floors) {
        floors.entry(*size).or_default().extend(found);
    }
    floors
        .into_iter()
        .filter_map(|(size, mut found)| Some((size, samples::median(&mut found)?)))
        .collect()
}

impl Series {
    pub(super) fn record_at(&self, size: usize) -> Option<&Record> {
        self.points.get(&size)
    }

    /// Returns a line over sizes.
    pub(super) fn line_by_size(&self, value: impl Fn(&Record) -> Option<f64>) -> ChartLine {
        let points = self.points.iter();
        self.chart_line(
            points
                .filter_map(|(size, record)| {
                    Some((*size as f64, Size(*size).to_string(), value(record)?))
                })
                .collect(),
        )
    }

    /// Returns a line through these labelled points.
    pub(super) fn chart_line(&self, points: Vec<(f64, String, f64)>) -> ChartLine {
        ChartLine {
            label: self.label.clone(),
            colour: self.colour,
            is_emphasized: self.is_fabric,
            points,
        }
    }
}
