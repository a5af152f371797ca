//! Wait descriptors: threads that block in epoll without a timeout miss no wake-up.
//!
//! A missed wake-up is a hang, which the harness reports. The threads are blocking threads of the
//! runtime. Their domains have no driver task, unless the scenario says so.

use std::future::Future;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use fabric_async::{
    Access, AddressVector, Completion, CompletionQueue, CounterBind, CqBind, Domain, Endpoint,
    Error, EventKind, Fabric, FiAddr, Info, OpKind, Progress, TryWait, WaitFd, WaitPolicy,
};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags};
use tokio::task::spawn_blocking;

use crate::endpoint_fixture::endpoint_pair;
use crate::setup::Setup;

/// Returns the number of round trips. With the wait policy spin no thread blocks, so few round
/// trips are enough.
fn rounds(setup: &Setup) -> u64 {
    match setup.wait_policy {
        WaitPolicy::Spin => 10,
        _ => 300,
    }
}

/// An edge-triggered epoll instance. It reports a descriptor once each time the descriptor becomes
/// readable, so a descriptor that stays readable does not hide a missed wake-up.
struct Epoll(OwnedFd);

impl Epoll {
    fn of(fds: &[WaitFd]) -> Self {
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let flags = EventFlags::IN | EventFlags::ET;
        for fd in fds {
            epoll::add(&epoll, fd.as_fd(), EventData::new_u64(0), flags).unwrap();
        }
        Self(epoll)
    }

    /// Blocks until a descriptor becomes readable.
    fn wait(&self) {
        let mut events = Vec::with_capacity(8);
        let spare = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&self.0, spare, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("epoll_wait: {error}"),
        }
    }
}

/// An endpoint for a thread that waits in epoll.
struct LoopEndpoint {
    ep: Endpoint,
    cq: CompletionQueue,
    av: AddressVector,
}

impl LoopEndpoint {
    async fn open(domain: &Domain, info: &Info) -> Self {
        let (cq, av) = (
            domain.completion_queue(64).unwrap(),
            domain.auto_insert_address_vector().unwrap(),
        );
        let ep = domain.endpoint(info).unwrap();
        let ep = ep.bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV).unwrap();
        let ep = ep.bind_av(&av).unwrap().enable().unwrap();
        Self { ep, cq, av }
    }

    fn add(&self, peer: &Self) -> FiAddr {
        self.av.insert(peer.ep.name()).unwrap()
    }

    fn post_recv(&self) {
        self.ep.recv_into(vec![0; 16]).post().unwrap();
    }

    fn send(&self, peer: FiAddr, number: u64) {
        let bytes = number.to_le_bytes().to_vec();
        self.ep.send(peer, bytes).post().unwrap();
    }

    /// Waits for the next message in epoll, and returns its number. Posts the next receive.
    fn recv(&mut self, epoll: &Epoll, batch: &mut Vec<Completion>) -> u64 {
        loop {
            if let Some(at) = batch.iter().position(|done| done.kind == OpKind::Recv) {
                let done = batch.remove(at);
                assert_eq!(done.error, None);
                self.post_recv();
                return u64::from_le_bytes(done.bytes().try_into().unwrap());
            }
            batch.clear();
            if self.cq.try_read_batch(batch, 8) == 0
                && self.cq.prepare_wait().unwrap() == TryWait::Block
            {
                epoll.wait();
            }
        }
    }
}

/// Opens a domain that an event loop drives or, with automatic progress, a thread.
async fn open_domain(setup: &Setup) -> (Domain, Fabric, Info) {
    let (fabric, info) = setup.fabric().await;
    let builder = fabric
        .domain_builder(&info)
        .wait_policy(setup.wait_policy)
        .socket_io(setup.socket_io)
        .socket_options(setup.socket_options(Default::default()));
    let builder = match setup.progress {
        Progress::Auto => builder,
        _ => builder.driven_by_event_loop(),
    };
    (builder.open().unwrap(), fabric, info)
}

/// Sends numbers to each peer and waits for the answers.
fn ask(mut ep: LoopEndpoint, peers: &[FiAddr], rounds: u64) -> LoopEndpoint {
    let (epoll, mut batch) = (Epoll::of(&[ep.cq.wait_fd().unwrap()]), Vec::new());
    peers.iter().for_each(|_| ep.post_recv());
    for number in 0..rounds {
        peers.iter().for_each(|peer| ep.send(*peer, number));
        for _ in peers {
            assert_eq!(ep.recv(&epoll, &mut batch), number);
        }
    }
    ep
}

/// Answers the numbers of `peer`.
fn answer(mut ep: LoopEndpoint, peer: FiAddr, rounds: u64) -> LoopEndpoint {
    let (epoll, mut batch) = (Epoll::of(&[ep.cq.wait_fd().unwrap()]), Vec::new());
    ep.post_recv();
    for number in 0..rounds {
        assert_eq!(ep.recv(&epoll, &mut batch), number);
        ep.send(peer, number);
    }
    // The last answer leaves before the endpoint is dropped.
    while ep.ep.domain().progress() {}
    ep
}

