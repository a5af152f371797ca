//! What libfabric's tcp provider speaks, without sockets: codecs and the logic of a connection.
//!
//! | file | subject |
//! |---|---|
//! | `order` | in which order the peer writes its integers |
//! | `control` | how a connection begins: request, acceptance, refusal |
//! | `mark` | what a peer is known to take, and how connected endpoints say it |
//! | `native` | what endpoints without connections of their own say in it, and who may keep a connection |
//! | `dialect` | which of two dialects they speak |
//! | `frame`, `rows` | the header of everything that follows; the places that one-sided operations name |
//! | `inbox` | a stream of bytes becomes messages; those of the other dialect, and where they wait |
//! | `outbox` | messages become a stream of bytes |
//! | `asked` | what this side has asked of the peer, and has not heard of |
//! | `serving`, `writes`, `atomics` | what the peer does to memory of this side: answers to its reads; its writes as they arrive; its atomic operations |
//! | `offers` | messages of this side that the peer may read where they lie |
//! | `rxm` | the other dialect |
//!
//! Control version 3 and data version 3: in use since libfabric 1.8, and between endpoints of both
//! ages.

mod asked;
mod atomics;
mod control;
mod dialect;
mod frame;
mod inbox;
mod mark;
mod native;
mod offers;
mod order;
mod outbox;
mod rows;
pub mod rxm;
mod serving;
mod writes;

pub use asked::Asked;
pub use control::{Control, ControlKind, PRIVATE_BYTES};
pub use dialect::{Agreed, Dialect, Question, Reply};
pub use frame::{Denial, Frame, FrameKind, LONGEST_HEADER, Owed};
pub use inbox::{Inbox, MAX_MESSAGE, Patience, Taken};
pub use mark::{Mark, Takes, Welcome};
pub use native::{Hello, Rivals, Verdict, arbitrate};
pub use offers::Offers;
pub use order::Order;
pub use outbox::Outbox;
pub use rows::{MOST_ROWS, Row, Rows};
pub use serving::{Replies, Replying};

/// The peer said what it must not: why its connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken(pub &'static str);
