//! Instruction counts of the microbenchmarks: `cargo bench -p fabric-bench --bench instructions`.
//!
//! Counts are stable where times are not. Valgrind's callgrind runs this program once for each
//! benchmark, and counts only within [`repeat`], not while the program starts and prepares. A
//! benchmark that names its counted functions is counted in these, which includes the warm-up.
//!
//! Columns: all instructions of an operation; those of the benchmark's own code (`of the loop`);
//! and atomic read-modify-writes (`atomic`).
//!
//! `-- --check FILE` compares the counts with a table and fails when a row has grown;
//! `-- --update FILE` writes the table. Arguments that are no options select the rows that contain
//! one of them.

mod idle_peers;
mod messages;
mod suite;

use std::hint::black_box;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use fabric_bench::instructions::{self, CountTable, Counts};
use suite::Microbench;

/// Repetitions before counting begins.
const WARM_UP: u64 = 100;
const REPETITIONS: u64 = 1_000;

/// What to do with the counts.
#[derive(Default)]
struct Options {
    check: Option<PathBuf>,
    update: Option<PathBuf>,
    /// Parts of the names of the rows to count; all rows without any.
    rows: Vec<String>,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match &args[..] {
        [flag, index] if flag == "--work" => run_one(index),
        _ => parse_options(args).and_then(|options| count_all(&options)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn parse_options(args: Vec<String>) -> Result<Options, String> {
    let mut options = Options::default();
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let mut file = || {
            let file = args.next().map(PathBuf::from);
            file.ok_or_else(|| format!("{arg} needs the file of the table"))
        };
        match &arg[..] {
            "--check" => options.check = Some(file()?),
            "--update" => options.update = Some(file()?),
            // Cargo passes `--bench`, and `--test` when it only checks that this runs.
            "--bench" | "--test" => {}
            _ if arg.starts_with('-') => return Err(format!("unknown option {arg}")),
            _ => options.rows.push(arg),
        }
    }
    Ok(options)
}

/// Prepares the benchmark with this index and repeats it: the program that callgrind runs.
fn run_one(index: &str) -> Result<(), String> {
    let benches = suite::all();
    let parsed = index.parse::<usize>().ok();
    let Some(bench) = parsed.and_then(|index| benches.get(index)) else {
        return Err(format!("usage: --work INDEX, below {}", benches.len()));
    };
    let mut work = (bench.prepare)();
    for _ in 0..WARM_UP {
        black_box(work());
    }
    repeat(&mut work);
    Ok(())
}

#[inline(never)] // counted by its name
fn repeat(work: &mut suite::Work) {
    for _ in 0..REPETITIONS {
        black_box(work());
    }
}

fn count_all(options: &Options) -> Result<(), String> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: valgrind is not installed; on Debian: apt-get install valgrind");
        return Ok(());
    }
    let mut table = CountTable::of_this_compiler();
    println!("{:<44} instructions  of the loop  atomic", "");
    for (number, bench) in suite::all().iter().enumerate() {
        let is_selected = |part: &String| bench.name.contains(part.as_str());
        if !options.rows.is_empty() && !options.rows.iter().any(is_selected) {
            continue;
        }
        let counts = count(number, bench).map_err(|why| format!("{}: {why}", bench.name))?;
        println!(
            "{:<44} {:>12.1} {:>12.1} {:>7.1}",
            bench.name, counts.instructions, counts.in_loop, counts.atomics
        );
        table.push(bench.name, counts);
    }
    if let Some(file) = &options.update {
        table.write(file)?;
    }
    match &options.check {
        Some(file) => table.check_growth(&CountTable::read(file)?),
        None => Ok(()),
    }
}

/// Counts one operation of a benchmark.
fn count(number: usize, bench: &Microbench) -> Result<Counts, String> {
    let args = ["--work", &number.to_string()];
    let (functions, repetitions) = match bench.counted {
        Some(functions) => (functions, WARM_UP + REPETITIONS),
        None => ("instructions::repeat", REPETITIONS),
    };
    let counts = instructions::count(&args, functions)?;
    Ok(counts.per_operation(repetitions * bench.operations))
}
