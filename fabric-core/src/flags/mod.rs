//! Bit sets, one type per class of call, so that a bit cannot be passed where it means nothing.
//!
//! | type | where it is used |
//! |---|---|
//! | [`Caps`] | what an endpoint, a context or a domain can do |
//! | [`Mode`], [`MrMode`] | duties that a provider puts on the application |
//! | [`MsgOrder`] | which messages keep their order |
//! | [`OpFlags`] | what every operation of a context does by default |
//! | [`CqBind`], [`CounterBind`] | what a queue or a counter hears of an endpoint |
//! | [`Access`] | what a memory region may be used for |
//!
//! libfabric keeps most of these in one 64-bit space, where one bit has several meanings. The
//! values here are this crate's own and dense: they are no ABI, appear in no wire format, and may
//! change between versions. Compare names, never numbers. A set built from numbers goes through
//! `from_bits`, which refuses bits that the type does not know (libfabric answers those with
//! `FI_EBADFLAGS`).

mod call;
mod caps;
mod mode;
mod order;

pub use call::{Access, CounterBind, CqBind, OpFlags};
pub use caps::Caps;
pub use mode::{Mode, MrMode};
pub use order::MsgOrder;
