//! The pending handshakes of a passive endpoint, and which one is evicted at the limit.
//!
//! At most [`max_pending`] handshakes of other processes are pending. A further one evicts
//!
//! 1. the oldest of the process with the most, if that has more than [`MIN_OF_PROCESS`]; one
//!    without a message if there is one;
//! 2. otherwise the oldest of all.
//!
//! So a process with few handshakes loses none while another one has many. Many processes with few
//! handshakes each fill the table too, but if they keep them, theirs are the oldest ones. To evict
//! the handshake of another process, they have to begin as many as the table holds while it is
//! pending, which is a round trip for each socket of a client that is not delayed. Handshakes
//! without a message do not go first then: with a table full of requests, each new handshake would
//! be evicted at once.
//!
//! Handshakes of this process are neither counted nor evicted: no other process can begin them.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use slab::Slab;

use super::super::conn_req::CheckedRequest;
use super::super::socket::{PeerCredentials, ShmSocket};
use crate::sys::fd_limit::part_of_descriptors;

/// Returns the limit of pending handshakes of other processes: 256, or less if this process may
/// have fewer than 1,024 descriptors.
pub(super) fn max_pending() -> usize {
    part_of_descriptors(4, 256)
}
/// Number of handshakes of one process up to which none is evicted because others have fewer.
const MIN_OF_PROCESS: usize = 8;

/// A socket of a client that has not completed its request.
pub(super) struct RequestHandshake {
    pub(super) socket: ShmSocket,
    pub(super) client: PeerCredentials,
    /// The request, which waits for the reverse socket; `None` until it has arrived, and on a
    /// reverse socket.
    pub(super) request: Option<CheckedRequest>,
    pub(super) deadline: Instant,
}

/// The pending handshakes of a passive endpoint.
#[derive(Default)]
pub(super) struct RequestHandshakes {
    slots: Slab<RequestHandshake>,
    /// Indices in `slots`, earliest deadline first.
    order: VecDeque<usize>,
    /// Number of handshakes of other processes.
    of_others: usize,
}

impl RequestHandshakes {
    /// Returns the index that [`insert`](Self::insert) gives to the next handshake.
    pub(super) fn next_index(&self) -> usize {
        self.slots.vacant_key()
    }

    /// Adds a handshake, whose deadline is the latest one. Returns whether it is the only one.
    pub(super) fn insert(&mut self, handshake: RequestHandshake) -> bool {
        self.of_others += usize::from(!handshake.client.is_this_process());
        let index = self.slots.insert(handshake);
        self.order.push_back(index);
        self.order.len() == 1
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut RequestHandshake> {
        self.slots.get_mut(index)
    }

    /// Removes a handshake.
    pub(super) fn take(&mut self, index: usize) -> Option<RequestHandshake> {
        let handshake = self.slots.try_remove(index)?;
        self.order.retain(|pending| *pending != index);
        self.of_others -= usize::from(!handshake.client.is_this_process());
        Some(handshake)
    }

    /// Returns the earliest deadline.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let oldest = self.order.front()?;
        Some(self.slots[*oldest].deadline)
    }

    /// Returns the handshake with the earliest deadline, if the deadline has passed.
    pub(super) fn first_expired(&self, now: Instant) -> Option<(usize, &RequestHandshake)> {
        let oldest = *self.order.front()?;
        let handshake = &self.slots[oldest];
        (handshake.deadline <= now).then_some((oldest, handshake))
    }

    /// Sets a deadline that is later than that of all others.
    pub(super) fn extend(&mut self, index: usize, deadline: Instant) {
        if let Some(handshake) = self.slots.get_mut(index) {
            handshake.deadline = deadline;
            self.order.retain(|pending| *pending != index);
            self.order.push_back(index);
        }
    }

    /// Returns the number of handshakes of a process without a message.
    pub(super) fn count_silent(&self, process: Option<u64>) -> usize {
        let of_process = self.of_process(process);
        of_process
            .filter(|pending| pending.request.is_none())
            .count()
    }

