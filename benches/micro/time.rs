//! Times of the microbenchmarks in nanoseconds: `cargo bench -p fabric-bench --bench time`.

mod idle_peers;
mod loop_alone;
mod many_endpoints;
mod messages;
mod suite;

use criterion::{Criterion, criterion_group, criterion_main};

fn pure_parts(criterion: &mut Criterion) {
    for bench in suite::all() {
        criterion.bench_function(bench.name, |bencher| bencher.iter((bench.prepare)()));
    }
}

criterion_group!(benches, pure_parts);
criterion_main!(benches);
