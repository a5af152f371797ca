//! Messages between the memories of two devices (`FI_HMEM`), which only copy functions of the
//! program can access (`FI_SET_OPS_HMEM_OVERRIDE`).
//!
//! Each device is a file that no process maps. A buffer goes to the peer and back, and a write and
//! a read go to a region of the peer.
//!
//! `cargo run --release --example device_memory`, or with `-- --provider tcp` over a socket

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fabric_async::buf::device::{DeviceCopy, DeviceMemory, MemoryInterface};
use fabric_async::{
    Access, Caps, Domain, Endpoint, Error, Fabric, Hints, RemoteRegion, Result, discover,
};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{pread, pwrite};

const LEN: usize = 1 << 20;
/// Where the buffers are in the memory of each device.
const SENT_AT: u64 = 0;
const RECEIVED_AT: u64 = 1 << 20;

/// A device, and how many bytes were copied from it and to it.
struct Device {
    memory: OwnedFd,
    from: AtomicU64,
    to: AtomicU64,
}

impl Device {
    fn open() -> io::Result<Arc<Self>> {
        let memory = memfd_create("device", MemfdFlags::CLOEXEC)?;
        ftruncate(&memory, RECEIVED_AT + LEN as u64)?;
        let (from, to) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Arc::new(Self { memory, from, to }))
    }
}

impl DeviceCopy for Device {
    fn copy_from_device(
        &self,
        memory: &DeviceMemory,
        offset: usize,
        to: &mut [u8],
    ) -> io::Result<usize> {
        let copied = pread(&self.memory, to, memory.address + offset as u64)?;
        self.from.fetch_add(copied as u64, Ordering::Relaxed);
        Ok(copied)
    }

    fn copy_to_device(
        &self,
        memory: &DeviceMemory,
        offset: usize,
        from: &[u8],
    ) -> io::Result<usize> {
        let copied = pwrite(&self.memory, from, memory.address + offset as u64)?;
        self.to.fetch_add(copied as u64, Ordering::Relaxed);
        Ok(copied)
    }
}

/// Returns the memory of the device that begins at this address.
fn memory_at(address: u64) -> DeviceMemory {
    DeviceMemory {
        interface: MemoryInterface::Cuda,
        device: 0,
        address,
        len: LEN,
    }
}

/// Opens a domain with a device of its own, and an endpoint in it.
fn open(provider: &str) -> Result<(Domain, Endpoint, Arc<Device>)> {
    let hints = Hints::new().provider(provider);
    let hints = hints.caps(Caps::MSG | Caps::RMA | Caps::SOURCE | Caps::HMEM);
    let info = discover(&hints)?.swap_remove(0);
    let domain = Fabric::open(&info)?.domain(&info)?;
    let device = Device::open().expect("memory for the device");
    domain.set_device_copy(device.clone())?;
    let av = domain.auto_insert_address_vector()?;
    let ep = domain.endpoint(&info)?.bind_av(&av)?.enable()?;
    Ok((domain, ep, device))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let provider = match &args[..] {
        [] => "shm",
        [flag, provider] if flag == "--provider" => provider,
        other => {
            eprintln!("device_memory takes --provider and its name, or nothing: {other:?}");
            std::process::exit(2);
        }
    };
    let (client_domain, client, client_device) = open(provider)?;
    let (server_domain, server, server_device) = open(provider)?;
    let to_server = client.add_peer(server.name()).await?;
    let bytes: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
    pwrite(&client_device.memory, &bytes, SENT_AT).expect("write to the device");

    let echo = tokio::spawn(async move {
        let received = server.recv_into(server_domain.device_buffer(memory_at(RECEIVED_AT))?);
        let received = received.await?;
        println!(
            "the server has {} bytes on its device",
            received.transfer.len
        );
        let client = received.source()?;
        server.send(client, received.buf).await?;
        let region = server_domain.alloc(LEN, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
        let description = region.remote().to_bytes();
        server.send(client, description.to_vec()).await?;
        server.recv().await?;
        Ok::<(), Error>(region.close()?)
    });
    client
        .send(to_server, client_domain.device_buffer(memory_at(SENT_AT))?)
        .await?;
    let echoed = client
        .recv_into(client_domain.device_buffer(memory_at(RECEIVED_AT))?)
        .await?;
    assert_holds(&client_device, &bytes);
    println!("the client has {} bytes on its device", echoed.transfer.len);

    let remote = RemoteRegion::from_bytes(&client.recv().await?)?;
    let written = client.write(to_server, remote.at(0), echoed.buf).await?;
    pwrite(&client_device.memory, &vec![0; LEN], RECEIVED_AT).expect("write to the device");
    client
        .read_into(to_server, remote.slice(..), written.buf)
        .await?;
    assert_holds(&client_device, &bytes);
    println!("a write and a read of the server's region have the same bytes");
    client.send(to_server, "done").await?;
    echo.await.expect("the server does not panic")?;

    for (name, device) in [("client", client_device), ("server", server_device)] {
        let [from, to] = [&device.from, &device.to].map(|count| count.load(Ordering::Relaxed));
        println!("{name}: {from} bytes copied from the device, {to} to it");
    }
    Ok(())
}

/// Checks that the received bytes are on the device.
fn assert_holds(device: &Device, expected: &[u8]) {
    let mut bytes = vec![0; expected.len()];
    pread(&device.memory, &mut bytes, RECEIVED_AT).expect("read the device");
    assert!(bytes == expected, "other bytes are on the device");
}
