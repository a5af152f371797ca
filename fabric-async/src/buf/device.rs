//! Memory of devices, copied by functions that the program supplies (`FI_HMEM`,
//! `FI_SET_OPS_HMEM_OVERRIDE`).
//!
//! 1. If the hints set `caps`, include [`Caps::HMEM`](crate::Caps::HMEM). Open the domain yourself:
//!    [`Endpoint::bind`](crate::Endpoint::bind) opens objects in its own.
//! 2. Set the copy functions: [`Domain::set_device_copy`], before anything is opened in the domain,
//!    resource domains included. A bound event queue does not count.
//! 3. Create buffers: [`Domain::device_buffer`]. Sends, receives, writes and reads take them.
//!
//! While an operation is posted, its bytes are in a staging buffer in memory of this process. The
//! functions copy between the staging buffer and the device. Device memory cannot be registered, so
//! peers cannot read or write it.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use std::io;
//! use std::sync::{Arc, Mutex};
//!
//! use fabric_async::buf::device::{DeviceCopy, DeviceMemory, MemoryInterface};
//! use fabric_async::{Caps, Fabric, Hints, discover};
//!
//! /// The memory of a device.
//! struct Device(Mutex<Vec<u8>>);
//!
//! impl DeviceCopy for Device {
//!     fn copy_from_device(
//!         &self,
//!         memory: &DeviceMemory,
//!         offset: usize,
//!         to: &mut [u8],
//!     ) -> io::Result<usize> {
//!         let at = memory.address as usize + offset;
//!         to.copy_from_slice(&self.0.lock().unwrap()[at..at + to.len()]);
//!         Ok(to.len())
//!     }
//!
//!     fn copy_to_device(
//!         &self,
//!         memory: &DeviceMemory,
//!         offset: usize,
//!         from: &[u8],
//!     ) -> io::Result<usize> {
//!         let at = memory.address as usize + offset;
//!         self.0.lock().unwrap()[at..at + from.len()].copy_from_slice(from);
//!         Ok(from.len())
//!     }
//! }
//!
//! let hints = Hints::new().provider("shm").caps(Caps::MSG | Caps::HMEM);
//! let info = discover(&hints)?.swap_remove(0);
//! let domain = Fabric::open(&info)?.domain(&info)?;
//! let device = Arc::new(Device(Mutex::new(vec![7; 64])));
//! domain.set_device_copy(device.clone())?;
//!
//! let ep = domain.endpoint(&info)?.bind_av(&domain.auto_insert_address_vector()?)?.enable()?;
//! let me = ep.add_peer(ep.name()).await?;
//! let memory = |address, len| DeviceMemory {
//!     interface: MemoryInterface::Cuda,
//!     device: 0,
//!     address,
//!     len,
//! };
//! let received = ep.recv_into(domain.device_buffer(memory(32, 8))?).start()?;
//! ep.send(me, domain.device_buffer(memory(0, 8))?).await?;
//! device.0.lock().unwrap()[..8].fill(0);
//! assert_eq!(received.await?.transfer.len, 8);
//! assert_eq!(device.0.lock().unwrap()[32..40], [7; 8]);
//! # Ok(()) }
//! ```

use std::sync::Arc;

pub use fabric_core::buf::{DeviceBuffer, DeviceCopy, DeviceMemory, MemoryInterface};
use fabric_core::flags::Caps;
use fabric_core::{Error, Result};

use crate::domain::Domain;
use crate::thread_model::ThreadModel;

/// # Memory of devices
impl<M: ThreadModel> Domain<M> {
    /// Sets the functions that copy memory of devices, once and before anything is opened in the
    /// domain (`fi_set_ops`, `FI_SET_OPS_HMEM_OVERRIDE`). All objects of the domain use them, those
    /// of its resource domains too. See [`device`](crate::buf::device).
    ///
    /// # Errors
    /// [`Error::NotSupported`] in a domain without [`Caps::HMEM`]; [`Error::Invalid`] when the
    /// domain has other objects or such functions already, and in a resource domain;
    /// [`Error::Closed`].
    #[doc(alias = "fi_set_ops")]
    #[doc(alias = "FI_SET_OPS_HMEM_OVERRIDE")]
    pub fn set_device_copy(&self, copy: Arc<dyn DeviceCopy>) -> Result<()> {
        self.check_device_memory()?;
        let refuse = |why: String| {
            let what = "copy functions of device memory";
            Err(Error::Invalid { what, why })
        };
        if self.inner.parent().is_some() {
            return refuse("a resource domain has those of its domain".into());
        }
        let children = self.inner.node.children();
        if children.total() != 0 {
            return refuse(format!(
                "set them before objects are opened; open: {children}"
            ));
        }
        if !self.inner.set_device_copy(copy) {
            return refuse("they are set already".into());
        }
        Ok(())
    }

    /// Creates a buffer in the memory of a device. The value does not own the memory.
    ///
    /// # Errors
    /// [`Error::NotSupported`] in a domain without [`Caps::HMEM`]; [`Error::Invalid`] before
    /// [`set_device_copy`](Self::set_device_copy); [`Error::Closed`].
    #[doc(alias = "FI_HMEM")]
    pub fn device_buffer(&self, memory: DeviceMemory) -> Result<DeviceBuffer> {
        self.check_device_memory()?;
        match self.inner.device_copy() {
            Some(copy) => Ok(DeviceBuffer::new(memory, copy.clone())),
            None => Err(Error::Invalid {
                what: "buffer in device memory",
                why: "the domain has no functions that copy it; call set_device_copy".into(),
            }),
        }
    }

    /// Checks that the domain is open and may use memory of devices.
    fn check_device_memory(&self) -> Result<()> {
        self.inner.node.check_open()?;
        if self.inner.info.caps.contains(Caps::HMEM) {
            return Ok(());
        }
        Err(Error::NotSupported(
            "memory of devices in a domain without FI_HMEM; request Caps::HMEM in the hints",
        ))
    }
}
