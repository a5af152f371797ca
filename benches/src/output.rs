//! Where results go: one JSON object a line, or a table that grows.

use std::io::{self, Write};

use crate::record::Record;
use crate::{Error, Result, progress, table};

/// Prints results as they come.
#[derive(Debug)]
pub struct Output {
    json: bool,
    began: bool,
}

impl Output {
    /// JSON, or a table.
    #[must_use]
    pub fn new(json: bool) -> Self {
        Self { json, began: false }
    }

    /// Prints one result.
    ///
    /// # Errors
    /// [`Error::NobodyReads`]; the disk is full.
    pub fn emit(&mut self, record: &Record) -> Result<()> {
        progress::clear();
        if self.json {
            return print(&record.to_json()?);
        }
        if !self.began {
            self.began = true;
            print(&format!(
                "{}\n\n{}",
                table::heading(record),
                table::titles(&record.bench)
            ))?;
        }
        print(&table::row(record))
    }

    /// Says something about the results: below the table, or on stderr beside JSON.
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
/// [`Error::NobodyReads`]; the disk is full.
pub fn print(line: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => Error::NobodyReads,
            _ => Error::Io {
                what: "printing".into(),
                error,
            },
        })
}
