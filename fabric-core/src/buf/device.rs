//! Buffers in the memory of a device, which only functions of the program can copy (`FI_HMEM`).

use std::any::Any;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::any::catch_user_panic;
use super::{AnyBuf, CustomBuf, IoBuf, IoBufMut, Payload, sealed};
use crate::error::{Error, Result};

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
/// or if a selective completion queue does not report a success.
///
/// If a copy to the device fails, the operation fails with the error of the copy, although the
/// message was received; its bytes are lost. Dropping the buffer frees no memory of the device.
/// Buffers may overlap; operations that use the same bytes at the same time copy in any order.
#[doc(alias = "FI_HMEM")]
pub struct DeviceBuffer(Box<StagedDeviceMemory>);

/// Set by the first buffer of the process. An entry that has a buffer is read after the store: the
/// post and the completion are between them.
static ANY_CREATED: AtomicBool = AtomicBool::new(false);

/// Memory of a device, and its bytes while an operation needs them in this process.
struct StagedDeviceMemory {
    memory: DeviceMemory,
    copy: Arc<dyn DeviceCopy>,
    /// Of the length of the memory while an operation is posted, else empty.
    staged: Vec<u8>,
    /// Whether the posted operation receives into the memory.
    receives: bool,
}

impl DeviceBuffer {
    /// Creates a buffer in memory that `copy` can copy.
    #[doc(hidden)]
    #[must_use]
    pub fn new(memory: DeviceMemory, copy: Arc<dyn DeviceCopy>) -> Self {
        ANY_CREATED.store(true, Ordering::Relaxed);
        Self(Box::new(StagedDeviceMemory {
            memory,
            copy,
            staged: Vec::new(),
            receives: false,
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
}

impl StagedDeviceMemory {
    /// Allocates the staged bytes; those of an operation that sends are copied from the device.
    fn stage(&mut self, is_source: bool) -> Result<()> {
        let len = self.memory.len;
        self.staged = Vec::new();
        if self.staged.try_reserve_exact(len).is_err() {
            let what = "copy of device memory";
            return Err(Error::OutOfMemory { what, len });
        }
        self.staged.resize(len, 0);
        self.receives = !is_source;
        if is_source {
            let (copy, memory, to) = (&self.copy, &self.memory, &mut self.staged);
            let copied = catch_user_panic(|| Some(copy.copy_from_device(memory, 0, to)));
            let checked = check_copy("copy_from_device", copied, len);
            if checked.is_err() {
                self.staged = Vec::new();
            }
            return checked;
        }
        Ok(())
    }

    /// Frees the staged bytes; the first `len` of an operation that received are copied to the
    /// device.
    fn unstage(&mut self, len: usize) -> Result<()> {
        let staged = std::mem::take(&mut self.staged);
        let received = &staged[..len.min(staged.len())];
        if !std::mem::take(&mut self.receives) || received.is_empty() {
            return Ok(());
        }
        let (copy, memory) = (&self.copy, &self.memory);
        let copied = catch_user_panic(|| Some(copy.copy_to_device(memory, 0, received)));
        check_copy("copy_to_device", copied, received.len())
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

/// Returns whether a custom buffer is memory of a device.
pub(crate) fn is_device_memory(buf: &dyn CustomBuf) -> bool {
    let any: &dyn Any = buf;
    any.is::<StagedDeviceMemory>()
}

/// Frees the staged bytes of a device's buffer after an operation of `len` bytes. Bytes that were
/// received are copied to the device. Does nothing for another buffer.
///
/// # Errors
/// As [`IoBuf::unstage`].
pub(crate) fn unstage_any(buf: &mut AnyBuf, len: usize) -> Result<()> {
    let AnyBuf::Custom(custom) = buf else {
        return Ok(());
    };
    let any: &mut dyn Any = &mut **custom;
    match any.downcast_mut::<StagedDeviceMemory>() {
        Some(device) => device.unstage(len),
        None => Ok(()),
    }
}

// SAFETY: the bytes are on the heap, and neither moved nor resized while an operation is posted:
// `stage` runs before the post, `unstage` after the end of the operation.
#[allow(unsafe_code)]
unsafe impl CustomBuf for StagedDeviceMemory {
    fn bytes(&self) -> &[u8] {
        &self.staged
    }

    fn writable(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.staged)
    }

    fn set_filled(&mut self, _: usize) {}
}

impl sealed::Sealed for DeviceBuffer {}

impl IoBuf for DeviceBuffer {
    const IS_STAGED: bool = true;

    fn stage(&mut self, is_source: bool) -> Result<()> {
        self.0.stage(is_source)
    }

    fn unstage(&mut self, len: usize) -> Result<()> {
        self.0.unstage(len)
    }

    fn payload(&self) -> Payload<'_> {
        Payload::Contiguous(&self.0.staged)
    }

    fn into_any(self) -> AnyBuf {
        AnyBuf::Custom(self.0)
    }

    fn from_any(any: AnyBuf) -> Result<Self, AnyBuf> {
        let AnyBuf::Custom(custom) = any else {
            return Err(any);
        };
        let is_device = {
            let any: &dyn Any = &*custom;
            any.is::<StagedDeviceMemory>()
        };
        if !is_device {
            return Err(AnyBuf::Custom(custom));
        }
        let any: Box<dyn Any> = custom;
        match any.downcast() {
            Ok(device) => Ok(Self(device)),
            Err(_) => unreachable!("the type was checked"),
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
