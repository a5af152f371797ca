//! A runtime without an I/O driver is refused without a call of the panic hook. A process has one
//! hook, so this file has one test.

use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fabric_async::{Endpoint, Error, Progress};
use tokio::runtime::Builder;

#[test]
fn runtime_without_io_is_refused_without_calling_the_panic_hook() {
    let panics = Arc::new(AtomicUsize::new(0));
    let counted = panics.clone();
    panic::set_hook(Box::new(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
    }));
    for threads in [0, 2] {
        let mut builder = match threads {
            0 => Builder::new_current_thread(),
            threads => {
                let mut builder = Builder::new_multi_thread();
                builder.worker_threads(threads);
                builder
            }
        };
        let no_io = builder.build().unwrap();
        for _ in 0..3 {
            let error = no_io.block_on(Endpoint::bind("shm://")).unwrap_err();
            assert!(
                matches!(error, Error::Runtime(what) if what.contains("enable_io")
                    && what.contains("enable_all")),
                "{error}"
            );
        }
        // Automatic progress needs no I/O driver of the runtime.
        let auto = Endpoint::options().progress(Progress::Auto);
        drop(no_io.block_on(auto.bind("shm://")).unwrap());
        // Another runtime of the same process, with an I/O driver.
        let with_io = builder.enable_io().build().unwrap();
        for _ in 0..3 {
            drop(with_io.block_on(Endpoint::bind("shm://")).unwrap());
        }
    }
    assert_eq!(
        panics.load(Ordering::Relaxed),
        0,
        "the panic hook was called"
    );
    // The program's hook is installed.
    for called in 1..3 {
        assert!(panic::catch_unwind(|| panic!("a panic of the program")).is_err());
        assert_eq!(panics.load(Ordering::Relaxed), called);
    }
    drop(panic::take_hook());
}
