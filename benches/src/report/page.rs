//! The page around the charts.

use std::fmt::Write;

use super::scale::time_text;
use super::series::{self, Series};
use crate::record::Record;
use crate::size::Size;
use crate::table::ratio;

const STYLE: &str = include_str!("page.css");

/// A chart with title, caption, legend and table.
pub(super) struct ReportFigure {
    pub(super) title: String,
    pub(super) caption: String,
    /// Labels, and the indices of their colours.
    pub(super) legend: Vec<(String, usize)>,
    /// The label of the dashed line.
    pub(super) dashed_label: Option<&'static str>,
    pub(super) svg: String,
    /// The values as a table.
    pub(super) columns: Vec<String>,
    pub(super) rows: Vec<(String, Vec<String>)>,
}

/// Renders the page.
pub(super) fn html(latencies: &[Series], figures: &[ReportFigure], records: &[Record]) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>Fabric, measured</title>\n<style>\n{STYLE}</style>\n<main>\n<h1>Fabric, \
         measured</h1>\n"
    );
    page += &headline(latencies);
    page += "<div class=\"figures\">\n";
    for figure in figures {
        page += &figure.html();
    }
    page += "</div>\n";
    let _ = writeln!(
        page,
        "<footer>{} results. The floor was measured in the same run and on the same cores as the \
         fabric. Of repeated \
         runs the median one is shown, and the median floor.</footer>\n</main>\n</html>",
        records.len()
    );
    page
}

/// Renders, in large type, the latency of the smallest message of the first three lines of the
/// fabric.
fn headline(latencies: &[Series]) -> String {
    let (mut text, floor) = (String::new(), series::floor_by_size(latencies));
    for line in latencies.iter().filter(|line| line.is_fabric).take(3) {
        let Some((size, record)) = line.points.first_key_value() else {
            continue;
        };
        let Some(ns) = record.typical_ns() else {
            continue;
        };
        let floor = floor.get(size).copied();
        let _ = writeln!(
            text,
            "<p class=\"lead\"><b>{}</b> half round trip of {} over {}<br><span>{} times the \
             floor of this machine, {}</span></p>",
            time_text(ns),
            Size(*size),
            escape(&line.label),
            ratio(Some(ns), floor),
            floor.map_or_else(|| "unknown".into(), time_text),
        );
    }
    text
}

impl ReportFigure {
    fn html(&self) -> String {
        let Self { svg, caption, .. } = self;
        let mut html = format!(
            "<figure>\n<h2>{}</h2>\n<figcaption>{}</figcaption>\n",
            escape(&self.title),
            escape(caption)
        );
        if !self.legend.is_empty() {
            html += "<ul class=\"legend\">";
            for (label, colour) in &self.legend {
                let mark = marker(*colour, (11.0, 7.0), label);
                let _ = write!(
                    html,
                    "<li><svg viewBox=\"0 0 22 14\" aria-hidden=\"true\"><path class=\"line c{}\" \
                     d=\"M0 7H22\"/>{mark}</svg>{}</li>",
                    colour % 8,
                    escape(label)
                );
            }
            if let Some(name) = self.dashed_label {
                let _ = write!(
                    html,
                    "<li><svg viewBox=\"0 0 22 14\" aria-hidden=\"true\"><path class=\"floor\" \
                     d=\"M0 7H22\"/></svg>{name}</li>"
                );
            }
            html += "</ul>\n";
        }
        html += svg;
        html += "\n<details><summary>Numbers</summary><div class=\"wide\"><table><tr><th></th>";
        for column in &self.columns {
            let _ = write!(html, "<th>{}</th>", escape(column));
        }
        for (label, cells) in &self.rows {
            let _ = write!(html, "</tr>\n<tr><th>{}</th>", escape(label));
            for cell in cells {
                let _ = write!(html, "<td>{}</td>", escape(cell));
            }
        }
        html + "</tr></table></div></details>\n</figure>\n"
    }
}

/// Renders a point, with its own shape and colour, so that lines can be told apart without colour.
pub(super) fn marker(number: usize, (x, y): (f64, f64), title: &str) -> String {
    let shape = match number % 4 {
        0 => "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0",
        1 => "m-3.6-3.6h7.2v7.2h-7.2z",
        2 => "m0-5l5 5l-5 5l-5-5z",
        _ => "m0-4.8l4.6 8h-9.2z",
    };
    format!(
        "<path class=\"mark c{}\" d=\"M{x:.1} {y:.1}{shape}\"><title>{}</title></path>",
        number % 8,
        escape(title)
    )
}

/// Escapes text for HTML, attributes included.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
