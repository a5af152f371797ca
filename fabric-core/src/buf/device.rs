//! Buffers in the memory of a device, which only functions of the program can copy (`FI_HMEM`).

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::any::catch_user_panic;
use super::{AnyBuf, IoBuf, IoBufMut, Payload, sealed};
use crate::error::{Error, Result};
use crate::mr::LocalUse;

/// `EIO`: the error of a copy that copies fewer bytes than it should, or fails without a number.
const EIO: i32 = 5;

/// The kind of a memory, which selects how it is copied (`enum fi_hmem_iface`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[doc(alias = "fi_hmem_iface")]
pub enum MemoryInterface {
    /// Memory of this process.
    #[doc(alias = "FI_HMEM_SYSTEM")]
    System,
    /// NVIDIA CUDA.
    #[doc(alias = "FI_HMEM_CUDA")]
    Cuda,
    /// AMD ROCr.
    #[doc(alias = "FI_HMEM_ROCR")]
    Rocr,
    /// Intel oneAPI Level Zero.
    #[doc(alias = "FI_HMEM_ZE")]
    Ze,
    /// AWS Neuron.
    #[doc(alias = "FI_HMEM_NEURON")]
    Neuron,
    /// Intel Gaudi SynapseAI.
    #[doc(alias = "FI_HMEM_SYNAPSEAI")]
    SynapseAi,
}

/// A range of the memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceMemory {
    /// The kind of the memory.
    pub interface: MemoryInterface,
    /// The device, as its driver numbers devices.
    pub device: u64,
    /// The address of the first byte, as the driver of the device addresses memory.
    pub address: u64,
    /// The length in bytes.
    pub len: usize,
}

/// The functions that copy the memory of devices (`struct fi_hmem_override_ops`).
///
/// A send or write calls [`copy_from_device`](Self::copy_from_device) in the call that posts it, or
/// in the first poll of its future. A receive or read calls
/// [`copy_to_device`](Self::copy_to_device) in the poll that returns its result, or in the read of
/// the completion queue. No lock of the fabric is held: the functions may block, and may call into
/// the domain. Threads may call them at the same time. All kinds of memory come to them, `System`
/// too: they distinguish by [`DeviceMemory::interface`].
///
/// A function that panics fails the operation with [`Error::Os`] and `EIO`, after the panic hook.
#[doc(alias = "fi_hmem_override_ops")]
pub trait DeviceCopy: Send + Sync + 'static {
    /// Copies bytes of `memory`, from `offset` on, to `to`, and returns how many were copied.
    ///
    /// # Errors
    /// The operation fails with this error: with [`Error::Os`] and its `errno`, or `EIO` if it has
    /// none. A copy of fewer bytes than `to` has fails with `EIO` too.
    #[doc(alias = "copy_from_hmem_iov")]
    fn copy_from_device(
        &self,
        memory: &DeviceMemory,
        offset: usize,
        to: &mut [u8],
    ) -> io::Result<usize>;

    /// Copies `from` to `memory`, from `offset` on, and returns how many bytes were copied.
    ///
    /// # Errors
    /// As [`copy_from_device`](Self::copy_from_device).
    #[doc(alias = "copy_to_hmem_iov")]
    fn copy_to_device(
        &self,
        memory: &DeviceMemory,
        offset: usize,
        from: &[u8],
    ) -> io::Result<usize>;
}

/// A buffer in the memory of a device, created by `Domain::device_buffer`.
///
/// Every operation that takes a buffer takes this one, and returns it; but it cannot be a part of a
/// [`Gather`](super::Gather) or [`Scatter`](super::Scatter). A send or write copies the bytes from
/// the device when it is posted. A receive or read copies the bytes to the device before the
/// program gets the result, from its future or from a completion queue. Until then the bytes are in
/// memory of this process, of the length of the buffer. The length of the buffer limits the message
/// and does not change: the result of the operation has the number of received bytes.
///
/// Nothing is copied to the device if the program does not get the result: if it drops the future,
/// or if a selective completion queue does not report the receive. A counter counts a receive
/// before its bytes are copied: as a success, also if the copy then fails.
///
/// If a copy to the device fails, the operation fails with the error of the copy, although the
/// message was received; its bytes are lost. Dropping the buffer frees no memory of the device.
/// Buffers may overlap; operations that use the same bytes at the same time copy in any order.
#[doc(alias = "FI_HMEM")]
pub struct DeviceBuffer(Box<Inner>);

