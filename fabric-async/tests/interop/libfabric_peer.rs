//! The program: built once, started, told what to do.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};

/// A program that is ended with the test.
pub(crate) struct LibfabricPeer {
    child: Child,
    pipes: Arc<Mutex<(ChildStdin, BufReader<ChildStdout>)>>,
    pub(crate) port: u16,
}

impl LibfabricPeer {
    /// Starts one at this port, or at any; nothing where it cannot be built.
    pub(crate) fn start(port: u16) -> Option<Self> {
        Self::start_with(port, None)
    }

    /// One with endpoints that are connected, which listens at any port.
    pub(crate) fn start_msg() -> Option<Self> {
        Self::start_with(0, Some("msg"))
    }

    /// The same, with tagged messages, and a shared receive context.
    pub(crate) fn start_srx() -> Option<Self> {
        Self::start_with(0, Some("srx"))
    }

    /// One that speaks RXM, by way of this provider, perhaps with atomic operations; nothing where
    /// libfabric has not got that.
    pub(crate) fn start_rxm(provider: &'static str, is_atomic: bool) -> Option<Self> {
        Self::spawn(Some(provider), 0, is_atomic.then_some("atomic"))
    }

    fn start_with(port: u16, kind: Option<&str>) -> Option<Self> {
        // Connected endpoints are spoken of by `tcp` in all versions.
        Self::spawn(kind.map(|_| "tcp"), port, kind)
    }

    /// One that uses this provider, or the one that speaks the native wire.
    fn spawn(chosen: Option<&'static str>, port: u16, kind: Option<&str>) -> Option<Self> {
        static BUILT: OnceLock<Result<(PathBuf, &'static str), String>> = OnceLock::new();
        let (path, native) = match BUILT.get_or_init(build_peer) {
            Ok(built) => built,
            Err(why) => {
                eprintln!("skipped: {why}");
                return None;
            }
        };
        let mut child = Command::new(path)
            .args([chosen.unwrap_or(native), "127.0.0.1", &port.to_string()])
            .args(kind)
            // RXM looks after its connections with every look at the queue, and not now and then.
            .env("FI_OFI_RXM_CM_PROGRESS_INTERVAL", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a program that was built");
        let talk = (
            child.stdin.take().unwrap(),
            BufReader::new(child.stdout.take().unwrap()),
        );
        let mut program = Self {
            child,
            pipes: Arc::new(Mutex::new(talk)),
            port,
        };
        let at = program.read_reply();
        if let Some(provider) = chosen.filter(|_| at.starts_with("error fi_getinfo")) {
            eprintln!("skipped: libfabric has no provider {provider}");
            return None;
        }
        program.port = at
            .strip_prefix("at ")
            .and_then(|port| port.parse().ok())
            .unwrap_or_else(|| panic!("{at}"));
        Some(program)
    }

    fn read_reply(&self) -> String {
        let mut line = String::new();
        self.pipes
            .lock()
            .unwrap()
            .1
            .read_line(&mut line)
            .expect("a line");
        line.trim().into()
    }

    /// Tells it something, and has its answer. The thread of the caller goes on with other tasks
    /// meanwhile.
    pub(crate) async fn request(&self, line: impl Into<String>) -> String {
        let (talk, line) = (self.pipes.clone(), line.into());
        let told = tokio::task::spawn_blocking(move || {
            let mut talk = talk.lock().unwrap();
            let (stdin, stdout) = &mut *talk;
            writeln!(stdin, "{line}")
                .and_then(|()| stdin.flush())
                .unwrap_or_else(|e| panic!("{line}: {e}"));
            let mut answer = String::new();
            stdout
                .read_line(&mut answer)
                .unwrap_or_else(|error| panic!("{line}: {error}"));
            answer.trim().into()
        });
        told.await.expect("it answers")
    }

    /// Tells it something that has to go well.
    pub(crate) async fn expect_reply(&self, line: impl Into<String>, answer: &str) {
        let line = line.into();
        assert_eq!(self.request(line.clone()).await, answer, "{line}");
    }

    /// Its next completion, which is for this context and went well: length and data.
    pub(crate) async fn expect_done(&self, context: u64) -> (usize, u64, u64) {
        let entry = self.request("entry").await;
        let words: Vec<_> = entry.split(' ').collect();
        assert_eq!(words[..2], ["done", &context.to_string()][..], "{entry}");
        let number = |at: usize, radix| u64::from_str_radix(words[at], radix).expect("a number");
        (number(3, 10) as usize, number(4, 10), number(2, 16))
    }

    /// Its next completion of this context. libfabric's RXM reports an atomic operation that was
    /// refused, and then its failure once more, without a context.
    pub(crate) async fn next_entry_for(&self, context: u64) -> String {
        loop {
            let entry = self.request("entry").await;
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

    /// Its next completion, which is a failure.
    pub(crate) async fn failed(&self, context: u64) {
        let entry = self.request("entry").await;
        assert!(entry.starts_with(&format!("failed {context} ")), "{entry}");
    }

    /// Has it do this, with this context, after its connection was ended. libfabric's RXM finishes
    /// what is posted before it has looked after its connections with ENOTCONN.
    pub(crate) async fn retry_until_done(&self, context: u64, line: &str) {
        const ENOTCONN: u64 = 107;
        loop {
            self.expect_reply(line, "posted").await;
            let entry = self.request("entry").await;
            if entry != format!("failed {context} {ENOTCONN}") {
                return assert!(
                    entry.starts_with(&format!("done {context} ")),
                    "{line}: {entry}"
                );
            }
        }
    }

    /// Ends it as nobody would like to end.
    pub(crate) fn kill(mut self) -> u16 {
        self.child
            .kill()
            .and_then(|()| self.child.wait())
            .expect("a child");
        self.port
    }
}

impl Drop for LibfabricPeer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program, and the provider it is to use; or why there is none.
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
        Err(error) => return Err(format!("there is no C compiler: {error}")),
    }
    // The native wire is spoken by `net` in 1.16 and 1.17, and by `tcp` since.
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
        if read.is_ok() && line.starts_with("at ") {
            return Ok((path, provider));
        }
    }
    Err("libfabric has no provider that speaks the native wire".into())
}
