//! Resource domains: parts of a domain with an engine of their own.

#[path = "common/thread_models.rs"]
mod thread_models;

use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use fabric_async::info::Threading;
use fabric_async::resource_domain::MessageModel;
use fabric_async::thread_model::{Pinned, Serial, Shared, ThreadModel};
use fabric_async::{
    Access, AddressVector, Class, CqBind, Domain, Endpoint, Error, EventKind, Fabric, FiAddr,
    Hints, Info, Progress, SocketIo, discover,
};

use thread_models::{PROVIDERS, runtime};

fn info_of(hints: &Hints) -> Info {
    discover(hints).unwrap().swap_remove(0)
}

fn open(hints: Hints) -> (Info, Domain) {
    let info = info_of(&hints);
    let domain = Fabric::open(&info).unwrap().domain(&info).unwrap();
    (info, domain)
}

fn endpoint<M: ThreadModel, N: ThreadModel>(
    domain: &Domain<M>,
    info: &Info,
    av: &AddressVector<N>,
) -> Endpoint<M> {
    let cq = domain.completion_queue(16).unwrap();
    let ep = domain.endpoint(info).unwrap();
    let ep = ep.bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV).unwrap();
    ep.bind_av(av).unwrap().enable().unwrap()
}

/// Each thread has a resource domain, and both use the vector of the domain.
fn exchange_between_threads<M: ThreadModel>(provider: &'static str) {
    let main = runtime();
    let _context = main.enter();
    let (info, domain) = open(Hints::new().provider(provider));
    let av = domain.address_vector().unwrap();
    let (names, handles) = (mpsc::channel(), mpsc::channel::<FiAddr>());
    let other = {
        let (info, domain, av) = (info.clone(), domain.clone(), av.clone());
        thread::spawn(move || {
            runtime().block_on(async {
                let part = domain.resource_domain().thread_model::<M>().open().unwrap();
                let ep = endpoint(&part, &info, &av);
                names.0.send(ep.name().clone()).unwrap();
                // The handle was inserted on the other thread, after this endpoint was opened.
                let peer = handles.1.recv().unwrap();
                for _ in 0..50 {
                    let got = ep.recv().await.unwrap();
                    assert_eq!(got.source(), Ok(peer), "{provider}");
                    ep.send(peer, got[..].to_vec()).await.unwrap();
                }
                ep.flush().await.unwrap();
            });
        })
    };
    main.block_on(async {
        let part = domain.resource_domain().thread_model::<M>().open().unwrap();
        let ep = endpoint(&part, &info, &av);
        let peer = av.insert(names.1.recv().unwrap()).unwrap();
        let own = av.insert(ep.name()).unwrap();
        handles.0.send(own).unwrap();
        for round in 0..50u8 {
            let receive = ep.recv_into(vec![0; 1000]).start().unwrap();
            let message = vec![round; 20 * usize::from(round)];
            ep.send(peer, message.clone()).await.unwrap();
            assert_eq!(receive.await.unwrap()[..], message, "{provider}");
        }
    });
    other.join().unwrap();
    assert_eq!(domain.children().to_string(), "1 address vector");
}

#[test]
fn resource_domains_of_two_threads_share_a_vector() {
    for provider in PROVIDERS {
        exchange_between_threads::<Shared>(provider);
        exchange_between_threads::<Serial>(provider);
        exchange_between_threads::<Pinned>(provider);
    }
}

/// The owner of a resource domain waits for a receive from a peer that another thread removes.
fn remove_from_another_thread<M: ThreadModel>() {
    let main = runtime();
    let _context = main.enter();
    let (info, domain) = open(Hints::new().provider("shm"));
    let av = domain.address_vector().unwrap();
    let peer = av.insert("shm://peer-that-is-removed").unwrap();
    let (ready, is_ready) = mpsc::channel();
    let waiting = {
        let (domain, av) = (domain.clone(), av.clone());
        thread::spawn(move || {
            runtime().block_on(async {
                let part = domain.resource_domain().thread_model::<M>().open().unwrap();
                let ep = endpoint(&part, &info, &av);
                let receive = ep.recv_into(vec![0; 8]).from(peer).start().unwrap();
                let waits = async {
                    // The address is removed while this thread sleeps.
                    while part.stats().waiting_tasks == 0 {
                        tokio::task::yield_now().await;
                    }
                    ready.send(()).unwrap();
                };
                let (failed, ()) = tokio::join!(receive, waits);
                assert_eq!(failed.unwrap_err().error, Error::StaleAddress(peer));
                let refused = ep.send(peer, "x").await.unwrap_err();
                assert_eq!(refused.error, Error::StaleAddress(peer));
            });
        })
    };
    is_ready.recv().unwrap();
    thread::sleep(Duration::from_millis(20));
    av.remove(peer).unwrap();
    waiting.join().unwrap();
}