struct Inner {
    memory: DeviceMemory,
    copy: Arc<dyn DeviceCopy>,
    staged: Staged,
}

/// The bytes of the memory in this process, as many as the memory has.
#[derive(Default)]
enum Staged {
    /// No operation is posted.
    #[default]
    None,
    /// Copied from the device, for an operation that sends them.
    ToSend(Vec<u8>),
    /// To be copied to the device when the operation has received them.
    ToReceive(Vec<u8>),
}

/// Set by the first buffer of the process. An entry that has a buffer is read after the store: the
/// post and the completion are between them.
static ANY_CREATED: AtomicBool = AtomicBool::new(false);

impl DeviceBuffer {
    /// Creates a buffer in memory that `copy` can copy.
    #[doc(hidden)]
    #[must_use]
    pub fn new(memory: DeviceMemory, copy: Arc<dyn DeviceCopy>) -> Self {
        ANY_CREATED.store(true, Ordering::Relaxed);
        Self(Box::new(Inner {
            memory,
            copy,
            staged: Staged::None,
        }))
    }

    /// Returns whether this process has created a buffer, so that entries of completion queues may
    /// have one.
    #[doc(hidden)]
    #[must_use]
    #[inline]
    pub fn any_created() -> bool {
        ANY_CREATED.load(Ordering::Relaxed)
    }

    /// Returns the memory of the device.
    #[must_use]
    pub fn memory(&self) -> DeviceMemory {
        self.0.memory
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match &self.0.staged {
            Staged::None => &[],
            Staged::ToSend(bytes) | Staged::ToReceive(bytes) => bytes,
        }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.0.staged {
            Staged::None => &mut [],
            Staged::ToSend(bytes) | Staged::ToReceive(bytes) => bytes,
        }
    }
}

/// Checks that all bytes were copied. `copied` is `None` if the function has panicked.
fn check_copy(call: &'static str, copied: Option<io::Result<usize>>, len: usize) -> Result<()> {
    match copied {
        Some(Ok(copied)) if copied == len => Ok(()),
        Some(Ok(_)) | None => Err(Error::os(call, EIO)),
        Some(Err(error)) => Err(Error::os(call, error.raw_os_error().unwrap_or(EIO))),
    }
}

impl sealed::Sealed for DeviceBuffer {}

impl IoBuf for DeviceBuffer {
    const IS_STAGED: bool = true;

    fn stage(&mut self, is_source: bool) -> Result<()> {
        let Inner { memory, copy, .. } = &*self.0;
        let (mut bytes, len) = (Vec::new(), memory.len);
        if bytes.try_reserve_exact(len).is_err() {
            let what = "copy of device memory";
            return Err(Error::OutOfMemory { what, len });
        }
        bytes.resize(len, 0);
        self.0.staged = if is_source {
            let copied = catch_user_panic(|| Some(copy.copy_from_device(memory, 0, &mut bytes)));
            check_copy("copy_from_device", copied, len)?;
            Staged::ToSend(bytes)
        } else {
            Staged::ToReceive(bytes)
        };
        Ok(())
    }

    fn unstage(&mut self, len: usize) -> Result<()> {
        let Staged::ToReceive(bytes) = std::mem::take(&mut self.0.staged) else {
            return Ok(());
        };
        let received = &bytes[..len.min(bytes.len())];
        if received.is_empty() {
            return Ok(());
        }
        let Inner { memory, copy, .. } = &*self.0;
        let copied = catch_user_panic(|| Some(copy.copy_to_device(memory, 0, received)));
        check_copy("copy_to_device", copied, received.len())
    }

