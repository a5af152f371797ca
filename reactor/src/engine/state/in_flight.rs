//! Buffers that the kernel reads in place: zero-copy sends over io_uring.
//!
//! The buffer is taken out of its operation while the kernel reads it (`take_buffer`), also after
//! the operation, the connection, the endpoint or the domain has ended. The completion of the
//! operation is deferred until the kernel no longer reads the buffer (`return_buffer`). If the
//! endpoint has closed meanwhile, the completion goes to the queue and the counter that the
//! endpoint was bound to.

use fabric_core::buf::AnyBuf;
use fabric_core::completion::Outcome;
use fabric_core::transport::{EpId, OpKey, RxEngine};

use super::bindings::{CounterId, CqId};
use super::domain_state::DomainState;

/// What is done with an operation when the kernel no longer reads its buffer.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    /// The outcome, if the operation has ended.
    outcome: Option<Outcome>,
    /// Where the completion goes if the endpoint has closed.
    orphan_target: Option<OrphanTarget>,
}

/// Where an operation is reported whose endpoint has closed.
#[derive(Clone, Copy, Debug)]
struct OrphanTarget {
    cq: Option<CqId>,
    counter: Option<CounterId>,
}

impl InFlight {
    /// Stores the outcome of the operation until its buffer is returned.
    #[cold]
    pub(crate) fn defer(&mut self, outcome: Outcome) {
        self.outcome.get_or_insert(outcome);
    }
}

impl DomainState {
    /// Puts the buffer back into its operation, and completes the operation if it has ended.
    pub(crate) fn reattach_buffer(&mut self, key: OpKey, buf: AnyBuf) {
        let in_flight = match self.ops.return_buffer(key, buf) {
            Ok(in_flight) => in_flight,
            Err(buf) => return self.deferred.drop_buffer(buf),
        };
        let Some(outcome) = in_flight.outcome else {
            return;
        };
        let Some(OrphanTarget { cq, counter }) = in_flight.orphan_target else {
            return self.complete(key, outcome);
        };
        let ok = outcome.error.is_none();
        self.counters.count(counter, ok, &mut self.deferred);
        self.release_op_resources(key);
        self.report_op(key, outcome, cq);
    }

    /// Sets the orphan target of an endpoint's in-flight operations before the endpoint is removed:
    /// its completion queue and counter.
    pub(crate) fn redirect_in_flight_completions(&mut self, ep: EpId) {
        let Some(bindings) = self.endpoints.get(ep).map(|ep| ep.bindings()) else {
            return;
        };
        for (kind, in_flight) in self.ops.in_flight_of(ep) {
            in_flight.orphan_target = Some(OrphanTarget {
                cq: bindings.tx_cq,
                counter: bindings.counters.for_op(kind),
            });
        }
    }
}
