//! What a descriptor is watched with: the kind of it, the endpoint it belongs to, and which of that
//! endpoint's it is.
//!
//! All 32 bits of an endpoint's number are needed: each connection that is accepted may take
//! another one, for as long as the domain is open.

use fabric_core::transport::EpId;

/// Bits that say which.
const ID_BITS: u32 = 30;
/// Kinds there can be.
const MAX_KINDS: u64 = 1 << (u32::BITS - ID_BITS);

/// Packs a kind, below four, an endpoint and a number of its own.
pub(super) fn pack(kind: u64, ep: EpId, id: u32) -> u64 {
    debug_assert!(
        kind < MAX_KINDS && id >> ID_BITS == 0,
        "more of them than there are descriptors"
    );
    kind << (u32::BITS + ID_BITS) | u64::from(ep.0) << ID_BITS | u64::from(id)
}

/// What was packed.
pub(super) fn unpack(token: u64) -> (u64, EpId, u32) {
    (
        token >> (u32::BITS + ID_BITS),
        EpId((token >> ID_BITS) as u32),
        token as u32 & ((1 << ID_BITS) - 1),
    )
}
