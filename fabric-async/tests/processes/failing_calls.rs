//! Makes system calls of this process fail: a seccomp filter passes chosen calls on to a thread,
//! which decides whether the kernel executes the call or the call returns an error
//! (`seccomp_unotify(2)`).

#![allow(unsafe_code)] // seccomp(2), and the ioctls of its listener

use std::io;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

/// A system call that can be made to fail, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    number: libc::c_long,
    pub(crate) errno: i32,
}

const fn call(name: &'static str, number: libc::c_long, errno: i32) -> Call {
    Call {
        name,
        number,
        errno,
    }
}

/// The calls by which a process gets descriptors, mappings and threads, and gives sockets a name.
pub(crate) const CALLS: [Call; 16] = [
    call("memfd_create", libc::SYS_memfd_create, libc::EMFILE),
    call("ftruncate", libc::SYS_ftruncate, libc::ENOMEM),
    call("fallocate", libc::SYS_fallocate, libc::ENOSPC),
    call("mmap", libc::SYS_mmap, libc::ENOMEM),
    call("socket", libc::SYS_socket, libc::EMFILE),
    call("setsockopt", libc::SYS_setsockopt, libc::ENOBUFS),
    call("bind", libc::SYS_bind, libc::ENOMEM),
    call("listen", libc::SYS_listen, libc::ENOMEM),
    call("getsockname", libc::SYS_getsockname, libc::ENOBUFS),
    call("epoll_create1", libc::SYS_epoll_create1, libc::EMFILE),
    call("epoll_ctl", libc::SYS_epoll_ctl, libc::ENOSPC),
    call("eventfd2", libc::SYS_eventfd2, libc::EMFILE),
    call("timerfd_create", libc::SYS_timerfd_create, libc::EMFILE),
    call("io_uring_setup", libc::SYS_io_uring_setup, libc::ENOMEM),
    call(
        "io_uring_register",
        libc::SYS_io_uring_register,
        libc::ENOMEM,
    ),
    // What `pthread_create` calls.
    call("clone3", libc::SYS_clone3, libc::EAGAIN),
];

/// Which calls of one kind fail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Failing {
    /// The call with this number, from 0.
    Nth(usize),
    /// The call with this number and all later ones.
    From(usize),
}

/// The calls of this process so far, and those that fail.
#[derive(Default)]
struct Plan {
    failing: Option<(Call, Failing)>,
    /// Calls of each kind since the plan was set.
    counts: [usize; CALLS.len()],
}

/// The filter of the thread that has installed it, and of the threads that it has started since.
pub(crate) struct CallFilter {
    plan: Arc<Mutex<Plan>>,
}

impl CallFilter {
    /// Installs the filter, which stays until the process ends.
    ///
    /// # Errors
    /// That of `seccomp(2)`.
    pub(crate) fn install() -> io::Result<Self> {
        let plan = Arc::new(Mutex::new(Plan::default()));
        let listener = Arc::new(OnceLock::new());
        // The thread is started before the filter exists, so its own calls are not filtered.
        thread::spawn({
            let (plan, listener) = (plan.clone(), listener.clone());
            move || decide_calls(&plan, &listener)
        });
        let installed = install_filter()?;
        listener.get_or_init(|| installed);
        Ok(Self { plan })
    }

    /// Runs `act` while calls fail. Returns also the counts of the calls, by the order of
    /// [`CALLS`].
    pub(crate) fn during<T>(
        &self,
        call: Call,
        failing: Failing,
        act: impl FnOnce() -> T,
    ) -> (T, [usize; CALLS.len()]) {
        *self.plan.lock().unwrap() = Plan {
            failing: Some((call, failing)),
            ..Plan::default()
        };
        let result = act();
        let ended = std::mem::take(&mut *self.plan.lock().unwrap());
        (result, ended.counts)
    }
}

/// Installs a filter for this thread that passes [`CALLS`] on, and returns the listener.
fn install_filter() -> io::Result<i32> {
    let instruction = |code, k, jt, jf| libc::sock_filter { code, k, jt, jf };
    // BPF_LD | BPF_W | BPF_ABS; BPF_JMP | BPF_JEQ | BPF_K; BPF_RET | BPF_K.
    let (load, jump_if_equal, ret) = (0x20, 0x15, 0x06);
    // The system call number comes first in `seccomp_data`.
    let mut filter = vec![instruction(load, 0, 0, 0)];
    for (at, call) in CALLS.iter().enumerate() {
        let to_notify = (CALLS.len() - at) as u8;
        filter.push(instruction(jump_if_equal, call.number as u32, to_notify, 0));
    }
    filter.push(instruction(ret, libc::SECCOMP_RET_ALLOW, 0, 0));
    filter.push(instruction(ret, libc::SECCOMP_RET_USER_NOTIF, 0, 0));
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the kernel copies the program, which outlives the call.
    let listener = unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    i32::try_from(listener)
        .ok()
        .filter(|listener| *listener >= 0)
        .ok_or_else(io::Error::last_os_error)
}

/// Decides each call that the filter passes on. Allocates no memory: a thread whose call waits for
/// the decision may hold a lock of the allocator.
fn decide_calls(plan: &Mutex<Plan>, listener: &OnceLock<i32>) {
    let listener = *listener.wait();
    loop {
        // SAFETY: the type has no invalid values; the kernel wants zeroes.
        let mut request: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes the request.
        if unsafe { libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut request) } < 0 {
            // A signal, or a thread that was killed.
            continue;
        }
        let errno = decide(&mut plan.lock().unwrap(), &request.data);
        let response = libc::seccomp_notif_resp {
            id: request.id,
            val: 0,
            error: errno.map_or(0, |errno| -errno),
            flags: errno.map_or(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32, |_| 0),
        };
        // SAFETY: the kernel reads the response. The call fails if the thread was killed.
        unsafe {
            libc::ioctl(
                listener,
                libc::SECCOMP_IOCTL_NOTIF_SEND,
                &raw const response,
            )
        };
    }
}

/// Counts a call, and returns its error if it is to fail.
fn decide(plan: &mut Plan, data: &libc::seccomp_data) -> Option<i32> {
    let number = libc::c_long::from(data.nr);
    let kind = CALLS.iter().position(|call| call.number == number)?;
    let is_counted = match number {
        libc::SYS_mmap => is_mapping_of_fabric(&data.args),
        // Removing a descriptor from an epoll set needs no memory.
        libc::SYS_epoll_ctl => data.args[1] != libc::EPOLL_CTL_DEL as u64,
        _ => true,
    };
    if !is_counted {
        return None;
    }
    let count = plan.counts[kind];
    plan.counts[kind] += 1;
    let (call, failing) = plan.failing?;
    let fails = match failing {
        Failing::Nth(nth) => count == nth,
        Failing::From(first) => count >= first,
    };
    (call.number == number && fails).then_some(call.errno)
}

/// Returns whether an `mmap` is not one of the allocator: whether it maps a file, memory to be
/// shared, or the stack of a thread. The process ends if the allocator has no memory, or a started
/// thread has none for its signal stack, which has other rights than the stack at first.
fn is_mapping_of_fabric(args: &[u64; 6]) -> bool {
    let (prot, flags, fd) = (args[2] as i32, args[3] as i32, args[4] as i32);
    let is_thread_stack = flags & libc::MAP_STACK != 0 && prot == libc::PROT_NONE;
    fd != -1 || flags & libc::MAP_SHARED != 0 || is_thread_stack
}
