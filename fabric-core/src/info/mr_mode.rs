//! Memory registration mode: which mode bits the requested capabilities require, and whether the
//! application agrees to them.
//!
//! Three rules differ between libfabric versions and are decided here:
//!
//! * An application that agrees to no mode bit gets an offer with required bits only if it does not
//!   request to be the target of RMA. Newer libfabric accepts the request, and silently removes the
//!   remote directions from the result.
//! * [`MrMode::BASIC`] and [`MrMode::SCALABLE`] are accepted under every API version, alone, where
//!   the requirements of the offer allow. An offer may restrict that by stating the one it
//!   supports.
//! * A negotiated mode holds the bits that are still required, as `fi_mr(3)` promises: bits that
//!   were agreed to and are not required are cleared. Only the three bits of `BASIC` stay, because
//!   programs of that age do not check the result.

use crate::flags::{Caps, Mode, MrMode};

use super::mismatch::{Mismatch, flag_names};
use super::{Hints, Info, Version};

/// The first API version with separate mode bits.
pub(super) const SEPARATE_MODE_BITS: Version = Version::new(1, 5);

/// Returns the bits of `offered` that an endpoint with these capabilities requires; with empty
/// capabilities, an endpoint that is no RMA target and uses no device memory.
pub(super) fn required(caps: Caps, offered: MrMode) -> MrMode {
    let mut bits = offered.difference(MrMode::LEGACY);
    if !caps.contains(Caps::HMEM) {
        bits.remove(MrMode::HMEM);
    }
    if !caps.is_rma_target() {
        if !bits.intersects(MrMode::LOCAL | MrMode::HMEM) {
            return MrMode::empty();
        }
        bits.remove(MrMode::TARGET_ONLY);
    }
    bits
}

/// Returns the mode bits that the application agrees to, with legacy modes translated.
pub(super) fn agreed(hints: &Hints, offer: &Info) -> MrMode {
    let mut bits = match legacy_mode(hints, offer) {
        Some(MrMode::BASIC) => MrMode::BASIC_BITS,
        Some(_) => MrMode::empty(),
        None => hints.mr_mode,
    };
    bits.set(MrMode::LOCAL, agrees_to_local(hints));
    bits
}

/// Returns the mode bits of the negotiated info, for an endpoint with these granted capabilities.
pub(super) fn granted(hints: &Hints, offer: &Info, caps: Caps) -> MrMode {
    let needed = required(caps, offer.domain.mr_mode);
    if legacy_mode(hints, offer) == Some(MrMode::BASIC) {
        needed | MrMode::BASIC_BITS
    } else {
        needed
    }
}

/// Checks that the application agrees to all required mode bits, and that the offer supports a
/// requested legacy mode.
pub(super) fn check(hints: &Hints, offer: &Info) -> Result<(), Mismatch> {
    let offered = offer.domain.mr_mode;
    let refuse = |offered_text: String| {
        Err(Mismatch::new(
            offer,
            "mr_mode",
            flag_names(hints.mr_mode),
            offered_text,
        ))
    };

    if offered.contains(MrMode::LOCAL) && !agrees_to_local(hints) {
        return refuse("only with LOCAL".to_owned());
    }
    if hints.mr_mode.intersects(MrMode::LEGACY) && hints.mr_mode.bits().count_ones() > 1 {
        return refuse("BASIC or SCALABLE only without other mode bits".to_owned());
    }
    if before_separate_mode_bits(hints, offer) && !MrMode::LEGACY.contains(hints.mr_mode) {
        return refuse(format!(
            "only BASIC or SCALABLE before API {SEPARATE_MODE_BITS}"
        ));
    }
    if let Some(legacy) = legacy_mode(hints, offer)
        && !supports(offer, legacy)
    {
        return refuse(format!("no {}", flag_names(legacy)));
    }
    let needed = required(hints.caps.unwrap_or_default(), offered);
    if agreed(hints, offer).contains(needed) {
        Ok(())
    } else {
        refuse(format!("only with {}", flag_names(needed)))
    }
}

/// Returns the legacy mode that the hints request, if any. Before 1.5, an empty mode requests
/// `SCALABLE` where the offer allows that mode, else `BASIC`.
fn legacy_mode(hints: &Hints, offer: &Info) -> Option<MrMode> {
    if hints.mr_mode.intersects(MrMode::LEGACY) {
        return Some(hints.mr_mode.intersection(MrMode::LEGACY));
    }
    let accepts_either = hints.mr_mode.is_empty() && before_separate_mode_bits(hints, offer);
    let bits = required(
        hints.requested_caps().unwrap_or(offer.caps),
        offer.domain.mr_mode,
    )
    .difference(MrMode::LOCAL);
    let scalable = bits.is_empty() && supports(offer, MrMode::SCALABLE);
    accepts_either.then_some(if scalable {
        MrMode::SCALABLE
    } else {
        MrMode::BASIC
    })
}

/// Returns whether the offer supports this legacy mode.
fn supports(offer: &Info, legacy: MrMode) -> bool {
    let supported = offer.domain.mr_mode.intersection(MrMode::LEGACY);
    supported.is_empty() || supported.contains(legacy)
}

fn agrees_to_local(hints: &Hints) -> bool {
    hints.mr_mode.contains(MrMode::LOCAL) || hints.mode.contains(Mode::LOCAL_MR)
}

fn before_separate_mode_bits(hints: &Hints, offer: &Info) -> bool {
    hints.api_version.unwrap_or(offer.fabric.api_version) < SEPARATE_MODE_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_mode_bits_are_required_only_of_rma_targets() {
        let all = MrMode::all().difference(MrMode::LEGACY);
        let target = Caps::RMA | Caps::HMEM;
        assert_eq!(required(target, MrMode::all()), all);
        assert_eq!(required(Caps::RMA, all), all.difference(MrMode::HMEM));
        assert_eq!(
            required(Caps::MSG, all),
            all.difference(MrMode::HMEM | MrMode::TARGET_ONLY)
        );
        assert_eq!(
            required(Caps::MSG, all.difference(MrMode::LOCAL)),
            MrMode::empty()
        );
        assert_eq!(
            required(Caps::RMA | Caps::READ, MrMode::PROV_KEY | MrMode::LOCAL),
            MrMode::LOCAL
        );
    }
}
