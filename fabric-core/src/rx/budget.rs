//! Memory that unexpected messages use, accounted to the peers that have sent them.
//!
//! A message that matches a posted receive is not buffered and costs nothing here. Of the budget,
//!
//! * one peer may use at most half of what the other peers leave, so n peers that send as much as
//!   they can leave one (n + 1)th of the budget to the next one;
//! * the peers of one [group](BudgetGroup) together may use at most half of what the others leave,
//!   because one machine can have any number of connections;
//! * an eighth is a reserve: a peer beyond its share may still use up to [`GUARANTEED`] bytes, from
//!   the whole budget; the peers of a group together may use half of the reserve. When that is
//!   used up too, messages of disconnected peers are discarded, the largest accounts first.

use std::collections::HashMap;

use crate::buf::buffer_size;
use crate::matching::PeerKey;

/// Memory that each unexpected message uses in addition to its buffer, in bytes: entries of the
/// receive queue.
pub(super) const UNEXPECTED_OVERHEAD: usize = 320;

/// The cost of messages that a connected peer may always have buffered, in bytes, as long as the
/// whole budget is not used up by peers that are connected.
pub(super) const GUARANTEED: usize = 4 << 10;

/// Returns the cost of a buffered message of `len` bytes: the memory that it uses.
pub(super) fn message_cost(len: usize) -> usize {
    buffer_size(len).saturating_add(UNEXPECTED_OVERHEAD)
}

/// The memory that unexpected and claimed messages use, in bytes, by peer, and its limit. The queue
/// has another one for messages that it buffers beyond the budget.
#[derive(Debug)]
pub(super) struct UnexpectedBudget {
    limit: usize,
    /// One peer uses the whole budget.
    single_peer: bool,
    /// What all peers use.
    used: usize,
    /// The peer that was charged last: mostly one peer sends several messages.
    current: (PeerKey, PeerAccount),
    /// The accounts of the other peers that use anything.
    others: HashMap<PeerKey, PeerAccount>,
    /// What the disconnected peers use whose messages can be discarded.
    disconnected_used: usize,
    /// The groups of peers: of those that are connected, and of those that use anything.
    groups: HashMap<PeerKey, BudgetGroup>,
    /// What the peers of each group use together.
    used_by_group: HashMap<BudgetGroup, usize>,
    /// The number of changes after which a declined message may fit.
    changes: u64,
    /// The number of accounts that were opened.
    accounts: u64,
}

/// The peers that share a part of the budget for unexpected messages, as a number that their
/// transport has chosen: those of one machine, for example. Peers that the program has inserted are
/// in no group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BudgetGroup(pub u128);

/// What one peer uses, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct PeerAccount {
    used: usize,
    state: PeerState,
    /// The number of the account: a peer gets another one after all its bytes were returned.
    number: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PeerState {
    #[default]
    Connected,
    /// The peer has disconnected, and its messages can be discarded.
    Disconnected,
    /// The peer has disconnected, and what could be discarded was. The rest is claimed or arriving.
    Discarded,
}

/// Whether a message may be buffered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Fits,
    /// The message fits once messages of disconnected peers are discarded.
    AfterDiscard,
    Declined,
}

