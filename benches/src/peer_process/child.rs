//! A process that is started for a measurement, and watched.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{self, ChildStdin, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::pipe_reader::PipeReader;
use crate::{Error, Result};

/// What a process says on stdout when it can be reached, in front of its address.
const LISTENING_PREFIX: &str = "listening on ";
/// How long a process that was told to end has for it.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long to wait for a process whose connection broke to be seen dead. It may not get a core at
/// once.
const DEATH_TIMEOUT: Duration = Duration::from_secs(5);

/// A process that ends with this value. It ends by itself when its stdin does, that is, however
/// this process ends.
#[derive(Debug)]
pub struct ChildProcess {
    name: String,
    process: process::Child,
    stdin: Option<ChildStdin>,
    stderr: PipeReader,
}

/// This program, to be started again.
///
/// # Errors
/// It cannot be found any more.
pub fn current_program() -> Result<Command> {
    std::env::current_exe()
        .map(Command::new)
        .map_err(Error::io("finding this program"))
}

impl ChildProcess {
    /// Starts it and waits for the line `listening on ADDRESS`; returns the address.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be started, [`Error::ProcessDied`] when it ends without that line.
    pub fn start(who: &str, mut command: Command) -> Result<(Self, String)> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // In a group of its own Ctrl-C does not reach it: the measuring side tells it when to end.
        let mut process = command
            .process_group(0)
            .spawn()
            .map_err(Error::io(format!("starting {who}")))?;
        let (stdout, stderr, stdin) = (
            process.stdout.take(),
            process.stderr.take(),
            process.stdin.take(),
        );
        let mut child = Self {
            name: who.to_owned(),
            process,
            stdin,
            stderr: PipeReader::spawn(stderr),
        };
        let mut line = String::new();
        if let Some(stdout) = stdout {
            BufReader::new(stdout)
                .read_line(&mut line)
                .map_err(Error::io(format!("listening to {who}")))?;
        }
        match line.trim_end().strip_prefix(LISTENING_PREFIX) {
            Some(address) => Ok((child, address.to_owned())),
            None => Err(child.or_death_error(Error::Malformed {
                origin: who.to_owned(),
                text: line,
            })),
        }
    }

    /// Looks behind an error: when this process is dead, that is the reason. A connection breaks
    /// before its process is seen dead, so this waits for it, but not where the error cannot come
    /// of it.
    pub fn or_death_error(&mut self, error: Error) -> Error {
        match error {
            Error::Interrupted | Error::OutputClosed | Error::InvalidRequest(_) => error,
            _ => self.death_error().unwrap_or(error),
        }
    }

    /// Whether it has ended, at a glance.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.process.try_wait(), Ok(None))
    }

    fn death_error(&mut self) -> Option<Error> {
        let status = self.wait_timeout(DEATH_TIMEOUT)?;
        let stderr = self.stderr.take_text();
        Some(Error::ProcessDied {
            process: self.name.clone(),
            status: status.to_string(),
            stderr,
        })
    }

    fn wait_timeout(&mut self, time: Duration) -> Option<ExitStatus> {
        let began = Instant::now();
        loop {
            match self.process.try_wait() {
                Ok(None) if began.elapsed() < time => thread::sleep(Duration::from_millis(5)),
                ended => return ended.ok().flatten(),
            }
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        drop(self.stdin.take());
        if self.wait_timeout(EXIT_TIMEOUT).is_none() {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}
