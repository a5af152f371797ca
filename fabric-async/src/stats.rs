//! Counters of [domains](crate::Domain::stats) and [endpoints](crate::Endpoint::stats).

pub use fabric_core::stats::{DomainStats, EndpointStats, OpStats};
