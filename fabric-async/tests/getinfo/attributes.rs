//! The attributes of hints, and the values that the test gives them.

use fabric_async::info::{
    AddrFormat, AvType, Mode, MrMode, MsgOrder, ResourceMgmt, SHARED_CONTEXT, Threading, Version,
};
use fabric_async::{Caps, EpType, Hints, Info, OpFlags, Progress, Protocol};

/// An attribute of hints.
pub(crate) struct Attribute {
    /// The name, of the method of [`Hints`] too.
    pub(crate) name: &'static str,
    /// The values. `@` is the limit of the offers, `+` a value beyond the limit.
    pub(crate) values: &'static [&'static str],
    /// Sets the attribute to this value. The offers are those of the provider.
    pub(crate) set: fn(Hints, &str, &[Info]) -> Hints,
}

/// Returns the values beside which alone an attribute is checked.
pub(crate) fn context_of(attribute: &str) -> &'static [(&'static str, &'static str)] {
    match attribute {
        "max_order_raw_size" | "max_order_war_size" | "max_order_waw_size" => &[("caps", "RMA")],
        _ => &[],
    }
}

/// Returns the number that a value stands for.
fn number(text: &str, limit: usize) -> usize {
    match text {
        "@" => limit,
        "+" => limit.saturating_add(1),
        "SHARED_CONTEXT" => SHARED_CONTEXT,
        number => number.parse().expect("a number"),
    }
}

fn largest<T: Ord>(offers: &[Info], field: fn(&Info) -> T) -> T {
    offers.iter().map(field).max().expect("an offer")
}

/// Declares numbers, each with the field of an offer that is its limit.
macro_rules! numbers {
    ($($name:ident $values:tt $($field:ident).+;)*) => {
        &[$(Attribute {
            name: stringify!($name),
            values: &$values,
            set: |hints, text, offers| {
                let limit = largest(offers, |offer| offer.$($field).+);
                hints.$name(number(text, limit as usize).try_into().expect("the type of a hint"))
            },
        }),*]
    };
}

/// Declares flags, with the prefix of their names in libfabric, and the hint that has the flags.
macro_rules! flags {
    ($($name:ident $flags:ident $prefix:literal $values:tt $current:expr;)*) => {
        &[$(Attribute {
            name: stringify!($name),
            values: &$values,
            set: |hints, text, _| {
                let current: fn(&Hints) -> $flags = $current;
                let added = text.split('|').map(|name| {
                    let name = name.strip_prefix($prefix).expect("the prefix");
                    $flags::from_name(name).expect("the name of a flag")
                });
                let flags = added.fold(current(&hints), |flags, added| flags | added);
                hints.$name(flags)
            },
        }),*]
    };
}

/// Declares enumerations.
macro_rules! choices {
    ($($name:ident { $($text:literal => $value:expr,)* })*) => {
        &[$(Attribute {
            name: stringify!($name),
            values: &[$($text),*],
            set: |hints, text, _| hints.$name(match text {
                $($text => $value,)*
                other => unreachable!("{other} is not in the list"),
            }),
        }),*]
    };
}

const CHOICES: &[Attribute] = choices! {
    ep_type {
        "EP_RDM" => EpType::Rdm,
        "EP_MSG" => EpType::Msg,
        "EP_DGRAM" => EpType::Dgram,
    }
    addr_format {
        "ADDR_STR" => AddrFormat::Str,
        "SOCKADDR" => AddrFormat::Sockaddr,
        "SOCKADDR_IN" => AddrFormat::SockaddrIn,
    }
    threading {
        "THREAD_SAFE" => Threading::Safe,
        "THREAD_FID" => Threading::Fid,
        "THREAD_ENDPOINT" => Threading::Endpoint,
        "THREAD_COMPLETION" => Threading::Completion,
        "THREAD_DOMAIN" => Threading::Domain,
    }
    control_progress {
        "PROGRESS_AUTO" => Progress::Auto,
        "PROGRESS_MANUAL" => Progress::Manual,
    }
    data_progress {
        "PROGRESS_AUTO" => Progress::Auto,
        "PROGRESS_MANUAL" => Progress::Manual,
    }
    resource_mgmt {
        "RM_ENABLED" => ResourceMgmt::Enabled,
        "RM_DISABLED" => ResourceMgmt::Disabled,
    }
    av_type {
        "AV_MAP" => AvType::Map,
        "AV_TABLE" => AvType::Table,
    }
};