impl UnexpectedBudget {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            single_peer: false,
            used: 0,
            current: (PeerKey::default(), PeerAccount::default()),
            others: HashMap::new(),
            disconnected_used: 0,
            groups: HashMap::new(),
            used_by_group: HashMap::new(),
            changes: 0,
            accounts: 0,
        }
    }

    /// Returns the number of changes after which a declined message may fit: bytes were returned,
    /// a peer has left whose messages can be discarded, or the limit was raised.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Sets the group of a connected peer that uses nothing yet.
    pub(super) fn set_group(&mut self, peer: PeerKey, group: BudgetGroup) {
        self.groups.insert(peer, group);
    }

    /// Raises the limit to `limit` bytes, if it is smaller.
    pub(super) fn raise(&mut self, limit: usize) {
        self.limit = self.limit.max(limit);
        self.changes += 1;
    }

    /// Gives the whole budget to the only peer, and lowers the limit to `limit` bytes, if it is
    /// larger.
    pub(super) fn set_single_peer(&mut self, limit: usize) {
        self.single_peer = true;
        self.limit = self.limit.min(limit);
        self.changes += 1;
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Returns whether a message of this cost of this peer may be buffered.
    pub(super) fn admit(&self, peer: PeerKey, cost: usize) -> Admission {
        let own = self.used_by(peer);
        let others = self.used - own;
        let own_after = own.saturating_add(cost);
        // How much the peers of the group may still use of their share, and with the reserve.
        let (room_in_share, room_with_reserve) = match self.groups.get(&peer) {
            Some(group) => {
                let used = self.used_by_group.get(group).copied().unwrap_or(0);
                let share = self.share(self.used - used);
                let with_reserve = share + self.limit / 16;
                (
                    share.saturating_sub(used),
                    with_reserve.saturating_sub(used),
                )
            }
            None => (usize::MAX, usize::MAX),
        };
        if own_after <= self.share(others) && cost <= room_in_share {
            Admission::Fits
        } else if own_after > GUARANTEED || cost > room_with_reserve {
            Admission::Declined
        } else if others + own_after <= self.limit {
            Admission::Fits
        } else if self.disconnected_used > 0 {
            Admission::AfterDiscard
        } else {
            Admission::Declined
        }
    }

    pub(super) fn fits(&self, peer: PeerKey, cost: usize) -> bool {
        self.admit(peer, cost) == Admission::Fits
    }

    /// Returns whether an unused budget has room for a message of this cost.
    pub(super) fn could_fit(&self, cost: usize) -> bool {
        cost <= self.share(0).max(GUARANTEED.min(self.limit))
    }

    /// Returns the share of a peer while the other peers use `others` bytes.
    fn share(&self, others: usize) -> usize {
        if self.single_peer {
            return self.limit;
        }
        let without_reserve = self.limit - self.limit / 8;
        without_reserve.saturating_sub(others) / 2
    }

    pub(super) fn used_by(&self, peer: PeerKey) -> usize {
        if self.current.0 == peer {
            self.current.1.used
        } else {
            self.others.get(&peer).map_or(0, |account| account.used)
        }
    }

    /// Returns the number of the account of this peer, which changes after the peer has used
    /// nothing; 0 if it uses nothing now.
    pub(super) fn account_number(&self, peer: PeerKey) -> u64 {
        if self.current.0 == peer {
            self.current.1.number
        } else {
            self.others.get(&peer).map_or(0, |account| account.number)
        }
    }

    /// Charges a message to this peer.
    pub(super) fn charge(&mut self, peer: PeerKey, cost: usize) {
        self.used += cost;
        let next_number = self.accounts + 1;
        let account = self.account(peer);
        account.used += cost;
        let is_new = account.number == 0;
        if is_new {
            account.number = next_number;
        }
        if account.state == PeerState::Disconnected {
            self.disconnected_used += cost;
        }
        self.accounts += u64::from(is_new);
        if let Some(group) = self.groups.get(&peer) {
            *self.used_by_group.entry(*group).or_default() += cost;
        }
    }

    /// Returns to this peer what a message was charged.
    pub(super) fn release(&mut self, peer: PeerKey, cost: usize) {
        self.changes += u64::from(cost > 0);
        self.used = self.used.saturating_sub(cost);
        let account = self.account(peer);
        account.used = account.used.saturating_sub(cost);
        if account.used == 0 {
            account.number = 0;
        }
        let (left, state) = (account.used, account.state);
        if state == PeerState::Disconnected {
            self.disconnected_used = self.disconnected_used.saturating_sub(cost);
        }
        if let Some(group) = self.groups.get(&peer).copied() {
            let used = self.used_by_group.entry(group).or_default();
            *used = used.saturating_sub(cost);
            if *used == 0 {
                self.used_by_group.remove(&group);
            }
        }
        if left == 0 && state != PeerState::Connected {
            self.current.1 = PeerAccount::default();
            self.groups.remove(&peer);
        }
    }

    /// Makes the account of this peer the current one.
    fn account(&mut self, peer: PeerKey) -> &mut PeerAccount {
        if self.current.0 != peer {
            let account = self.others.remove(&peer).unwrap_or_default();
            let (previous, previous_account) =
                std::mem::replace(&mut self.current, (peer, account));
            if previous_account.used > 0 {
                self.others.insert(previous, previous_account);
            }
        }
        &mut self.current.1
    }

    /// Notes that a peer has disconnected: its messages are the first to be discarded. Returns
    /// whether the peer uses anything.
    pub(super) fn on_disconnect(&mut self, peer: PeerKey) -> bool {
        let used = self.used_by(peer);
        if used == 0 {
            self.groups.remove(&peer);
            return false;
        }
        self.account(peer).state = PeerState::Disconnected;
        self.disconnected_used += used;
        self.changes += 1;
        true
    }

    /// Returns the peers whose messages are to be discarded: of the disconnected ones, those that
    /// use most, and half of what all of them use, so that a discarded message costs a bounded
    /// number of steps. The caller releases what can be discarded; the rest does not count as
    /// discardable any more.
    pub(super) fn take_disconnected(&mut self) -> Vec<PeerKey> {
        let current = std::iter::once((&self.current.0, &self.current.1));
        let accounts = self.others.iter().chain(current);
        let mut disconnected: Vec<_> = accounts
            .filter(|(_, account)| account.state == PeerState::Disconnected)
            .map(|(peer, account)| (account.used, *peer))
            .collect();
        disconnected.sort_unstable_by(|a, b| b.cmp(a));
        let enough = self.disconnected_used / 2;
        let mut taken = 0;
        let count = disconnected.iter().position(|(used, _)| {
            let is_enough = taken >= enough;
            taken += used;
            is_enough
        });
        disconnected.truncate(count.unwrap_or(disconnected.len()));
        for (used, peer) in &disconnected {
            self.account(*peer).state = PeerState::Discarded;
            self.disconnected_used -= used;
        }
        disconnected.into_iter().map(|(_, peer)| peer).collect()
    }

    /// Returns everything.
    pub(super) fn clear(&mut self) {
        *self = Self {
            single_peer: self.single_peer,
            changes: self.changes + 1,
            accounts: self.accounts,
            ..Self::new(self.limit)
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: usize = 1 << 20;

    /// Charges messages of this cost to a peer until one is not admitted. Returns their number.
    fn fill(budget: &mut UnexpectedBudget, peer: u32, cost: usize) -> usize {
        let mut count = 0;
        while budget.fits(PeerKey(peer), cost) {
            budget.charge(PeerKey(peer), cost);
            count += 1;
        }
        count
    }

    #[test]
    fn each_peer_leaves_room_for_the_next() {
        let mut budget = UnexpectedBudget::new(LIMIT);
        let mut left = LIMIT - LIMIT / 8;
        for peer in 0..8 {
            let used = fill(&mut budget, peer, 1000) * 1000;
            assert!(used <= left / 2 && used + 1000 > left / 2, "{peer}: {used}");
            left -= used;
        }
    }

    #[test]
    fn peer_beyond_its_share_may_use_the_guaranteed_amount() {
        let mut budget = UnexpectedBudget::new(LIMIT);
        let mut peer = 0;
        while fill(&mut budget, peer, 500) * 500 > GUARANTEED {
            peer += 1;
        }
        assert!(budget.used() > LIMIT / 2);
        let reserved = LIMIT - budget.used();
        let served = (peer + 1..10_000).take_while(|peer| fill(&mut budget, *peer, 500) == 8);
        let served = served.count();
        assert!(served >= reserved / GUARANTEED, "{served} peers");
        assert!(budget.used() <= LIMIT);
        assert_eq!(budget.admit(PeerKey(20_000), 500), Admission::Declined);
        // Peers that leave make room for those that stay.
        budget.on_disconnect(PeerKey(1));
        let admission = budget.admit(PeerKey(20_000), 500);
        assert_eq!(admission, Admission::AfterDiscard);
        assert_eq!(budget.take_disconnected(), [PeerKey(1)]);
        let used = budget.used_by(PeerKey(1));
        budget.release(PeerKey(1), used);
        assert!(budget.fits(PeerKey(20_000), 500));
        assert_eq!(budget.disconnected_used, 0);
    }

    #[test]
    fn peers_of_one_source_leave_room_for_others() {
        let mut budget = UnexpectedBudget::new(LIMIT);
        for peer in 1..2000 {
            budget.set_group(PeerKey(peer), BudgetGroup(7));
            fill(&mut budget, peer, 500);
        }
        let used = budget.used();
        assert!((LIMIT / 2 - 500..=LIMIT / 2).contains(&used), "{used}");
        // Another group, and a peer without a group.
        budget.set_group(PeerKey(3000), BudgetGroup(8));
        for peer in [3000, 4000] {
            let share = (LIMIT - LIMIT / 8 - budget.used()) / 2;
            let own = fill(&mut budget, peer, 500) * 500;
            assert!(own + 500 > share, "{peer}: {own} of {share}");
        }
        // The group gets back what its peers return, and nothing is left of peers without
        // messages.
        for peer in 1..2000 {
            let used = budget.used_by(PeerKey(peer));
            budget.on_disconnect(PeerKey(peer));
            budget.release(PeerKey(peer), used);
        }
        assert_eq!(budget.used_by_group.len(), 1);
        assert_eq!(budget.groups.len(), 1);
        assert_eq!(budget.disconnected_used, 0);
    }

    #[test]
    fn largest_accounts_of_disconnected_peers_are_discarded_first() {
        let mut budget = UnexpectedBudget::new(LIMIT);
        for (peer, cost) in [(1, 600), (2, 4000), (3, 4000), (4, 900)] {
            budget.charge(PeerKey(peer), cost);
            assert!(budget.on_disconnect(PeerKey(peer)));
        }
        assert!(!budget.on_disconnect(PeerKey(5)));
        assert_eq!(budget.take_disconnected(), [PeerKey(3), PeerKey(2)]);
        // One has a claimed message, which is not discardable: neither peer is returned again.
        budget.release(PeerKey(2), 4000);
        assert_eq!(budget.take_disconnected(), [PeerKey(4)]);
        budget.release(PeerKey(4), 900);
        assert_eq!(budget.take_disconnected(), [PeerKey(1)]);
        assert_eq!(budget.take_disconnected(), []);
        assert_eq!((budget.disconnected_used, budget.used()), (0, 4600));
    }

    /// A call of the budget.
    #[derive(Clone, Copy, Debug)]
    enum Call {
        Message(u32, usize),
        Take(usize),
        Disconnect(u32),
        Discard,
    }

    fn call() -> impl Strategy<Value = Call> {
        prop_oneof![
            8 => (0..12u32, 0..200_000usize).prop_map(|(peer, len)| Call::Message(peer, len)),
            4 => (0..200usize).prop_map(Call::Take),
            1 => (0..12u32).prop_map(Call::Disconnect),
            1 => Just(Call::Discard),
        ]
    }

    proptest! {
        /// The sums agree with a list of the messages, the limit holds, and a peer without messages
        /// gets half of what is left.
        #[test]
        fn accounts_agree_with_a_list_of_messages(
            calls in proptest::collection::vec(call(), 1..200),
        ) {
            let mut budget = UnexpectedBudget::new(LIMIT);
            let mut messages: Vec<(PeerKey, usize)> = Vec::new();
            let mut generation = 0;
            for call in calls {
                match call {
                    Call::Message(peer, len) => {
                        let (peer, cost) = (PeerKey(peer + 100 * generation), message_cost(len));
                        if budget.fits(peer, cost) {
                            budget.charge(peer, cost);
                            messages.push((peer, cost));
                        }
                    }
                    Call::Take(at) if !messages.is_empty() => {
                        let (peer, cost) = messages.swap_remove(at % messages.len());
                        budget.release(peer, cost);
                    }
                    Call::Take(_) => {}
                    Call::Disconnect(peer) => {
                        budget.on_disconnect(PeerKey(peer + 100 * generation));
                        generation += 1;
                    }
                    Call::Discard => {
                        let disconnected = budget.take_disconnected();
                        let discarded =
                            messages.extract_if(.., |(peer, _)| disconnected.contains(peer));
                        for (peer, cost) in discarded {
                            budget.release(peer, cost);
                        }
                    }
                }
                let sum: usize = messages.iter().map(|(_, cost)| cost).sum();
                prop_assert_eq!(budget.used(), sum);
                prop_assert!(sum <= LIMIT);
                for (peer, _) in &messages {
                    let own = messages.iter().filter(|(other, _)| other == peer);
                    let own: usize = own.map(|(_, cost)| cost).sum();
                    prop_assert_eq!(budget.used_by(*peer), own);
                }
                let left = (LIMIT - LIMIT / 8).saturating_sub(sum);
                prop_assert!(budget.fits(PeerKey(u32::MAX), left / 2));
            }
        }
    }
}
