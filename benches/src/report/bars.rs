//! Bar charts.

use std::fmt::Write;

use super::page::{ReportFigure, escape};

const CHART_WIDTH: f64 = 520.0;
const BAR_HEIGHT: f64 = 22.0;
const BAR_STRIDE: f64 = 50.0;
/// Room for the value beside the longest bar.
const VALUE_WIDTH: f64 = 84.0;

/// A bar; its value is positive.
pub(super) struct Bar {
    pub(super) label: String,
    pub(super) colour: usize,
    pub(super) value: f64,
}

/// Renders a bar chart with its table; `None` without bars. `floor` is the rate of `fabric-bench
/// floor` for comparison, the limit of the hardware; it is drawn as a dashed line.
pub(super) fn bar_chart(
    bars: &[Bar],
    floor: Option<f64>,
    title: &str,
    caption: &str,
    format_value: fn(f64) -> String,
) -> Option<ReportFigure> {
    if bars.is_empty() {
        return None;
    }
    let max = bars
        .iter()
        .map(|bar| bar.value)
        .chain(floor)
        .fold(0.0, f64::max);
    let length = |value: f64| value / max * (CHART_WIDTH - VALUE_WIDTH);
    let height = bars.len() as f64 * BAR_STRIDE + 26.0;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {CHART_WIDTH} {height}\" role=\"img\" aria-label=\"{}\">",
        escape(title)
    );
    for (at, bar) in bars.iter().enumerate() {
        let (top, width) = (at as f64 * BAR_STRIDE + 20.0, length(bar.value).max(2.0));
        let _ = write!(
            svg,
            "<text x=\"0\" y=\"{:.1}\">{}</text>\
             <rect class=\"bar c{}\" x=\"0\" y=\"{top:.1}\" width=\"{width:.1}\" \
             height=\"{BAR_HEIGHT}\" rx=\"3\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            top - 5.0,
            escape(&bar.label),
            bar.colour % 8,
            width + 7.0,
            top + 16.0,
            format_value(bar.value)
        );
    }
    if let Some(floor) = floor {
        let (at, end) = (length(floor), height - 18.0);
        let _ = write!(
            svg,
            "<path class=\"floor\" d=\"M{at:.1} 4V{end}\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            height - 3.0,
            format_value(floor)
        );
    }
    svg += "</svg>";
    Some(ReportFigure {
        title: title.to_owned(),
        caption: caption.to_owned(),
        legend: Vec::new(),
        dashed_label: None,
        svg,
        columns: vec!["rate".into()],
        rows: bars
            .iter()
            .map(|bar| (bar.label.clone(), vec![format_value(bar.value)]))
            .collect(),
    })
}
