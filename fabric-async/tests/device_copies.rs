//! Copies to devices: buffers of other domains, buffers of queues and batches, panics.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use fabric_async::buf::device::{DeviceBuffer, DeviceCopy, DeviceMemory, MemoryInterface};
use fabric_async::buf::{CustomBuf, IoBuf};
use fabric_async::info::MrMode;
use fabric_async::{
    Caps, CompletionQueue, CqBind, Domain, Endpoint, Error, Fabric, FiAddr, Hints, Info, discover,
};

const EIO: i32 = rustix::io::Errno::IO.raw_os_error();

/// A device of four bytes.
#[derive(Default)]
struct Device {
    bytes: Mutex<[u8; 4]>,
    /// Whether the next copy to the device panics.
    panics: AtomicBool,
}

impl DeviceCopy for Device {
    fn copy_from_device(&self, _: &DeviceMemory, at: usize, to: &mut [u8]) -> io::Result<usize> {
        to.copy_from_slice(&self.bytes.lock().unwrap()[at..at + to.len()]);
        Ok(to.len())
    }

    fn copy_to_device(&self, _: &DeviceMemory, at: usize, from: &[u8]) -> io::Result<usize> {
        assert!(!self.panics.swap(false, Ordering::Relaxed), "the copy");
        self.bytes.lock().unwrap()[at..at + from.len()].copy_from_slice(from);
        Ok(from.len())
    }
}

fn open_domain(caps: Caps) -> (Info, Domain) {
    let hints = Hints::new().provider("shm").caps(caps);
    let info = discover(&hints).unwrap().swap_remove(0);
    let domain = Fabric::open(&info).unwrap().domain(&info).unwrap();
    (info, domain)
}

fn device_memory() -> DeviceMemory {
    DeviceMemory {
        interface: MemoryInterface::Cuda,
        device: 0,
        address: 0,
        len: 4,
    }
}

/// Opens a domain that copies to the device, and returns memory of the device.
fn open_device_domain(device: &Arc<Device>) -> (Info, Domain, DeviceBuffer) {
    let (info, domain) = open_domain(Caps::MSG | Caps::HMEM);
    domain.set_device_copy(device.clone()).unwrap();
    let buffer = domain.device_buffer(device_memory()).unwrap();
    (info, domain, buffer)
}

/// Opens an endpoint with the queue, and inserts its own address.
async fn open_endpoint(info: &Info, domain: &Domain, cq: &CompletionQueue) -> (Endpoint, FiAddr) {
    let av = domain.address_vector().unwrap();
    let both = CqBind::TRANSMIT | CqBind::RECV;
    let ep = domain.endpoint(info).unwrap().bind_cq(cq, both).unwrap();
    let ep = ep.bind_av(&av).unwrap().enable().unwrap();
    let me = ep.add_peer(ep.name()).await.unwrap();
    (ep, me)
}

#[tokio::test]
async fn buffer_of_another_domain_gets_the_bytes() {
    let device = Arc::default();
    let (_, _domain, buffer) = open_device_domain(&device);
    let (info, other) = open_domain(Caps::MSG);
    let mut cq = other.completion_queue(16).unwrap();
    let (ep, me) = open_endpoint(&info, &other, &cq).await;
    ep.recv_into(buffer).context(1).post().unwrap();
    ep.send(me, "DATA").await.unwrap();
    let mut entries = Vec::new();
    cq.read_batch(&mut entries, 1).await;
    assert!(entries[0].error.is_none());
    assert_eq!(*device.bytes.lock().unwrap(), *b"DATA");
}

