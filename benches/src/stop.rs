//! Ctrl-C: the first asks for an orderly end, the second ends at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::choice::Runtime;
use crate::{Error, Result};

/// The exit code of a process that was interrupted.
const INTERRUPTED: i32 = 130;

/// Whether the work should come to an end.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Raised by Ctrl-C from now on.
    ///
    /// # Errors
    /// The system has no thread or descriptor left.
    pub fn on_ctrl_c() -> Result<Self> {
        let stop = Self::default();
        let raised = stop.clone();
        let runtime = Runtime::Current.build().map_err(Error::io("starting a runtime"))?;
        let wait = move || {
            runtime.block_on(async {
                if tokio::signal::ctrl_c().await.is_ok() {
                    raised.raise();
                    if tokio::signal::ctrl_c().await.is_ok() {
                        std::process::exit(INTERRUPTED);
                    }
                }
            });
        };
        thread::Builder::new().name("ctrl-c".into()).spawn(wait).map_err(Error::io("starting a thread"))?;
        Ok(stop)
    }

    /// Asks for the end.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the end was asked for.
    #[must_use]
    pub fn raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
