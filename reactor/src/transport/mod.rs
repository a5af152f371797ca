//! The transports, and what they share. A transport sees system calls (`sys`) and the traits of
//! `fabric_core::transport`, not the engine.
//!
//! | module | subject |
//! |---|---|
//! | `shm`, `tcp`, `udp`, `sim` | the transports |
//! | `connected_peer` | a connected peer: its key in the receive queue, its address handles |
//! | `held_connections` | connections that hold a message which is not accepted now |
//! | `inbound_limits` | limits of connections of peers that the program has not inserted |
//! | `info_templates` | common attributes of offers |
//! | `net` | options and addresses of sockets |
//! | `peer_keys` | keys of the peers of an endpoint |

mod connected_peer;
mod held_connections;
mod inbound_limits;
pub(crate) mod info_templates;
mod net;
mod peer_keys;
pub mod shm;
pub mod sim;
pub mod tcp;
pub mod udp;
