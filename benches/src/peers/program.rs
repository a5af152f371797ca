//! Another library's benchmark program, run twice: as server and as client.

use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::{CommandExt, parent_id};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal};

use super::BenchCase;
use crate::peer_process::current_program;
use crate::peer_process::pipe_reader::PipeReader;
use crate::stop::Stop;
use crate::{Error, Result, pin};

/// How long a server may take to listen, and how long its client may run beyond four times the
/// planned time: the number of messages is an estimate.
const SERVER_START_TIMEOUT: Duration = Duration::from_secs(10);
const CLIENT_EXTRA_TIME: Duration = Duration::from_secs(30);
/// How long one of them may outlive the other's failure.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval of polling them.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Returns why this program cannot be run, and how to install it; `None` if it is there.
pub(super) fn unavailable(program: &str, package: &str) -> Option<String> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).any(|path: PathBuf| path.join(program).is_file());
    (!found).then(|| format!("{program} is not installed; on Debian: apt-get install {package}"))
}

/// Runs a server, waits until it listens on its port, runs a client, and returns the client's
/// output.
///
/// # Errors
/// One of them fails or takes too long; [`Error::Interrupted`].
pub(super) fn run_server_and_client(
    name: &str,
    case: &BenchCase,
    stop: &Stop,
    build: impl Fn(u16, bool) -> Command + Sync,
) -> Result<String> {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .map_err(Error::io("finding a free port"))?
        .port();
    let mut server = RunningProgram::start(
        &format!("{name} (server)"),
        tied_command(&build(port, true), case.cores.1)?,
    )?;
    let began = Instant::now();
    while !is_listening(port) {
        if server.status()?.is_some() || began.elapsed() > SERVER_START_TIMEOUT {
            return Err(server.kill_with_error("did not start to listen"));
        }
        stop.check()?;
        thread::sleep(POLL_INTERVAL);
    }
    let client = RunningProgram::start(name, tied_command(&build(port, false), case.cores.0)?)?;
    wait_client(client, server, CLIENT_EXTRA_TIME + 4 * case.time, stop)
}

/// Waits for the client, and returns its output. A client without server may never end.
fn wait_client(
    mut client: RunningProgram,
    mut server: RunningProgram,
    limit: Duration,
    stop: &Stop,
) -> Result<String> {
    let (began, mut server_died_at) = (Instant::now(), None);
    let status = loop {
        if let Some(status) = client.status()? {
            break status;
        }
        let failed = server.status()?.filter(|status| !status.success());
        if let Some(status) = failed
            && server_died_at.get_or_insert_with(Instant::now).elapsed() > EXIT_TIMEOUT
        {
            return Err(server.death_error(&status.to_string()));
        }
        if began.elapsed() > limit {
            return Err(client.kill_with_error("did not end in time"));
        }
        stop.check()?;
        thread::sleep(POLL_INTERVAL);
    };
    if status.success() {
        return Ok(client.stdout.take_text());
    }
    // Either may have failed because of the other: both are reported.
    let ended = server
        .wait_timeout(EXIT_TIMEOUT)?
        .filter(|status| !status.success());
    Err(match ended {
        Some(ended) => Error::ProcessDied {
            process: client.name.clone(),
            status: format!("{status}; its server: {ended}"),
            stderr: client.stderr.take_text() + &server.stderr.take_text(),
        },
        None => client.death_error(&status.to_string()),
    })
}

/// Returns a command that runs this one by way of [`exec_tied`].
fn tied_command(command: &Command, core: Option<usize>) -> Result<Command> {
    let mut tied = current_program()?;
    tied.args(["exec-tied", "--parent", &std::process::id().to_string()]);
    if let Some(core) = core {
        tied.args(["--core", &core.to_string()]);
    }
    tied.arg("--")
        .arg(command.get_program())
        .args(command.get_args());
    tied.envs(
        command
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    Ok(tied)
}

/// Replaces this process by a program, on this core, that is killed when its parent ends in
/// whatever way. For the kernel the parent is the thread that started it, which has to live as
/// long: threads of [`pin::run_on_core`] do not.
///
/// # Errors
/// [`Error::Io`] if the program cannot be started; [`Error::Interrupted`] if the parent has ended.
pub fn exec_tied(parent: u32, core: Option<usize>, command: &[OsString]) -> Result<()> {
    core.map(pin::pin_to_core);
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| Error::io("asking for a signal")(error.into()))?;
    let Some((name, args)) = command.split_first().filter(|_| parent_id() == parent) else {
        return Err(Error::Interrupted);
    };
    Err(Error::io(format!("starting {}", name.display()))(
        Command::new(name).args(args).exec(),
    ))
}

/// A program that is killed when this value is dropped.
struct RunningProgram {
    name: String,
    process: Child,
    stdout: PipeReader,
    stderr: PipeReader,
}