/// The bytes that are staged while an operation is posted are not memory of the program.
/// The bytes of a device buffer that the transport accesses are memory of the library, which needs
/// no registration.
#[tokio::test]
async fn domain_with_fi_mr_local_accepts_device_buffers() {
    let hints = Hints::new().provider("sim").domain_name("sim+LOCAL");
    let hints = hints.mr_mode(MrMode::LOCAL).caps(Caps::MSG | Caps::HMEM);
    let info = discover(&hints).unwrap().swap_remove(0);
    let domain = Fabric::open(&info).unwrap().domain(&info).unwrap();
    let device = Arc::<Device>::default();
    *device.bytes.lock().unwrap() = *b"SENT";
    let [source, target] = [(); 2].map(|()| device_memory());
    domain.set_device_copy(device.clone()).unwrap();
    let cq = domain.completion_queue(16).unwrap();
    let (ep, me) = open_endpoint(&info, &domain, &cq).await;
    let source = domain.device_buffer(source).unwrap();
    ep.send(me, source).await.unwrap();
    *device.bytes.lock().unwrap() = [0; 4];
    let target = domain.device_buffer(target).unwrap();
    assert_eq!(ep.recv_into(target).await.unwrap().len(), 4);
    assert_eq!(*device.bytes.lock().unwrap(), *b"SENT");
}

#[tokio::test]
async fn entry_returns_its_buffer_as_a_device_buffer_only() {
    let device = Arc::default();
    let (info, domain, buffer) = open_device_domain(&device);
    let mut cq = domain.completion_queue(16).unwrap();
    let (ep, me) = open_endpoint(&info, &domain, &cq).await;
    ep.recv_into(buffer).post().unwrap();
    ep.send(me, "DATA").await.unwrap();
    let mut entries = Vec::new();
    cq.read_batch(&mut entries, 1).await;
    assert!(entries[0].take_buf::<Box<dyn CustomBuf>>().is_none());
    let buffer = entries[0].take_buf::<DeviceBuffer>().unwrap();
    ep.send(me, buffer).await.unwrap();
    assert_eq!(&ep.recv().await.unwrap()[..], b"DATA");
}

/// Requests that a batch returns hold no bytes in this process.
#[tokio::test]
async fn unposted_requests_are_not_staged() {
    let device = Arc::default();
    let (info, domain, buffer) = open_device_domain(&device);
    let cq = domain.completion_queue(4).unwrap();
    let (ep, me) = open_endpoint(&info, &domain, &cq).await;
    let memory = buffer.memory();
    let requests = (0..16).map(|_| ep.send(me, domain.device_buffer(memory).unwrap()));
    let stopped = ep.post_all(requests).unwrap_err();
    assert_eq!((stopped.posted, stopped.unposted.len()), (4, 12));
    for request in stopped.unposted {
        assert_eq!(request.into_buf().payload().len(), 0);
    }
}

/// A copy that panics fails its own operation, and no other one of the same batch of entries.
#[tokio::test]
async fn copy_that_panics_fails_its_operation() {
    let device: Arc<Device> = Arc::default();
    let (info, domain, buffer) = open_device_domain(&device);
    let mut cq = domain.completion_queue(16).unwrap();
    let (ep, me) = open_endpoint(&info, &domain, &cq).await;
    let memory = buffer.memory();
    device.panics.store(true, Ordering::Relaxed);
    let received = ep.recv_into(buffer).start().unwrap();
    ep.send(me, "DATA").await.unwrap();
    let failed = received.await.unwrap_err();
    assert!(
        matches!(failed.error, Error::Os { errno: EIO, .. }),
        "{}",
        failed.error
    );
    assert_eq!(failed.transfer.len, 4);

    for _ in 0..3 {
        let buffer = domain.device_buffer(memory).unwrap();
        ep.recv_into(buffer).post().unwrap();
        ep.send(me, "data").await.unwrap();
    }
    device.panics.store(true, Ordering::Relaxed);
    let mut entries = Vec::new();
    while entries.len() < 3 {
        cq.read_batch(&mut entries, 3).await;
    }
    let failed = entries.iter().map(|entry| entry.error.is_some());
    assert_eq!(failed.collect::<Vec<_>>(), [true, false, false]);
    assert_eq!(*device.bytes.lock().unwrap(), *b"data");
}
