//! Somebody else's benchmark program, run twice: as server and as client.

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::Case;
use crate::stop::Stop;
use crate::{Error, Result, pin};

/// How long a server may take until it listens, and how long its client may run beyond four times what was planned: how
/// many messages fill the time is guessed.
const STARTS: Duration = Duration::from_secs(10);
const RUNS: Duration = Duration::from_secs(30);
/// Between two looks at them.
const LOOK: Duration = Duration::from_millis(5);

/// Why this program cannot be run, and how to install it; `None` when it is there.
pub(super) fn missing(program: &str, package: &str) -> Option<String> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).any(|path: PathBuf| path.join(program).is_file());
    (!found).then(|| format!("{program} is not installed; on Debian: apt-get install {package}"))
}

/// Runs a server, waits until it listens on the port it is given, runs a client, and returns what the client printed.
///
/// # Errors
/// One of them fails or takes too long; [`Error::Interrupted`].
pub(super) fn run(
    name: &str,
    case: &Case,
    stop: &Stop,
    build: impl Fn(u16, bool) -> Command + Sync,
) -> Result<String> {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .map_err(Error::io("finding a free port"))?
        .port();
    let mut server = Running::start(name, build(port, true), case.cores.1)?;
    let began = Instant::now();
    while !listens(port) {
        if server.ended()? || began.elapsed() > STARTS {
            return Err(server.failed("did not begin to listen"));
        }
        stop.check()?;
        thread::sleep(LOOK);
    }
    let mut client = Running::start(name, build(port, false), case.cores.0)?;
    let began = Instant::now();
    while !client.ended()? {
        if began.elapsed() > RUNS + 4 * case.time {
            return Err(client.failed("did not end in time"));
        }
        stop.check()?;
        thread::sleep(LOOK);
    }
    let output = client.output()?;
    if !output.status.success() {
        return Err(died(name, &output));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A program that is ended with this value.
struct Running {
    name: String,
    process: Option<Child>,
}

impl Running {
    fn start(name: &str, mut command: Command, core: Option<usize>) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // In a group of its own Ctrl-C does not reach it: it is ended with this value.
        let process = pin::on(core, || command.process_group(0).spawn())
            .map_err(Error::io(format!("starting {name}")))?;
        Ok(Self { name: name.to_owned(), process: Some(process) })
    }

    fn ended(&mut self) -> Result<bool> {
        let ended = self.process.as_mut().map_or(Ok(None), Child::try_wait);
        ended.map(|status| status.is_some()).map_err(Error::io(format!("watching {}", self.name)))
    }

    fn output(&mut self) -> Result<Output> {
        let gone = || Error::Refused(format!("{} was looked at twice", self.name));
        let process = self.process.take().ok_or_else(gone)?;
        process.wait_with_output().map_err(Error::io(format!("watching {}", self.name)))
    }

    /// Ends it and says what it had to say.
    fn failed(&mut self, how: &str) -> Error {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
        }
        match self.output() {
            Ok(output) => died(&format!("{}, which {how},", self.name), &output),
            Err(error) => error,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn died(who: &str, output: &Output) -> Error {
    Error::PeerDied {
        who: who.to_owned(),
        status: output.status.to_string(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Whether somebody listens on this TCP port. Connecting would be taken for the client.
fn listens(port: u16) -> bool {
    const LISTEN: &str = "0A";
    let port = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        std::fs::read_to_string(table).unwrap_or_default().lines().any(|line| {
            let mut fields = line.split_ascii_whitespace().skip(1);
            let (local, state) = (fields.next().unwrap_or_default(), fields.nth(1).unwrap_or_default());
            local.ends_with(&port) && state == LISTEN
        })
    })
}
