//! Buffers that are registered for operations of this process (`FI_MR_LOCAL`).

use std::any::{Any, TypeId};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::buf::{AnyBuf, CustomBuf, FlatBuf, IoBuf, IoBufMut, Payload, restore_buffer, sealed};
use crate::error::{Error, Result};
use crate::flags::Access;
use crate::tree::ObjectNode;

/// A buffer that is registered for operations of this process, and carries its registration
/// (`fi_mr_desc`): for domains that require `FI_MR_LOCAL`.
///
/// Created by `Domain::register_local`. Every operation that takes a buffer takes this one, and
/// returns it. It has the bytes that are sent, or were received, and derefs to them: at first all
/// registered bytes. A message of at most [`registered_len`](Self::registered_len) bytes can be
/// received into it. The registration ends with the value, or with
/// [`into_inner`](Self::into_inner). Peers cannot access the buffer.
#[doc(alias = "fi_mr_desc")]
#[doc(alias = "FI_MR_LOCAL")]
pub struct LocalBuffer<B>(Box<LocalRegistration>, PhantomData<fn() -> B>);

/// A registered buffer of any type.
pub(crate) struct LocalRegistration {
    buf: AnyBuf,
    /// The type of the buffer.
    buf_type: TypeId,
    /// How many of the registered bytes are sent, or were received.
    filled: usize,
    access: Access,
    /// A child of the domain.
    node: Arc<ObjectNode>,
}

/// What an operation does with its buffer.
#[derive(Clone, Copy, Debug)]
pub struct LocalUse<'a> {
    /// The domain, or resource domain, of the operation.
    pub domain: &'a ObjectNode,
    /// The access to the buffer: one of `SEND`, `RECV`, `READ` and `WRITE`.
    pub access: Access,
}

impl<B: FlatBuf> LocalBuffer<B> {
    /// Registers a buffer for the accesses in `access`. `node` is the registration in the object
    /// tree.
    ///
    /// # Errors
    /// With the buffer: [`Error::BadFlags`] for no access, or one of peers; [`Error::Invalid`] for
    /// `RECV` or `READ` when its bytes cannot be written in place; [`Error::TooMany`] and
    /// [`Error::Closed`] of the domain.
    pub fn new(buf: B, access: Access, node: Arc<ObjectNode>) -> Result<Self, (Error, B)> {
        let filled = Access::RECV | Access::READ;
        let mut any = buf.into_any();
        let len = any.bytes().len();
        let checked =
            if access.is_empty() || !(filled | Access::SEND | Access::WRITE).contains(access) {
                Err(Error::BadFlags {
                    what: "local registration",
                    flags: format!("{access:?}, not of SEND, RECV, READ and WRITE"),
                })
            } else if access.intersects(filled) && any.bytes_mut().len() != len {
                Err(Error::Invalid {
                    what: "buffer to register",
                    why: "its bytes are not writable in place; use Vec<u8> or BytesMut".into(),
                })
            } else {
                node.attach_to_parent()
            };
        if let Err(error) = checked {
            return Err((error, restore_buffer(any)));
        }
        let registration = LocalRegistration {
            buf: any,
            buf_type: TypeId::of::<B>(),
            filled: len,
            access,
            node,
        };
        Ok(Self(Box::new(registration), PhantomData))
    }

    /// Ends the registration (`fi_close`), and returns the buffer.
    #[must_use]
    pub fn into_inner(mut self) -> B {
        restore_buffer(std::mem::take(&mut self.0.buf))
    }
}

impl<B> LocalBuffer<B> {
    /// Sets how many of the registered bytes are sent.
    ///
    /// # Errors
    /// [`Error::TooLong`] above [`registered_len`](Self::registered_len).
    pub fn set_len(&mut self, len: usize) -> Result<()> {
        let limit = self.registered_len();
        if len > limit {
            let what = "part of a registered buffer";
            return Err(Error::TooLong { what, len, limit });
        }
        self.0.filled = len;
        Ok(())
    }

    /// Returns the number of registered bytes.
    #[must_use]
    pub fn registered_len(&self) -> usize {
        self.0.buf.bytes().len()
    }

    /// Returns the registered accesses.
    #[must_use]
    pub fn access(&self) -> Access {
        self.0.access
    }
}

impl LocalRegistration {
    /// Returns whether the registration is for this use.
    pub(crate) fn allows(&self, usage: &LocalUse<'_>) -> bool {
        // A resource domain also uses the registrations of its domain.
        let is_of =
            |domain: &ObjectNode| self.node.parent().is_some_and(|of| of.id() == domain.id());
        let is_of_domain = is_of(usage.domain) || usage.domain.parent().is_some_and(|of| is_of(of));
        is_of_domain && self.access.contains(usage.access)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        let bytes = self.buf.bytes();
        &bytes[..self.filled.min(bytes.len())]
    }

