//! Output of results: one JSON object per line, or a growing table.

use std::io::{self, Write};

use crate::record::Record;
use crate::{Error, Result, progress_bar, table};

/// Prints results as they come.
#[derive(Debug)]
pub struct Output {
    json: bool,
    has_header: bool,
}

impl Output {
    /// Creates an output of JSON, or of a table.
    #[must_use]
    pub fn new(json: bool) -> Self {
        Self {
            json,
            has_header: false,
        }
    }

    /// Prints one result.
    ///
    /// # Errors
    /// [`Error::OutputClosed`]; stdout cannot be written.
    pub fn emit(&mut self, record: &Record) -> Result<()> {
        progress_bar::clear();
        if self.json {
            return print(&record.to_json()?);
        }
        if !self.has_header {
            self.has_header = true;
            print(&format!(
                "{}\n\n{}",
                table::heading(record),
                table::titles(&record.bench)
            ))?;
        }
        print(&table::row(record))
    }

    /// Prints a note on the results: below the table, or on stderr beside JSON.
    ///
    /// # Errors
    /// As [`Output::emit`].
    pub fn note(&self, text: &str) -> Result<()> {
        if self.json {
            eprintln!("{text}");
            return Ok(());
        }
        print(&format!("\n{text}"))
    }
}

/// Prints a line on stdout.
///
/// # Errors
/// [`Error::OutputClosed`]; stdout cannot be written.
pub fn print(line: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => Error::OutputClosed,
            _ => Error::Io {
                what: "printing".into(),
                error,
            },
        })
}
