//! Runtimes without an I/O driver, and runtimes that are dropped.

use std::ffi::OsString;
use std::fs::DirEntry;
use std::time::{Duration, Instant};

use fabric_async::{Endpoint, Error, Progress, WaitPolicy};

use crate::run;

#[test]
fn runtime_without_enable_io_is_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let error = runtime.block_on(Endpoint::bind("shm://")).unwrap_err();
    assert!(
        matches!(error, Error::Runtime(what) if what.contains("enable_io")),
        "{error}"
    );
    // Automatic progress needs no I/O driver of the runtime.
    let ep = runtime
        .block_on(Endpoint::options().progress(Progress::Auto).bind("shm://"))
        .unwrap();
    drop(ep);
}

#[test]
fn bind_without_tokio_runtime_is_refused() {
    let mut bind = std::pin::pin!(Endpoint::bind("shm://"));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(Err(error)) = bind.as_mut().poll(&mut cx) else {
        panic!("bind fails in its first poll")
    };
    assert!(
        matches!(error, Error::Runtime(what) if what.contains("no Tokio runtime")),
        "{error}"
    );
}

#[test]
fn domain_outlives_the_runtime_that_drove_it() {
    for policy in [WaitPolicy::Adaptive, WaitPolicy::Park, WaitPolicy::Spin] {
        let first = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        let ep = first
            .block_on(Endpoint::options().wait_policy(policy).bind("shm://"))
            .unwrap();
        drop(first);
        run(async {
            let other = Endpoint::bind("shm://").await.unwrap();
            let name = ep.name().clone();
            let sent = tokio::spawn(async move {
                let there = other.add_peer(name).await?;
                other.send(there, "still here").await?;
                Ok::<_, Error>(())
            });
            assert_eq!(&ep.recv().await.unwrap()[..], b"still here", "{policy:?}");
            sent.await.unwrap().unwrap();
        });
    }
}

/// A driver that polls would keep this thread busy; the timer of the test wakes it only for
/// moments.
#[test]
fn parked_domain_uses_no_cpu_of_the_runtime_thread() {
    run(async move {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let waiting = tokio::spawn(async move { ep.recv().await.map(drop) });
        // The time until the driver parks depends on the load of the machine.
        for attempt in 0.. {
            let (cpu, started) = (thread_cpu_time(), Instant::now());
            tokio::time::sleep(Duration::from_millis(300)).await;
            if (thread_cpu_time() - cpu) * 10 < started.elapsed() {
                break;
            }
            assert!(attempt < 100, "the runtime's thread is still busy");
        }
        waiting.abort();
    });
}

#[test]
fn parked_progress_thread_does_not_wake() {
    run(async move {
        let ep = Endpoint::options()
            .progress(Progress::Auto)
            .bind("shm://")
            .await
            .unwrap();
        let waiting = tokio::spawn(async move { ep.recv().await.map(drop) });
        for attempt in 0.. {
            let before = progress_thread_switches();
            tokio::time::sleep(Duration::from_millis(300)).await;
            if progress_thread_switches() == before {
                assert!(!before.is_empty(), "there is no progress thread");
                break;
            }
            assert!(attempt < 100, "a progress thread still wakes up");
        }
        waiting.abort();
    });
}

fn thread_cpu_time() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
}

/// Returns, for each progress thread of this process, how often it has gone to sleep.
fn progress_thread_switches() -> Vec<(OsString, u64)> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let read =
        |task: &DirEntry, file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
    let threads = tasks.filter(|task| read(task, "comm").starts_with("fab-shm"));
    threads
        .filter_map(|task| {
            Some((
                task.file_name(),
                parse_voluntary_switches(&read(&task, "status"))?,
            ))
        })
        .collect()
}

fn parse_voluntary_switches(status: &str) -> Option<u64> {
    let count = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    count.trim().parse().ok()
}
