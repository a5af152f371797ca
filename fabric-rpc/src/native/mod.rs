//! Native calls: requests and responses as messages of the fabric, without a framework.
//!
//! See [the guide](crate::guide#native-calls). `Bytes` go in and `Bytes` come out: this module has
//! no schema and no code generator. A [`Client`] and the handler of a [`Server`] are services of
//! tower.

// | file | subject |
// |---|---|
// | `message`, `body`, `status` | requests, responses, lent memory, reasons of failures |
// | `wire` | tags, completion data and metadata |
// | `untagged` | messages that are of no call |
// | `client/` | credits, sessions, calls in flight |
// | `server/` | limits, handlers, answers, shutdown |

/// Creates a span for a call of a method, unless no subscriber wants it: a disabled span still
/// costs at each use, for the crate `log`.
macro_rules! method_span {
    ($parent:expr, $name:literal, $method:expr) => {
        if tracing::span_enabled!(target: "fabric_rpc::native", tracing::Level::DEBUG) {
            tracing::debug_span!(
                target: "fabric_rpc::native",
                parent: $parent,
                $name,
                method = $method
            )
        } else {
            tracing::Span::none()
        }
    };
}

mod body;
mod client;
mod message;
mod server;
mod status;
mod untagged;
mod wire;

pub use body::{Body, Lender, LentBuf};
pub use client::{Client, ClientBuilder, ReconnectPolicy, ResponseFuture};
pub use message::{Metadata, Request, Response};
pub use server::{Server, ServerBuilder};
pub use status::{Code, Status};

/// The length of the longest request and response by default.
const DEFAULT_MAX_BODY_LEN: usize = 16 << 20;
