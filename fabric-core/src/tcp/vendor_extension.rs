//! What the peer of a connection is known to take, beyond what every one does.
//!
//! Endpoints that connect on demand say that they are of this library in what they ask each other
//! with ([`Hello`](super::Hello)). What connected ones ask with is the program's, and what is asked
//! in RXM has no room for it, so they say it in the control message itself, in bytes that libfabric
//! writes as 0 and does not look at.

use crate::atomic::AtomicSpec;
use crate::flags::Caps;
use crate::{Error, Result};

use super::CmKind;

/// Where a mark lies in the header of a control message.
pub(super) const EXTENSION_RANGE: std::ops::Range<usize> = 8..24;
const EXTENSION_LEN: usize = 16;

/// A request begins its mark with this, and an acceptance with that: who gives back what it was
/// asked with says nothing of itself.
const REQUEST_MAGIC: [u8; 8] = *b"fabric-?";
const ACCEPT_MAGIC: [u8; 8] = *b"fabric-!";
/// Later versions may say more. What this one says they say as well.
const VERSION: u8 = 1;

const TAGGED_BIT: u32 = 1;
const ATOMIC_BIT: u32 = 2;

/// What an endpoint that is connected, or speaks RXM, says of itself to one of this library: what
/// it takes. That it says anything means that it understands refusals, and verdicts behind answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VendorExtension {
    tags: bool,
    atomics: bool,
}

impl VendorExtension {
    /// Of an endpoint with these capabilities.
    #[must_use]
    pub fn from_caps(caps: Caps) -> Self {
        Self {
            tags: caps.contains(Caps::TAGGED),
            atomics: caps.contains(Caps::ATOMIC),
        }
    }

    /// The bytes, in a message of this kind: eight that say whose they are, the version, three of
    /// nothing, and a word of bits.
    pub(super) fn encode(self, kind: CmKind) -> [u8; EXTENSION_LEN] {
        let mut bytes = [0; EXTENSION_LEN];
        let Some(begin) = magic(kind) else {
            return bytes;
        };
        bytes[..8].copy_from_slice(&begin);
        bytes[8] = VERSION;
        let takes =
            if self.tags { TAGGED_BIT } else { 0 } | if self.atomics { ATOMIC_BIT } else { 0 };
        bytes[12..].copy_from_slice(&takes.to_be_bytes());
        bytes
    }

    /// What these bytes of a message of this kind say, if they are a mark. Bits that mean nothing
    /// here are not looked at.
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
        let takes = u32::from_be_bytes([t0, t1, t2, t3]);
        Some(Self {
            tags: takes & TAGGED_BIT != 0,
            atomics: takes & ATOMIC_BIT != 0,
        })
    }
}

/// How a mark begins in a message of this kind, if there is one in such a message.
fn magic(kind: CmKind) -> Option<[u8; 8]> {
    match kind {
        CmKind::Request => Some(REQUEST_MAGIC),
        CmKind::Accept => Some(ACCEPT_MAGIC),
        CmKind::Reject => None,
    }
}

/// What a peer is known to take. What it may not survive can only be said to one that takes it: see
/// [`Supported`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCaps {
    tags: bool,
    atomics: bool,
    is_same_implementation: bool,
}

/// Something that the peer of a connection takes. There is no other way to one than to ask
/// [`PeerCaps`], and none to a frame that needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Supported<T>(T);

impl<T> Supported<T> {
    pub(super) fn into_inner(self) -> T {
        self.0
    }
}

impl PeerCaps {
    /// Of an endpoint that talks with many, which takes tags, and may be of this library and take
    /// everything.
    #[must_use]
    pub fn rdm(is_same_implementation: bool) -> Self {
        Self {
            tags: true,
            atomics: is_same_implementation,
            is_same_implementation,
        }
    }

    /// Of an endpoint that is connected with this one, and has marked what it says, or has not. A
    /// libfabric peer takes tags only where it has a shared receive context, of which the wire says
    /// nothing, and does not survive them elsewhere: what it sends is no proof. So that is the
    /// `promise` of a program that knows it; who says itself what it takes knows better.
    #[must_use]
    pub fn msg(mark: Option<VendorExtension>, promise: bool) -> Self {
        let tags = mark.map_or(promise, |mark| mark.tags);
        Self {
            tags,
            atomics: mark.is_some_and(|mark| mark.atomics),
            is_same_implementation: mark.is_some(),
        }
    }

    /// Whether it is of this library, and understands what no other does.
    #[must_use]
    pub fn is_same_implementation(self) -> bool {
        self.is_same_implementation
    }

    /// The tag of a message for it, if that has one.
    ///
    /// # Errors
    /// [`Error::NotSupported`] when it is not known to take tags.
    #[inline]
    pub fn tag(self, tag: Option<u64>) -> Result<Option<Supported<u64>>> {
        match tag {
            Some(_) if !self.tags => Err(Error::NotSupported(
                "tagged messages to a connected peer that is not known to take them",
            )),
            tag => Ok(tag.map(Supported)),
        }
    }

    /// An atomic operation on its memory.
    ///
    /// # Errors
    /// [`Error::NotSupported`] when it is not known to have them.
    pub fn atomic(self, atomic: AtomicSpec) -> Result<Supported<AtomicSpec>> {
        if !self.atomics {
            return Err(Error::NotSupported(
                "atomic operations on memory of a peer over tcp that is not known to have them",
            ));
        }
        Ok(Supported(atomic))
    }
}
