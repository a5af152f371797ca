//! Copies to devices, where domains, types and panics meet.

use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use fabric_async::buf::CustomBuf;
use fabric_async::buf::device::{DeviceBuffer, DeviceCopy, DeviceMemory, MemoryInterface};
use fabric_async::{
    Caps, CompletionQueue, CqBind, Domain, Endpoint, Fabric, FiAddr, Hints, Info, discover,
};

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

/// Opens a domain that copies to the device, and returns memory of the device.
fn open_device_domain(device: &Arc<Device>) -> (Info, Domain, DeviceBuffer) {
    let (info, domain) = open_domain(Caps::MSG | Caps::HMEM);
    domain.set_device_copy(device.clone()).unwrap();
    let memory = DeviceMemory {
        interface: MemoryInterface::Cuda,
        device: 0,
        address: 0,
        len: 4,
    };
    let buffer = domain.device_buffer(memory).unwrap();
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

/// An operation whose copy panics has resolved: it is not pending for ever.
#[tokio::test]
async fn operation_is_resolved_when_its_copy_panics() {
    let device: Arc<Device> = Arc::default();
    let (info, domain, buffer) = open_device_domain(&device);
    let cq = domain.completion_queue(16).unwrap();
    let (ep, me) = open_endpoint(&info, &domain, &cq).await;
    let mut operation = ep.recv_into(buffer).start().unwrap();
    ep.send(me, "DATA").await.unwrap();
    device.panics.store(true, Ordering::Relaxed);
    let mut poll = || {
        let mut cx = Context::from_waker(Waker::noop());
        let polled = AssertUnwindSafe(|| Pin::new(&mut operation).poll(&mut cx).is_ready());
        catch_unwind(polled).map_err(|panic| panic.downcast_ref::<&str>().copied())
    };
    assert_eq!(poll(), Err(Some("the copy")));
    assert!(poll().is_err(), "polled after it has resolved");
}
