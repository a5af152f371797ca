//! A child process of a measurement.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{self, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::pipe_reader::PipeReader;
use crate::{Error, Result};

/// The line on stdout with which a child reports its address.
const LISTENING_PREFIX: &str = "listening on ";
/// How long a child may take to exit after its stdin was closed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long to wait for the exit of a child whose connection broke. It may not get a core at once.
const DEATH_TIMEOUT: Duration = Duration::from_secs(5);

/// A child process that ends when this value is dropped. It exits when its stdin is closed, however
/// this process ends.
#[derive(Debug)]
pub struct ChildProcess {
    name: String,
    process: process::Child,
    stdin: Option<ChildStdin>,
    stdout: Option<BufReader<ChildStdout>>,
    stderr: PipeReader,
}

/// Returns a command that starts this program again.
///
/// # Errors
/// [`Error::Io`] if its path is unknown.
pub fn current_program() -> Result<Command> {
    std::env::current_exe()
        .map(Command::new)
        .map_err(Error::io("finding this program"))
}

impl ChildProcess {
    /// Starts a child and waits for its line `listening on ADDRESS`; returns the address.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be started, [`Error::ProcessDied`] if it exits without that line.
    pub fn start(name: &str, command: Command) -> Result<(Self, String)> {
        Self::start_with_line(name, command, LISTENING_PREFIX)
    }

    /// Starts a child and waits for a line that begins with `prefix`; returns the rest of the line.
    ///
    /// # Errors
    /// As [`ChildProcess::start`].
    pub fn start_with_line(
        name: &str,
        mut command: Command,
        prefix: &str,
    ) -> Result<(Self, String)> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // In its own process group Ctrl-C does not reach the child: the initiator ends it.
        let mut process = command
            .process_group(0)
            .spawn()
            .map_err(Error::io(format!("starting {name}")))?;
        let (stdout, stderr, stdin) = (
            process.stdout.take(),
            process.stderr.take(),
            process.stdin.take(),
        );
        let mut child = Self {
            name: name.to_owned(),
            process,
            stdin,
            stdout: stdout.map(BufReader::new),
            stderr: PipeReader::spawn(stderr),
        };
        let mut line = String::new();
        if let Some(stdout) = &mut child.stdout {
            stdout
                .read_line(&mut line)
                .map_err(Error::io(format!("listening to {name}")))?;
        }
        match line.trim_end().strip_prefix(prefix) {
            Some(rest) => Ok((child, rest.to_owned())),
            None => Err(child.or_death_error(Error::Malformed {
                origin: name.to_owned(),
                text: line,
            })),
        }
    }

    /// Replaces an error by the death of the child, if the child is dead. A connection breaks
    /// before its process is seen dead, so this waits, except for errors that a death cannot cause.
    pub fn or_death_error(&mut self, error: Error) -> Error {
        match error {
            Error::Interrupted | Error::OutputClosed | Error::InvalidRequest(_) => error,
            _ => self.death_error().unwrap_or(error),
        }
    }

    /// Whether the child has exited, without waiting.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.process.try_wait(), Ok(None))
    }

    /// Returns the id of the process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Closes the stdin of the child, and returns what it then writes on stdout until it exits.
    ///
    /// # Errors
    /// [`Error::Io`] if its stdout cannot be read.
    pub fn end(&mut self) -> Result<String> {
        drop(self.stdin.take());
        let mut text = String::new();
        if let Some(stdout) = &mut self.stdout {
            stdout
                .read_to_string(&mut text)
                .map_err(Error::io(format!("listening to {}", self.name)))?;
        }
        Ok(text)
    }

    /// Kills the child, and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
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