impl RunningProgram {
    fn start(name: &str, mut command: Command) -> Result<Self> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // In its own process group Ctrl-C does not reach the program.
        let mut process = command
            .process_group(0)
            .spawn()
            .map_err(Error::io(format!("starting {name}")))?;
        let (stdout, stderr) = (
            PipeReader::spawn(process.stdout.take()),
            PipeReader::spawn(process.stderr.take()),
        );
        Ok(Self {
            name: name.to_owned(),
            process,
            stdout,
            stderr,
        })
    }

    /// Returns the exit status, if the program has ended.
    fn status(&mut self) -> Result<Option<ExitStatus>> {
        self.process
            .try_wait()
            .map_err(Error::io(format!("watching {}", self.name)))
    }

    /// Waits for the exit status for at most this time.
    fn wait_timeout(&mut self, time: Duration) -> Result<Option<ExitStatus>> {
        let began = Instant::now();
        loop {
            match self.status()? {
                None if began.elapsed() < time => thread::sleep(POLL_INTERVAL),
                ended => return Ok(ended),
            }
        }
    }

    /// Kills the program, and returns an error with its stderr.
    fn kill_with_error(&mut self, how: &str) -> Error {
        let _ = self.process.kill();
        let status = self
            .process
            .wait()
            .map_or_else(|error| error.to_string(), |status| status.to_string());
        self.death_error(&format!("{how}; {status}"))
    }

    fn death_error(&self, status: &str) -> Error {
        Error::ProcessDied {
            process: self.name.clone(),
            status: status.to_owned(),
            stderr: self.stderr.take_text(),
        }
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Whether a socket listens on this TCP port. The server would take a connect for its client.
fn is_listening(port: u16) -> bool {
    const LISTEN: &str = "0A";
    let port = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        std::fs::read_to_string(table)
            .unwrap_or_default()
            .lines()
            .any(|line| {
                let mut fields = line.split_ascii_whitespace().skip(1);
                let (local, state) = (
                    fields.next().unwrap_or_default(),
                    fields.nth(1).unwrap_or_default(),
                );
                local.ends_with(&port) && state == LISTEN
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start_shell(name: &str, script: &str) -> RunningProgram {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        RunningProgram::start(name, command).expect("sh starts")
    }

    fn run_scripts(client: &str, server: &str) -> Result<String, String> {
        let (client, server) = (
            start_shell("the client", client),
            start_shell("the server", server),
        );
        wait_client(client, server, CLIENT_EXTRA_TIME, &Stop::default())
            .map_err(|error| error.to_string())
    }

    const OVERFLOW_PIPES: &str = "head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2; ";

    #[test]
    fn output_larger_than_a_pipe_is_read() {
        let output = run_scripts(
            &format!("{OVERFLOW_PIPES} echo done"),
            &format!("{OVERFLOW_PIPES} exec sleep 600"),
        );
        assert!(output.is_ok_and(|output| output.len() == 300_005 && output.ends_with("done\n")));
        let mut writer = start_shell("the writer", &format!("{OVERFLOW_PIPES} exit 7"));
        let status = writer
            .wait_timeout(CLIENT_EXTRA_TIME)
            .expect("a status")
            .and_then(|status| status.code());
        assert_eq!(
            status,
            Some(7),
            "the writer must end although its output was not requested"
        );
    }

    #[test]
    fn dead_server_is_reported_as_the_cause() {
        let why = run_scripts("exec sleep 600", "echo no room >&2; exit 7")
            .expect_err("the server is dead");
        assert!(
            why.contains("the server died (exit status: 7)") && why.contains("no room"),
            "{why}"
        );
        let (client, mut server) = (
            start_shell("the client", "echo lost >&2; exit 3"),
            start_shell("the server", "echo no room >&2; exit 7"),
        );
        server.wait_timeout(CLIENT_EXTRA_TIME).expect("a status");
        let why = wait_client(client, server, CLIENT_EXTRA_TIME, &Stop::default())
            .expect_err("both failed")
            .to_string();
        for part in [
            "the client died (exit status: 3; its server: exit status: 7)",
            "lost",
            "no room",
        ] {
            assert!(why.contains(part), "{part}: {why}");
        }
    }

    #[test]
    fn failed_client_is_reported_as_the_cause() {
        let why =
            run_scripts("echo lost >&2; exit 3", "exec sleep 600").expect_err("the client failed");
        assert!(
            why.contains("the client died (exit status: 3)") && why.contains("lost"),
            "{why}"
        );
        let (client, server) = (
            start_shell("the client", "exec sleep 600"),
            start_shell("the server", "exec sleep 600"),
        );
        let why = wait_client(client, server, Duration::ZERO, &Stop::default())
            .expect_err("the client is too slow");
        assert!(
            why.to_string()
                .contains("the client died (did not end in time; signal: 9"),
            "{why}"
        );
    }
}
