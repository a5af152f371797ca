//! Negotiation of hints and offers.
//!
//! | module | subject |
//! |---|---|
//! | `rules` | every rule, and the order of the checks |
//! | `mr_mode` | mode bits of memory registration |
//! | `result` | what a successful negotiation returns |
//! | `properties` | properties of all offers and hints |

mod mr_mode;
mod properties;
mod result;
mod rules;

use fabric_core::Address;
use fabric_core::flags::{Caps, Mode, MsgOrder, OpFlags};
use fabric_core::info::{
    AvType, Hints, Info, Progress, Protocol, ResourceMgmt, Threading, Version, negotiate,
};

/// Returns an offer with limits everywhere, and every level in the middle of its range.
fn test_offer() -> Info {
    let mut offer = Info::template("sim", "net", "net0");
    offer.caps =
        Caps::MSG | Caps::TAGGED | Caps::RMA | Caps::DIRECTED_RECV | Caps::FENCE | Caps::SOURCE;
    offer.mode = Mode::CONTEXT;
    offer.fabric.provider_version = Version::new(3, 1);
    let domain = &mut offer.domain;
    domain.threading = Threading::Endpoint;
    domain.control_progress = Progress::Manual;
    domain.data_progress = Progress::Manual;
    domain.resource_mgmt = ResourceMgmt::Disabled;
    domain.av_type = Some(AvType::Table);
    domain.cq_data_size = 4;
    domain.cntr_cnt = 10;
    domain.mr_iov_limit = 3;
    domain.caps = Caps::LOCAL_COMM;
    domain.mode = Mode::RESTRICTED_COMP;
    domain.max_err_data = 16;
    domain.mr_cnt = 100;
    domain.auth_key_size = 8;
    domain.max_ep_auth_key = 2;
    domain.max_cntr_value = 1000;
    domain.max_err_cntr_value = 500;
    domain.max_ep_tx_ctx = 2;
    domain.max_ep_rx_ctx = 3;
    domain.max_ep_srx_ctx = 5;
    offer.ep.protocol = Some(Protocol::Sim);
    offer.ep.protocol_version = 7;
    offer.ep.max_msg_size = 4096;
    offer.ep.max_order_raw_size = 64;
    offer.ep.max_order_war_size = 32;
    offer.ep.max_order_waw_size = 128;
    offer.ep.auth_key_size = 4;
    offer.ep.mem_tag_format = 0xffff_ffff;
    offer.rx.mode = Mode::ASYNC_IOV;
    offer.rx.op_flags = OpFlags::MULTI_RECV;
    offer.rx.msg_order = MsgOrder::SAS | MsgOrder::WAW;
    offer.rx.size = 50;
    offer.rx.iov_limit = 4;
    offer.tx.mode = Mode::ASYNC_IOV;
    offer.tx.op_flags = OpFlags::INJECT | OpFlags::COMPLETION;
    offer.tx.msg_order = MsgOrder::SAS | MsgOrder::RAW;
    offer.tx.size = 60;
    offer.tx.iov_limit = 5;
    offer.tx.inject_size = 192;
    offer.tx.rma_iov_limit = 6;
    offer
}

/// Returns hints that accept the mode bits of [`test_offer`] and request nothing.
fn accepting_hints() -> Hints {
    Hints::new()
        .mode(Mode::CONTEXT | Mode::ASYNC_IOV)
        .domain_mode(Mode::RESTRICTED_COMP)
}

fn address(text: &str) -> Address {
    text.parse().unwrap()
}

fn mismatch_attribute(hints: &Hints, offer: &Info) -> &'static str {
    negotiate(hints, offer)
        .expect_err("the hints must not match")
        .attribute
}