#[test]
fn removed_address_is_stale_in_every_resource_domain() {
    remove_from_another_thread::<Shared>();
    remove_from_another_thread::<Serial>();
    remove_from_another_thread::<Pinned>();
}

#[tokio::test]
async fn objects_of_other_resource_domains_are_refused() {
    let (info, domain) = open(Hints::new().provider("shm"));
    let part = domain.resource_domain().open().unwrap();
    let other = domain.resource_domain().open().unwrap();
    let bind = CqBind::TRANSMIT | CqBind::RECV;
    for (foreign, ep) in [(&domain, &part), (&other, &part), (&part, &domain)] {
        let cq = foreign.completion_queue(4).unwrap();
        let builder = || ep.endpoint(&info).unwrap();
        let expected = |object| Error::WrongParent {
            object,
            parent: ep.class(),
        };
        let refused = builder().bind_cq(&cq, bind).unwrap_err();
        assert_eq!(refused, expected(Class::CompletionQueue));
        let counter = foreign.counter().unwrap();
        let refused = builder().bind_counter(&counter, fabric_async::CounterBind::SEND);
        assert_eq!(refused.unwrap_err(), expected(Class::Counter));
    }
    // A vector belongs to the domain, or to one resource domain.
    let of_other = other.address_vector().unwrap();
    for ep in [&part, &domain] {
        let refused = ep.endpoint(&info).unwrap().bind_av(&of_other).unwrap_err();
        let (object, parent) = (Class::AddressVector, ep.class());
        assert_eq!(refused, Error::WrongParent { object, parent });
    }
    let automatic = domain.auto_insert_address_vector().unwrap();
    let cq = part.completion_queue(4).unwrap();
    let builder = part.endpoint(&info).unwrap().bind_cq(&cq, bind).unwrap();
    let refused = builder.bind_av(&automatic).unwrap().enable().unwrap_err();
    assert!(refused.to_string().contains("inserts peers"), "{refused}");
    let own = part.auto_insert_address_vector().unwrap();
    let server = endpoint(&part, &info, &own);
    let client = Endpoint::bind("shm://").await.unwrap();
    let to_server = client.add_peer(server.name()).await.unwrap();
    client.send(to_server, "request").await.unwrap();
    let request = server.recv().await.unwrap();
    server
        .send(request.source().unwrap(), "reply")
        .await
        .unwrap();
    assert_eq!(&client.recv().await.unwrap()[..], b"reply");
}

#[tokio::test]
async fn limits_apply_to_all_resource_domains_together() {
    let mut info = info_of(&Hints::new().provider("shm"));
    info.domain.cntr_cnt = 3;
    let domain = Fabric::open(&info).unwrap().domain(&info).unwrap();
    let part = domain.resource_domain().open().unwrap();
    let other = domain.resource_domain().open().unwrap();
    let _open = [&domain, &part, &other].map(|of| of.counter().unwrap());
    for full in [&domain, &part, &other] {
        let refused = full.counter().unwrap_err();
        assert_eq!(refused.to_string(), "4 counters exceed the limit of 3");
    }
}

