//! The benchmark harness.
//!
//! `cargo run --release -p fabric-bench -- floor`

use std::process::ExitCode;

use fabric_bench::floor;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("floor") => {
            println!("core to core, half round trip  {:>8.1} ns", floor::core_to_core().as_secs_f64() * 1e9);
            for size in [64, 4096, 65536, 1 << 20, 16 << 20] {
                println!("memcpy {size:>10} B            {:>8.2} GB/s", floor::memcpy(size) / 1e9);
            }
            ExitCode::SUCCESS
        }
        other => {
            let what =
                other.map_or_else(|| "no command".into(), |other| format!("unknown command {other:?}"));
            eprintln!("fabric-bench: {what}; known: floor");
            ExitCode::from(2)
        }
    }
}
