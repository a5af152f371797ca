//! Buffers of operations: the traits, lists of buffers, and buffers of other crates.
//!
//! Buffers in the memory of devices are in [`device`]. [`Memfd`] is memory that peers access in
//! place.
//!
//! See [buffers](crate::guide::memory#owned-buffers) for the types that implement [`IoBuf`] and
//! [`IoBufMut`].

pub use fabric_core::buf::{
    AnyBuf, CustomBuf, FlatBuf, Gather, IoBuf, IoBufMut, Payload, RegionBuf, Scatter,
};

pub use fabric_core::mr::LocalBuffer;
pub use fabric_reactor::Memfd;

pub mod device;
