//! The memory registration mode that a domain requires, in the domain's name.

use fabric_core::flags::MrMode;
use fabric_core::{Error, Result};

use super::NAME;

/// Parses the bits of `mr_mode` that the domain of this name requires: none for `sim`, `PROV_KEY`
/// and `ENDPOINT` for `sim+PROV_KEY+ENDPOINT`. `None` for the name of no domain of this provider.
///
/// # Errors
/// [`Error::Invalid`] for a word that names no bit, or a legacy mode; [`Error::NotSupported`] for a
/// bit whose duty has no call.
pub(super) fn required_bits(domain: &str) -> Result<Option<MrMode>> {
    let mut parts = domain.split('+');
    if parts.next() != Some(NAME) {
        return Ok(None);
    }
    parts
        .try_fold(MrMode::empty(), |bits, name| Ok(bits | offered_bit(name)?))
        .map(Some)
}

/// Returns the bit with this name.
fn offered_bit(name: &str) -> Result<MrMode> {
    match MrMode::from_name(name).unwrap_or_default() {
        bit if bit.is_empty() || MrMode::LEGACY.contains(bit) => Err(Error::Invalid {
            what: "domain name of the provider sim",
            why: format!("{name:?} is not a bit of mr_mode that a provider requires"),
        }),
        MrMode::COLLECTIVE => Err(Error::NotSupported(
            "FI_MR_COLLECTIVE: there are no collective operations whose buffers are registered",
        )),
        MrMode::HMEM => Err(Error::NotSupported(
            "FI_MR_HMEM: there are no registrations of device memory",
        )),
        bit => Ok(bit),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn domain_name_has_the_required_bits() {
        assert_eq!(required_bits("sim"), Ok(Some(MrMode::empty())));
        let bits = MrMode::BASIC_BITS
            | MrMode::LOCAL
            | MrMode::RAW
            | MrMode::ENDPOINT
            | MrMode::RMA_EVENT
            | MrMode::MMU_NOTIFY;
        let names = bits.iter_names().map(|(name, _)| format!("+{name}"));
        let name = format!("sim{}", names.collect::<String>());
        assert_eq!(required_bits(&name), Ok(Some(bits)));
        for other in ["", "tcp", "simulation", "SIM+VIRT_ADDR"] {
            assert_eq!(required_bits(other), Ok(None));
        }
        for invalid in [
            "sim+",
            "sim+NONE",
            "sim+virt_addr",
            "sim+BASIC",
            "sim+VIRT_ADDR+SCALABLE",
        ] {
            assert!(
                matches!(required_bits(invalid), Err(Error::Invalid { .. })),
                "{invalid}"
            );
        }
        for (refused, name) in [
            ("sim+VIRT_ADDR+COLLECTIVE", "FI_MR_COLLECTIVE"),
            ("sim+HMEM", "FI_MR_HMEM"),
        ] {
            let error = required_bits(refused).unwrap_err();
            assert!(
                matches!(error, Error::NotSupported(why) if why.contains(name)),
                "{error}"
            );
        }
    }
}
