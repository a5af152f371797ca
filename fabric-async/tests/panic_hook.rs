//! The program's panic hook, and a runtime that cannot serve. One test, for a process has one hook.

use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fabric_async::{Endpoint, Error, Progress};
use tokio::runtime::Builder;

#[test]
fn a_runtime_without_io_is_refused_and_the_panic_hook_is_not_called() {
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
        let without = builder.build().unwrap();
        for _ in 0..3 {
            let error = without.block_on(Endpoint::bind("shm://")).unwrap_err();
            assert!(
                matches!(error, Error::Runtime(what) if what.contains("enable_io")
                    && what.contains("enable_all")),
                "{error}"
            );
        }
        // Automatic progress needs nothing of the runtime.
        let auto = Endpoint::options().progress(Progress::Auto);
        drop(without.block_on(auto.bind("shm://")).unwrap());
        // Another runtime of the same process has I/O.
        let with = builder.enable_io().build().unwrap();
        for _ in 0..3 {
            drop(with.block_on(Endpoint::bind("shm://")).unwrap());
        }
    }
    assert_eq!(panics.load(Ordering::Relaxed), 0, "the hook was called");
    // It is the program's own again.
    for called in 1..3 {
        assert!(panic::catch_unwind(|| panic!("the program's own")).is_err());
        assert_eq!(panics.load(Ordering::Relaxed), called);
    }
    drop(panic::take_hook());
}