    fn payload(&self) -> Payload<'_> {
        Payload::Contiguous(self.bytes())
    }

    /// The transport reads and writes the staged bytes, which are memory of this library.
    fn is_registered(&self, _: &LocalUse<'_>) -> bool {
        true
    }

    fn into_any(self) -> AnyBuf {
        AnyBuf::Device(self)
    }

    fn from_any(any: AnyBuf) -> Result<Self, AnyBuf> {
        match any {
            AnyBuf::Device(buf) => Ok(buf),
            other => Err(other),
        }
    }
}

impl IoBufMut for DeviceBuffer {}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeviceBuffer").field(&self.0.memory).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const ENODEV: i32 = 19;

    /// A device of 8 bytes that copies at most `limit` bytes at once.
    struct Device {
        bytes: Mutex<[u8; 8]>,
        limit: usize,
    }

    impl DeviceCopy for Device {
        fn copy_from_device(
            &self,
            memory: &DeviceMemory,
            offset: usize,
            to: &mut [u8],
        ) -> io::Result<usize> {
            let count = to.len().min(self.limit);
            let at = memory.address as usize + offset;
            to[..count].copy_from_slice(&self.bytes.lock().unwrap()[at..at + count]);
            Ok(count)
        }

        fn copy_to_device(
            &self,
            memory: &DeviceMemory,
            offset: usize,
            from: &[u8],
        ) -> io::Result<usize> {
            if self.limit == 0 {
                return Err(io::Error::from_raw_os_error(ENODEV));
            }
            let count = from.len().min(self.limit);
            let at = memory.address as usize + offset;
            self.bytes.lock().unwrap()[at..at + count].copy_from_slice(&from[..count]);
            Ok(count)
        }
    }

    fn buffer(limit: usize) -> (Arc<Device>, DeviceBuffer) {
        let bytes = Mutex::new(*b"01234567");
        let device = Arc::new(Device { bytes, limit });
        let memory = DeviceMemory {
            interface: MemoryInterface::Cuda,
            device: 3,
            address: 2,
            len: 4,
        };
        (device.clone(), DeviceBuffer::new(memory, device))
    }

    #[test]
    fn bytes_are_staged_while_an_operation_needs_them() {
        let (device, mut buf) = buffer(8);
        buf.stage(true).unwrap();
        assert_eq!(buf.payload().to_vec(), b"2345");
        buf.unstage(4).unwrap();
        assert!(buf.payload().is_empty());
        assert_eq!(device.bytes.lock().unwrap()[..], *b"01234567");

        buf.stage(false).unwrap();
        let mut any = buf.into_any();
        assert_eq!(any.recv_capacity(), 4);
        assert_eq!(any.receive(&b"abc".as_slice()).unwrap(), 3);
        let mut buf = DeviceBuffer::from_any(any).unwrap();
        assert_eq!(device.bytes.lock().unwrap()[..], *b"01234567");
        buf.unstage(3).unwrap();
        assert_eq!(device.bytes.lock().unwrap()[..], *b"01abc567");
        assert!(DeviceBuffer::from_any(vec![1u8].into_any()).is_err());
        assert!(Vec::from_any(buf.into_any()).is_err());
    }

    #[test]
    fn short_and_failed_copies_are_errors() {
        let (_, mut buf) = buffer(3);
        let eio = |call| Err(Error::os(call, EIO));
        assert_eq!(buf.stage(true), eio("copy_from_device"));
        let (_, mut buf) = buffer(3);
        buf.stage(false).unwrap();
        assert_eq!(buf.unstage(4), eio("copy_to_device"));
        assert_eq!(buf.unstage(4), Ok(()), "the bytes are copied once");
        let (_, mut buf) = buffer(0);
        buf.stage(false).unwrap();
        assert_eq!(buf.unstage(1), Err(Error::os("copy_to_device", ENODEV)));
    }
}
