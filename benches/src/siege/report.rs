//! The table of a siege.

use std::time::Duration;

use super::ALL_AT_ONCE_PARTS;
use super::provider::SiegeProvider;
use super::server::PROGRESS_TIMEOUT;
use super::slice::SliceOutcome;
use crate::table::format_cells;

/// The goal for the 99th percentile, as a multiple of that of the quiet slice.
const MAX_P99_RATIO: f64 = 3.0;

/// Explains the columns.
pub(super) const LEGEND: &str = "\
actions: what the attackers did: connections, requests for one, messages or accesses. p99 and max:
round trips of the honest clients; a request that a slow one delayed counts as late, too. x quiet:
p99 divided by that of the row quiet. The goal is at most 3; `!` marks a value above it. Such a
value does not fail the command, because other programs of the machine delay the clients as well.
x busy: p99 divided by that beside as many processes that only use the processor, as the row above
the attacks shows it. What is in `x quiet` and not in `x busy` is the share of the processors.
memory (private) and shared (both MiB), descriptors and mappings are those of the server: the
highest sample, and the value after the attackers have ended. A row with findings is followed by a
new server.";

/// Width of the first column.
const NAME_WIDTH: usize = 20;

/// Titles and widths of the columns.
const COLUMNS: [(&str, usize); 13] = [
    ("attack", NAME_WIDTH),
    ("actions", 9),
    ("requests", 8),
    ("lost", 5),
    ("retries", 7),
    ("p99 us", 9),
    ("max ms", 8),
    ("x quiet", 8),
    ("x busy", 8),
    ("memory", 13),
    ("shared", 13),
    ("descriptors", 11),
    ("mappings", 11),
];

/// Returns the heading of the table of a provider, with its limits.
pub(super) fn heading(provider: SiegeProvider, attacks: usize, slice_time: Duration) -> String {
    let (limits, after) = (provider.limits(), provider.limits_after());
    let mebibytes = |bytes: u64| bytes >> 20;
    let all_at_once = match attacks {
        0 | 1 => String::new(),
        _ => format!(
            ", all at once {:.2} s",
            (slice_time * ALL_AT_ONCE_PARTS).as_secs_f64()
        ),
    };
    let titles = format_cells(
        COLUMNS
            .iter()
            .map(|(title, width)| ((*title).to_owned(), *width)),
    );
    format!(
        "{}: slices of {:.2} s{all_at_once}; progress timeout of the server {} s\n\
         limits above the row quiet: {} MiB, {} MiB shared, {} descriptors, {} mappings; after an \
         attack {} MiB, {} MiB shared, {} descriptors, {} mappings\n\n\
         {titles}  counted by the server",
        provider.name(),
        slice_time.as_secs_f64(),
        PROGRESS_TIMEOUT.as_secs_f64(),
        mebibytes(limits.memory),
        mebibytes(limits.shared_memory),
        limits.descriptors,
        limits.mappings,
        mebibytes(after.memory),
        mebibytes(after.shared_memory),
        after.descriptors,
        after.mappings,
    )
}

/// Returns the row of a slice.
pub(super) fn row(name: &str, outcome: &SliceOutcome) -> String {
    let SliceOutcome {
        actions,
        clients,
        quiet_ratio,
        busy_ratio,
        peak,
        after,
        stats,
        ..
    } = outcome;
    let scaled = |ns: Option<f64>, unit: f64| {
        ns.map_or_else(|| "-".to_owned(), |ns| format!("{:.1}", ns / unit))
    };
    let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let cells = [
        format!("{name:<NAME_WIDTH$}"),
        actions.map_or_else(|| "-".to_owned(), |count| count.to_string()),
        clients.requests.to_string(),
        clients.lost.to_string(),
        clients.retries.to_string(),
        scaled(clients.p99_ns(), 1e3),
        scaled(clients.max_ns(), 1e6),
        format_p99_ratio(*quiet_ratio),
        format_p99_ratio(*busy_ratio),
        format!(
            "{:.1}/{:.1}",
            mebibytes(peak.memory),
            mebibytes(after.memory)
        ),
        format!(
            "{:.1}/{:.1}",
            mebibytes(peak.shared_memory),
            mebibytes(after.shared_memory)
        ),
        format!("{}/{}", peak.descriptors, after.descriptors),
        format!("{}/{}", peak.mappings, after.mappings),
    ];
    let widths = COLUMNS.iter().map(|(_, width)| *width);
    let cells = format_cells(cells.into_iter().zip(widths));
    format!("{cells}  {}", stats.describe())
        .trim_end()
        .to_owned()
}

/// Formats a multiple of a reference slice, and marks it above the goal.
fn format_p99_ratio(ratio: Option<f64>) -> String {
    let mark = |ratio: f64| if ratio > MAX_P99_RATIO { "!" } else { "" };
    ratio.map_or_else(
        || "-".to_owned(),
        |ratio| format!("{ratio:.2}{}", mark(ratio)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::siege::client::ClientReport;
    use crate::siege::server::ServerStats;
    use crate::siege::usage::ProcessUsage;

    #[test]
    fn ratios_above_the_goal_are_marked() {
        assert_eq!(format_p99_ratio(Some(3.0)), "3.00");
        assert_eq!(format_p99_ratio(Some(3.25)), "3.25!");
        assert_eq!(format_p99_ratio(None), "-");
    }

    #[test]
    fn row_has_a_cell_for_each_column() {
        let usage = ProcessUsage {
            memory: 3 << 20,
            shared_memory: 2 << 20,
            descriptors: 11,
            mappings: 70,
        };
        let outcome = SliceOutcome {
            actions: Some(12),
            clients: ClientReport::new(),
            quiet_ratio: None,
            busy_ratio: None,
            peak: usage,
            after: usage,
            stats: ServerStats {
                refused: 4,
                ..ServerStats::default()
            },
            findings: Vec::new(),
        };
        let row = row("connections", &outcome);
        let cells: Vec<_> = row.split_ascii_whitespace().collect();
        let expected = [
            "connections",
            "12",
            "0",
            "0",
            "0",
            "-",
            "-",
            "-",
            "-",
            "3.0/3.0",
            "2.0/2.0",
            "11/11",
            "70/70",
            "4",
            "refused",
        ];
        assert_eq!(cells, expected);
        let heading = heading(SiegeProvider::Udp, 3, Duration::from_secs(1));
        assert!(heading.contains("all at once 2.00 s"), "{heading}");
    }
}
