//! Results as one page with charts: no scripts, nothing to fetch, readable on a phone and on paper,
//! in light and dark.
//!
//! | file | subject |
//! |---|---|
//! | `series` | which results belong to one line |
//! | `scale` | values as positions, and as text |
//! | `chart` | line charts |
//! | `bars` | bar charts |
//! | `page` | the page around them |

mod bars;
mod chart;
mod page;
mod scale;
mod series;

use crate::record::Record;
use crate::size::Size;
use crate::{Error, Result};
use bars::Bar;
use chart::Chart;
use page::ReportFigure;
use scale::{is_plottable, rate_text, throughput_text, time_text};
use series::{Series, SeriesLabels};

/// Largest size whose message rate is shown.
const MAX_RATE_SIZE: usize = 64;

/// Renders the page of these results.
///
/// # Errors
/// [`Error::InvalidRequest`] if there is nothing to draw.
pub fn render_page(records: &[Record]) -> Result<String> {
    let names = SeriesLabels::from_records(records);
    let latencies = series::group_series(&names, records, |record| record.bench == "lat");
    let streams = series::group_series(&names, records, |record| {
        matches!(&record.bench[..], "bw" | "rate")
    });
    let mut figures = Vec::new();
    figures.extend(latency_by_size(&latencies));
    figures.extend(percentiles(&latencies));
    figures.extend(bandwidth(&streams));
    figures.extend(message_rate(&streams, records));
    if figures.is_empty() {
        return Err(Error::InvalidRequest(
            "nothing to draw: no results of lat, bw, rate or compare".into(),
        ));
    }
    Ok(page::html(&latencies, &figures, records))
}

fn latency_by_size(series: &[Series]) -> Option<ReportFigure> {
    let lines = series
        .iter()
        .map(|line| line.line_by_size(|record| record.typical_ns()));
    Chart::new(lines, floor_line(series, |_, ns| ns), time_text, true).figure(
        "Latency by size",
        "Half round trip between two processes: the median, or the mean of programs that print \
         nothing else. Dashed: \
         the floor, a cache line from core to core and one copy of the message. Less is better.",
    )
}

fn floor_line(series: &[Series], value: impl Fn(usize, f64) -> f64) -> Vec<(f64, f64)> {
    series::floor_by_size(series)
        .into_iter()
        .map(|(size, ns)| (size as f64, value(size, ns)))
        .collect()
}

fn percentiles(series: &[Series]) -> Option<ReportFigure> {
    let count_with_percentiles = |size| {
        series
            .iter()
            .filter(|line| {
                line.record_at(size)
                    .is_some_and(|record| record.p90_ns.is_some())
            })
            .count()
    };
    let sizes = series.iter().flat_map(|line| line.points.keys().copied());
    let size = sizes
        .filter(|size| count_with_percentiles(*size) > 0)
        .min()?;
    let lines = series.iter().map(|line| {
        let record = line.record_at(size);
        let steps = record
            .filter(|record| record.p90_ns.is_some())
            .map(|record| {
                let Record {
                    p50_ns,
                    p90_ns,
                    p99_ns,
                    p999_ns,
                    max_ns,
                    ..
                } = record;
                [
                    ("50 %", p50_ns),
                    ("90 %", p90_ns),
                    ("99 %", p99_ns),
                    ("99.9 %", p999_ns),
                    ("max", max_ns),
                ]
            });
        let steps = steps.into_iter().flatten().enumerate();
        line.chart_line(
            steps
                .filter_map(|(at, (name, ns))| Some((at as f64, name.to_owned(), (*ns)?)))
                .collect(),
        )
    });
    let floor = series::floor_by_size(series)
        .get(&size)
        .map(|ns| vec![(0.0, *ns), (4.0, *ns)])
        .unwrap_or_default();
    Chart::new(lines, floor, time_text, false).figure(
        &format!("Percentiles at {}", Size(size)),
        "How much of the half round trips stays below which time. The largest are the machine's: \
         what else ran, and when the process was put aside.",
    )
}

fn bandwidth(series: &[Series]) -> Option<ReportFigure> {
    let lines = series
        .iter()
        .map(|line| line.line_by_size(|record| record.bytes_per_s));
    let floor = floor_line(series, |size, ns| size as f64 / ns * 1e9);
    Chart::new(lines, floor, throughput_text, true).figure(
        "Bandwidth by size",
        "A stream in one direction. Dashed: one core that copies a message of this size \
         repeatedly. More is better.",
    )
}

fn message_rate(series: &[Series], records: &[Record]) -> Option<ReportFigure> {
    let size = series
        .iter()
        .flat_map(|line| line.points.keys().copied())
        .min()
        .filter(|size| *size <= MAX_RATE_SIZE)?;
    let rates = series
        .iter()
        .filter_map(|line| Some((line, line.record_at(size)?.msgs_per_s?)));
    let rates = rates.filter(|(_, rate)| is_plottable(*rate));
    let mut bars: Vec<Bar> = rates
        .map(|(line, value)| Bar {
            label: line.label.clone(),
            colour: line.colour,
            value,
        })
        .collect();
    bars.sort_by(|a, b| b.value.total_cmp(&a.value));
    let cache_line = records
        .iter()
        .find(|record| record.bench == "floor" && record.op == "line");
    let floor = cache_line
        .and_then(|record| record.p50_ns)
        .map(|ns| 1e9 / ns)
        .filter(|rate| is_plottable(*rate));
    let caption = match floor {
        Some(_) => {
            "Messages per second in one direction. Dashed: cache lines that pass from core to \
             core one after the other; several may be in flight at once. More is better."
        }
        None => "Messages per second in one direction. More is better.",
    };
    bars::bar_chart(
        &bars,
        floor,
        &format!("Message rate at {}", Size(size)),
        caption,
        rate_text,
    )
}
