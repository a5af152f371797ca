//! What can go wrong in the harness.

use std::io;

/// The result of a command or a part of it.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The exit code of a process that was interrupted.
pub(crate) const EXIT_INTERRUPTED: u8 = 130;

/// Why a command ended without what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The fabric failed.
    #[error(transparent)]
    Fabric(#[from] fabric_async::Error),
    /// The operating system failed.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: String,
        /// What came of it.
        error: io::Error,
    },
    /// The reader of what is printed has enough, as `head` has.
    #[error("nobody reads any more")]
    OutputClosed,
    /// Ctrl-C came before everything was measured.
    #[error("interrupted: only what is printed was measured")]
    Interrupted,
    /// What was asked for cannot be done; the text says why, and what can.
    #[error("{0}")]
    InvalidRequest(String),
    /// A process that was started for the measurement has died.
    #[error("{process} died ({status}){}", format_stderr(stderr))]
    ProcessDied {
        /// Which one.
        process: String,
        /// How.
        status: String,
        /// What it had to say.
        stderr: String,
    },
    /// Somebody said something that is not understood.
    #[error("{origin}: malformed data: {text:?}")]
    Malformed {
        /// Who.
        origin: String,
        /// What.
        text: String,
    },
}

impl Error {
    /// An error of the operating system, for use with `map_err`.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        |error| Self::Io {
            what: what.into(),
            error,
        }
    }

    /// The exit code of a process that ends with this: 2 for what was asked wrongly, 130 after
    /// Ctrl-C, 0 when nobody reads any more, 1 for the rest.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::InvalidRequest(_) | Self::Fabric(fabric_async::Error::UnknownProvider { .. }) => {
                2
            }
            Self::OutputClosed => 0,
            Self::Interrupted => EXIT_INTERRUPTED,
            _ => 1,
        }
    }
}

impl<B> From<fabric_async::Failed<B>> for Error {
    fn from(failed: fabric_async::Failed<B>) -> Self {
        Self::Fabric(failed.error)
    }
}

fn format_stderr(stderr: &str) -> String {
    let stderr = stderr.trim();
    if stderr.is_empty() {
        "; it wrote nothing to stderr".into()
    } else {
        format!("; its stderr:\n{stderr}")
    }
}
