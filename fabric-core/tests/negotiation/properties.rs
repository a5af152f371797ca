//! Properties of all offers and hints.

use fabric_core::flags::{Caps, Mode, MrMode, MsgOrder, OpFlags};
use fabric_core::info::{AvType, Hints, Info, Progress, ResourceMgmt, Threading, negotiate};
use proptest::prelude::*;

fn any_flags<F: bitflags::Flags<Bits = u64> + std::fmt::Debug>() -> impl Strategy<Value = F> {
    any::<u64>().prop_map(F::from_bits_truncate)
}

/// Returns the capabilities with `SOURCE`, if they have `SOURCE_ERR`, which needs it.
fn with_source(caps: Caps) -> Caps {
    match caps.contains(Caps::SOURCE_ERR) {
        true => caps | Caps::SOURCE,
        false => caps,
    }
}

prop_compose! {
    /// Offers with arbitrary, consistent limits.
    fn any_offer()(
        (caps, tx_share, rx_share)
            in (any_flags::<Caps>(), any_flags::<Caps>(), any_flags::<Caps>()),
        (mode, tx_mode, rx_mode) in (any_flags::<Mode>(), any_flags::<Mode>(), any_flags::<Mode>()),
        (tx_order, rx_order) in (any_flags::<MsgOrder>(), any_flags::<MsgOrder>()),
        (mr_mode, flags) in (any::<u32>(), any::<u32>()),
        (threading, control, data) in (0..5_usize, 0..3_usize, 0..3_usize),
        (enabled, table) in (any::<bool>(), any::<Option<bool>>()),
        sizes in prop::array::uniform16(1..1_000_000_usize),
        key in prop::option::of(prop::collection::vec(any::<u8>(), 1..20)),
    ) -> Info {
        let mut offer = Info::template("sim", "net", "net0");
        offer.caps = with_source(caps.with_directions());
        offer.mode = mode;
        let domain = &mut offer.domain;
        domain.threading = Threading::ALL[threading];
        domain.control_progress = Progress::ALL[control];
        domain.data_progress = Progress::ALL[data];
        domain.resource_mgmt = ResourceMgmt::ALL[usize::from(!enabled)];
        domain.av_type = table.map(|table| if table { AvType::Table } else { AvType::Map });
        domain.mr_mode = MrMode::from_bits_truncate(mr_mode).difference(MrMode::LEGACY);
        domain.caps = offer.caps & Caps::SECONDARY;
        domain.auth_key_size = key.as_ref().map_or(0, Vec::len);
        domain.auth_key = key;
        [domain.cq_data_size, domain.cntr_cnt, domain.mr_iov_limit, ..] = sizes;
        [domain.max_err_data, domain.mr_cnt] = [sizes[3], sizes[4]];
        [.., domain.max_ep_auth_key, domain.max_ep_tx_ctx, domain.max_ep_rx_ctx] = sizes;
        offer.ep.max_msg_size = sizes[5];
        offer.ep.max_order_raw_size = sizes[6];
        offer.tx.caps = offer.caps & tx_share;
        offer.rx.caps = offer.caps & rx_share;
        (offer.tx.mode, offer.rx.mode) = (tx_mode, rx_mode);
        (offer.tx.msg_order, offer.rx.msg_order) = (tx_order, rx_order);
        offer.tx.op_flags = OpFlags::from_bits_truncate(flags);
        offer.rx.op_flags = OpFlags::from_bits_truncate(flags >> 8);
        [offer.tx.size, offer.tx.iov_limit, offer.tx.rma_iov_limit, offer.tx.inject_size] =
            [sizes[7], sizes[8], sizes[9], sizes[10]];
        [offer.rx.size, offer.rx.iov_limit] = [sizes[11], sizes[12]];
        offer
    }
}

/// The name of a hint whose value is a minimum, and functions that read the limit of an offer and
/// request a value.
type Limit = (&'static str, fn(&Info) -> usize, fn(Hints, usize) -> Hints);

/// Builds a [`Limit`] for each `HINT: FIELD of Info`.
macro_rules! limits {
    ($($hint:ident: $($field:ident).+,)+) => {
        &[$((stringify!($hint), |offer| offer.$($field).+, Hints::$hint)),+]
    };
}

const LIMITS: &[Limit] = limits! {
    cq_data_size: domain.cq_data_size,
    cntr_cnt: domain.cntr_cnt,
    mr_iov_limit: domain.mr_iov_limit,
    max_err_data: domain.max_err_data,
    mr_cnt: domain.mr_cnt,
    max_ep_auth_key: domain.max_ep_auth_key,
    max_msg_size: ep.max_msg_size,
    ep_tx_ctx_cnt: domain.max_ep_tx_ctx,
    ep_rx_ctx_cnt: domain.max_ep_rx_ctx,
    rx_size: rx.size,
    rx_iov_limit: rx.iov_limit,
    tx_size: tx.size,
    tx_iov_limit: tx.iov_limit,
    inject_size: tx.inject_size,
    rma_iov_limit: tx.rma_iov_limit,
};

proptest! {
    #[test]
    fn offer_satisfies_hints_made_from_it(offer in any_offer()) {
        let info = negotiate(&Hints::from(&offer), &offer);
        prop_assert!(info.is_ok(), "{}", info.unwrap_err());
        prop_assert_eq!(info.unwrap().caps, offer.caps);
    }

    #[test]
    fn negotiation_is_idempotent(offer in any_offer(), requested in any_flags::<Caps>()) {
        let requested = with_source(offer.caps & requested & !Caps::DIRECTIONS);
        let mut hints = Hints::from(&offer).caps(requested);
        (hints.tx_caps, hints.rx_caps) = (None, None);
        let info = negotiate(&hints, &offer).unwrap();
        prop_assert!(offer.caps.contains(info.caps));
        prop_assert!(info.caps.contains(info.tx.caps) && info.caps.contains(info.rx.caps));
        prop_assert_eq!(negotiate(&Hints::from(&info), &offer), Ok(info));
    }

    #[test]
    fn value_above_limit_is_reported_with_its_attribute(
        offer in any_offer(),
        index in 0..LIMITS.len(),
    ) {
        let (attribute, limit, request) = LIMITS[index];
        let over = request(Hints::from(&offer), limit(&offer) + 1);
        let mismatch = negotiate(&over, &offer).unwrap_err();
        prop_assert_eq!(mismatch.attribute, attribute);
    }
}
