//! A progress line on the terminal.

use std::io::{IsTerminal, Write, stderr};

/// Width of the bar.
const BAR_WIDTH: usize = 24;

/// Shows what is measured and which part is done; nothing if stderr is no terminal.
pub fn show(what: &str, part: f64) {
    let mut err = stderr();
    if err.is_terminal() {
        let full = (part.clamp(0.0, 1.0) * BAR_WIDTH as f64) as usize;
        let _ = write!(
            err,
            "\r{what:<34} {}{}",
            "█".repeat(full),
            "░".repeat(BAR_WIDTH - full)
        );
        let _ = err.flush();
    }
}

/// Erases the line.
pub fn clear() {
    let mut err = stderr();
    if err.is_terminal() {
        let _ = write!(err, "\r{:1$}\r", "", 35 + BAR_WIDTH);
        let _ = err.flush();
    }
}
