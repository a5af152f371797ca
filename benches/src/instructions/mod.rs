//! Instructions of the microbenchmarks: counting them, and the table that they are compared with.
//!
//! | file | subject |
//! |---|---|
//! | `callgrind` | counting with Valgrind |
//! | `count_table` | the committed table |

mod callgrind;
mod count_table;

pub use callgrind::{Counts, count};
pub use count_table::CountTable;