#[tokio::test]
async fn resource_domain_is_a_child_of_its_domain() {
    let (info, domain) = open(Hints::new().provider("shm"));
    let part = domain.resource_domain().context(9).open().unwrap();
    assert_eq!((part.class(), part.context()), (Class::ResourceDomain, 9));
    let cq = part.completion_queue(4).unwrap();
    let refused = domain.clone().close().unwrap_err();
    assert!(refused.error.to_string().contains("1 resource domain"));
    let refused = part.clone().close().unwrap_err();
    assert!(refused.error.to_string().contains("1 completion queue"));
    let nested = part.resource_domain().open().unwrap_err();
    assert!(nested.to_string().contains("cannot contain another one"));
    // Discovery within it is discovery within its domain.
    let within = Hints::new().within(&part);
    let found = info_of(&within);
    assert_eq!(found.domain.domain, Some(domain.id()));
    assert_eq!(found.domain.name, info.domain.name);
    drop(cq);
    part.close().unwrap();
    domain.close().unwrap();
}

#[test]
fn thread_models_that_cannot_be_served_are_refused() {
    let runtime = runtime();
    let _context = runtime.enter();
    let (_, domain) = open(Hints::new().provider("shm").progress(Progress::Auto));
    let builder = domain.resource_domain().thread_model::<Pinned>();
    let refused = builder.open().unwrap_err().to_string();
    assert!(refused.contains("manual"), "{refused}");
    let info = info_of(&Hints::new().provider("shm").threading(Threading::Domain));
    let fabric = Fabric::open(&info).unwrap();
    let builder = fabric.domain_builder(&info).thread_model::<Pinned>();
    let domain = builder.open().unwrap();
    let builder = domain.resource_domain().thread_model::<Shared>();
    let refused = builder.open().unwrap_err().to_string();
    assert!(refused.contains("has model Pinned"), "{refused}");
    let part = domain.resource_domain().open().unwrap();
    assert_eq!(part.info().domain.threading, Threading::Domain);
}

/// Peers access regions of the domain through an endpoint of a resource domain.
#[tokio::test]
async fn regions_of_the_domain_are_accessed_through_resource_domains() {
    for provider in ["shm", "tcp"] {
        let (info, domain) = open(Hints::new().provider(provider).progress(Progress::Auto));
        let av = domain.address_vector().unwrap();
        let part = domain.resource_domain().open().unwrap();
        let target = endpoint(&part, &info, &av);
        let client = Endpoint::bind(format!("{provider}://")).await.unwrap();
        let peer = client.add_peer(target.name()).await.unwrap();
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = domain.alloc(64, access).unwrap();
        let mut buffer = domain.register(vec![1; 64], access, None).unwrap();
        for remote in [region.remote(), buffer.remote()] {
            client
                .write(peer, remote.slice(0..16), vec![7; 16])
                .await
                .unwrap();
            let read = client.read(peer, remote.slice(0..16)).await.unwrap();
            assert_eq!(read[..], [7; 16], "{provider}");
        }
        // An access waits while the owner has the buffer, and goes on afterwards.
        let to_buffer = buffer.remote().slice(0..16);
        let guard = buffer.lock();
        let write = client.write(peer, to_buffer, vec![8; 16]).start().unwrap();
        // The write arrives and finds the region locked.
        let passes = part.stats().passes;
        while part.stats().passes < passes + 100 {
            client.domain().progress();
            part.progress();
        }
        drop(guard);
        write.await.unwrap();
        assert_eq!(buffer.lock()[..16], [8; 16], "{provider}");
        let remote = region.remote();
        region.close().unwrap();
        let refused = client.read(peer, remote.slice(0..16)).await.unwrap_err();
        assert!(matches!(refused.error, Error::Key { .. }), "{provider}");
        drop(buffer);
    }
}

#[tokio::test]
async fn resource_domain_reports_to_the_queue_of_its_domain() {
    let (info, domain) = open(Hints::new().provider("shm"));
    let mut eq = Fabric::open(&info).unwrap().event_queue(16).unwrap();
    assert!(domain.bind_eq(&eq).is_err(), "of another fabric");
    eq = domain.fabric().event_queue(16).unwrap();
    domain.bind_eq(&eq).unwrap();
    let part = domain.resource_domain().open().unwrap();
    let av = part.auto_insert_address_vector().unwrap();
    let server = endpoint(&part, &info, &av);
    let client = Endpoint::bind("shm://").await.unwrap();
    let peer = client.add_peer(server.name()).await.unwrap();
    client.send(peer, "x").await.unwrap();
    server.recv().await.unwrap();
    drop(client);
    let event = eq.read().await;
    assert_eq!(event.object_id, server.id());
    assert!(
        matches!(event.kind, EventKind::PeerConnected { .. }),
        "{event:?}"
    );
}

