//! Buffers in the memory of a device (`FI_HMEM`), copied by functions of the program.
//!
//! The memory of the device is a file that no process maps: an access that does not go through the
//! copy functions has no address for it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabric_async::buf::device::{DeviceBuffer, DeviceCopy, DeviceMemory, MemoryInterface};
use fabric_async::{
    Access, CancelOutcome, Caps, Class, Completion, Domain, Done, Error, FiAddr, OpKind,
};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{Errno, pread, pwrite};

use crate::endpoint_fixture::{EndpointConfig, EndpointFixture};
use crate::payload::{assert_bytes, pattern, poll_once};
use crate::setup::Setup;

/// Bytes of a device's memory.
const DEVICE_LEN: u64 = 16 << 20;
const EIO: i32 = Errno::IO.raw_os_error();

/// A copy between a device and this process.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Copied {
    FromDevice(DeviceMemory, usize, usize),
    ToDevice(DeviceMemory, usize, usize),
}

/// What happens to the next copy.
#[derive(Clone, Copy, Debug, Default)]
enum NextCopy {
    #[default]
    Succeeds,
    /// It copies half of the bytes.
    IsShort,
    /// It fails with this error.
    Fails(Errno),
}

/// A device with memory that only the copy functions can access.
#[derive(Debug)]
pub(crate) struct TestDevice {
    memory: OwnedFd,
    free: AtomicU64,
    state: Mutex<DeviceState>,
}

#[derive(Debug, Default)]
struct DeviceState {
    copies: Vec<Copied>,
    next: NextCopy,
    /// The domain that copies call into, which would block while it is locked.
    domain: Option<Domain>,
}

