//! Child processes of tests.
//!
//! From its creation until it executes its program, a child process holds a copy of each
//! descriptor of the test process. A peer sees the end of a socket only when all copies are
//! closed. A test that expects this end at once holds [`exclude`] meanwhile.

use std::process::{Child, Command, Stdio};

use parking_lot::{RwLock, RwLockReadGuard};

static CREATION: RwLock<()> = RwLock::new(());

/// Starts the process of `command`, and returns after the child has executed its program.
pub(crate) fn spawn(command: &mut Command) -> Child {
    let _creation = CREATION.write();
    command.spawn().unwrap()
}

/// Runs test `name` in a child process in which the environment variable `env` is set, and returns
/// what the test printed.
///
/// # Panics
///
/// If the test fails.
pub(crate) fn run_test(name: &str, env: &str) -> String {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program
        .args(["--exact", name, "--nocapture"])
        .env(env, "1")
        .stdout(Stdio::piped());
    let output = spawn(&mut program).wait_with_output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}\n{stdout}", output.status);
    stdout
}

/// No child process is between its creation and its program until the guard is dropped.
pub(crate) fn exclude() -> RwLockReadGuard<'static, ()> {
    CREATION.read()
}