const FLAGS: &[Attribute] = flags! {
    caps Caps "" [
        "MSG", "MSG|SEND", "MSG|RECV", "MSG|SOURCE", "MSG|MULTI_RECV", "MSG|LOCAL_COMM",
        "MSG|REMOTE_COMM", "MSG|DIRECTED_RECV", "MSG|MULTICAST", "TAGGED", "TAGGED|SEND", "RMA",
        "RMA|READ|WRITE", "RMA|REMOTE_READ", "RMA|REMOTE_WRITE", "RMA|RMA_EVENT", "ATOMIC",
        "ATOMIC|WRITE", "MSG|FENCE", "MSG|SOURCE|SOURCE_ERR", "RMA|RMA_PMEM", "MSG|TRIGGER",
        "MSG|HMEM", "MSG|COLLECTIVE", "MSG|NAMED_RX_CTX", "MSG|VARIABLE_MSG", "MSG|SHARED_AV",
    ] |hints| hints.caps.unwrap_or_default();
    mode Mode "" ["CONTEXT", "ASYNC_IOV", "RX_CQ_DATA", "LOCAL_MR"] |hints| hints.mode;
    tx_caps Caps "" ["MSG", "TAGGED", "RMA", "ATOMIC", "MSG|SEND", "COLLECTIVE", "HMEM"]
        |hints| hints.tx_caps.unwrap_or_default();
    rx_caps Caps "" ["MSG", "TAGGED", "RMA", "ATOMIC", "MSG|RECV", "COLLECTIVE", "HMEM"]
        |hints| hints.rx_caps.unwrap_or_default();
    domain_caps Caps "" ["LOCAL_COMM", "REMOTE_COMM", "SHARED_AV"]
        |hints| hints.domain_caps.unwrap_or_default();
    domain_mode Mode "" ["CONTEXT", "ASYNC_IOV"] |hints| hints.domain_mode;
    mr_mode MrMode "MR_" [
        "MR_BASIC", "MR_SCALABLE", "MR_LOCAL", "MR_VIRT_ADDR", "MR_ALLOCATED", "MR_PROV_KEY",
        "MR_VIRT_ADDR|MR_ALLOCATED|MR_PROV_KEY", "MR_RAW", "MR_RMA_EVENT", "MR_ENDPOINT",
        "MR_BASIC|MR_LOCAL", "MR_SCALABLE|MR_VIRT_ADDR", "MR_BASIC|MR_SCALABLE",
    ] |hints| hints.mr_mode;
    tx_op_flags OpFlags "" [
        "COMPLETION", "INJECT", "INJECT_COMPLETE", "TRANSMIT_COMPLETE", "DELIVERY_COMPLETE",
        "MATCH_COMPLETE", "COMMIT_COMPLETE", "MULTI_RECV", "COMPLETION|INJECT_COMPLETE",
    ] |hints| hints.tx_op_flags.unwrap_or_default();
    rx_op_flags OpFlags "" ["COMPLETION", "MULTI_RECV", "INJECT", "COMMIT_COMPLETE"]
        |hints| hints.rx_op_flags.unwrap_or_default();
    tx_msg_order MsgOrder "ORDER_" [
        "ORDER_SAS", "ORDER_RAW", "ORDER_WAW", "ORDER_SAW", "ORDER_WAR", "ORDER_SAR", "ORDER_WAS",
        "ORDER_RAS", "ORDER_RAR",
    ] |hints| hints.tx_msg_order.unwrap_or_default();
    rx_msg_order MsgOrder "ORDER_" [
        "ORDER_SAS", "ORDER_RAW", "ORDER_WAW", "ORDER_SAW", "ORDER_WAR", "ORDER_SAR", "ORDER_WAS",
        "ORDER_RAS", "ORDER_RAR",
    ] |hints| hints.rx_msg_order.unwrap_or_default();
};

