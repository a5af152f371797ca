//! Connects of a connectionless endpoint that are tried again, because the listener could take no
//! connection (`connect_retry`). Operations for the peer wait in its queue meanwhile.

use std::time::Instant;

use fabric_core::event::DownReason;
use fabric_core::transport::{EndpointContext, EngineContext};
use fabric_core::{Error, Result};

use super::super::token::ShmToken;
use super::super::tx_connection::ConnectionEnd;
use super::ShmEndpoint;
use crate::sys::timer::Timer;

/// The connections that an endpoint connects again later.
#[derive(Default)]
pub(super) struct ConnectRetries {
    /// Expires at the earliest next try. `None` until the endpoint has connected again.
    timer: Option<Timer>,
    /// Indices in the connection table. One whose connection was closed meanwhile is ignored.
    tx_indices: Vec<usize>,
}

impl ShmEndpoint {
    /// Adds a connection that has a next try.
    ///
    /// # Errors
    /// [`Error::Os`] if no timer can be created. The connection has no next try then.
    pub(super) fn add_connect_retry(&mut self, tx_index: usize) -> Result<()> {
        if self.connect_retries.timer.is_none() {
            let timer = Timer::new(&self.wait_set, ShmToken::Timer.pack(self.id));
            if timer.is_err()
                && let Some(mut tx) = self.tx_connections.lock(tx_index)
            {
                tx.cancel_retry();
            }
            self.connect_retries.timer = Some(timer?);
        }
        if !self.connect_retries.tx_indices.contains(&tx_index) {
            self.connect_retries.tx_indices.push(tx_index);
        }
        self.arm_retry_timer();
        Ok(())
    }

    /// Sets the timer to the earliest next try.
    fn arm_retry_timer(&self) {
        let tries = self.connect_retries.tx_indices.iter();
        let tries = tries.filter_map(|&tx_index| self.tx_connections.lock(tx_index)?.next_try());
        let next = tries.min();
        if let Some(timer) = &self.connect_retries.timer {
            timer.set(next.map(|next| next.saturating_duration_since(Instant::now())));
        }
    }

    /// Handles the timer: connects to the peers whose next try is due.
    pub(super) fn retry_connects(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        let now = Instant::now();
        for tx_index in std::mem::take(&mut self.connect_retries.tx_indices) {
            let Some(mut tx) = self.tx_connections.lock(tx_index) else {
                continue;
            };
            let Some(next) = tx.next_try() else {
                continue;
            };
            let tried = if next <= now {
                tx.try_connect(self.local_end(tx_index))
            } else {
                Ok(())
            };
            let must_retry = tx.next_try().is_some();
            drop(tx);
            match tried {
                Ok(()) if must_retry => self.connect_retries.tx_indices.push(tx_index),
                Ok(()) => {}
                Err(error) => self.on_connect_refused(ctx, tx_index, error),
            }
        }
        self.arm_retry_timer();
    }

    /// Handles a connect that is not tried again: the operations for the peer fail.
    pub(super) fn on_connect_refused(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        tx_index: usize,
        error: Error,
    ) {
        let end = ConnectionEnd {
            error,
            reason: DownReason::Closed,
            identity: None,
        };
        self.on_tx_ended(ctx, tx_index, end);
    }
}