pub(crate) async fn event_loops_drive_their_domains(setup: Setup) {
    let rounds = rounds(&setup);
    let (domain_a, _fabric, info) = open_domain(&setup).await;
    let (domain_b, ..) = open_domain(&setup).await;
    let a = LoopEndpoint::open(&domain_a, &info).await;
    let b = LoopEndpoint::open(&domain_b, &info).await;
    let (to_a, to_b) = (b.add(&a), a.add(&b));
    let answers = spawn_blocking(move || answer(b, to_a, rounds));
    let asked = spawn_blocking(move || ask(a, &[to_b], rounds));
    let _open = (answers.await.unwrap(), asked.await.unwrap());
}

/// A thread outside of any runtime registers memory asynchronously, and waits for it in epoll.
pub(crate) async fn registrations_wake_event_loops(setup: Setup) {
    let rounds = rounds(&setup);
    let (domain, fabric, _info) = open_domain(&setup).await;
    let mut eq = fabric.event_queue(16).unwrap();
    domain.bind_eq_reg_mr(&eq).unwrap();
    let register = move || {
        assert!(tokio::runtime::Handle::try_current().is_err());
        let epoll = Epoll::of(&[eq.wait_fd().unwrap()]);
        for context in 0..rounds {
            let request = domain.alloc_async(4096, Access::REMOTE_WRITE);
            let mut pending = request.context(context).post().unwrap();
            let event = loop {
                match eq.try_read() {
                    Some(event) => break event,
                    None if eq.prepare_wait().unwrap() == TryWait::Block => epoll.wait(),
                    None => {}
                }
            };
            assert_eq!(event.context, context);
            let region = pending.try_take().unwrap().unwrap();
            assert_eq!(event.kind, EventKind::MrComplete { key: region.key() });
        }
    };
    let thread = || std::thread::spawn(register).join();
    spawn_blocking(thread).await.unwrap().unwrap();
}

pub(crate) async fn threads_in_event_loops_share_a_domain(setup: Setup) {
    let rounds = rounds(&setup);
    const THREADS: usize = 3;
    let (domain, _fabric, info) = open_domain(&setup).await;
    let (asking_domain, ..) = open_domain(&setup).await;
    let asking = LoopEndpoint::open(&asking_domain, &info).await;
    let (mut peers, mut threads) = (Vec::new(), Vec::new());
    for _ in 0..THREADS {
        let ep = LoopEndpoint::open(&domain, &info).await;
        peers.push(asking.add(&ep));
        let to_asking = ep.add(&asking);
        threads.push(spawn_blocking(move || answer(ep, to_asking, rounds)));
    }
    let _asked = spawn_blocking(move || ask(asking, &peers, rounds))
        .await
        .unwrap();
    for thread in threads {
        thread.await.unwrap();
    }
}

pub(crate) async fn descriptors_wake_threads_beside_a_driver(setup: Setup) {
    let rounds = rounds(&setup);
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let to_a = b.add_peer(&a).await;
    let b = LoopEndpoint {
        ep: b.ep,
        cq: b.cq,
        av: b.av,
    };
    let thread = spawn_blocking(move || answer(b, to_a, rounds));
    for number in 0..rounds {
        let (sent, got) = tokio::join!(a.ep.send(to_b, number.to_le_bytes().to_vec()), a.ep.recv());
        sent.unwrap();
        assert_eq!(got.unwrap()[..], number.to_le_bytes());
    }
    thread.await.unwrap();
}

pub(crate) async fn eq_and_counter_descriptors_wake_a_thread(setup: Setup) {
    const MESSAGES: u64 = 60;
    let (domain, fabric, info) = open_domain(&setup).await;
    let mut eq = fabric.event_queue(16).unwrap();
    domain.bind_eq(&eq).unwrap();
    let counter = domain.counter().unwrap();
    let (cq, av) = (
        domain.completion_queue(64).unwrap(),
        domain.auto_insert_address_vector().unwrap(),
    );
    let ep = domain.endpoint(&info).unwrap();
    let ep = ep.bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV).unwrap();
    let ep = ep.bind_av(&av).unwrap();
    let ep = ep.bind_counter(&counter, CounterBind::RECV).unwrap();
    let ep = ep.enable().unwrap();
    for context in 0..MESSAGES {
        ep.recv_into(vec![0; 16]).context(context).post().unwrap();
    }
    let name = ep.name().clone();
    let thread = spawn_blocking(move || {
        let epoll = Epoll::of(&[eq.wait_fd().unwrap()]);
        loop {
            match eq.try_read() {
                Some(event) if matches!(event.kind, EventKind::PeerConnected { .. }) => break,
                Some(_) => {}
                None if eq.prepare_wait().unwrap() == TryWait::Block => epoll.wait(),
                None => {}
            }
        }
        let epoll = Epoll::of(&[counter.wait_fd().unwrap()]);
        loop {
            let (value, errors) = (counter.value(), counter.errors());
            if value == MESSAGES {
                return (eq, counter, ep);
            }
            if counter.prepare_wait(value, errors).unwrap() == TryWait::Block {
                epoll.wait();
            }
        }
    });
    let peer = setup.open_endpoint().await;
    let to_thread = peer.ep.add_peer(&name).await.unwrap();
    for number in 0..MESSAGES {
        peer.ep.send(to_thread, vec![number as u8]).await.unwrap();
        tokio::task::yield_now().await;
    }
    let _open = thread.await.unwrap();
}

