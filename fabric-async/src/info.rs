//! Attributes of an [`Info`](crate::Info) and of [`Hints`](crate::Hints) (`fi_getinfo(3)`), and why
//! hints matched nothing.

pub use fabric_core::flags::{Mode, MrMode, MsgOrder};
pub use fabric_core::info::{
    AddrFormat, AvType, DomainAttr, EpAttr, FabricAttr, Mismatch, NoMatch, ResourceMgmt, RxAttr,
    SHARED_CONTEXT, Threading, TrafficClass, TxAttr, Version,
};
