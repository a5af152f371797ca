//! Discovery: what a provider offers, what an application asks for, and how the two meet.
//!
//! A provider describes each of its domains by an [`Info`]. An application describes what it needs
//! by [`Hints`]. [`select`] holds the hints against every offer and returns those that satisfy
//! them, adjusted to what was asked, best first; or [`NoMatch`], which says of every offer what it
//! lacks.
//!
//! ```
//! use fabric_core::flags::Caps;
//! use fabric_core::info::{Hints, Info, Threading, select};
//!
//! let mut offer = Info::template("shm", "shm", "shm");
//! offer.caps = Caps::MSG | Caps::TAGGED | Caps::SOURCE;
//!
//! let found = select(&Hints::new().caps(Caps::TAGGED).threading(Threading::Domain), &[offer.clone()])?;
//! assert!(found[0].caps.contains(Caps::TAGGED | Caps::SOURCE) && !found[0].caps.contains(Caps::MSG));
//! assert_eq!(found[0].domain.threading, Threading::Domain);
//!
//! let refused = select(&Hints::new().caps(Caps::ATOMIC), &[offer]).unwrap_err();
//! assert_eq!(refused.refusals[0].attribute, "caps");
//! # Ok::<(), fabric_core::info::NoMatch>(())
//! ```
//!
//! | file | subject |
//! |---|---|
//! | `attr` | the attributes of an offer |
//! | `level` | enumerations, and which level satisfies which |
//! | `hints` | what an application asks for |
//! | `negotiate` | the check, attribute by attribute, in libfabric's order |
//! | `mr_mode` | duties of memory registration |
//! | `grant` | what an accepted offer is turned into |
//! | `refusal` | who refused what |

mod attr;
mod grant;
mod hints;
mod level;
mod mismatch;
mod mr_mode;
mod negotiate;

use crate::address::Address;
use crate::error::{Error, Result};
use crate::flags::{Caps, Mode};

pub use attr::{
    API_VERSION, DomainAttr, EpAttr, FabricAttr, RxAttr, SHARED_CONTEXT, TxAttr, Version,
};
pub use hints::Hints;
pub use level::{
    AddrFormat, AvType, EpType, Progress, Protocol, ResourceMgmt, Threading, TrafficClass,
};
pub use mismatch::{Mismatch, NoMatch};
pub use negotiate::{negotiate, select};

/// One way to communicate: a provider's offer, or what came of it after negotiation.
///
/// A complete snapshot that owns all it says. Objects are opened from the result of a negotiation.
/// An application may change it before, to anything that the provider offers too: lower a limit, or
/// take a capability out, of `caps` and of the `caps` of both contexts. More than is offered is
/// refused. There is no `handle` (a connection request carries its own) and no `nic` (no provider
/// has one).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[doc(alias = "fi_info")]
#[doc(alias = "fi_dupinfo")]
#[doc(alias = "fi_freeinfo")]
pub struct Info {
    /// What endpoints can do.
    pub caps: Caps,
    /// Duties of the application.
    pub mode: Mode,
    /// How addresses are written.
    pub addr_format: AddrFormat,
    /// The local address; not always one that peers can use.
    pub src_addr: Option<Address>,
    /// The address of the peer, where one was named.
    pub dest_addr: Option<Address>,
    /// The fabric and its provider.
    pub fabric: FabricAttr,
    /// The domain.
    pub domain: DomainAttr,
    /// The endpoint.
    pub ep: EpAttr,
    /// The transmit context.
    pub tx: TxAttr,
    /// The receive context.
    pub rx: RxAttr,
}

impl Info {
    /// An offer of this provider, fabric and domain that promises next to nothing, for the provider
    /// to fill in.
    ///
    /// See the `Default` of each attribute struct for what it says. The API version is 2.5,
    /// the newest whose vocabulary is known in full.
    #[must_use]
    pub fn template(provider: &str, fabric: &str, domain: &str) -> Self {
        Self {
            caps: Caps::empty(),
            mode: Mode::empty(),
            addr_format: AddrFormat::default(),
            src_addr: None,
            dest_addr: None,
            fabric: FabricAttr {
                name: fabric.to_owned(),
                provider: provider.to_owned(),
                provider_version: Version::default(),
                api_version: API_VERSION,
            },
            domain: DomainAttr {
                name: domain.to_owned(),
                ..DomainAttr::default()
            },
            ep: EpAttr::default(),
            tx: TxAttr::default(),
            rx: RxAttr::default(),
        }
    }

    /// This offer under manual and under automatic progress, in this order: who states no wish gets
    /// the first. For providers that leave progress to the engine, and serve both equally well.
    #[must_use]
    pub fn for_both_progress_models(self) -> [Self; 2] {
        [Progress::Manual, Progress::Auto].map(|progress| {
            let mut info = self.clone();
            (info.domain.control_progress, info.domain.data_progress) = (progress, progress);
            info
        })
    }
}

/// Whether a domain may be opened from `info` in a fabric of this provider and name.
///
/// Checked before anything is counted or allocated, so that a refusal leaves nothing to undo.
///
/// # Errors
/// [`Error::Invalid`] when `info` describes another provider or another fabric.
pub fn check_domain((provider, fabric): (&str, &str), info: &Info) -> Result<()> {
    let differs = |what: &str, theirs: &str, ours: &str| Error::Invalid {
        what: "info",
        why: format!(
            "it describes the {what} {theirs:?}, this fabric was opened for the {what} {ours:?}"
        ),
    };
    if info.fabric.provider != provider {
        return Err(differs("provider", &info.fabric.provider, provider));
    }
    if info.fabric.name != fabric {
        return Err(differs("fabric", &info.fabric.name, fabric));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domain_opens_only_in_its_own_fabric() {
        let info = Info::template("shm", "machine", "shm0");
        assert_eq!(check_domain(("shm", "machine"), &info), Ok(()));
        for (fabric, what) in [
            (("sim", "machine"), "provider"),
            (("shm", "other"), "fabric"),
        ] {
            let error = check_domain(fabric, &info).unwrap_err();
            assert!(matches!(error, Error::Invalid { what: "info", .. }));
            assert!(error.to_string().contains(what), "{error}");
            assert_eq!(error.errno(), 22);
        }
    }

    #[test]
    fn template_offers_no_caps_and_default_levels() {
        let info = Info::template("p", "f", "d");
        assert_eq!((info.caps, info.mode), (Caps::empty(), Mode::empty()));
        assert_eq!(
            (info.domain.threading, info.domain.data_progress),
            (Threading::Safe, Progress::Manual)
        );
    }
}