impl TestDevice {
    fn new() -> Arc<Self> {
        let memory = memfd_create("test-device", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, DEVICE_LEN).unwrap();
        Arc::new(Self {
            memory,
            free: AtomicU64::new(4096),
            state: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, DeviceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates memory of the device, and fills it with these bytes.
    fn alloc(&self, bytes: &[u8]) -> DeviceMemory {
        let len = bytes.len();
        let address = self.free.fetch_add(len as u64, Ordering::Relaxed);
        assert!(address + len as u64 <= DEVICE_LEN, "the device is full");
        assert_eq!(pwrite(&self.memory, bytes, address), Ok(len));
        DeviceMemory {
            interface: MemoryInterface::Ze,
            device: 7,
            address,
            len,
        }
    }

    /// Returns the bytes in the memory.
    fn read(&self, memory: DeviceMemory) -> Vec<u8> {
        let mut bytes = vec![0; memory.len];
        let read = pread(&self.memory, &mut bytes, memory.address);
        assert_eq!(read, Ok(memory.len));
        bytes
    }

    /// Returns the copies since the last call.
    fn take_copies(&self) -> Vec<Copied> {
        std::mem::take(&mut self.lock().copies)
    }

    fn set_next(&self, next: NextCopy) {
        self.lock().next = next;
    }

    /// Records a copy, and calls into the domain. Returns how many bytes to copy.
    fn begin(&self, copied: Copied, len: usize) -> io::Result<usize> {
        let mut state = self.lock();
        state.copies.push(copied);
        let (next, domain) = (std::mem::take(&mut state.next), state.domain.clone());
        drop(state);
        if let Some(domain) = domain {
            domain.progress();
        }
        match next {
            NextCopy::Succeeds => Ok(len),
            NextCopy::IsShort => Ok(len / 2),
            NextCopy::Fails(error) => Err(error.into()),
        }
    }
}

impl DeviceCopy for TestDevice {
    fn copy_from_device(
        &self,
        memory: &DeviceMemory,
        offset: usize,
        to: &mut [u8],
    ) -> io::Result<usize> {
        let len = self.begin(Copied::FromDevice(*memory, offset, to.len()), to.len())?;
        Ok(pread(
            &self.memory,
            &mut to[..len],
            memory.address + offset as u64,
        )?)
    }

    fn copy_to_device(
        &self,
        memory: &DeviceMemory,
        offset: usize,
        from: &[u8],
    ) -> io::Result<usize> {
        let len = self.begin(Copied::ToDevice(*memory, offset, from.len()), from.len())?;
        Ok(pwrite(
            &self.memory,
            &from[..len],
            memory.address + offset as u64,
        )?)
    }
}

/// An endpoint whose domain copies the memory of a device.
struct DeviceFixture {
    fixture: EndpointFixture,
    device: Arc<TestDevice>,
}

impl DeviceFixture {
    async fn open(setup: &Setup) -> Self {
        let device = TestDevice::new();
        let config = EndpointConfig {
            device: Some(device.clone()),
            ..EndpointConfig::default()
        };
        let fixture = setup.open_endpoint_with(config).await;
        device.lock().domain = Some(fixture.domain.clone());
        Self { fixture, device }
    }

    fn buffer(&self, memory: DeviceMemory) -> DeviceBuffer {
        self.fixture.domain.device_buffer(memory).unwrap()
    }

    /// Returns a buffer in device memory that holds these bytes.
    fn buffer_with(&self, bytes: &[u8]) -> DeviceBuffer {
        self.buffer(self.device.alloc(bytes))
    }

    /// Returns a buffer of zeros in device memory.
    fn empty_buffer(&self, len: usize) -> DeviceBuffer {
        self.buffer_with(&vec![0; len])
    }

    /// Checks that a receive of `len` bytes has moved them to the device.
    #[track_caller]
    fn assert_received(&self, done: &Done<DeviceBuffer>, expected: &[u8]) {
        assert_eq!(done.transfer.len, expected.len());
        self.assert_holds(&done.buf, expected);
    }

    #[track_caller]
    fn assert_holds(&self, buf: &DeviceBuffer, expected: &[u8]) {
        assert_bytes(&self.device.read(buf.memory())[..expected.len()], expected);
    }

    async fn next_completion(&mut self) -> Completion {
        let mut read = Vec::new();
        assert_eq!(self.fixture.cq.read_batch(&mut read, 1).await, 1);
        read.swap_remove(0)
    }
}

impl Drop for DeviceFixture {
    fn drop(&mut self) {
        // The domain has the device, and the device the domain.
        self.device.lock().domain = None;
    }
}

async fn device_pair(setup: &Setup) -> (DeviceFixture, DeviceFixture, FiAddr) {
    let (a, b) = (
        DeviceFixture::open(setup).await,
        DeviceFixture::open(setup).await,
    );
    let to_b = a.fixture.add_peer(&b.fixture).await;
    (a, b, to_b)
}

/// A message goes from device to device; each side copies once, with the interface, the device and
/// the offset of its memory, and never under a lock of its domain.
pub(crate) async fn fi_hmem_message_goes_from_device_to_device(setup: Setup) {
    let (a, b, to_b) = device_pair(&setup).await;
    for len in [0, 1, 64, 1000] {
        let sent = a.device.alloc(pattern(len, 5));
        let receiving = b.fixture.ep.recv_into(b.empty_buffer(len + 8));
        let (done, received) = tokio::join!(a.fixture.ep.send(to_b, a.buffer(sent)), receiving);
        assert_eq!(done.unwrap().buf.memory(), sent);
        let received = received.unwrap();
        b.assert_received(&received, pattern(len, 5));
        assert_eq!(
            b.device.read(received.buf.memory())[len..],
            [0; 8],
            "what follows the message is unchanged"
        );
        let copied = b.device.take_copies();
        let to_device = Copied::ToDevice(received.buf.memory(), 0, len);
        assert_eq!(copied, if len == 0 { vec![] } else { vec![to_device] });
        assert_eq!(a.device.take_copies(), [Copied::FromDevice(sent, 0, len)]);
    }
}

/// Every kind of post takes buffers of a device, for messages of all lengths.
pub(crate) async fn fi_hmem_buffers_are_posted_in_every_way(setup: Setup) {
    let (mut a, mut b, to_b) = device_pair(&setup).await;
    for len in [8, 5000, 200_000, 1 << 20] {
        let bytes = pattern(len, 9);
        let receiving = b.fixture.ep.recv_into(b.empty_buffer(len)).tag(1);
        let receiving = receiving.start().unwrap();
        let sending = a.fixture.ep.send(to_b, a.buffer_with(bytes)).tag(1);
        let (sent, received) = tokio::join!(sending.start().unwrap(), receiving);
        sent.unwrap();
        b.assert_received(&received.unwrap(), bytes);

        let receive = b.fixture.ep.recv_into(b.empty_buffer(len)).tag(2);
        receive.context(2).post().unwrap();
        let send = a.fixture.ep.send(to_b, a.buffer_with(bytes)).tag(2);
        send.context(1).post().unwrap();
        let (sent, received) = tokio::join!(a.next_completion(), b.next_completion());
        assert_eq!((sent.kind, sent.context), (OpKind::Send, 1));
        let sent = sent.into_result::<DeviceBuffer>().unwrap();
        assert_eq!(sent.transfer.len, len);
        assert_eq!(received.bytes(), b"", "the bytes are on the device");
        b.assert_received(&received.into_result().unwrap(), bytes);
    }
    let bytes = |number| pattern(300, number);
    let receives = (0..4).map(|_| b.fixture.ep.recv_into(b.empty_buffer(300)));
    assert_eq!(b.fixture.ep.post_all(receives).unwrap(), 4);
    let sends = (0..4).map(|number| a.fixture.ep.send(to_b, a.buffer_with(bytes(number))));
    assert_eq!(a.fixture.ep.post_all(sends).unwrap(), 4);
    for number in 0..4 {
        let (sent, received) = tokio::join!(a.next_completion(), b.next_completion());
        sent.into_result::<DeviceBuffer>().unwrap();
        b.assert_received(&received.into_result().unwrap(), bytes(number));
    }
    let permit = a.fixture.ep.reserve(to_b).await.unwrap();
    let (sent, claimed) = tokio::join!(
        permit.send(&a.fixture.ep, a.buffer_with(bytes(5))),
        b.fixture.ep.probe().claim()
    );
    sent.unwrap();
    let received = claimed.unwrap().recv_into(b.empty_buffer(300)).await;
    b.assert_received(&received.unwrap(), bytes(5));
}

/// Writes take their bytes from a device, and reads place theirs on a device.
pub(crate) async fn fi_hmem_buffers_of_writes_and_reads(setup: Setup) {
    const LENS: [usize; 4] = [8, 5000, 200_000, 1 << 20];
    let (mut a, b, to_b) = device_pair(&setup).await;
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let region = b.fixture.domain.alloc(1 << 20, access).unwrap();
    let remote = region.remote();
    let _progress = b.fixture.spawn_progress();
    for (which, len) in LENS.into_iter().enumerate() {
        let bytes = pattern(len, which);
        let ep = &a.fixture.ep;
        ep.write(to_b, remote.at(0), a.buffer_with(bytes))
            .await
            .unwrap();
        let read = ep.read_into(to_b, remote.slice(..len as u64), a.empty_buffer(len));
        a.assert_received(&read.await.unwrap(), bytes);
        let read = ep.read_into(to_b, remote.slice(..len as u64), a.empty_buffer(len));
        read.post().unwrap();
        let read = a.next_completion().await;
        assert_eq!(read.kind, OpKind::Read);
        a.assert_received(&read.into_result().unwrap(), bytes);
    }
}

/// A copy that fails, or copies too few bytes, fails its operation with the number of the error.
/// The buffer comes back and can be used again.
pub(crate) async fn fi_hmem_failed_copies_fail_their_operation(setup: Setup) {
    let (a, mut b, to_b) = device_pair(&setup).await;
    let bytes = pattern(500, 1);
    let os = |call, errno| Error::Os { call, errno };
    let mut buf = a.buffer_with(bytes);
    for (next, errno) in [
        (NextCopy::IsShort, EIO),
        (NextCopy::Fails(Errno::NODEV), Errno::NODEV.raw_os_error()),
    ] {
        let expected = os("copy_from_device", errno);
        a.device.set_next(next);
        let failed = a.fixture.ep.send(to_b, buf).await.unwrap_err();
        assert_eq!(failed.error, expected);
        a.device.set_next(next);
        let failed = a.fixture.ep.send(to_b, failed.buf).start().unwrap_err();
        assert_eq!(failed.error, expected);
        a.device.set_next(next);
        let failed = a.fixture.ep.send(to_b, failed.buf).post().unwrap_err();
        assert_eq!(failed.error, expected);
        a.device.set_next(next);
        let batch = [a.fixture.ep.send(to_b, failed.buf)];
        let mut stopped = a.fixture.ep.post_all(batch).unwrap_err();
        assert_eq!((stopped.posted, stopped.error), (0, expected));
        buf = stopped.unposted.swap_remove(0).into_buf();
    }

    let expected = os("copy_to_device", EIO);
    let send = async |buf| {
        let sent: Done<DeviceBuffer> = a.fixture.ep.send(to_b, buf).await.unwrap();
        sent.buf
    };
    buf = send(buf).await;
    b.device.set_next(NextCopy::IsShort);
    let receiving = b.fixture.ep.recv_into(b.empty_buffer(500));
    let failed = receiving.await.unwrap_err();
    assert_eq!((failed.error, failed.transfer.len), (expected.clone(), 500));
    buf = send(buf).await;
    b.device.set_next(NextCopy::IsShort);
    let receiving = b.fixture.ep.recv_into(failed.buf).start().unwrap();
    let failed = receiving.await.unwrap_err();
    assert_eq!(failed.error, expected);
    b.fixture
        .ep
        .recv_into(failed.buf)
        .context(3)
        .post()
        .unwrap();
    b.device.set_next(NextCopy::IsShort);
    buf = send(buf).await;
    let failed = b.next_completion().await;
    assert_eq!(failed.context, 3);
    let failed = failed.into_result::<DeviceBuffer>().unwrap_err();
    assert_eq!(failed.error, expected);
    send(buf).await;
    let received = b.fixture.ep.recv_into(failed.buf).await;
    b.assert_received(&received.unwrap(), bytes);
}

/// A message that is too long fills the buffer on the device, and a receive that is canceled
/// changes nothing there.
pub(crate) async fn fi_hmem_truncated_and_canceled_receives(setup: Setup) {
    let (a, b, to_b) = device_pair(&setup).await;
    for len in [100, 300_000] {
        let receiving = b.fixture.ep.recv_into(b.empty_buffer(len / 2));
        let (sent, received) = tokio::join!(
            a.fixture.ep.send(to_b, a.buffer_with(pattern(len, 3))),
            receiving
        );
        sent.unwrap();
        let failed = received.unwrap_err();
        let (len, lost) = (len / 2, len - len / 2);
        assert_eq!(failed.error, Error::Truncated { len, lost });
        b.assert_holds(&failed.buf, pattern(len, 3));
    }
    b.device.take_copies();
    let mut receiving = b.fixture.ep.recv_into(b.empty_buffer(8)).into_future();
    assert!(poll_once(&mut receiving).await.is_pending());
    let CancelOutcome::Canceled(buf) = receiving.cancel().await else {
        panic!("no message was sent");
    };
    let started = b.fixture.ep.recv_into(buf).start().unwrap();
    let CancelOutcome::Canceled(buf) = started.cancel().await else {
        panic!("no message was sent");
    };
    b.assert_holds(&buf, &[0; 8]);
    assert_eq!(b.device.take_copies(), []);
}

/// The copy functions are set once and before other objects are opened, and resource domains have
/// those of their domain. A domain that was opened without `FI_HMEM` has none.
pub(crate) async fn fi_set_ops_is_called_before_objects_are_opened(setup: Setup) {
    let (fabric, info) = setup.fabric().await;
    let domain = setup.open_domain(&fabric, &info);
    let device = TestDevice::new();
    let memory = device.alloc(b"memory");
    let what = |error| match error {
        Error::Invalid { what, .. } => what,
        error => panic!("{error}"),
    };
    let functions = "copy functions of device memory";
    let missing = domain.device_buffer(memory).unwrap_err();
    assert!(missing.to_string().contains("set_device_copy"), "{missing}");
    assert_eq!(what(missing), "buffer in device memory");
    let counter = domain.counter().unwrap();
    let late = domain.set_device_copy(device.clone()).unwrap_err();
    assert!(late.to_string().contains("1 counter"), "{late}");
    assert_eq!(what(late), functions);
    counter.close().unwrap();
    domain.set_device_copy(device.clone()).unwrap();
    let twice = domain.set_device_copy(device.clone()).unwrap_err();
    assert_eq!(what(twice), functions);

    let resource_domain = domain.resource_domain().open().unwrap();
    assert_eq!(
        resource_domain.device_buffer(memory).unwrap().memory(),
        memory
    );
    let inherited = resource_domain.set_device_copy(device.clone()).unwrap_err();
    assert_eq!(what(inherited), functions);
    drop(resource_domain);
    domain.clone().close().unwrap();
    let closed = Error::Closed(Class::Domain);
    assert_eq!(domain.device_buffer(memory).unwrap_err(), closed);
    assert_eq!(domain.set_device_copy(device.clone()), Err(closed));

    let (fabric, info) = setup.with_caps(setup.caps - Caps::HMEM).fabric().await;
    let domain = setup.open_domain(&fabric, &info);
    for refused in [
        domain.set_device_copy(device).unwrap_err(),
        domain.device_buffer(memory).unwrap_err(),
    ] {
        assert!(matches!(refused, Error::NotSupported(_)), "{refused}");
        assert!(refused.to_string().contains("FI_HMEM"), "{refused}");
    }
}