/// Completes a future in an event loop that drives the domain.
fn block_on<T>(domain: &Domain, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let epoll = Epoll::of(&[domain.wait_fd().unwrap()]);
    loop {
        if let Poll::Ready(output) = future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            return output;
        }
        if domain.prepare_wait().unwrap() == TryWait::Block {
            epoll.wait();
        }
    }
}

pub(crate) async fn domain_with_a_driver_has_no_descriptor(setup: Setup) {
    let (domain, fabric, info) = open_domain(&setup).await;
    assert!(matches!(domain.wait_fd(), Err(Error::NotSupported(_))));
    assert!(matches!(domain.prepare_wait(), Err(Error::NotSupported(_))));
    let refused = fabric.domain_builder(&info).driven_by_event_loop().open();
    assert!(matches!(
        refused,
        Err(Error::Invalid {
            what: "driven_by_event_loop",
            ..
        })
    ));
}

/// Polls for the next message while its sender makes progress, and returns its number.
fn recv_polling(ep: &mut LoopEndpoint, batch: &mut Vec<Completion>, sender: &Domain) -> u64 {
    while ep.cq.try_read_batch(batch, 1) == 0 {
        sender.progress();
    }
    let done = batch.remove(0);
    ep.post_recv();
    u64::from_le_bytes(done.bytes().try_into().unwrap())
}

/// A thread blocks on the descriptor of a domain where nothing waits for a completion. A pass that
/// another thread makes disarms the doorbells, and must arm them again.
pub(crate) async fn passes_of_another_thread_leave_the_descriptor_armed(setup: Setup) {
    let (domain_a, _fabric, info) = open_domain(&setup).await;
    let (domain_b, ..) = open_domain(&setup).await;
    let a = LoopEndpoint::open(&domain_a, &info).await;
    let mut b = LoopEndpoint::open(&domain_b, &info).await;
    let to_b = a.add(&b);
    let thread = spawn_blocking(move || {
        let (fd, mut batch) = (domain_b.wait_fd().unwrap(), Vec::new());
        b.post_recv();
        for number in 0..20 {
            while domain_b.prepare_wait().unwrap() != TryWait::Block {}
            domain_b.progress();
            a.send(to_b, number);
            // What is collected to be sent together leaves with a pass.
            domain_a.progress();
            // The first message connects, and a connection is noticed without a doorbell.
            if number > 0 {
                let mut fds = [PollFd::new(&fd, PollFlags::IN)];
                while rustix::event::poll(&mut fds, None).is_err() {}
            }
            assert_eq!(
                recv_polling(&mut b, &mut batch, &domain_a),
                number,
                "after the descriptor became readable"
            );
        }
        (a, b)
    });
    thread.await.unwrap();
}

pub(crate) async fn futures_complete_in_an_event_loop(setup: Setup) {
    let rounds = rounds(&setup);
    let (domain_a, _fabric, info) = open_domain(&setup).await;
    let (domain_b, ..) = open_domain(&setup).await;
    let a = LoopEndpoint::open(&domain_a, &info).await;
    let b = LoopEndpoint::open(&domain_b, &info).await;
    let (to_a, to_b) = (b.add(&a), a.add(&b));
    let echo = spawn_blocking(move || {
        block_on(&domain_b, async {
            for _ in 0..rounds {
                let message = b.ep.recv().await?;
                b.ep.send(to_a, message.into_bytes()).await?;
            }
            b.ep.flush().await?;
            Ok::<(), Error>(())
        })
        .unwrap();
        b
    });
    let asked = spawn_blocking(move || {
        block_on(&domain_a, async {
            for number in 0..rounds {
                let number = number.to_le_bytes().to_vec();
                a.ep.send(to_b, number.clone()).await?;
                assert_eq!(a.ep.recv().await?[..], number);
            }
            Ok::<(), Error>(())
        })
        .unwrap();
        a
    });
    let _open = (asked.await.unwrap(), echo.await.unwrap());
}
