//! What a process prints, read while it runs: a pipe that nobody reads fills up, and who writes
//! into it waits.

use std::io::Read;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// How long to wait for more of what was printed by a process that has ended. Usually its pipe has
/// ended, too; somebody whom it has started may still hold it.
const EOF_TIMEOUT: Duration = Duration::from_secs(1);

/// What comes out of a pipe.
#[derive(Debug)]
pub(crate) struct PipeReader(Receiver<Vec<u8>>);

impl PipeReader {
    /// Begins to read, if there is a pipe.
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

    /// All that came since this was asked for; for a process that has ended.
    pub(crate) fn take_text(&self) -> String {
        let mut all = Vec::new();
        while let Ok(part) = self.0.recv_timeout(EOF_TIMEOUT) {
            all.extend(part);
        }
        String::from_utf8_lossy(&all).into_owned()
    }
}
