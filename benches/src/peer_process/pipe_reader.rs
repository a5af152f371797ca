//! Reads the output of a process while it runs: a pipe that is not read fills up and blocks the
//! writer.

use std::io::Read;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// How long to wait for more output of a process that has exited. Its pipe usually has ended too,
/// unless a child of that process still holds it.
const EOF_TIMEOUT: Duration = Duration::from_secs(1);

/// The output of a pipe.
#[derive(Debug)]
pub(crate) struct PipeReader(Receiver<Vec<u8>>);

impl PipeReader {
    /// Starts to read, if there is a pipe.
    pub(crate) fn spawn(pipe: Option<impl Read + Send + 'static>) -> Self {
        let (parts, text) = channel();
        if let Some(mut pipe) = pipe {
            thread::spawn(move || {
                let mut part = [0; 4096];
                while let Ok(count @ 1..) = pipe.read(&mut part) {
                    if parts.send(part[..count].to_vec()).is_err() {
                        break;
                    }
                }
            });
        }
        Self(text)
    }

    /// Returns the output since the last call, of a process that has exited.
    pub(crate) fn take_text(&self) -> String {
        let mut all = Vec::new();
        while let Ok(part) = self.0.recv_timeout(EOF_TIMEOUT) {
            all.extend(part);
        }
        String::from_utf8_lossy(&all).into_owned()
    }
}
