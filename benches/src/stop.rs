//! Ctrl-C: the first requests an orderly stop, the second ends the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tokio::signal::unix::{SignalKind, signal};

use crate::error::EXIT_INTERRUPTED;
use crate::options::RuntimeKind;
use crate::{Error, Result};

/// A flag that requests the end of the work.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Creates a flag that Ctrl-C raises.
    ///
    /// # Errors
    /// [`Error::Io`] if the system has no thread or descriptor left.
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

    /// Requests the end.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Fails if the end was requested.
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

    /// Whether the end was requested.
    #[must_use]
    pub fn raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
