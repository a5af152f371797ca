//! Tokens of the wait set: a kind of descriptor, the endpoint it belongs to, and an id within the
//! endpoint, packed into 64 bits.
//!
//! Endpoint ids take all of 32 bits: each accepted connection may use another id for as long as the
//! domain is open.

use fabric_core::transport::EpId;

/// Bits of the id within the endpoint.
const ID_BITS: u32 = 30;
/// Number of kinds.
const MAX_KINDS: u64 = 1 << (u32::BITS - ID_BITS);

/// Packs a kind (below four), an endpoint, and an id within it.
pub(super) fn pack(kind: u64, ep: EpId, id: u32) -> u64 {
    debug_assert!(
        kind < MAX_KINDS && id >> ID_BITS == 0,
        "token kind or id out of range"
    );
    kind << (u32::BITS + ID_BITS) | u64::from(ep.0) << ID_BITS | u64::from(id)
}

/// Returns kind, endpoint and id of a token.
pub(super) fn unpack(token: u64) -> (u64, EpId, u32) {
    (
        token >> (u32::BITS + ID_BITS),
        EpId((token >> ID_BITS) as u32),
        token as u32 & ((1 << ID_BITS) - 1),
    )
}
