//! Domains of one thread (`thread_model::Pinned`).

#[path = "common/thread_models.rs"]
mod thread_models;

use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::thread;

use fabric_async::info::Threading;
use fabric_async::thread_model::{Pinned, Shared};
use fabric_async::{
    BindOptions, CqBind, Endpoint, Error, EventKind, Fabric, Hints, Info, Progress, discover,
};
use tokio::runtime::Builder;

use thread_models::{PROVIDERS, connect_and_accept, runtime};
use tokio::task::LocalSet;

fn pinned() -> BindOptions<Pinned> {
    Endpoint::options().thread_model::<Pinned>()
}

fn pinned_info(provider: &str) -> Info {
    let hints = Hints::new().provider(provider).threading(Threading::Domain);
    discover(&hints).unwrap().swap_remove(0)
}

#[test]
fn pinned_needs_the_level_and_manual_progress() {
    let refusal = |hints: Hints| {
        let info = discover(&hints.provider("shm")).unwrap().swap_remove(0);
        let fabric = Fabric::open(&info).unwrap();
        let builder = fabric.domain_builder(&info).thread_model::<Pinned>();
        builder.open().unwrap_err().to_string()
    };
    let _runtime = runtime();
    let no_level = refusal(Hints::new());
    assert!(no_level.contains("FI_THREAD_DOMAIN"), "{no_level}");
    let completion = refusal(Hints::new().threading(Threading::Completion));
    assert!(completion.contains("has Completion"), "{completion}");
    let with_thread = Hints::new().threading(Threading::Domain);
    let automatic = refusal(with_thread.progress(Progress::Auto));
    assert!(automatic.contains("manual"), "{automatic}");
    // The option for tests has the same conditions: the domain's own thread could not enter.
    let with_thread = Hints::new().provider("shm").threading(Threading::Domain);
    let info = discover(&with_thread.progress(Progress::Auto))
        .unwrap()
        .swap_remove(0);
    let fabric = Fabric::open(&info).unwrap();
    let refused = fabric.domain_builder(&info).owned_by_this_thread().open();
    assert!(matches!(
        refused,
        Err(Error::Invalid {
            what: "thread model",
            ..
        })
    ));
    // The weakest promise serves every level.
    let info = pinned_info("shm");
    let fabric = Fabric::open(&info).unwrap();
    let opened = runtime().block_on(async { fabric.domain_builder(&info).open() });
    assert_eq!(opened.unwrap().info().domain.threading, Threading::Domain);
}

#[test]
fn multi_thread_runtimes_need_a_local_set() {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let info = pinned_info("shm");
    let fabric = Fabric::open(&info).unwrap();
    let refused = runtime.block_on(async {
        let builder = fabric.domain_builder(&info).thread_model::<Pinned>();
        builder.open().unwrap_err()
    });
    let Error::Runtime(why) = refused else {
        panic!("{refused}");
    };
    assert!(why.contains("open_local"), "{why}");
    // The driver is a task of the `LocalSet`: queued messages leave while this task sleeps.
    let received = LocalSet::new().block_on(&runtime, async {
        let builder = fabric.domain_builder(&info).thread_model::<Pinned>();
        let domain = builder.open_local().unwrap();
        let cq = domain.completion_queue(16).unwrap();
        let av = domain.address_vector().unwrap();
        let ep = domain.endpoint(&info).unwrap();
        let ep = ep.bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV).unwrap();
        let ep = ep.bind_av(&av).unwrap().enable().unwrap();
        let other = Endpoint::bind("shm://").await.unwrap();
        let to_other = av.insert(other.name()).unwrap();
        ep.send(to_other, vec![5; 100_000]).post().unwrap();
        let received = tokio::spawn(async move { other.recv().await.unwrap().len() });
        received.await.unwrap()
    });
    assert_eq!(received, 100_000);
    let refused = runtime.block_on(pinned().bind("shm://")).unwrap_err();
    assert!(refused.to_string().contains("local_driver"), "{refused}");
    LocalSet::new().block_on(&runtime, async {
        let ep = pinned().local_driver().bind("shm://").await.unwrap();
        let me = ep.add_peer(ep.name()).await.unwrap();
        let (sent, got) = tokio::join!(ep.send(me, "hello"), ep.recv());
        sent.unwrap();
        assert_eq!(&got.unwrap()[..], b"hello");
        // Outside of the `LocalSet` the driver of a resource domain is a task of the runtime.
        let domain = ep.domain().clone();
        let on_the_runtime = domain.resource_domain().open().unwrap_err();
        assert!(on_the_runtime.to_string().contains("open_local"));
        domain.resource_domain().open_local().unwrap();
    });
}

#[test]
fn domains_of_two_threads_exchange_messages() {
    for provider in PROVIDERS {
        let (announce, name) = mpsc::channel();
        let echo = thread::spawn(move || {
            runtime().block_on(async {
                let ep = pinned().bind(format!("{provider}://")).await.unwrap();
                announce.send(ep.name().clone()).unwrap();
                for _ in 0..100 {
                    let got = ep.recv().await.unwrap();
                    let back = ep.send(got.source().unwrap(), got[..].to_vec());
                    back.await.unwrap();
                }
                ep.flush().await.unwrap();
            });
        });
        runtime().block_on(async {
            let ep = pinned().bind(format!("{provider}://")).await.unwrap();
            let peer = ep.add_peer(&name.recv().unwrap()).await.unwrap();
            for round in 0..100u8 {
                let receive = ep.recv_into(vec![0; 1000]).start().unwrap();
                let message = vec![round; 10 * usize::from(round)];
                ep.send(peer, message.clone()).await.unwrap();
                assert_eq!(receive.await.unwrap()[..], message, "{provider}");
            }
        });
        echo.join().unwrap();
    }
}

