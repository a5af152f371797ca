//! Line charts.

use std::fmt::Write;

use super::page::{ReportFigure, escape, marker};
use super::scale::{Scale, is_plottable};

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 330.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 34.0;
/// Width of a label below the axis.
const LABEL_WIDTH: f64 = 46.0;

/// A line chart. The vertical axis is logarithmic.
pub(super) struct Chart {
    lines: Vec<ChartLine>,
    floor: Vec<(f64, f64)>,
    /// Formats a value.
    format_value: fn(f64) -> String,
    /// Whether the horizontal axis is logarithmic.
    log_x: bool,
}

/// A line through labelled points.
pub(super) struct ChartLine {
    pub(super) label: String,
    pub(super) colour: usize,
    pub(super) is_emphasized: bool,
    pub(super) points: Vec<(f64, String, f64)>,
}

impl Chart {
    /// Creates a chart of the values that can be plotted on a logarithmic axis: empty messages have
    /// no bytes per second.
    pub(super) fn new(
        lines: impl Iterator<Item = ChartLine>,
        mut floor: Vec<(f64, f64)>,
        format_value: fn(f64) -> String,
        log_x: bool,
    ) -> Self {
        let mut lines: Vec<_> = lines.collect();
        for line in &mut lines {
            line.points.retain(|(_, _, y)| is_plottable(*y));
        }
        lines.retain(|line| !line.points.is_empty());
        floor.retain(|(_, y)| is_plottable(*y));
        Self {
            lines,
            floor,
            format_value,
            log_x,
        }
    }

    /// Renders the chart with its table; `None` without lines.
    pub(super) fn figure(&self, title: &str, caption: &str) -> Option<ReportFigure> {
        if self.lines.is_empty() {
            return None;
        }
        let mut names: Vec<(f64, String)> = self
            .lines
            .iter()
            .flat_map(|line| line.points.iter().map(|(x, name, _)| (*x, name.clone())))
            .collect();
        names.sort_by(|a, b| a.0.total_cmp(&b.0));
        names.dedup_by(|a, b| a.0 == b.0);
        let rows = self.lines.iter().map(|line| {
            let value = |(x, _): &(f64, String)| {
                line.points
                    .iter()
                    .find(|point| point.0 == *x)
                    .map(|point| point.2)
            };
            let cells = names
                .iter()
                .map(|name| value(name).map_or_else(String::new, self.format_value));
            (line.label.clone(), cells.collect())
        });
        Some(ReportFigure {
            title: title.to_owned(),
            caption: caption.to_owned(),
            legend: self
                .lines
                .iter()
                .map(|line| (line.label.clone(), line.colour))
                .collect(),
            dashed_label: (!self.floor.is_empty()).then_some("floor"),
            svg: self.svg(title, &names),
            columns: names.iter().map(|(_, name)| name.clone()).collect(),
            rows: rows.collect(),
        })
    }

    fn svg(&self, title: &str, names: &[(f64, String)]) -> String {
        // A size of 0 has no logarithm, and is drawn at 1.
        let clamped = |x: f64| if self.log_x { x.max(1.0) } else { x };
        let x = Scale::from_values(
            names.iter().map(|(x, _)| clamped(*x)),
            (LEFT, WIDTH - RIGHT),
            self.log_x,
        )
        .padded(0.05);
        let values = self
            .lines
            .iter()
            .flat_map(|line| line.points.iter().map(|point| point.2));
        let y = Scale::from_values(
            values.chain(self.floor.iter().map(|(_, y)| *y)),
            (HEIGHT - BOTTOM, TOP),
            true,
        )
        .padded(0.06);
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            escape(title)
        );
        for tick in y.log_ticks() {
            let (at, right) = (y.position(tick), WIDTH - RIGHT);
            let _ = write!(
                svg,
                "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{right}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 7.0,
                at + 4.5,
                (self.format_value)(tick)
            );
        }
        let mut next_free = f64::NEG_INFINITY;
        for (x_value, name) in names {
            let at = x.position(clamped(*x_value));
            let _ = write!(
                svg,
                "<path class=\"tick\" d=\"M{at:.1} {:.1}v5\"/>",
                HEIGHT - BOTTOM
            );
            if at - LABEL_WIDTH / 2.0 >= next_free {
                next_free = at + LABEL_WIDTH / 2.0;
                let _ = write!(
                    svg,
                    "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                    HEIGHT - 12.0,
                    escape(name)
                );
            }
        }
        let _ = write!(
            svg,
            "<path class=\"axis\" d=\"M{LEFT} {:.1}H{}\"/>",
            HEIGHT - BOTTOM,
            WIDTH - RIGHT
        );
        let path = |points: &mut dyn Iterator<Item = (f64, f64)>| {
            let positions = points
                .map(|(px, py)| format!("{:.1} {:.1}", x.position(clamped(px)), y.position(py)));
            positions.collect::<Vec<_>>().join("L")
        };
        if !self.floor.is_empty() {
            let _ = write!(
                svg,
                "<path class=\"floor\" d=\"M{}\"/>",
                path(&mut self.floor.iter().copied())
            );
        }
        // The fabric's lines are drawn last, on top of the others.
        for is_emphasized in [false, true] {
            for line in self
                .lines
                .iter()
                .filter(|line| line.is_emphasized == is_emphasized)
            {
                let class = if is_emphasized { "line strong" } else { "line" };
                let positions = path(&mut line.points.iter().map(|(px, _, py)| (*px, *py)));
                let _ = write!(
                    svg,
                    "<path class=\"{class} c{}\" d=\"M{positions}\"/>",
                    line.colour % 8
                );
                for (px, name, py) in &line.points {
                    let title = format!("{}, {name}: {}", line.label, (self.format_value)(*py));
                    svg += &marker(
                        line.colour,
                        (x.position(clamped(*px)), y.position(*py)),
                        &title,
                    );
                }
            }
        }
        svg + "</svg>"
    }
}
