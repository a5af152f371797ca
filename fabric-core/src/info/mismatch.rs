//! Reasons why offers do not satisfy hints, which libfabric only writes to its log.

use std::fmt;

use bitflags::Flags;

use super::{EpType, Info, Protocol};

/// The first attribute in which an offer does not satisfy the hints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The provider that made the offer.
    pub provider: String,
    /// The domain of the offer.
    pub domain: String,
    /// The endpoint type of the offer.
    pub ep_type: EpType,
    /// The protocol of the offer.
    pub protocol: Option<Protocol>,
    /// The attribute, by the name of its method in [`Hints`](super::Hints).
    pub attribute: &'static str,
    /// The requested value; of a set of flags, the missing ones.
    pub requested: String,
    /// The offered value.
    pub offered: String,
}

impl Mismatch {
    /// Creates the mismatch of one attribute of `offer`.
    pub(super) fn new(
        offer: &Info,
        attribute: &'static str,
        requested: impl Into<String>,
        offered: impl Into<String>,
    ) -> Self {
        Self {
            provider: offer.fabric.provider.clone(),
            domain: offer.domain.name.clone(),
            ep_type: offer.ep.ep_type,
            protocol: offer.ep.protocol,
            attribute,
            requested: requested.into(),
            offered: offered.into(),
        }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            provider,
            attribute,
            requested,
            offered,
            ..
        } = self;
        let variant = match (self.ep_type, self.protocol) {
            (EpType::Msg, _) => " (msg)",
            (EpType::Rdm, Some(Protocol::Rxm)) => ";ofi_rxm",
            _ => "",
        };
        write!(
            f,
            "{provider}{variant}: {attribute}: asked for {requested}, offers {offered}"
        )
    }
}

impl std::error::Error for Mismatch {}

/// No offer satisfies the hints, with the reason for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[doc(alias = "FI_ENODATA")]
pub struct NoMatch {
    /// One entry per offer, in the order of the offers; empty when no provider made an offer.
    pub mismatches: Vec<Mismatch>,
}

impl fmt::Display for NoMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.mismatches.is_empty() {
            return f.write_str("no provider satisfies the hints: no provider made an offer");
        }
        f.write_str("no provider satisfies the hints: ")?;
        // A provider that makes the same offer under several progress models has the same mismatch
        // in each.
        let mut reasons: Vec<_> = self.mismatches.iter().map(ToString::to_string).collect();
        reasons.dedup();
        f.write_str(&reasons.join("; "))
    }
}

impl std::error::Error for NoMatch {}

/// Returns the names of a set of flags.
pub(super) fn flag_names<F: Flags>(flags: F) -> String {
    let names: Vec<_> = flags.iter_names().map(|(name, _)| name).collect();
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(" | ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::Caps;

    #[test]
    fn no_match_text_names_each_reason_once() {
        let offer = Info::template("shm", "shm", "shm0");
        let refusal = Mismatch::new(&offer, "threading", "Safe", "Domain");
        assert_eq!(
            refusal.to_string(),
            "shm: threading: asked for Safe, offers Domain"
        );
        let text_of = |ep_type, protocol| {
            Mismatch {
                ep_type,
                protocol,
                ..refusal.clone()
            }
            .to_string()
        };
        assert!(text_of(EpType::Msg, None).starts_with("shm (msg): threading"));
        assert!(text_of(EpType::Rdm, Some(Protocol::Rxm)).starts_with("shm;ofi_rxm: threading"));
        let none = NoMatch {
            mismatches: vec![refusal.clone(), refusal],
        };
        assert_eq!(
            none.to_string().matches("threading").count(),
            1,
            "the same reason is given once"
        );
        assert!(
            NoMatch::default()
                .to_string()
                .contains("no provider made an offer")
        );
    }

    #[test]
    fn flag_sets_print_names_or_none() {
        assert_eq!(flag_names(Caps::MSG | Caps::RMA), "MSG | RMA");
        assert_eq!(flag_names(Caps::empty()), "none");
    }
}