#[test]
fn pinned_endpoints_connect_and_accept() {
    for provider in ["shm", "tcp"] {
        runtime().block_on(connect_and_accept(provider, |name| pinned().connect(name)));
    }
}

/// The reader has no task of the domain's thread, and only wakes the driver.
#[test]
fn event_queue_of_another_thread_gets_events() {
    let (done, wait_until_done) = tokio::sync::oneshot::channel::<()>();
    let (hand_over, queue) = mpsc::channel();
    let owner = thread::spawn(move || {
        runtime().block_on(async {
            let ep = pinned().bind("shm://").await.unwrap();
            let events = ep.take_events().expect("the first call");
            hand_over.send((events, ep.name().clone())).unwrap();
            // No task of this thread uses the domain meanwhile.
            wait_until_done.await.unwrap();
            // The domain may close here, with a queue that another thread has.
        });
    });
    let (mut events, name) = queue.recv().unwrap();
    // A read that follows an empty one makes progress, but not in the domain of another thread.
    assert_eq!([events.try_read(), events.try_read()], [None, None]);
    runtime().block_on(async {
        let other = Endpoint::bind("shm://").await.unwrap();
        other.add_peer(&name).await.unwrap();
        let event = events.read().await;
        assert!(
            matches!(event.kind, EventKind::PeerConnected { .. }),
            "{event:?}"
        );
        other.close().unwrap();
        let event = events.read().await;
        assert!(
            matches!(event.kind, EventKind::PeerDown { .. }),
            "{event:?}"
        );
        done.send(()).unwrap();
    });
    owner.join().unwrap();
    assert_eq!(events.try_read(), None, "a closed domain is not entered");
}

#[test]
fn waiting_tasks_go_on_after_the_driver_has_left_the_thread() {
    let runtime = runtime();
    let (ep, me) = runtime.block_on(async {
        let ep = pinned().bind("shm://").await.unwrap();
        let me = ep.add_peer(ep.name()).await.unwrap();
        (ep, me)
    });
    // The runtime, and the driver with it, ends on another thread.
    thread::spawn(move || {
        runtime.block_on(tokio::task::yield_now());
        drop(runtime);
    })
    .join()
    .unwrap();
    let mut receive = pin!(ep.recv().into_future());
    let mut cx = Context::from_waker(Waker::noop());
    assert!(receive.as_mut().poll(&mut cx).is_pending());
    ep.send(me, b"late").inject().unwrap();
    let got = crate::runtime().block_on(receive).unwrap();
    assert_eq!(&got[..], b"late");
    // A further wait keeps itself runnable.
    let other = crate::runtime().block_on(async {
        let waiting = ep.recv();
        let sending = async {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            ep.send(me, b"later").inject()
        };
        let (got, sent) = tokio::join!(waiting, sending);
        sent.and(got.map_err(Error::from))
    });
    assert_eq!(&other.unwrap()[..], b"later");
}

#[test]
fn shared_is_the_default() {
    let options: BindOptions = Endpoint::options();
    let ep: Endpoint<Shared> = runtime().block_on(options.bind("shm://")).unwrap();
    thread::spawn(move || ep.stats()).join().unwrap();
}

/// The driver ends on another thread while a task of the owner waits in another runtime. The next
/// task that begins to wait reports the end, and wakes the first one.
#[test]
fn driver_that_ends_on_another_thread_leaves_no_task_asleep() {
    let runtime = runtime();
    let (ep, me) = runtime.block_on(async {
        let ep = pinned().bind("shm://").await.unwrap();
        let me = ep.add_peer(ep.name()).await.unwrap();
        // The driver has begun.
        ep.send(me, "first").await.unwrap();
        ep.recv().await.unwrap();
        (std::rc::Rc::new(ep), me)
    });
    let mut events = ep.take_events().unwrap();
    while events.try_read().is_some() {}
    let second = thread_models::runtime();
    LocalSet::new().block_on(&second, async {
        let waiting = ep.clone();
        let first = tokio::task::spawn_local(async move { waiting.recv().tag(1).await.is_ok() });
        tokio::task::yield_now().await;
        thread::spawn(move || drop(runtime)).join().unwrap();
        let waiting = ep.clone();
        let other = tokio::task::spawn_local(async move { waiting.recv().tag(2).await.is_ok() });
        tokio::task::yield_now().await;
        ep.send(me, "of another task").tag(2).inject().unwrap();
        assert!(other.await.unwrap());
        ep.send(me, "of the first task").tag(1).inject().unwrap();
        assert!(first.await.unwrap());
    });
    let mut reported = std::iter::from_fn(|| events.try_read());
    assert!(reported.any(|event| event.kind == EventKind::DriverEnded));
}
