//! Runtimes that cannot serve, and runtimes that go away.

use fabric_async::{Endpoint, Error, Progress, WaitPolicy};

use crate::run;

#[test]
fn a_runtime_without_io_is_refused_by_name() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let error = runtime.block_on(Endpoint::bind("shm://")).unwrap_err();
    assert!(matches!(error, Error::Runtime(what) if what.contains("enable_io")), "{error}");
    // Automatic progress needs nothing of the runtime.
    let ep = runtime.block_on(Endpoint::options().progress(Progress::Auto).bind("shm://")).unwrap();
    drop(ep);
}

#[test]
fn no_runtime_is_refused_by_name() {
    let mut bind = std::pin::pin!(Endpoint::bind("shm://"));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(Err(error)) = bind.as_mut().poll(&mut cx) else { panic!("refused at once") };
    assert!(matches!(error, Error::Runtime(what) if what.contains("no Tokio runtime")), "{error}");
}

#[test]
fn a_domain_outlives_the_runtime_that_drove_it() {
    for policy in [WaitPolicy::Adaptive, WaitPolicy::Park, WaitPolicy::Spin] {
        let first = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let ep = first.block_on(Endpoint::options().wait_policy(policy).bind("shm://")).unwrap();
        drop(first);
        run(async {
            let other = Endpoint::bind("shm://").await.unwrap();
            let name = ep.name().clone();
            let sent = tokio::spawn(async move {
                let there = other.lookup(name).await?;
                other.send(there, "still here").await?;
                Ok::<_, Error>(())
            });
            assert_eq!(&ep.recv().await.unwrap()[..], b"still here", "{policy:?}");
            sent.await.unwrap().unwrap();
        });
    }
}

#[test]
fn a_parked_domain_uses_no_cpu() {
    for progress in [Progress::Manual, Progress::Auto] {
        run(async move {
            let ep = Endpoint::options().progress(progress).bind("shm://").await.unwrap();
            let waiting = tokio::spawn(async move { ep.recv().await.map(drop) });
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            let switches = || {
                // Wake-ups of all threads of this process; a sleeping one makes none.
                let status = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("status"));
                let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
                let named = tasks.filter(|task| {
                    std::fs::read_to_string(task.path().join("comm"))
                        .is_ok_and(|name| name.starts_with("fab-"))
                });
                named.filter_map(|task| status(task).ok()).flat_map(|text| voluntary(&text)).sum::<u64>()
            };
            let before = switches();
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            assert_eq!(switches(), before, "{progress:?}: the progress thread woke without a reason");
            waiting.abort();
        });
    }
}

fn voluntary(status: &str) -> Option<u64> {
    status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))
        .and_then(|n| n.trim().parse().ok())
}
