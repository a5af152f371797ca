//! Flag sets, one type per class of call, so that a flag cannot be passed where it has no meaning.
//!
//! | type | subject |
//! |---|---|
//! | [`Caps`] | capabilities of an endpoint, a context or a domain |
//! | [`Mode`], [`MrMode`] | requirements of a provider on the application |
//! | [`MsgOrder`] | which operations are ordered |
//! | [`OpFlags`] | default flags of the operations of a context |
//! | [`CqBind`], [`CounterBind`] | which operations of an endpoint a queue or a counter reports |
//! | [`Access`] | the access that a memory region permits |
//!
//! libfabric keeps most of these in one 64-bit space, where one bit has several meanings. The
//! values here are this crate's own and dense: they are no ABI, appear in no wire format, and may
//! change between versions. Compare names, never numbers. `from_bits` refuses bits that the type
//! does not define, where libfabric returns `FI_EBADFLAGS`.

mod call;
mod caps;
mod mode;
mod order;

pub use call::{Access, CounterBind, CqBind, OpFlags};
pub use caps::Caps;
pub use mode::{Mode, MrMode};
pub use order::MsgOrder;
