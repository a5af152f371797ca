//! The vendor extension: how peers of this library recognise each other, and what a peer supports.
//!
//! `FI_EP_RDM` endpoints that speak the native protocol put the extension into the features byte of
//! their private data ([`RdmCmData`](super::RdmCmData)). libfabric 1.17 returns the features of a
//! request unchanged, later versions return only the bit that they know. So request and acceptance
//! carry different values, and a libfabric peer is not taken for a peer of this library.
//!
//! Private data of `FI_EP_MSG` endpoints belong to the program, and those of RXM have no spare
//! bits. There the extension is in the header of the control message, in bytes that libfabric
//! writes as zero and ignores. Its presence says that the endpoint understands nacks and read
//! statuses; its bits say whether the endpoint supports tags and atomics. The magic differs between
//! request and acceptance, and an endpoint includes the extension in its reply only if the request
//! had one. So a peer that returns the bytes of a request is not taken for one of this library, and
//! a libfabric peer gets the bytes that libfabric would send.
//!
//! A tagged message from a libfabric peer is no proof that the peer supports tags: libfabric sends
//! tags from any endpoint that requested the capability, and accepts them only with a shared
//! receive context. So for a libfabric peer of type `FI_EP_MSG` the program decides
//! (`peer_supports_tags`).

use crate::atomic::AtomicSpec;
use crate::flags::Caps;
use crate::{Error, Result};

use super::CmKind;

/// Position of the extension in the header of a control message.
pub(super) const EXTENSION_RANGE: std::ops::Range<usize> = 8..24;
const EXTENSION_LEN: usize = 16;

/// First bytes of the extension in a request.
const REQUEST_MAGIC: [u8; 8] = *b"fabric-?";
/// First bytes of the extension in an acceptance.
const ACCEPT_MAGIC: [u8; 8] = *b"fabric-!";
/// Version of the extension. Later versions may add fields; the fields of this version stay.
const VERSION: u8 = 1;

const TAGGED_BIT: u32 = 1;
const ATOMIC_BIT: u32 = 2;

/// Vendor extension in a control message: the capabilities of an `FI_EP_MSG` endpoint, or of an
/// endpoint that speaks RXM. The presence of the extension says that the endpoint understands nacks
/// and the statuses behind read responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VendorExtension {
    tags: bool,
    atomics: bool,
}

impl VendorExtension {
    /// Returns the extension of an endpoint with these capabilities.
    #[must_use]
    pub fn from_caps(caps: Caps) -> Self {
        Self {
            tags: caps.contains(Caps::TAGGED),
            atomics: caps.contains(Caps::ATOMIC),
        }
    }

    /// Encodes the extension for a message of this type: eight bytes of magic, the version, three
    /// zero bytes and a word of capability bits. All bytes are zero in a rejection.
    pub(super) fn encode(self, kind: CmKind) -> [u8; EXTENSION_LEN] {
        let mut bytes = [0; EXTENSION_LEN];
        let Some(magic) = magic(kind) else {
            return bytes;
        };
        bytes[..8].copy_from_slice(&magic);
        bytes[8] = VERSION;
        let bits =
            if self.tags { TAGGED_BIT } else { 0 } | if self.atomics { ATOMIC_BIT } else { 0 };
        bytes[12..].copy_from_slice(&bits.to_be_bytes());
        bytes
    }

    /// Decodes the extension of a message of this type; `None` when the bytes are not an extension.
    /// Unknown capability bits are ignored.
    pub(super) fn decode(kind: CmKind, bytes: &[u8]) -> Option<Self> {
        let [
            b0,
            b1,
            b2,
            b3,
            b4,
            b5,
            b6,
            b7,
            version,
            _,
            _,
            _,
            t0,
            t1,
            t2,
            t3,
        ] = *bytes.as_array()?;
        if magic(kind)? != [b0, b1, b2, b3, b4, b5, b6, b7] || version < VERSION {
            return None;
        }
        let bits = u32::from_be_bytes([t0, t1, t2, t3]);
        Some(Self {
            tags: bits & TAGGED_BIT != 0,
            atomics: bits & ATOMIC_BIT != 0,
        })
    }
}

/// Returns the magic of the extension in a message of this type, if the type can carry one.
fn magic(kind: CmKind) -> Option<[u8; 8]> {
    match kind {
        CmKind::Request => Some(REQUEST_MAGIC),
        CmKind::Accept => Some(ACCEPT_MAGIC),
        CmKind::Reject => None,
    }
}

/// Capabilities of the peer of a connection. Frames that could crash a peer without the capability
/// need a [`Supported`] token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCaps {
    tags: bool,
    atomics: bool,
    is_same_implementation: bool,
}

/// Token for a tag or an atomic operation that the peer of a connection supports. Only [`PeerCaps`]
/// makes tokens, and frames that need a capability take one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Supported<T>(T);

impl<T> Supported<T> {
    pub(super) fn into_inner(self) -> T {
        self.0
    }
}

impl PeerCaps {
    /// Returns the capabilities of an `FI_EP_RDM` peer. Every such peer supports tags; a peer of
    /// this library supports atomics too.
    #[must_use]
    pub fn rdm(is_same_implementation: bool) -> Self {
        Self {
            tags: true,
            atomics: is_same_implementation,
            is_same_implementation,
        }
    }

    /// Returns the capabilities of an `FI_EP_MSG` peer: those of its vendor extension. Without an
    /// extension, the peer supports tags if the program asserts so (`peer_supports_tags`): a
    /// libfabric peer supports tags only with a shared receive context, which no message tells, and
    /// crashes on tags otherwise.
    #[must_use]
    pub fn msg(extension: Option<VendorExtension>, peer_supports_tags: bool) -> Self {
        let tags = extension.map_or(peer_supports_tags, |extension| extension.tags);
        Self {
            tags,
            atomics: extension.is_some_and(|extension| extension.atomics),
            is_same_implementation: extension.is_some(),
        }
    }

    /// Returns whether the peer is of this library, and so understands its vendor-specific frames.
    #[must_use]
    pub fn is_same_implementation(self) -> bool {
        self.is_same_implementation
    }

    /// Returns those of [`Caps::TAGGED`] and [`Caps::ATOMIC`] that the peer supports.
    #[must_use]
    pub fn tx_caps(self) -> Caps {
        let mut caps = Caps::empty();
        caps.set(Caps::TAGGED, self.tags);
        caps.set(Caps::ATOMIC, self.atomics);
        caps
    }

    /// Returns the token for a message to this peer with this tag, if the message has one.
    ///
    /// # Errors
    /// [`Error::NotSupported`] when the peer is not known to support tags.
    #[inline]
    pub fn tag(self, tag: Option<u64>) -> Result<Option<Supported<u64>>> {
        match tag {
            Some(_) if !self.tags => Err(Error::NotSupported(
                "tagged messages to a peer not known to support them (peer_supports_tags)",
            )),
            tag => Ok(tag.map(Supported)),
        }
    }

    /// Returns the token for an atomic operation on the peer's memory.
    ///
    /// # Errors
    /// [`Error::NotSupported`] when the peer is not known to support atomics.
    pub fn atomic(self, atomic: AtomicSpec) -> Result<Supported<AtomicSpec>> {
        if !self.atomics {
            return Err(Error::NotSupported(
                "atomic operations over tcp on a peer not known to support them",
            ));
        }
        Ok(Supported(atomic))
    }
}
