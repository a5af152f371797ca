//! What libfabric's tcp provider speaks, without sockets: codecs and the logic of a connection.
//!
//! | file | subject |
//! |---|---|
//! | `order` | in which order the peer writes its integers |
//! | `control` | how a connection begins: request, acceptance, refusal |
//! | `native` | what endpoints without connections of their own say in it, and who may keep a connection |
//! | `frame` | the header of everything that follows |
//! | `inbox` | a stream of bytes becomes messages |
//! | `outbox` | messages become a stream of bytes |
//!
//! Control version 3 and data version 3: in use since libfabric 1.8, and between endpoints of both ages.

mod control;
mod frame;
mod inbox;
mod native;
mod order;
mod outbox;

pub use control::{Control, ControlKind, PRIVATE_BYTES};
pub use frame::{Frame, FrameKind, LONGEST_HEADER, Owed};
pub use inbox::{Inbox, MAX_MESSAGE, Taken};
pub use native::{Hello, Rivals, Verdict, arbitrate};
pub use order::Order;
pub use outbox::Outbox;

/// The peer said what it must not: why its connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken(pub &'static str);