/// Only domains of model `Shared` register memory asynchronously.
#[tokio::test]
async fn resource_domains_register_as_their_model_does() {
    let (_, domain) = open(Hints::new().provider("shm"));
    let eq = domain.fabric().event_queue(16).unwrap();
    domain.bind_eq_reg_mr(&eq).unwrap();
    let shared = domain.resource_domain().open().unwrap();
    let refused = shared.alloc(8, Access::REMOTE_READ).map(drop).unwrap_err();
    assert!(refused.to_string().contains("FI_REG_MR"), "{refused}");
    shared.alloc_async(8, Access::REMOTE_READ).await.unwrap();
    let pinned = domain.resource_domain().thread_model::<Pinned>();
    let region = pinned.open().unwrap().alloc(8, Access::REMOTE_READ);
    region.unwrap();
    let serial = domain.resource_domain().thread_model::<Serial>();
    let region = serial.open().unwrap().alloc(8, Access::REMOTE_READ);
    region.unwrap();
}

/// The thread of a resource domain makes progress while the program makes no calls.
#[tokio::test]
async fn resource_domain_has_its_own_progress_thread() {
    let (info, domain) = open(Hints::new().provider("shm").progress(Progress::Auto));
    let av = domain.address_vector().unwrap();
    let part = domain.resource_domain().open().unwrap();
    let target = endpoint(&part, &info, &av);
    let buffer = part
        .register(vec![0; 8], Access::REMOTE_WRITE, None)
        .unwrap();
    let client = Endpoint::bind("shm://").await.unwrap();
    let peer = client.add_peer(target.name()).await.unwrap();
    client
        .write(peer, buffer.remote().slice(0..8), vec![3; 8])
        .await
        .unwrap();
    assert!(part.stats().passes > 0);
}

/// The number of three messages that have left before the next pass.
async fn sent_before_a_pass(provider: &str, model: MessageModel) -> u64 {
    let (info, domain) = open(Hints::new().provider(provider));
    let builder = domain.resource_domain().message_model(model);
    let part = builder.open().unwrap();
    let av = domain.address_vector().unwrap();
    let cq = part.completion_queue(16).unwrap();
    let sender = part.endpoint(&info).unwrap();
    let sender = sender
        .bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV)
        .unwrap();
    let sender = sender.bind_av(&av).unwrap().enable().unwrap();
    let receiver = Endpoint::bind(format!("{provider}://")).await.unwrap();
    let to_receiver = av.insert(receiver.name()).unwrap();
    sender.send(to_receiver, "connects").await.unwrap();
    receiver.recv().await.unwrap();
    part.progress();
    let before = sender.stats().sent.count;
    for _ in 0..3 {
        sender.send(to_receiver, "message").post().unwrap();
    }
    let sent = sender.stats().sent.count - before;
    // This task does not poll the sender: its driver sends what has not left.
    for _ in 0..3 {
        assert_eq!(&receiver.recv().await.unwrap()[..], b"message");
    }
    sent
}

#[tokio::test]
async fn message_model_decides_when_messages_leave() {
    for (provider, model, expected) in [
        ("shm", MessageModel::Default, 3),
        ("shm", MessageModel::LowLatency, 3),
        ("shm", MessageModel::HighBandwidth, 3),
        ("tcp", MessageModel::Default, 1),
        ("tcp", MessageModel::LowLatency, 3),
        ("tcp", MessageModel::HighBandwidth, 0),
        ("udp", MessageModel::Default, 3),
        ("udp", MessageModel::LowLatency, 3),
        ("udp", MessageModel::HighBandwidth, 0),
    ] {
        let sent = sent_before_a_pass(provider, model).await;
        assert_eq!(sent, expected, "{provider} {model:?}");
    }
}

