//! An epoll loop that drives a domain: no Tokio runtime, no futures.
//!
//! `cargo run --release --example event_loop [-- --provider tcp]`
//!
//! Two threads exchange numbers, each with an endpoint in a domain of its own. A thread reads its
//! completion queue, asks whether it may block (`fi_trywait(3)`), and blocks in epoll without a
//! timeout until the queue's descriptor becomes readable.

use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;

use fabric_async::{
    AddressVector, CompletionQueue, CqBind, Domain, Endpoint, Fabric, FiAddr, Hints, Info, OpKind,
    TryWait, discover,
};
use rustix::event::epoll;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const ROUND_TRIPS: u64 = 10_000;

/// An endpoint with its queue, and the epoll instance of its thread.
struct Peer {
    ep: Endpoint,
    cq: CompletionQueue,
    av: AddressVector,
    domain: Domain,
    epoll: OwnedFd,
    /// How often the thread has blocked.
    sleeps: u64,
}

impl Peer {
    fn open(info: &Info) -> Result<Self> {
        let fabric = Fabric::open(info)?;
        // Without this, opening a domain requires a Tokio runtime or automatic progress.
        let domain = fabric.domain_builder(info).driven_by_event_loop().open()?;
        let (cq, av) = (domain.completion_queue(64)?, domain.address_vector()?);
        let ep = domain
            .endpoint(info)?
            .bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV)?
            .bind_av(&av)?
            .enable()?;
        ep.recv_into(vec![0; 8]).post()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let token = epoll::EventData::new_u64(ep.id());
        epoll::add(&epoll, cq.wait_fd()?.as_fd(), token, epoll::EventFlags::IN)?;
        Ok(Self {
            ep,
            cq,
            av,
            domain,
            epoll,
            sleeps: 0,
        })
    }

    fn send(&self, to: FiAddr, number: u64) -> Result<()> {
        Ok(self.ep.send(to, number.to_le_bytes().to_vec()).post()?)
    }

    /// Waits for the next message and returns its number. Posts the next receive.
    fn recv(&mut self) -> Result<u64> {
        let (mut batch, mut number) = (Vec::new(), None);
        loop {
            self.cq.try_read_batch(&mut batch, 8);
            for done in batch.drain(..) {
                let kind = done.kind;
                let done = done.into_result::<Vec<u8>>()?;
                if kind == OpKind::Recv {
                    number = Some(u64::from_le_bytes(done[..].try_into()?));
                    self.ep.recv_into(done.into_buf()).post()?;
                }
            }
            if let Some(number) = number {
                return Ok(number);
            }
            if self.cq.prepare_wait()? == TryWait::Block {
                self.sleeps += 1;
                let mut events = Vec::with_capacity(1);
                let events = rustix::buffer::spare_capacity(&mut events);
                // A signal, or work of io_uring, interrupts the call: the loop asks again.
                match epoll::wait(&self.epoll, events, None) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let provider = match &arguments[..] {
        [] => "shm",
        [flag, provider] if flag == "--provider" => provider,
        _ => return Err("usage: event_loop [--provider NAME]".into()),
    };
    let info = discover(&Hints::new().provider(provider))?.swap_remove(0);
    let (mut client, mut server) = (Peer::open(&info)?, Peer::open(&info)?);
    let to_server = client.av.insert(server.ep.name())?;
    let to_client = server.av.insert(client.ep.name())?;

    let server = thread::spawn(move || -> Result<Peer> {
        for _ in 0..ROUND_TRIPS {
            let number = server.recv()?;
            server.send(to_client, number)?;
        }
        // What is still queued leaves only while the domain makes progress.
        while server.domain.progress() {}
        Ok(server)
    });
    for number in 0..ROUND_TRIPS {
        client.send(to_server, number)?;
        assert_eq!(client.recv()?, number);
    }
    let server = server.join().expect("the server does not panic")?;
    println!(
        "{ROUND_TRIPS} round trips over {provider}; the client slept {} times, the server {}",
        client.sleeps, server.sleeps
    );
    Ok(())
}