    pub(crate) fn registered_bytes(&mut self) -> &mut [u8] {
        self.buf.bytes_mut()
    }

    pub(crate) fn set_filled(&mut self, len: usize) {
        self.filled = len;
    }
}

impl Drop for LocalRegistration {
    fn drop(&mut self) {
        self.node.detach_from_parent();
    }
}

impl<B> Deref for LocalBuffer<B> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl<B: IoBufMut> DerefMut for LocalBuffer<B> {
    fn deref_mut(&mut self) -> &mut [u8] {
        let filled = self.0.filled;
        let bytes = self.0.registered_bytes();
        let len = filled.min(bytes.len());
        &mut bytes[..len]
    }
}

impl<B> fmt::Debug for LocalBuffer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalBuffer")
            .field("id", &self.0.node.id())
            .field("len", &self.0.filled)
            .field("registered_len", &self.registered_len())
            .field("access", &self.0.access)
            .finish()
    }
}

impl<B: FlatBuf> sealed::Sealed for LocalBuffer<B> {}

impl<B: FlatBuf> IoBuf for LocalBuffer<B> {
    fn payload(&self) -> Payload<'_> {
        Payload::Contiguous(self)
    }

    fn is_registered(&self, usage: &LocalUse<'_>) -> bool {
        self.0.allows(usage)
    }

    fn into_any(self) -> AnyBuf {
        AnyBuf::Custom(self.0)
    }

    fn from_any(any: AnyBuf) -> Result<Self, AnyBuf> {
        let AnyBuf::Custom(custom) = any else {
            return Err(any);
        };
        let of_this_type =
            |registration: &LocalRegistration| registration.buf_type == TypeId::of::<B>();
        if !registration_of(&*custom).is_some_and(of_this_type) {
            return Err(AnyBuf::Custom(custom));
        }
        let registration: Box<dyn Any> = custom;
        match registration.downcast() {
            Ok(registration) => Ok(Self(registration, PhantomData)),
            Err(_) => unreachable!("the type was checked"),
        }
    }
}

/// Returns the registration if the buffer is a [`LocalBuffer`].
pub(crate) fn registration_of(buf: &dyn CustomBuf) -> Option<&LocalRegistration> {
    let any: &dyn Any = buf;
    any.downcast_ref()
}

impl<B: FlatBuf> FlatBuf for LocalBuffer<B> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl<B: IoBufMut + FlatBuf> IoBufMut for LocalBuffer<B> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Class;

    #[test]
    fn registration_is_for_its_domain_and_accesses() {
        let fabric = ObjectNode::new(Class::Fabric, None);
        let [domain, other] =
            [(); 2].map(|()| ObjectNode::new(Class::Domain, Some(fabric.clone())));
        let part = ObjectNode::resource_domain(&domain);
        let node = || ObjectNode::new(Class::MemoryRegion, Some(domain.clone()));
        let buf = LocalBuffer::new(vec![1u8; 8], Access::SEND | Access::RECV, node()).unwrap();
        assert_eq!(domain.children().of(Class::MemoryRegion), 1);
        for (domain, access, expected) in [
            (&domain, Access::SEND, true),
            (&part, Access::RECV, true),
            (&domain, Access::WRITE, false),
            (&other, Access::SEND, false),
            (&fabric, Access::SEND, false),
        ] {
            let usage = LocalUse { domain, access };
            assert_eq!(buf.is_registered(&usage), expected, "{usage:?}");
        }
        let at = buf.as_ptr();
        let mut any = buf.into_any();
        assert_eq!(any.receive(&&b"hello"[..]), Ok(5));
        let any = LocalBuffer::<Box<[u8]>>::from_any(any).unwrap_err();
        let mut buf = LocalBuffer::<Vec<u8>>::from_any(any).unwrap();
        assert_eq!((&buf[..], buf.as_ptr()), (&b"hello"[..], at));
        buf.set_len(8).unwrap();
        buf[7] = 9;
        assert!(buf.set_len(9).is_err());
        assert_eq!(buf.into_inner(), b"hello\x01\x01\x09");
        assert_eq!(domain.children().of(Class::MemoryRegion), 0);

        let sent = LocalBuffer::new("text", Access::SEND, node()).unwrap();
        assert_eq!(&*sent, b"text");
        for access in [
            Access::RECV,
            Access::empty(),
            Access::SEND | Access::REMOTE_READ,
        ] {
            assert_eq!(
                LocalBuffer::new("text", access, node()).unwrap_err().1,
                "text"
            );
        }
    }
}
