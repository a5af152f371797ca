//! The committed table of instruction counts, and the check that no row has grown.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use super::Counts;

/// The growth of a row at which the check fails.
const MAX_GROWTH: f64 = 0.03;
/// The growth in instructions up to which the check accepts any row: short rows vary by a few.
const MAX_SMALL_GROWTH: f64 = 2.0;
/// The first line of the file is this, and the compiler.
const COMPILER_KEY: &str = "compiler\t";

/// Instruction counts of the benchmarks, in their order. Counts of two compilers do not compare.
#[derive(Debug, PartialEq)]
pub struct CountTable {
    compiler: String,
    rows: Vec<Row>,
}

#[derive(Clone, Debug, PartialEq)]
struct Row {
    name: String,
    instructions: f64,
    atomics: f64,
}

impl CountTable {
    /// Creates an empty table of the compiler that has built this program.
    #[must_use]
    pub fn of_this_compiler() -> Self {
        let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
        let version = Command::new(rustc).arg("--version").output();
        let version = version.map_or_else(
            |_| String::new(),
            |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        );
        Self {
            compiler: format!("{version}, {}", std::env::consts::ARCH),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn push(&mut self, name: &str, counts: Counts) {
        self.rows.push(Row {
            name: name.into(),
            instructions: counts.instructions,
            atomics: counts.atomics,
        });
    }

    /// Reads a table.
    ///
    /// # Errors
    /// The file and the line that cannot be read.
    pub fn read(file: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| format!("{}: {error}", file.display()))?;
        Self::parse(&text).map_err(|line| format!("{}: malformed line {line:?}", file.display()))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default();
        let compiler = first
            .strip_prefix(COMPILER_KEY)
            .ok_or_else(|| first.to_owned())?;
        let row = |line: &str| {
            let mut fields = line.split('\t');
            let (name, instructions) = (fields.next()?, fields.next()?.parse().ok()?);
            Some(Row {
                name: name.into(),
                instructions,
                atomics: fields.next()?.parse().ok()?,
            })
        };
        Ok(Self {
            compiler: compiler.into(),
            rows: lines
                .map(|line| row(line).ok_or_else(|| line.to_owned()))
                .collect::<Result<_, _>>()?,
        })
    }

    fn format(&self) -> String {
        let mut text = format!("{COMPILER_KEY}{}\n", self.compiler);
        for row in &self.rows {
            let _ = writeln!(
                text,
                "{}\t{:.1}\t{:.1}",
                row.name, row.instructions, row.atomics
            );
        }
        text
    }

    /// Writes the table.
    ///
    /// # Errors
    /// The file that cannot be written, and why.
    pub fn write(&self, file: &Path) -> Result<(), String> {
        std::fs::write(file, self.format()).map_err(|error| format!("{}: {error}", file.display()))
    }

    /// Compares the counted rows with those of the committed table. Rows of a table of another
    /// compiler are not compared.
    ///
    /// # Errors
    /// The rows that have grown, and rows that the table lacks.
    pub fn check_growth(&self, committed: &Self) -> Result<(), String> {
        if self.compiler != committed.compiler {
            println!(
                "not compared: the table is of {}, this program of {}",
                committed.compiler, self.compiler
            );
            return Ok(());
        }
        let mut failures = String::new();
        for row in &self.rows {
            let Some(old) = committed.rows.iter().find(|old| old.name == row.name) else {
                let _ = writeln!(failures, "{}: not in the table", row.name);
                continue;
            };
            let limit =
                (old.instructions * (1.0 + MAX_GROWTH)).max(old.instructions + MAX_SMALL_GROWTH);
            if row.instructions > limit {
                let _ = writeln!(
                    failures,
                    "{}: {:.1} instructions, the table has {:.1}",
                    row.name, row.instructions, old.instructions
                );
            }
            if row.atomics > old.atomics + 0.05 {
                let _ = writeln!(
                    failures,
                    "{}: {:.1} atomic read-modify-writes, the table has {:.1}",
                    row.name, row.atomics, old.atomics
                );
            }
        }
        if failures.is_empty() {
            println!("no row has grown by more than {:.0} %", MAX_GROWTH * 100.0);
            return Ok(());
        }
        Err(format!(
            "rows have grown; if that is intended, write the table with --update:\n{failures}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(instructions: f64, atomics: f64) -> CountTable {
        let mut table = CountTable {
            compiler: "rustc 1, x86_64".into(),
            rows: Vec::new(),
        };
        let counts = Counts {
            instructions,
            in_loop: 0.0,
            atomics,
        };
        table.push("awaited/shared", counts);
        table
    }

    #[test]
    fn rows_that_grow_by_more_than_three_percent_fail() {
        let committed = table(1000.0, 4.0);
        assert!(table(1029.0, 4.0).check_growth(&committed).is_ok());
        assert!(table(1031.0, 4.0).check_growth(&committed).is_err());
        assert!(
            table(900.0, 5.0).check_growth(&committed).is_err(),
            "atomics"
        );
        assert!(table(61.5, 0.0).check_growth(&table(60.0, 0.0)).is_ok());
    }

    #[test]
    fn rows_that_the_table_lacks_fail() {
        let mut committed = table(1000.0, 4.0);
        committed.rows.clear();
        assert!(table(1000.0, 4.0).check_growth(&committed).is_err());
    }

    #[test]
    fn tables_of_other_compilers_are_not_compared() {
        let mut committed = table(1.0, 0.0);
        committed.compiler = "rustc 2, x86_64".into();
        assert!(table(1000.0, 4.0).check_growth(&committed).is_ok());
    }

    #[test]
    fn written_table_is_read_again() {
        let table = table(1606.7, 7.1);
        assert_eq!(CountTable::parse(&table.format()), Ok(table));
        let malformed = CountTable::parse("compiler\trustc 1\nawaited\tmany\t3\n");
        assert_eq!(malformed, Err("awaited\tmany\t3".into()));
    }
}
