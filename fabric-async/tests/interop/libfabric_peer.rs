//! The peer program: built once, started, driven by commands.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};

/// A peer process that is killed on drop.
pub(crate) struct LibfabricPeer {
    child: Child,
    pipes: Arc<Mutex<(ChildStdin, BufReader<ChildStdout>)>>,
    pub(crate) port: u16,
}

impl LibfabricPeer {
    /// Starts a peer on this port, or on any free port for 0; `None` where it cannot be built.
    pub(crate) fn start(port: u16) -> Option<Self> {
        Self::start_with(port, None)
    }

    /// Starts a peer with `FI_EP_MSG` endpoints, which listens on any port.
    pub(crate) fn start_msg() -> Option<Self> {
        Self::start_with(0, Some("msg"))
    }

    /// Starts a peer with `FI_EP_MSG` endpoints, tagged messages and a shared receive context.
    pub(crate) fn start_srx() -> Option<Self> {
        Self::start_with(0, Some("srx"))
    }

    /// Starts a peer that speaks RXM over this provider, optionally with atomic operations; `None`
    /// where libfabric does not have the provider.
    pub(crate) fn start_rxm(provider: &'static str, is_atomic: bool) -> Option<Self> {
        Self::spawn(Some(provider), 0, is_atomic.then_some("atomic"))
    }

    fn start_with(port: u16, mode: Option<&str>) -> Option<Self> {
        // `FI_EP_MSG` is offered by `tcp` in all versions.
        Self::spawn(mode.map(|_| "tcp"), port, mode)
    }

    /// Starts a peer with this provider, or with the one that speaks the native protocol.
    fn spawn(provider: Option<&'static str>, port: u16, mode: Option<&str>) -> Option<Self> {
        static BUILT: OnceLock<Result<(PathBuf, &'static str), String>> = OnceLock::new();
        let (path, native) = match BUILT.get_or_init(build_peer) {
            Ok(built) => built,
            Err(why) => {
                eprintln!("skipped: {why}");
                return None;
            }
        };
        let mut child = Command::new(path)
            .args([provider.unwrap_or(native), "127.0.0.1", &port.to_string()])
            .args(mode)
            // RXM then makes connection progress with every poll of the queue.
            .env("FI_OFI_RXM_CM_PROGRESS_INTERVAL", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the peer program starts");
        let pipes = (
            child.stdin.take().unwrap(),
            BufReader::new(child.stdout.take().unwrap()),
        );
        let mut peer = Self {
            child,
            pipes: Arc::new(Mutex::new(pipes)),
            port,
        };
        let reply = peer.read_reply();
        if let Some(name) = provider.filter(|_| reply.starts_with("error fi_getinfo")) {
            eprintln!("skipped: libfabric has no provider {name}");
            return None;
        }
        peer.port = reply
            .strip_prefix("listening ")
            .and_then(|port| port.parse().ok())
            .unwrap_or_else(|| panic!("{reply}"));
        Some(peer)
    }

    fn read_reply(&self) -> String {
        let mut line = String::new();
        self.pipes
            .lock()
            .unwrap()
            .1
            .read_line(&mut line)
            .expect("a line of output");
        line.trim().into()
    }

    /// Sends a command and returns the reply. The wait does not block the runtime.
    pub(crate) async fn request(&self, line: impl Into<String>) -> String {
        let (pipes, line) = (self.pipes.clone(), line.into());
        let exchange = tokio::task::spawn_blocking(move || {
            let mut pipes = pipes.lock().unwrap();
            let (stdin, stdout) = &mut *pipes;
            writeln!(stdin, "{line}")
                .and_then(|()| stdin.flush())
                .unwrap_or_else(|e| panic!("{line}: {e}"));
            let mut reply = String::new();
            stdout
                .read_line(&mut reply)
                .unwrap_or_else(|error| panic!("{line}: {error}"));
            reply.trim().into()
        });
        exchange.await.expect("the task does not panic")
    }

    /// Sends a command and asserts the reply.
    pub(crate) async fn expect_reply(&self, line: impl Into<String>, reply: &str) {
        let line = line.into();
        assert_eq!(self.request(line.clone()).await, reply, "{line}");
    }

    /// Asserts that the next completion is a success with this context; returns length, CQ data and
    /// flags.
    pub(crate) async fn expect_done(&self, context: u64) -> (usize, u64, u64) {
        let entry = self.request("cq").await;
        let fields: Vec<_> = entry.split(' ').collect();
        assert_eq!(fields[..2], ["done", &context.to_string()][..], "{entry}");
        let number = |at: usize, radix| u64::from_str_radix(fields[at], radix).expect("a number");
        (number(3, 10) as usize, number(4, 10), number(2, 16))
    }

    /// Returns the next completion with this context. libfabric's RXM reports a rejected atomic
    /// operation, and then the failure once more, without a context.
    pub(crate) async fn next_entry_for(&self, context: u64) -> String {
        loop {
            let entry = self.request("cq").await;
            if !entry.starts_with("failed -1 ") {
                assert_eq!(
                    entry.split(' ').nth(1),
                    Some(context.to_string().as_str()),
                    "{entry}"
                );
                return entry;
            }
        }
    }

    /// Asserts that the next completion is a failure with this context.
    pub(crate) async fn expect_failed(&self, context: u64) {
        let entry = self.request("cq").await;
        assert!(entry.starts_with(&format!("failed {context} ")), "{entry}");
    }

    /// Repeats a command after its connection was ended, until the operation succeeds. libfabric's
    /// RXM completes posted operations with ENOTCONN before it has processed the disconnect.
    pub(crate) async fn retry_until_done(&self, context: u64, line: &str) {
        const ENOTCONN: u64 = 107;
        loop {
            self.expect_reply(line, "posted").await;
            let entry = self.request("cq").await;
            if entry != format!("failed {context} {ENOTCONN}") {
                return assert!(
                    entry.starts_with(&format!("done {context} ")),
                    "{line}: {entry}"
                );
            }
        }
    }

    /// Kills the process; returns its port.
    pub(crate) fn kill(mut self) -> u16 {
        self.child
            .kill()
            .and_then(|()| self.child.wait())
            .expect("the child exits");
        self.port
    }
}

impl Drop for LibfabricPeer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Builds the program and finds the provider of the native protocol, or returns the reason to skip.
fn build_peer() -> Result<(PathBuf, &'static str), String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../interop/peer.c");
    let path =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("interop-peer-{}", std::process::id()));
    let output = Command::new("cc")
        .args(["-O1", "-Wall", "-o"])
        .arg(&path)
        .arg(source)
        .arg("-lfabric")
        .output();
    match output {
        Ok(output) if output.status.success() => {}
        Ok(output) if String::from_utf8_lossy(&output.stderr).contains("rdma/fabric.h") => {
            return Err("libfabric's headers are not installed (Debian: libfabric-dev)".into());
        }
        Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => return Err(format!("no C compiler: {error}")),
    }
    // The native protocol is offered by `net` in 1.16 and 1.17, and by `tcp` in later versions.
    for provider in ["net", "tcp"] {
        let mut child = Command::new(&path)
            .args([provider, "127.0.0.1", "0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut line = String::new();
        let read = BufReader::new(child.stdout.take().unwrap()).read_line(&mut line);
        let _ = child.wait();
        if read.is_ok() && line.starts_with("listening ") {
            return Ok((path, provider));
        }
    }
    Err("libfabric has no provider of the native tcp protocol".into())
}
