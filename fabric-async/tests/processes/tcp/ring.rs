//! The tests of this folder, and that of forks, once more over io_uring.

use std::process::{Command, Stdio};

use fabric_async::{Endpoint, Error, SocketIo};

use crate::run;

/// What chooses for programs that do not.
const VARIABLE: &str = "FABRIC_SOCKET_IO";

#[test]
fn everything_holds_over_io_uring() {
    if std::env::var_os(VARIABLE).is_some() {
        // This is the other run.
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
            return eprintln!("skipped, the kernel refuses a ring: error {errno}");
        }
        other => drop(other.unwrap()),
    }
    let mut program = Command::new(std::env::current_exe().expect("a path"));
    // Who is silent in greetings is waited for by epoll in either case, and for long.
    program.args([
        "tcp::",
        "over_tcp",
        "--skip",
        "patience_has_an_end",
        "--skip",
        "silence_is_nobodys_problem",
    ]);
    program.env(VARIABLE, "io_uring");
    let output = program
        .stderr(Stdio::inherit())
        .output()
        .expect("the test program starts again");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}\n{said}", output.status);
    for test in [
        "kills_are_noticed_and_disturb_nobody",
        "a_child_ends_no_connection_over_tcp",
        "the_way_is_known",
    ] {
        assert!(said.contains(&format!("{test} ... ok")), "{said}");
    }
}

#[test]
fn the_way_is_known() {
    run(async {
        let over = |io: &str| format!("tcp over {io} ");
        let said = std::env::var(VARIABLE).unwrap_or_else(|_| "epoll".into());
        let ep = Endpoint::bind("tcp://").await.unwrap();
        let known = format!("{:?}", ep.domain());
        assert!(known.contains(&over(&said)), "{known}");
        // A program's own choice goes before that of the environment.
        let ep = Endpoint::options()
            .socket_io(SocketIo::Epoll)
            .bind("tcp://")
            .await
            .unwrap();
        let known = format!("{:?}", ep.domain());
        assert!(known.contains(&over("epoll")), "{known}");
    });
}
