//! Memory regions.

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabric_core::buf::IoBufMut;
use fabric_core::flags::Access;
use fabric_core::mr::RegionTable;
use fabric_core::tree::{Class, Node};
use fabric_core::{Error, Result};

use crate::close::CloseError;
use crate::domain::{Domain, DomainInner};
use crate::model::{Shared, ThreadModel};

/// A memory region (`fid_mr`): a buffer under a key.
///
/// The region owns its buffer until it is closed, which gives it back. No provider offers remote access yet: the key and
/// the rights are recorded, and the bytes are reached from here only.
#[doc(alias = "fid_mr")]
pub struct MemoryRegion<B, M: ThreadModel = Shared> {
    node: Arc<Node>,
    domain: Arc<DomainInner>,
    remote: RemoteRegion,
    buf: Option<B>,
    model: PhantomData<M>,
}

/// What a peer needs to know of a region: to be sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteRegion {
    /// The key.
    pub key: u64,
    /// Bytes in the region; accesses are by offset from 0.
    pub len: u64,
    /// What is granted.
    pub access: Access,
}

impl<B: IoBufMut, M: ThreadModel> MemoryRegion<B, M> {
    pub(crate) fn register(domain: &Domain<M>, buf: B, access: Access, key: Option<u64>) -> Result<Self> {
        domain.inner.node.check_open()?;
        let node = Node::new(Class::MemoryRegion, Some(domain.inner.node.clone()));
        let len = buf.bytes().len();
        let key = regions(&domain.inner.regions).insert(len, access, key)?;
        if let Err(error) = node.publish() {
            regions(&domain.inner.regions).remove(key);
            return Err(error);
        }
        let remote = RemoteRegion { key, len: len as u64, access };
        Ok(Self { node, domain: domain.inner.clone(), remote, buf: Some(buf), model: PhantomData })
    }

    /// The key (`fi_mr_key`).
    #[doc(alias = "fi_mr_key")]
    #[must_use]
    pub fn key(&self) -> u64 {
        self.remote.key
    }

    /// What to send to a peer that shall access the region.
    #[must_use]
    pub fn remote(&self) -> RemoteRegion {
        self.remote
    }

    /// Copies bytes out of the region.
    ///
    /// # Errors
    /// [`Error::TooLong`] when the range leaves the region.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let bytes = self.buf.as_ref().map_or(&[][..], |buf| buf.bytes());
        let range = offset.checked_add(out.len()).and_then(|end| bytes.get(offset..end));
        let range = range.ok_or(Error::TooLong {
            what: "access to a memory region",
            len: offset.saturating_add(out.len()),
            limit: bytes.len(),
        })?;
        out.copy_from_slice(range);
        Ok(())
    }

    /// Closes the region and returns its buffer; the key is free again.
    ///
    /// # Errors
    /// [`Error::Closed`], when it was closed before.
    #[doc(alias = "fi_close")]
    pub fn close(mut self) -> Result<B, CloseError<Self>> {
        if let Err(error) = self.node.close() {
            return Err(CloseError { error, handle: self });
        }
        match self.buf.take() {
            Some(buf) => Ok(buf),
            None => Err(CloseError { error: Error::Closed(Class::MemoryRegion), handle: self }),
        }
    }
}

impl<B, M: ThreadModel> Drop for MemoryRegion<B, M> {
    fn drop(&mut self) {
        regions(&self.domain.regions).remove(self.remote.key);
        self.node.retire();
    }
}

impl<B, M: ThreadModel> fmt::Debug for MemoryRegion<B, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion").field("id", &self.node.id()).field("remote", &self.remote).finish()
    }
}

fn regions(table: &Mutex<RegionTable>) -> MutexGuard<'_, RegionTable> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}
