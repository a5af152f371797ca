//! Instructions of the microbenchmarks: counting them, and the table that they are compared with.
//!
//! | file | subject |
//! |---|---|
//! | `callgrind` | counting with Valgrind's callgrind |
//! | `critical_path` | counting between two accesses of shared memory, with Valgrind's lackey |
//! | `count_table` | the committed table |

mod callgrind;
mod count_table;
mod critical_path;

pub use callgrind::{Counts, count};
pub use count_table::CountTable;
pub use critical_path::{Section, count_critical_path, describe_process};
