//! The reasons for which a peer's endpoint refuses a connection.

use std::fmt;

/// Why the endpoint of a peer refused a connection
/// ([`Error::ConnectionRefused`](super::Error::ConnectionRefused)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalReason {
    /// The two sides speak different versions of the protocol.
    Version {
        /// The version the peer speaks.
        theirs: u16,
        /// The version this side speaks.
        ours: u16,
    },
    /// The peer accepts only processes of its own user.
    User,
    /// The peer could not parse the handshake.
    Malformed,
    /// The peer is out of memory or descriptors, or at its limit of connections. Over `tcp` also:
    /// the peer is a passive endpoint whose program rejected the connection, because the wire
    /// format has one code for both.
    Resources,
    /// The peer's endpoint is of another type than this side's. Use `Endpoint::add_peer` to reach a
    /// connectionless endpoint (`FI_EP_RDM`), and `ConnectedEndpoint::connect` to reach a passive
    /// endpoint (`FI_EP_MSG`).
    EpType,
    /// A reason code that this version does not know.
    Other(u16),
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version { theirs, ours } => {
                write!(
                    f,
                    "the peer speaks protocol version {theirs}, this side {ours}; build both \
                     programs with one version of the library"
                )
            }
            Self::User => f.write_str("the peer accepts only processes of its own user"),
            Self::Malformed => f.write_str("the peer could not parse the handshake"),
            Self::Resources => f.write_str(
                "the peer lacks memory, descriptors or connections, or (tcp) rejects it or its \
                 endpoint type; retry later",
            ),
            Self::EpType => f.write_str(
                "endpoint of another type; use add_peer for FI_EP_RDM, ConnectedEndpoint::connect \
                 for FI_EP_MSG",
            ),
            Self::Other(code) => write!(f, "unknown reason code {code}"),
        }
    }
}
