//! What the extensions of providers report (`fi_open_ops`).

mod shm;
mod tcp;

pub use shm::ShmInfo;
pub use tcp::TcpInfo;

/// What a provider knows about the connections of an endpoint with one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionInfo {
    /// The TCP connection, as the kernel sees it.
    Tcp(TcpInfo),
    /// The shared memory that is mapped for the peer.
    Shm(ShmInfo),
}
