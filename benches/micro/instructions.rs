//! Instruction counts of the microbenchmarks: `cargo bench -p fabric-bench --bench instructions`.
//!
//! Counts are stable where times are not. Valgrind's callgrind runs this program twice for each
//! benchmark, with few and with many repetitions; the difference is the cost of the repetitions
//! without start-up and preparation.

mod idle_peers;
mod messages;
mod suite;

use std::hint::black_box;
use std::process::{Command, ExitCode};

const FEW: u64 = 100;
const MANY: u64 = 1_100;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [flag, number, times] if flag == "--work" => {
            let (Ok(number), Ok(times)) = (number.parse::<usize>(), times.parse::<u64>()) else {
                eprintln!("usage: --work INDEX REPETITIONS");
                return ExitCode::from(2);
            };
            if let Some((_, work)) = suite::all().get_mut(number) {
                for _ in 0..times {
                    black_box(work());
                }
            }
            ExitCode::SUCCESS
        }
        // Cargo passes `--bench`, and `--test` when it only checks that this runs.
        _ => count_all(),
    }
}

fn count_all() -> ExitCode {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: valgrind is not installed; on Debian: apt-get install valgrind");
        return ExitCode::SUCCESS;
    }
    println!("{:<36} instructions", "");
    for (number, (name, _)) in suite::all().iter().enumerate() {
        match (instructions(number, FEW), instructions(number, MANY)) {
            (Ok(few), Ok(many)) => println!(
                "{name:<36} {:>12.1}",
                (many - few) as f64 / (MANY - FEW) as f64
            ),
            (Err(why), _) | (_, Err(why)) => {
                eprintln!("{name}: {why}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

/// Returns the instructions of a whole run with so many repetitions.
fn instructions(number: usize, times: u64) -> Result<i64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(["--work", &number.to_string(), &times.to_string()])
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let counted = text
        .lines()
        .find_map(|line| line.split("Collected :").nth(1)?.trim().parse().ok());
    counted.ok_or_else(|| format!("valgrind ({}) counted nothing:\n{text}", output.status))
}
