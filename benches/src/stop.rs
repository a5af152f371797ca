//! Ctrl-C: the first asks for an orderly end, the second ends at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tokio::signal::unix::{SignalKind, signal};

use crate::error::EXIT_INTERRUPTED;
use crate::options::RuntimeKind;
use crate::{Error, Result};

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
        let runtime = RuntimeKind::Current
            .build()
            .map_err(Error::io("starting a runtime"))?;
        let listening = runtime.block_on(async { signal(SignalKind::interrupt()) });
        let mut interrupts = listening.map_err(Error::io("listening to Ctrl-C"))?;
        let wait = move || {
            runtime.block_on(async {
                if interrupts.recv().await.is_some() {
                    raised.raise();
                    if interrupts.recv().await.is_some() {
                        std::process::exit(EXIT_INTERRUPTED.into());
                    }
                }
            });
        };
        thread::Builder::new()
            .name("ctrl-c".into())
            .spawn(wait)
            .map_err(Error::io("starting a thread"))?;
        Ok(stop)
    }

    /// Asks for the end.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Says that the work came to an early end, if it did.
    ///
    /// # Errors
    /// [`Error::Interrupted`].
    pub fn check(&self) -> Result<()> {
        if self.raised() {
            Err(Error::Interrupted)
        } else {
            Ok(())
        }
    }

    /// Whether the end was asked for.
    #[must_use]
    pub fn raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
