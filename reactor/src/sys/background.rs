//! Threads for work that takes long and waits for no peer, such as allocating memory.
//!
//! There are at most [`MAX_THREADS`]. A thread is started when a job is added and every thread has
//! one, and ends when no job is left. A forked child has none of its parent's threads and starts
//! threads of its own; the jobs that its parent had added run in the parent only.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fabric_core::{Error, Result};

use super::process_local::ProcessLocal;

/// Maximum number of threads.
const MAX_THREADS: usize = 4;

/// A job. A panic of the job ends the job.
type Job = Box<dyn FnOnce() + Send>;

/// The jobs and the threads of one process.
#[derive(Default)]
struct Workers {
    state: Mutex<WorkersState>,
}

#[derive(Default)]
struct WorkersState {
    /// Jobs that no thread has begun. While there are any, there is a thread.
    queue: VecDeque<Job>,
    /// Number of threads, each of which has a job.
    threads: usize,
}

static WORKERS: ProcessLocal<Workers> = ProcessLocal::new(Workers::default);

/// Runs a job on a thread of this process. Does not block.
///
/// # Errors
/// [`Error::Os`] when no thread runs and the system cannot start one. The
/// job is dropped.
pub fn run_in_background(job: impl FnOnce() + Send + 'static) -> Result<()> {
    WORKERS.get().add(Box::new(job))
}

impl Workers {
    fn lock(&self) -> MutexGuard<'_, WorkersState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&'static self, job: Job) -> Result<()> {
        let mut state = self.lock();
        if state.threads < MAX_THREADS {
            let thread = std::thread::Builder::new().name("fab-mr".into());
            match thread.spawn(move || self.run()) {
                Ok(_) => state.threads += 1,
                Err(error) if state.threads == 0 => {
                    return Err(Error::os("clone", error.raw_os_error().unwrap_or_default()));
                }
                // A thread takes the job when its own has ended.
                Err(_) => {}
            }
        }
        state.queue.push_back(job);
        Ok(())
    }

    /// Runs jobs until there is none.
    fn run(&self) {
        loop {
            let mut state = self.lock();
            let Some(job) = state.queue.pop_front() else {
                state.threads -= 1;
                return;
            };
            drop(state);
            // The panic hook has reported a panic.
            let _ = catch_unwind(AssertUnwindSafe(job));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Jobs wait while all threads have one, a panic ends no thread, and idle threads end.
    #[test]
    fn jobs_run_on_a_bounded_number_of_threads() {
        let workers: &'static Workers = Box::leak(Box::default());
        let (ended, ends) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let released = std::sync::Arc::new(Mutex::new(released));
        for index in 0..MAX_THREADS + 2 {
            let (ended, released) = (ended.clone(), released.clone());
            let job = move || {
                let released = released.lock().unwrap_or_else(PoisonError::into_inner);
                assert!(released.recv().is_err(), "nothing is sent");
                ended.send(index).unwrap();
                std::panic::resume_unwind(Box::new("a job panics"));
            };
            workers.add(Box::new(job)).unwrap();
        }
        while workers.lock().queue.len() > 2 {
            std::thread::yield_now();
        }
        assert_eq!(workers.lock().threads, MAX_THREADS);
        assert!(ends.try_recv().is_err());
        drop(release);
        let mut order: Vec<_> = ends.iter().take(MAX_THREADS + 2).collect();
        order.sort_unstable();
        assert_eq!(order, (0..MAX_THREADS + 2).collect::<Vec<_>>());
        while workers.lock().threads > 0 {
            std::thread::yield_now();
        }
    }
}
