//! Instruction counts of the microbenchmarks: `cargo bench -p fabric-bench --bench instructions`.
//!
//! Counts are stable where times are not. Valgrind's callgrind runs this program once for each
//! benchmark, and counts only within [`repeat`], not while the program starts and prepares. A
//! benchmark that names its counted functions is counted in these, which includes the warm-up. The
//! path from header to header is counted in a trace of few repetitions, by Valgrind's lackey.
//!
//! Columns: all instructions of an operation; those of the benchmark's own code (`of the loop`);
//! and atomic read-modify-writes (`atomic`).
//!
//! `-- --check FILE` compares the counts with a table and fails when a row has grown;
//! `-- --update FILE` writes the table. Arguments that are no options select the rows that contain
//! one of them.

mod idle_peers;
mod loop_alone;
mod many_endpoints;
mod messages;
mod suite;

use std::hint::black_box;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use fabric_bench::instructions::{self, CountTable, Counts};
use suite::Microbench;

/// Repetitions before counting begins.
const WARM_UP: u64 = 100;
const REPETITIONS: u64 = 1_000;
/// Repetitions of a traced run, and how many of them, the last, are counted.
const TRACED_REPETITIONS: u64 = 4;
const COUNTED_OF_TRACED: u64 = 2;

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
        [flag, index] if flag == "--trace" => run_traced(index),
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
    let mut work = prepare(index)?;
    for _ in 0..WARM_UP {
        black_box(work());
    }
    repeat(&mut work);
    Ok(())
}

/// Prepares the benchmark with this index, describes the process on the standard output, and
/// repeats the benchmark a few times: the program that lackey runs.
fn run_traced(index: &str) -> Result<(), String> {
    let mut work = prepare(index)?;
    println!("{}", instructions::describe_process()?);
    for _ in 0..TRACED_REPETITIONS {
        black_box(work());
    }
    Ok(())
}

fn prepare(index: &str) -> Result<suite::Work, String> {
    let benches = suite::all();
    let parsed = index.parse::<usize>().ok();
    match parsed.and_then(|index| benches.get(index)) {
        Some(bench) => Ok((bench.prepare)()),
        None => Err(format!("the index is not below {}", benches.len())),
    }
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
    let benches = suite::all();
    let is_selected = |bench: &Microbench| {
        options.rows.is_empty()
            || options
                .rows
                .iter()
                .any(|part| bench.name.contains(&part[..]))
    };
    let selected = benches.iter().enumerate();
    let selected: Vec<_> = selected.filter(|(_, bench)| is_selected(bench)).collect();
    let mut table = CountTable::of_this_compiler();
    println!("{:<52} instructions  of the loop  atomic", "");
    for ((_, bench), counts) in selected.iter().zip(count_concurrently(&selected)) {
        let counts = counts.map_err(|why| format!("{}: {why}", bench.name))?;
        println!(
            "{:<52} {:>12.1} {:>12.1} {:>7.1}",
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

/// Counts one operation of each benchmark, as many at a time as there are processors. Returns the
/// counts in the order of the benchmarks.
fn count_concurrently(benches: &[(usize, &Microbench)]) -> Vec<Result<Counts, String>> {
    let next = AtomicUsize::new(0);
    let count_some = || {
        let at = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
        at.map_while(|at| {
            benches
                .get(at)
                .map(|(number, bench)| (at, count(*number, bench)))
        })
        .collect::<Vec<_>>()
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let mut counts: Vec<_> = thread::scope(|scope| {
        let counting: Vec<_> = (0..threads).map(|_| scope.spawn(count_some)).collect();
        let ended = counting.into_iter();
        ended
            .flat_map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    counts.sort_by_key(|(at, _)| *at);
    counts.into_iter().map(|(_, counts)| counts).collect()
}

/// Counts one operation of a benchmark.
fn count(number: usize, bench: &Microbench) -> Result<Counts, String> {
    let number = number.to_string();
    let args = ["--work", &number];
    let (functions, repetitions) = match bench.counted {
        Some(functions) => (functions, WARM_UP + REPETITIONS),
        None => ("instructions::repeat", REPETITIONS),
    };
    if bench.is_header_to_header {
        let (traced_args, messages) = (["--trace", &number], COUNTED_OF_TRACED * bench.operations);
        return instructions::count_critical_path(
            &args,
            functions,
            &traced_args,
            messages as usize,
        );
    }
    let counts = instructions::count(&args, functions)?;
    Ok(counts.per_operation(repetitions * bench.operations))
}
