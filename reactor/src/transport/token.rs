//! Tokens with which a wait set reports a descriptor: its kind (2 bits), the endpoint that owns the
//! descriptor (32 bits), and an id within the endpoint (30 bits). Each transport defines its kinds.
//!
//! Endpoint ids keep all of their 32 bits, because a domain that accepts many connections may use
//! a new endpoint id for each of them.

use fabric_core::transport::EpId;

/// Bits of the id within the endpoint.
const ID_BITS: u32 = 30;
/// Number of kinds that a token can hold.
const MAX_KINDS: u64 = 1 << (u32::BITS - ID_BITS);

/// Packs a kind (below `MAX_KINDS`), an endpoint, and an id (below 2^30) within the endpoint.
pub(super) fn pack(kind: u64, ep: EpId, id: u32) -> u64 {
    debug_assert!(
        kind < MAX_KINDS && id >> ID_BITS == 0,
        "token kind or id out of range"
    );
    kind << (u32::BITS + ID_BITS) | u64::from(ep.0) << ID_BITS | u64::from(id)
}

/// Returns the kind, the endpoint and the id of a token.
pub(super) fn unpack(token: u64) -> (u64, EpId, u32) {
    (
        token >> (u32::BITS + ID_BITS),
        EpId((token >> ID_BITS) as u32),
        token as u32 & ((1 << ID_BITS) - 1),
    )
}