    /// Returns the number of handshakes of a process that wait for the reverse socket.
    pub(super) fn count_requests(&self, process: Option<u64>) -> usize {
        let of_process = self.of_process(process);
        of_process
            .filter(|pending| pending.request.is_some())
            .count()
    }

    fn of_process(&self, process: Option<u64>) -> impl Iterator<Item = &RequestHandshake> {
        let all = self.slots.iter().map(|(_, handshake)| handshake);
        all.filter(move |handshake| handshake.client.process == process)
    }

    /// Returns the index of the request of this client that was given this nonce.
    pub(super) fn find_request(&self, client: PeerCredentials, nonce: u64) -> Option<usize> {
        let mut all = self.slots.iter();
        let found = all.find(|(_, handshake)| {
            let request = handshake.request.as_ref();
            request.is_some_and(|request| request.nonce == nonce && request.credentials == client)
        });
        found.map(|(index, _)| index)
    }

    /// Removes a handshake if there are more than `limit` of other processes.
    pub(super) fn evict(&mut self, limit: usize) -> Option<RequestHandshake> {
        if self.of_others <= limit {
            return None;
        }
        let others = self.order.iter().filter_map(|&index| {
            let handshake = &self.slots[index];
            let is_silent = handshake.request.is_none();
            let client = &handshake.client;
            (!client.is_this_process()).then_some((index, client.process, is_silent))
        });
        self.take(choose_evicted(&others.collect::<Vec<_>>())?)
    }
}

/// Returns the index of the handshake to be evicted. Each one is given by its index, the process of
/// the client, and whether no message has arrived, oldest first.
fn choose_evicted(oldest_first: &[(usize, Option<u64>, bool)]) -> Option<usize> {
    let mut of_process: HashMap<Option<u64>, usize> = HashMap::new();
    for (_, process, _) in oldest_first {
        *of_process.entry(*process).or_default() += 1;
    }
    let priority = |(_, process, is_silent): &&(usize, Option<u64>, bool)| {
        let excess = of_process[process].saturating_sub(MIN_OF_PROCESS);
        (excess, excess > 0 && *is_silent)
    };
    // The last of equal elements is the oldest handshake.
    let evicted = oldest_first.iter().rev().max_by_key(priority);
    evicted.map(|(index, ..)| *index)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SILENT: bool = true;
    const REQUEST: bool = false;

    /// Returns the position of the handshake that is evicted of these.
    fn evicted(oldest_first: &[(u64, bool)]) -> usize {
        let indexed = oldest_first.iter().enumerate();
        let indexed =
            indexed.map(|(index, (process, is_silent))| (index, Some(*process), *is_silent));
        choose_evicted(&indexed.collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn process_with_most_handshakes_loses_its_oldest_silent_one() {
        let mut handshakes = vec![(1, SILENT); MIN_OF_PROCESS];
        handshakes.extend([(2, REQUEST); MIN_OF_PROCESS]);
        handshakes.push((2, SILENT));
        assert_eq!(evicted(&handshakes), 2 * MIN_OF_PROCESS);
        handshakes.pop();
        handshakes.push((2, REQUEST));
        assert_eq!(evicted(&handshakes), MIN_OF_PROCESS);
    }

    #[test]
    fn oldest_handshake_is_evicted_if_no_process_has_many() {
        let newest = (0, SILENT);
        let requests = (1..=8).flat_map(|process| [(process, REQUEST); MIN_OF_PROCESS]);
        let handshakes: Vec<_> = requests.chain([newest, newest]).collect();
        assert_eq!(evicted(&handshakes), 0);
    }

    #[test]
    fn processes_that_are_not_known_count_as_one() {
        let mut handshakes = vec![(0, Some(1), SILENT); MIN_OF_PROCESS];
        handshakes.extend(
            (1..)
                .map(|index| (index, None, SILENT))
                .take(MIN_OF_PROCESS + 1),
        );
        assert_eq!(choose_evicted(&handshakes), Some(1));
    }
}
