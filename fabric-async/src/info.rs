//! Attributes of an [`Info`](crate::Info) and of [`Hints`](crate::Hints) (`fi_getinfo(3)`), why
//! hints matched nothing, and the parameters of the environment (`fi_getparams(3)`).

pub use fabric_core::flags::{Mode, MrMode, MsgOrder};
pub use fabric_core::info::{
    AddrFormat, AvType, DomainAttr, EpAttr, FabricAttr, Mismatch, NoMatch, ResourceMgmt, RxAttr,
    SHARED_CONTEXT, Threading, TrafficClass, TxAttr, Version,
};
pub use fabric_reactor::parameters::{Parameter, ParameterKind, parameters};
pub use fabric_reactor::registry::providers;