const NUMBERS: &[Attribute] = numbers! {
    mr_key_size ["0", "4", "@", "+"] domain.mr_key_size;
    cq_data_size ["0", "4", "@", "+"] domain.cq_data_size;
    cq_cnt ["0", "1", "@", "+"] domain.cq_cnt;
    ep_cnt ["0", "1", "@", "+"] domain.ep_cnt;
    domain_tx_ctx_cnt ["1", "@", "+"] domain.tx_ctx_cnt;
    domain_rx_ctx_cnt ["1", "@", "+"] domain.rx_ctx_cnt;
    max_ep_tx_ctx ["1", "@", "+"] domain.max_ep_tx_ctx;
    max_ep_rx_ctx ["1", "@", "+"] domain.max_ep_rx_ctx;
    max_ep_stx_ctx ["0", "@", "+"] domain.max_ep_stx_ctx;
    max_ep_srx_ctx ["0", "@", "+"] domain.max_ep_srx_ctx;
    cntr_cnt ["0", "@", "+"] domain.cntr_cnt;
    mr_iov_limit ["0", "1", "@", "+"] domain.mr_iov_limit;
    max_err_data ["0", "@", "+"] domain.max_err_data;
    mr_cnt ["0", "@", "+"] domain.mr_cnt;
    protocol_version ["0", "@", "+"] ep.protocol_version;
    max_msg_size ["0", "1", "1000", "@", "+"] ep.max_msg_size;
    ep_tx_ctx_cnt ["0", "1", "+", "SHARED_CONTEXT"] domain.max_ep_tx_ctx;
    ep_rx_ctx_cnt ["0", "1", "+", "SHARED_CONTEXT"] domain.max_ep_rx_ctx;
    max_order_raw_size ["0", "@", "+"] ep.max_order_raw_size;
    max_order_war_size ["0", "@", "+"] ep.max_order_war_size;
    max_order_waw_size ["0", "@", "+"] ep.max_order_waw_size;
    mem_tag_format ["0", "1", "@", "65535"] ep.mem_tag_format;
    tx_size ["0", "1", "@", "+"] tx.size;
    tx_iov_limit ["0", "1", "@", "+"] tx.iov_limit;
    inject_size ["0", "1", "@", "+"] tx.inject_size;
    rma_iov_limit ["0", "1", "@", "+"] tx.rma_iov_limit;
    rx_size ["0", "1", "@", "+"] rx.size;
    rx_iov_limit ["0", "1", "@", "+"] rx.iov_limit;
};

const OTHERS: &[Attribute] = &[
    Attribute {
        name: "provider_version",
        values: &["@", "+"],
        set: |hints, text, offers| {
            let Version { major, minor } = largest(offers, |offer| offer.fabric.provider_version);
            hints.provider_version(major, minor + u16::from(text == "+"))
        },
    },
    Attribute {
        name: "api_version",
        values: &["1.4", "1.5", "1.10", "1.17", "99.0"],
        set: |hints, text, _| {
            let (major, minor) = text.split_once('.').expect("a version");
            let parse = |text: &str| text.parse().expect("a number");
            hints.api_version(parse(major), parse(minor))
        },
    },
    Attribute {
        name: "fabric_name",
        values: &["@", "+"],
        set: |hints, text, offers| hints.fabric_name(name(text, &offers[0].fabric.name)),
    },
    Attribute {
        name: "domain_name",
        values: &["@", "+"],
        set: |hints, text, offers| hints.domain_name(name(text, &offers[0].domain.name)),
    },
    Attribute {
        name: "protocol",
        values: &["@", "+"],
        set: |hints, text, offers| {
            let offered = offers[0].ep.protocol.expect("offers have protocols");
            hints.protocol(if text == "@" { offered } else { Protocol::Sim })
        },
    },
    Attribute {
        name: "auth_key",
        values: &["0", "8"],
        set: |hints, text, _| hints.auth_key(vec![0; number(text, 0)]),
    },
];

/// Returns the name of the first offer for `@`, or a name that no offer has.
fn name<'a>(text: &'a str, first: &'a str) -> &'a str {
    if text == "@" { first } else { "none" }
}

/// Returns all attributes.
pub(crate) fn all() -> Vec<&'static Attribute> {
    [CHOICES, FLAGS, NUMBERS, OTHERS]
        .into_iter()
        .flatten()
        .collect()
}
