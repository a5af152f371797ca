//! The check of an info that an application passes back, to open an object from it.
//!
//! Negotiation takes several attributes of hints as advice and adjusts others, so it accepts hints
//! with values that the provider does not serve. An info states what is served: an object that was
//! opened from an info with such a value would promise it.

use std::fmt::Debug;

use crate::flags::{Mode, MrMode};

use super::mismatch::{Mismatch, flag_names};
use super::{Hints, Info, negotiate};

/// Checks that `offer` serves every value of an info that an application may have changed after
/// discovery. Limits may be lower than granted, levels and requirements as hints may request them.
///
/// # Errors
/// [`Mismatch`] with the first attribute whose value is not served.
pub fn check_passed_back(info: &Info, offer: &Info) -> Result<(), Mismatch> {
    let granted = negotiate(&Hints::from(info), offer)?;
    let check = Check { offer };
    check.mode("mode", info.mode, granted.mode)?;

    let (domain, served) = (&info.domain, &granted.domain);
    check.equal("resource_mgmt", domain.resource_mgmt, served.resource_mgmt)?;
    check.mr_mode(info, served.mr_mode)?;
    check.mode("domain_mode", domain.mode, served.mode)?;
    check.equal(
        "max_cntr_value",
        domain.max_cntr_value,
        served.max_cntr_value,
    )?;
    check.equal(
        "max_err_cntr_value",
        domain.max_err_cntr_value,
        served.max_err_cntr_value,
    )?;
    let (ep, served_ep) = (&info.ep, &granted.ep);
    for (attribute, stated, served) in [
        ("mr_key_size", domain.mr_key_size, served.mr_key_size),
        ("cq_data_size", domain.cq_data_size, served.cq_data_size),
        ("max_err_data", domain.max_err_data, served.max_err_data),
        (
            "max_ep_stx_ctx",
            domain.max_ep_stx_ctx,
            served.max_ep_stx_ctx,
        ),
        ("auth_key_size", domain.auth_key_size, served.auth_key_size),
        (
            "msg_prefix_size",
            ep.msg_prefix_size,
            served_ep.msg_prefix_size,
        ),
        (
            "ep_auth_key_size",
            ep.auth_key_size,
            served_ep.auth_key_size,
        ),
    ] {
        check.equal(attribute, stated, served)?;
    }
    for (attribute, stated, served) in [
        ("cq_cnt", domain.cq_cnt, served.cq_cnt),
        ("ep_cnt", domain.ep_cnt, served.ep_cnt),
        ("cntr_cnt", domain.cntr_cnt, served.cntr_cnt),
        ("mr_cnt", domain.mr_cnt, served.mr_cnt),
        ("mr_iov_limit", domain.mr_iov_limit, served.mr_iov_limit),
        ("tx_ctx_cnt", domain.tx_ctx_cnt, served.tx_ctx_cnt),
        ("rx_ctx_cnt", domain.rx_ctx_cnt, served.rx_ctx_cnt),
        ("max_ep_tx_ctx", domain.max_ep_tx_ctx, served.max_ep_tx_ctx),
        ("max_ep_rx_ctx", domain.max_ep_rx_ctx, served.max_ep_rx_ctx),
        (
            "max_ep_srx_ctx",
            domain.max_ep_srx_ctx,
            served.max_ep_srx_ctx,
        ),
        (
            "max_ep_auth_key",
            domain.max_ep_auth_key,
            served.max_ep_auth_key,
        ),
    ] {
        if stated > served {
            return check.equal(attribute, stated, served);
        }
    }
    Ok(())
}

/// A check of one info.
struct Check<'a> {
    offer: &'a Info,
}

