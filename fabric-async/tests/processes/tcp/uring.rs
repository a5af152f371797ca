//! Runs the tests of this folder, and the fork test over TCP, with io_uring.

use std::process::{Command, Stdio};

use fabric_async::{Endpoint, Error, SocketIo};

use crate::run;
use crate::skip::{Facility, skip};

/// Selects the socket I/O of programs that do not choose.
const SOCKET_IO_ENV: &str = "FABRIC_SOCKET_IO";

#[test]
fn tcp_tests_pass_with_io_uring() {
    if std::env::var_os(SOCKET_IO_ENV).is_some() {
        // The nested run.
        return;
    }
    match run(Endpoint::options()
        .socket_io(SocketIo::IoUring)
        .bind("tcp://"))
    {
        Err(Error::Os {
            call: "io_uring_setup",
            errno,
        }) => {
            return skip(Facility::Uring, format!("io_uring_setup: errno {errno}"));
        }
        other => drop(other.unwrap()),
    }
    let mut program = Command::new(std::env::current_exe().expect("path of the test program"));
    // Handshake timeouts use epoll in either case, and take long.
    program.args([
        "tcp::",
        "over_tcp",
        "--skip",
        "silent_or_refusing_peer_fails_connect",
        "--skip",
        "silent_connections_are_evicted_or_time_out",
    ]);
    program.env(SOCKET_IO_ENV, "io_uring");
    let output = program
        .stderr(Stdio::inherit())
        .output()
        .expect("start the test program");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}\n{stdout}", output.status);
    for test in [
        "killed_senders_are_reported_and_do_not_affect_others",
        "fork_child_does_not_end_connections_over_tcp",
        "domain_debug_names_the_socket_io",
    ] {
        assert!(stdout.contains(&format!("{test} ... ok")), "{stdout}");
    }
}

#[test]
fn domain_debug_names_the_socket_io() {
    run(async {
        let over = |io: &str| format!("tcp over {io} ");
        let socket_io = std::env::var(SOCKET_IO_ENV).unwrap_or_else(|_| "epoll".into());
        let ep = Endpoint::bind("tcp://").await.unwrap();
        let debug = format!("{:?}", ep.domain());
        assert!(debug.contains(&over(&socket_io)), "{debug}");
        // The program's own choice takes precedence over the environment.
        let ep = Endpoint::options()
            .socket_io(SocketIo::Epoll)
            .bind("tcp://")
            .await
            .unwrap();
        let debug = format!("{:?}", ep.domain());
        assert!(debug.contains(&over("epoll")), "{debug}");
    });
}
