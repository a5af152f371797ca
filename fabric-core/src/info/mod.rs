//! Discovery: offers of providers, hints of applications, and their negotiation.
//!
//! A provider describes each of its domains by an [`Info`]. An application describes its
//! requirements by [`Hints`]. [`select`] checks the hints against every offer and returns the
//! offers that satisfy them, adjusted to the hints, best first; or [`NoMatch`], with the first
//! mismatch of each offer.
//!
//! ```
//! use fabric_core::flags::Caps;
//! use fabric_core::info::{Hints, Info, Threading, select};
//!
//! let mut offer = Info::template("shm", "shm", "shm");
//! offer.caps = Caps::MSG | Caps::TAGGED | Caps::SOURCE;
//!
//! let hints = Hints::new().caps(Caps::TAGGED).threading(Threading::Domain);
//! let found = select(&hints, &[offer.clone()])?;
//! assert!(found[0].caps.contains(Caps::TAGGED | Caps::SOURCE));
//! assert!(!found[0].caps.contains(Caps::MSG));
//! assert_eq!(found[0].domain.threading, Threading::Domain);
//!
//! let none = select(&Hints::new().caps(Caps::ATOMIC), &[offer]).unwrap_err();
//! assert_eq!(none.mismatches[0].attribute, "caps");
//! # Ok::<(), fabric_core::info::NoMatch>(())
//! ```
//!
//! | file | subject |
//! |---|---|
//! | `attr` | the attributes of an offer |
//! | `level` | enumerations, and which level satisfies which |
//! | `hints` | the requirements of an application |
//! | `negotiate` | the check, attribute by attribute, in libfabric's order |
//! | `mr_mode` | memory registration mode bits |
//! | `grant` | adjustment of a satisfying offer to the hints |
//! | `passed_back` | the check of an info that an object is opened from |
//! | `mismatch` | reasons why an offer does not satisfy the hints |

mod attr;
mod grant;
mod hints;
mod level;
mod mismatch;
mod mr_mode;
mod negotiate;
mod passed_back;

use std::fmt::Display;

use crate::address::Address;
use crate::error::{Error, Result};
use crate::flags::{Caps, Mode};

pub use attr::{
    API_VERSION, DomainAttr, EpAttr, FabricAttr, RxAttr, SHARED_CONTEXT, TxAttr, Version,
};
pub use hints::{Hints, Scope};
pub use level::{
    AddrFormat, AvType, EpType, Progress, Protocol, ResourceMgmt, Threading, TrafficClass,
};
pub use mismatch::{Mismatch, NoMatch};
pub use negotiate::{negotiate, select};
pub use passed_back::check_passed_back;

/// A description of a domain and its endpoints: a provider's offer, or the result of negotiating it
/// with hints.
///
/// An owned snapshot. Objects are opened from a negotiated info. Before that an application may
/// change it to anything that the provider offers too: lower a limit, or remove a capability from
/// `caps` and from the `caps` of both contexts. A value beyond the offer is refused. The fields
/// `handle` (a connection request carries its own) and `nic` (no provider has one) of `fi_info` do
/// not exist.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[doc(alias = "fi_info")]
#[doc(alias = "fi_dupinfo")]
#[doc(alias = "fi_freeinfo")]
pub struct Info {
    /// Capabilities of endpoints.
    pub caps: Caps,
    /// Requirements on the application.
    pub mode: Mode,
    /// The address format.
    pub addr_format: AddrFormat,
    /// The local address; peers cannot always use it.
    pub src_addr: Option<Address>,
    /// The address of the peer, if one was requested.
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
    /// Creates an offer of this provider, fabric and domain with minimal values, for the provider
    /// to fill in.
    ///
    /// The `Default` of each attribute struct documents its values. The API version is 2.5,
    /// [`API_VERSION`].
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

    /// Returns this offer with manual and with automatic progress, in this order: hints without a
    /// progress model select the first. For providers that leave progress to the engine, and
    /// support both equally well.
    #[must_use]
    pub fn for_both_progress_models(self) -> [Self; 2] {
        [Progress::Manual, Progress::Auto].map(|progress| {
            let mut info = self.clone();
            (info.domain.control_progress, info.domain.data_progress) = (progress, progress);
            info
        })
    }
}

/// Checks that a domain may be opened from `info` in a fabric of this provider and name.
///
/// # Errors
/// [`Error::Invalid`] when `info` describes another provider or another fabric, or was changed to
/// automatic control progress without automatic data progress.
pub fn check_domain((provider, fabric): (&str, &str), info: &Info) -> Result<()> {
    let differs = |what: &str, of_info: &str, opened: &str| Error::Invalid {
        what: "info",
        why: format!(
            "the info is of the {what} {of_info:?}, but the fabric was opened for the {what} \
             {opened:?}"
        ),
    };
    if info.fabric.provider != provider {
        return Err(differs("provider", &info.fabric.provider, provider));
    }
    if info.fabric.name != fabric {
        return Err(differs("fabric", &info.fabric.name, fabric));
    }
    let domain = &info.domain;
    if domain.control_progress == Progress::Auto && domain.data_progress != Progress::Auto {
        return Err(Error::Invalid {
            what: "data_progress",
            why: "a domain with automatic control progress has automatic data progress".into(),
        });
    }
    Ok(())
}

