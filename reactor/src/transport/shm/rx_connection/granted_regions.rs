//! The regions that were granted to a peer.

use std::collections::HashMap;

use fabric_core::flags::Access;
use fabric_core::transport::RemoteAccess;

/// Minimum number of regions that are granted between two removals of closed regions.
const MIN_PRUNE_INTERVAL: usize = 64;

/// The regions that were granted to a peer, by key. A notification that the peer has accessed a
/// region must name one of them.
///
/// A region stays after it was closed, because notifications of earlier accesses may still be in
/// the ring. Closed regions are removed as others are granted, so there are at most three times as
/// many regions as open ones, plus twice [`MIN_PRUNE_INTERVAL`].
#[derive(Debug, Default)]
pub(super) struct GrantedRegions {
    regions: HashMap<u64, GrantedRegion>,
    /// Number of regions at which closed ones are removed; 0 before the first removal.
    prune_len: usize,
}

#[derive(Debug)]
struct GrantedRegion {
    access: Access,
    /// Whether the region was closed when closed regions were last removed.
    was_closed: bool,
}

impl GrantedRegions {
    /// Adds a region. `is_registered` returns whether a key is in use. A region that is no longer
    /// registered is removed when a second round of removals finds it so.
    pub(super) fn insert(&mut self, key: u64, access: Access, is_registered: impl Fn(u64) -> bool) {
        if self.regions.len() >= self.prune_len.max(MIN_PRUNE_INTERVAL) {
            let mut open_count = 0;
            self.regions.retain(|key, region| {
                let was_closed = std::mem::replace(&mut region.was_closed, !is_registered(*key));
                open_count += usize::from(!region.was_closed);
                !(was_closed && region.was_closed)
            });
            self.prune_len = self.regions.len() + open_count.max(MIN_PRUNE_INTERVAL);
        }
        let region = self.regions.entry(key).or_insert(GrantedRegion {
            access,
            was_closed: false,
        });
        // An earlier region may have had the same key.
        region.access |= access;
        region.was_closed = false;
    }

    /// Returns whether an access to the region with this key was granted.
    pub(super) fn permit(&self, key: u64, access: RemoteAccess) -> bool {
        let required = match access {
            RemoteAccess::Read => Access::REMOTE_READ,
            RemoteAccess::Write => Access::REMOTE_WRITE,
        };
        let region = self.regions.get(&key);
        region.is_some_and(|region| region.access.contains(required))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_granted_accesses_are_permitted() {
        let mut regions = GrantedRegions::default();
        regions.insert(7, Access::REMOTE_WRITE, |_| true);
        assert!(regions.permit(7, RemoteAccess::Write));
        assert!(!regions.permit(7, RemoteAccess::Read) && !regions.permit(8, RemoteAccess::Write));
        // Another region got the key.
        regions.insert(7, Access::REMOTE_READ, |_| true);
        assert!(regions.permit(7, RemoteAccess::Write) && regions.permit(7, RemoteAccess::Read));
    }

    #[test]
    fn closed_regions_stay_for_a_while_and_their_number_is_bounded() {
        let mut regions = GrantedRegions::default();
        // The first regions stay open, of the others only the newest is.
        const OPEN: u64 = 100;
        let mut most = 0;
        for newest in 1..10_000 {
            let is_open = |key| key <= OPEN || key == newest;
            regions.insert(newest, Access::REMOTE_WRITE, is_open);
            for key in [
                1,
                newest.min(OPEN),
                newest,
                newest.saturating_sub(20).max(1),
            ] {
                assert!(
                    regions.permit(key, RemoteAccess::Write),
                    "{key} of {newest}"
                );
            }
            most = most.max(regions.regions.len());
        }
        assert!(
            most <= 3 * (OPEN as usize + 1) + 2 * MIN_PRUNE_INTERVAL,
            "{most}"
        );
    }
}