impl Check<'_> {
    fn refuse(&self, attribute: &'static str, stated: String, served: String) -> Mismatch {
        Mismatch::new(self.offer, attribute, stated, served)
    }

    fn equal<T: PartialEq + Debug>(
        &self,
        attribute: &'static str,
        stated: T,
        granted: T,
    ) -> Result<(), Mismatch> {
        if stated == granted {
            return Ok(());
        }
        Err(self.refuse(attribute, format!("{stated:?}"), format!("{granted:?}")))
    }

    /// Checks that the mode bits are requirements that the offer has, or were agreed to in
    /// advance.
    fn mode(&self, attribute: &'static str, stated: Mode, granted: Mode) -> Result<(), Mismatch> {
        if (granted | Mode::LOCAL_MR).contains(stated) {
            return Ok(());
        }
        Err(self.refuse(attribute, flag_names(stated), flag_names(granted)))
    }

    /// Checks that the bits are requirements of the offer, or the three that `BASIC` stands for.
    /// An info with fewer capabilities than it was granted with may keep bits of the others.
    fn mr_mode(&self, info: &Info, granted: MrMode) -> Result<(), Mismatch> {
        let stated = info.domain.mr_mode;
        let mut served = granted | self.offer.domain.mr_mode.difference(MrMode::LEGACY);
        if stated.contains(MrMode::BASIC_BITS) {
            served |= MrMode::BASIC_BITS;
        }
        if served.contains(stated) {
            return Ok(());
        }
        Err(self.refuse("mr_mode", flag_names(stated), flag_names(served)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::Caps;
    use crate::info::ResourceMgmt;

    /// The attribute, and the change of it.
    type Change = (&'static str, fn(&mut Info));

    fn offer() -> Info {
        let mut offer = Info::template("p", "f", "d");
        offer.caps = Caps::MSG.with_directions() | Caps::RMA.with_directions();
        (offer.domain.cntr_cnt, offer.domain.mr_cnt) = (8, 8);
        (offer.domain.cq_data_size, offer.domain.mr_iov_limit) = (8, 4);
        offer.domain.mr_mode = MrMode::RMA_EVENT | MrMode::RAW;
        offer
    }

    #[test]
    fn granted_and_lowered_infos_pass() {
        let offer = offer();
        let hints = Hints::new().mr_mode(MrMode::all().difference(MrMode::LEGACY));
        let granted = negotiate(&hints, &offer).unwrap();
        let mut messages_only = granted.clone();
        (messages_only.tx.caps, messages_only.rx.caps) = (Caps::MSG, Caps::MSG);
        messages_only.caps = Caps::MSG;
        let mut lowered = granted.clone();
        lowered.domain.mr_cnt = 1;
        lowered.domain.cq_cnt = 0;
        lowered.domain.mr_iov_limit = 1;
        for info in [granted, messages_only, lowered] {
            assert_eq!(check_passed_back(&info, &offer), Ok(()), "{info:?}");
        }
        let mut basic = offer.clone();
        basic.domain.mr_mode = MrMode::empty();
        let granted = negotiate(&Hints::new().mr_mode(MrMode::BASIC), &basic).unwrap();
        assert_eq!(granted.domain.mr_mode, MrMode::BASIC_BITS);
        assert_eq!(check_passed_back(&granted, &basic), Ok(()));
    }

    #[test]
    fn values_that_are_not_served_are_refused_by_name() {
        let changes: [Change; 17] = [
            ("resource_mgmt", |info| {
                info.domain.resource_mgmt = ResourceMgmt::Disabled
            }),
            ("mr_key_size", |info| info.domain.mr_key_size = 100),
            ("cq_data_size", |info| info.domain.cq_data_size = 4),
            ("max_ep_tx_ctx", |info| info.domain.max_ep_tx_ctx = 99),
            ("max_ep_rx_ctx", |info| info.domain.max_ep_rx_ctx = 99),
            ("max_ep_stx_ctx", |info| info.domain.max_ep_stx_ctx = 7),
            ("mr_cnt", |info| info.domain.mr_cnt = usize::MAX),
            ("cntr_cnt", |info| info.domain.cntr_cnt = usize::MAX),
            ("mr_iov_limit", |info| info.domain.mr_iov_limit = usize::MAX),
            ("max_cntr_value", |info| info.domain.max_cntr_value = 10),
            ("auth_key_size", |info| info.domain.auth_key_size = 7),
            ("msg_prefix_size", |info| info.ep.msg_prefix_size = 64),
            ("mode", |info| info.mode = Mode::all()),
            ("domain_mode", |info| info.domain.mode = Mode::all()),
            ("mr_mode", |info| info.domain.mr_mode |= MrMode::COLLECTIVE),
            ("mr_mode", |info| info.domain.mr_mode |= MrMode::MMU_NOTIFY),
            ("mr_mode", |info| info.domain.mr_mode |= MrMode::VIRT_ADDR),
        ];
        let offer = offer();
        for old_api in [false, true] {
            let mut basis = offer.clone();
            if old_api {
                basis.domain.mr_mode = MrMode::empty();
            }
            let mut hints = Hints::new();
            if old_api {
                hints.api_version = Some(crate::info::Version::new(1, 4));
            } else {
                hints.mr_mode = offer.domain.mr_mode;
            }
            let granted = negotiate(&hints, &basis).unwrap();
            assert_eq!(check_passed_back(&granted, &basis), Ok(()));
            for (attribute, change) in changes {
                let mut info = granted.clone();
                change(&mut info);
                let refused = check_passed_back(&info, &basis).unwrap_err();
                assert_eq!(refused.attribute, attribute, "{refused}");
            }
        }
    }
}
