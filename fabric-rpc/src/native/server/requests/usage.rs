//! What requests in flight use, and the limits.

/// What requests use, of a client or of all.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RequestUsage {
    /// Of requests whose handlers run.
    pub(super) running: Usage,
    /// Of answers that wait. The client may have the answer already: the fabric reports it later.
    pub(super) waiting: Usage,
    /// The number of refusals that wait. They are short, and do not count among the requests.
    pub(super) refusals: usize,
}

/// A number of requests or answers, and their bytes that are in memory of this process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    pub(super) count: usize,
    pub(super) bytes: usize,
}

impl Usage {
    pub(super) fn add(&mut self, bytes: usize) {
        self.count += 1;
        self.bytes += bytes;
    }

    pub(super) fn remove(&mut self, bytes: usize) {
        self.count -= 1;
        self.bytes -= bytes;
    }
}

/// A limit that a request exceeds.
pub(super) enum Exceeded {
    Count,
    Bytes,
}

impl RequestUsage {
    /// Returns whether no request is in flight.
    pub(super) fn is_drained(&self) -> bool {
        self.running.count + self.waiting.count == 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.is_drained() && self.refusals == 0
    }

    /// Checks the room for the handler of a request of `bytes` bytes. Answers that wait may use
    /// twice as much as the limit. A single request may exceed the limit of bytes.
    pub(super) fn check_room(&self, limit: Usage, bytes: usize) -> Result<(), Exceeded> {
        let Self {
            running, waiting, ..
        } = self;
        if running.count >= limit.count || waiting.count >= limit.count.saturating_mul(2) {
            return Err(Exceeded::Count);
        }
        let is_full = running.bytes > 0 && bytes > limit.bytes.saturating_sub(running.bytes);
        if is_full || waiting.bytes > limit.bytes.saturating_mul(2) {
            return Err(Exceeded::Bytes);
        }
        Ok(())
    }
}