/// Messages of one call leave together in the default model only.
#[tokio::test]
async fn low_latency_sends_each_message_of_a_batch_at_once() {
    for model in [MessageModel::Default, MessageModel::LowLatency] {
        let options = Endpoint::options().message_model(model);
        let ep = options.bind("shm://").await.unwrap();
        let me = ep.add_peer(ep.name()).await.unwrap();
        let messages: Vec<[u8; 4]> = (0..100u32).map(u32::to_le_bytes).collect();
        let sends = messages.iter().map(|message| ep.send(me, *message));
        assert_eq!(ep.post_all(sends).unwrap(), 100);
        for message in messages {
            assert_eq!(ep.recv().await.unwrap()[..], message);
        }
    }
}

/// One test, because the reserved cores are those of the process.
#[tokio::test]
async fn force_low_latency_reserves_a_core_or_is_refused() {
    let model = MessageModel::ForceLowLatency;
    let (info, domain) = open(Hints::new().provider("shm"));
    let refused = |opened: Result<Domain, Error>, why: &str| {
        let error = opened.unwrap_err();
        assert!(matches!(error, Error::NotReserved(_)), "{error}");
        assert_eq!(error.errno(), 28, "FI_ENOSPC");
        assert!(error.to_string().contains(why), "{error}");
    };
    let force = || domain.resource_domain().message_model(model);
    let cores = thread::available_parallelism().unwrap().get();
    let mut reserved: Vec<_> = (0..cores).map(|_| force().open().unwrap()).collect();
    refused(force().open(), "cores");
    // A resource domain that is closed gives its core back.
    reserved.pop().unwrap().close().unwrap();
    let parks = force().wait_policy(fabric_async::WaitPolicy::Park);
    refused(parks.open(), "Park");
    let tcp = info_of(&Hints::new().provider("tcp"));
    let fabric = Fabric::open(&tcp).unwrap();
    let builder = fabric.domain_builder(&tcp).message_model(model);
    refused(builder.socket_io(SocketIo::Epoll).open(), "Epoll");
    // The core is for one domain, so a resource domain of it reserves none unless it says so.
    let spins = force().open().unwrap();
    assert!(format!("{spins:?}").contains("wait: Spin"), "{spins:?}");
    drop(reserved);
    // The core of the refused domains is free again.
    let forced = Fabric::open(&info).unwrap();
    let forced = forced.domain_builder(&info).message_model(model);
    let forced = forced.open().unwrap();
    let parts: Vec<_> = (0..cores)
        .map(|_| forced.resource_domain().open().unwrap())
        .collect();
    drop((parts, forced));
    let on_tcp = fabric
        .domain_builder(&tcp)
        .message_model(model)
        .open()
        .unwrap();
    for (domain, info) in [(spins, info), (on_tcp, tcp)] {
        let av = domain.address_vector().unwrap();
        let ep = endpoint(&domain, &info, &av);
        let me = av.insert(ep.name()).unwrap();
        let (sent, got) = tokio::join!(ep.send(me, "hello"), ep.recv());
        sent.unwrap();
        assert_eq!(&got.unwrap()[..], b"hello");
    }
}

/// A waker that inserts an address, as a waker that runs its task at once may do.
struct InsertingWaker(AddressVector);

impl Wake for InsertingWaker {
    fn wake(self: Arc<Self>) {
        self.0.insert("shm://inserted-by-a-waker").unwrap();
    }
}

#[tokio::test]
async fn waker_may_change_the_vector_whose_change_calls_it() {
    let (info, domain) = open(Hints::new().provider("shm"));
    let part = domain.resource_domain().open().unwrap();
    for of in [&domain, &part] {
        let av = domain.address_vector().unwrap();
        let peer = av.insert("shm://removed").unwrap();
        let ep = endpoint(of, &info, &av);
        let receive = ep.recv_into(vec![0; 8]).from(peer).start().unwrap();
        let mut receive = pin!(receive);
        let waker = Waker::from(Arc::new(InsertingWaker(av.clone())));
        let mut context = Context::from_waker(&waker);
        assert!(receive.as_mut().poll(&mut context).is_pending());
        av.remove(peer).unwrap();
        assert_eq!(av.peers().len(), 1, "the waker has inserted an address");
        let failed = receive.await.unwrap_err();
        assert_eq!(failed.error, Error::StaleAddress(peer));
    }
}
