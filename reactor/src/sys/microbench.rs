//! The type of microbenchmarks.

/// Performs an operation once. The result keeps the compiler from optimising the operation away.
pub type Work = Box<dyn FnMut() -> usize>;

/// A microbenchmark: its name, and the function that prepares its work, which panics when the
/// system cannot allocate shared memory.
pub type Microbench = (&'static str, fn() -> Work);
