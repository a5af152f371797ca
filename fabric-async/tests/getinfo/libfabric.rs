//! libfabric's `fi_getinfo(3)`, by the program `interop/getinfo.c`.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Sets that are written before their answers are read: few enough for the buffers of pipes.
const SETS_AT_ONCE: usize = 500;

/// The program, which is killed on drop.
pub(crate) struct LibfabricDiscovery {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl LibfabricDiscovery {
    /// Builds and starts the program. Returns the reason if it cannot be built here.
    pub(crate) fn start() -> Result<Self, String> {
        let mut child = Command::new(build()?)
            // The layers are other offers of the same providers.
            .env("FI_PROVIDER", "^ofi_rxm,ofi_rxd")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        Ok(Self { child, answers })
    }

    /// Returns the version of the library.
    pub(crate) fn version(&mut self) -> String {
        self.write("version\n");
        self.read()
    }

    /// Returns whether each set of hints finds an offer.
    pub(crate) fn accepts(&mut self, sets: &[String]) -> Vec<bool> {
        let mut accepted = Vec::with_capacity(sets.len());
        for sets in sets.chunks(SETS_AT_ONCE) {
            self.write(&(sets.join("\n") + "\n"));
            for set in sets {
                let answer = self.read();
                // FI_ENODATA, and FI_ENOSYS for an API version above that of the library.
                assert!(
                    matches!(answer.as_str(), "0" | "61" | "38"),
                    "{set}: {answer}"
                );
                accepted.push(answer == "0");
            }
        }
        accepted
    }

    fn write(&mut self, lines: &str) {
        let stdin = self.child.stdin.as_mut().expect("a pipe");
        let written = stdin.write_all(lines.as_bytes());
        written
            .and_then(|()| stdin.flush())
            .expect("the program reads");
    }

    fn read(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("an answer");
        assert!(line.ends_with('\n'), "the program has ended");
        line.trim().to_owned()
    }
}

impl Drop for LibfabricDiscovery {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Builds the program, or returns the reason why that is not possible here.
fn build() -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../interop/getinfo.c");
    let name = format!("interop-getinfo-{}", std::process::id());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-Werror", "-o"]).arg(&path);
    let output = compiler.arg(source).arg("-lfabric").output();
    let output = output.map_err(|error| format!("no C compiler: {error}"))?;
    let messages = String::from_utf8_lossy(&output.stderr);
    if messages.contains("rdma/fabric.h") {
        return Err("libfabric's headers are not installed (Debian: libfabric-dev)".into());
    }
    assert!(output.status.success(), "{messages}");
    Ok(path)
}
