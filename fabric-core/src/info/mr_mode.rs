//! Duties of memory registration: which are needed for what is asked, and whether the application
//! agrees to them.
//!
//! Three rules differ from one libfabric version to the next and are decided here:
//!
//! * An application that agrees to nothing gets an offer with duties only where it does not ask to
//!   be the target of one-sided operations. Newer libfabric lets it ask, and silently takes the
//!   remote directions out of the result.
//! * [`MrMode::BASIC`] and [`MrMode::SCALABLE`] are accepted under every API version, alone, where
//!   the duties of the offer allow. An offer may restrict that by naming the one it supports.
//! * A negotiated mode names the duties that are left, as `fi_mr(3)` promises: what was agreed to
//!   and is not needed is cleared. Only the three duties of `BASIC` stay, since programs of that
//!   age never look again.

use crate::flags::{Caps, Mode, MrMode};

use super::mismatch::{Mismatch, flag_names};
use super::{Hints, Info, Version};

/// The first API in which the duties are named one by one.
pub(super) const SEPARATE_MODE_BITS: Version = Version::new(1, 5);

/// The duties that are left of `offered` for an endpoint of these capabilities (none named: no
/// target, no devices).
pub(super) fn required(caps: Caps, offered: MrMode) -> MrMode {
    let mut duties = offered.difference(MrMode::LEGACY);
    if !caps.contains(Caps::HMEM) {
        duties.remove(MrMode::HMEM);
    }
    if !caps.is_rma_target() {
        if !duties.intersects(MrMode::LOCAL | MrMode::HMEM) {
            return MrMode::empty();
        }
        duties.remove(MrMode::TARGET_ONLY);
    }
    duties
}

/// The duties the application agrees to, by their names of today.
pub(super) fn agreed(hints: &Hints, offer: &Info) -> MrMode {
    let mut duties = match legacy_mode(hints, offer) {
        Some(MrMode::BASIC) => MrMode::BASIC_BITS,
        Some(_) => MrMode::empty(),
        None => hints.mr_mode,
    };
    duties.set(MrMode::LOCAL, agrees_to_local(hints));
    duties
}

/// The duties in the result of a successful check, for an endpoint that is granted these
/// capabilities.
pub(super) fn granted(hints: &Hints, offer: &Info, caps: Caps) -> MrMode {
    let needed = required(caps, offer.domain.mr_mode);
    if legacy_mode(hints, offer) == Some(MrMode::BASIC) {
        needed | MrMode::BASIC_BITS
    } else {
        needed
    }
}

/// Refuses where a duty is needed that the application does not agree to, or where an old name is
/// not supported.
pub(super) fn check(hints: &Hints, offer: &Info) -> Result<(), Mismatch> {
    let offered = offer.domain.mr_mode;
    let refuse = |what: String| {
        Err(Mismatch::new(
            offer,
            "mr_mode",
            flag_names(hints.mr_mode),
            what,
        ))
    };

    if offered.contains(MrMode::LOCAL) && !agrees_to_local(hints) {
        return refuse("only with LOCAL".to_owned());
    }
    if hints.mr_mode.intersects(MrMode::LEGACY) && hints.mr_mode.bits().count_ones() > 1 {
        return refuse("BASIC or SCALABLE only without other duties".to_owned());
    }
    if before_separate_mode_bits(hints, offer) && !MrMode::LEGACY.contains(hints.mr_mode) {
        return refuse(format!("BASIC or SCALABLE before API {SEPARATE_MODE_BITS}"));
    }
    if let Some(old) = legacy_mode(hints, offer)
        && !supports(offer, old)
    {
        return refuse(format!("no {}", flag_names(old)));
    }
    let needed = required(hints.caps.unwrap_or_default(), offered);
    if agreed(hints, offer).contains(needed) {
        Ok(())
    } else {
        refuse(format!("only with {}", flag_names(needed)))
    }
}

/// Which of the two old modes the hints mean, if any. Before 1.5, nothing means either: the one
/// with fewer duties that the offer supports.
fn legacy_mode(hints: &Hints, offer: &Info) -> Option<MrMode> {
    if hints.mr_mode.intersects(MrMode::LEGACY) {
        return Some(hints.mr_mode.intersection(MrMode::LEGACY));
    }
    let either = hints.mr_mode.is_empty() && before_separate_mode_bits(hints, offer);
    let duties = required(
        hints.requested_caps().unwrap_or(offer.caps),
        offer.domain.mr_mode,
    )
    .difference(MrMode::LOCAL);
    let scalable = duties.is_empty() && supports(offer, MrMode::SCALABLE);
    either.then_some(if scalable {
        MrMode::SCALABLE
    } else {
        MrMode::BASIC
    })
}

fn supports(offer: &Info, old: MrMode) -> bool {
    let named = offer.domain.mr_mode.intersection(MrMode::LEGACY);
    named.is_empty() || named.contains(old)
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
