//! Offers of the providers: the equivalent of `fi_info`.

use std::fmt::Write;

use clap::ValueEnum;
use fabric_async::{Caps, EpType, Hints, Info};

use crate::{Error, Result};

/// An endpoint type of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EpTypeArg {
    /// Reliable and connected.
    Msg,
    /// Unreliable and connectionless.
    Dgram,
    /// Reliable and connectionless.
    Rdm,
}

impl EpTypeArg {
    /// Returns the endpoint type of this name.
    #[must_use]
    pub fn ep_type(self) -> EpType {
        match self {
            Self::Msg => EpType::Msg,
            Self::Dgram => EpType::Dgram,
            Self::Rdm => EpType::Rdm,
        }
    }
}

/// Builds hints from the command line.
///
/// # Errors
/// [`Error::InvalidRequest`] for an unknown capability, with the known ones.
pub fn build_hints(
    provider: Option<&str>,
    ep_kind: Option<EpTypeArg>,
    caps: Option<&str>,
) -> Result<Hints> {
    let mut hints = Hints::new();
    if let Some(provider) = provider {
        hints = hints.provider(provider);
    }
    if let Some(kind) = ep_kind {
        hints = hints.ep_type(kind.ep_type());
    }
    if let Some(caps) = caps {
        hints = hints.caps(parse_caps(caps)?);
    }
    Ok(hints)
}

/// Returns the offers as text: a paragraph each, or with every attribute.
#[must_use]
pub fn format_offers(offers: &[Info], verbose: bool) -> String {
    let mut text = String::new();
    for info in offers {
        let names: Vec<_> = info.caps.iter_names().map(|(name, _)| name).collect();
        let _ = match verbose {
            true => writeln!(text, "{info:#?}"),
            false => writeln!(
                text,
                "provider: {}\n    fabric: {}\n    domain: {}\n    version: {}\n    \
                 type: {:?}\n    progress: {:?}\n    caps: {}",
                info.fabric.provider,
                info.fabric.name,
                info.domain.name,
                info.fabric.provider_version,
                info.ep.ep_type,
                info.domain.data_progress,
                names.join(" | "),
            ),
        };
    }
    text
}

/// Parses capabilities in upper or lower case, with or without `FI_`, separated by commas or bars.
fn parse_caps(text: &str) -> Result<Caps> {
    let mut caps = Caps::empty();
    for name in text.split([',', '|']).map(str::trim) {
        let upper = name.to_ascii_uppercase();
        caps |= Caps::from_name(upper.strip_prefix("FI_").unwrap_or(&upper)).ok_or_else(|| {
            let known: Vec<_> = Caps::all()
                .iter_names()
                .map(|(name, _)| name.to_ascii_lowercase())
                .collect();
            Error::InvalidRequest(format!(
                "unknown capability {name:?}; known: {}",
                known.join(", ")
            ))
        })?;
    }
    Ok(caps)
}