/// Checks that an endpoint or a receive context may be opened from `info` in a domain that was
/// opened from the info `of_domain`: the domain serves every attribute that `info` states for it.
///
/// # Errors
/// [`Error::Invalid`], with the first attribute that the domain does not serve.
pub fn check_child(of_domain: &Info, info: &Info) -> Result<()> {
    let refused = |attribute, stated: &dyn Display, opened_with: &dyn Display| Error::Invalid {
        what: "info",
        why: format!(
            "the info states {attribute} {stated}, but the domain was opened with {opened_with}"
        ),
    };
    let (format, of_peers) = (info.addr_format, of_domain.addr_format);
    if of_peers != AddrFormat::Str && !of_peers.is_compatible(format) {
        let (format, of_peers) = (format!("{format:?}"), format!("{of_peers:?}"));
        return Err(refused("addr_format", &format, &of_peers));
    }
    negotiate::check_domain_attr(&Hints::from(info), of_domain)
        .map_err(|mismatch| refused(mismatch.attribute, &mismatch.requested, &mismatch.offered))
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
    fn children_use_the_attributes_of_their_domain() {
        let mut of_domain = Info::template("p", "f", "d");
        (of_domain.domain.cntr_cnt, of_domain.domain.mr_cnt) = (8, 8);
        of_domain.domain.av_type = Some(AvType::Map);
        assert_eq!(check_child(&of_domain, &of_domain), Ok(()));
        let refused = |change: fn(&mut DomainAttr)| {
            let mut info = of_domain.clone();
            change(&mut info.domain);
            let error = check_child(&of_domain, &info).unwrap_err();
            assert_eq!(error.errno(), 22);
            error.to_string()
        };
        for (error, attribute) in [
            (refused(|domain| domain.name = "e".into()), "domain_name"),
            (
                refused(|domain| domain.data_progress = Progress::Auto),
                "data_progress",
            ),
            (
                refused(|domain| domain.av_type = Some(AvType::Table)),
                "av_type",
            ),
            (refused(|domain| domain.cq_data_size += 1), "cq_data_size"),
            (refused(|domain| domain.cntr_cnt += 1), "cntr_cnt"),
            (refused(|domain| domain.mr_cnt += 1), "mr_cnt"),
            (refused(|domain| domain.max_err_data = 1), "max_err_data"),
            (
                refused(|domain| domain.caps = Caps::SHARED_AV),
                "domain_caps",
            ),
        ] {
            assert!(error.contains(attribute), "{attribute}: {error}");
        }
        // A format that has no address in common.
        let mut info = of_domain.clone();
        of_domain.addr_format = AddrFormat::SockaddrIn;
        info.addr_format = AddrFormat::SockaddrIn6;
        let error = check_child(&of_domain, &info).unwrap_err();
        assert!(error.to_string().contains("addr_format SockaddrIn6"));
        for format in [AddrFormat::Str, AddrFormat::SockaddrIp] {
            info.addr_format = format;
            assert_eq!(check_child(&of_domain, &info), Ok(()));
        }
        // The open instance is not an attribute.
        let mut info = of_domain.clone();
        info.domain.domain = Some(7);
        assert_eq!(check_child(&of_domain, &info), Ok(()));
    }

    #[test]
    fn automatic_control_progress_is_granted_with_data() {
        use Progress::{Auto, ControlUnified, Manual};
        let offers = Info::template("p", "f", "d").for_both_progress_models();
        for (control, data, granted) in [
            (None, None, (Manual, Manual)),
            (None, Some(Auto), (Auto, Auto)),
            (Some(Auto), None, (Auto, Auto)),
            (Some(Auto), Some(Auto), (Auto, Auto)),
            (Some(Auto), Some(Manual), (Auto, Auto)),
            (Some(Auto), Some(ControlUnified), (Auto, Auto)),
            (Some(Manual), Some(Auto), (Manual, Auto)),
            (Some(Manual), Some(Manual), (Manual, Manual)),
            (Some(ControlUnified), Some(Auto), (ControlUnified, Auto)),
            (
                Some(ControlUnified),
                Some(ControlUnified),
                (ControlUnified, ControlUnified),
            ),
        ] {
            let mut hints = Hints::new();
            if let Some(control) = control {
                hints = hints.control_progress(control);
            }
            if let Some(data) = data {
                hints = hints.data_progress(data);
            }
            let mut info = select(&hints, &offers).unwrap().swap_remove(0);
            let (of_control, of_data) = (info.domain.control_progress, info.domain.data_progress);
            assert_eq!((of_control, of_data), granted, "{control:?} {data:?}");
            assert_eq!(check_domain(("p", "f"), &info), Ok(()));
            (info.domain.control_progress, info.domain.data_progress) = (Auto, Manual);
            let error = check_domain(("p", "f"), &info).unwrap_err();
            assert!(error.to_string().contains("data_progress"), "{error}");
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
