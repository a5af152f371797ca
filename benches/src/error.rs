//! Errors of the benchmark program.

use std::io;

/// The result of a command or a part of it.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The exit code of a process that was interrupted.
pub(crate) const EXIT_INTERRUPTED: u8 = 130;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The fabric failed.
    #[error(transparent)]
    Fabric(#[from] fabric_async::Error),
    /// The operating system reported an error.
    #[error("{what}: {error}")]
    Io {
        /// The operation that failed.
        what: String,
        /// The error.
        error: io::Error,
    },
    /// The reader closed stdout, as `head` does.
    #[error("the reader of stdout has closed it")]
    OutputClosed,
    /// Ctrl-C ended the command before everything was measured.
    #[error("interrupted: only the printed results were measured")]
    Interrupted,
    /// The request is not possible; the text says why, and what is.
    #[error("{0}")]
    InvalidRequest(String),
    /// A process of the measurement has died.
    #[error("{process} died ({status}){}", format_stderr(stderr))]
    ProcessDied {
        /// The process.
        process: String,
        /// Its exit status.
        status: String,
        /// Its stderr.
        stderr: String,
    },
    /// A process or file sent data that cannot be parsed.
    #[error("{origin}: malformed data: {text:?}")]
    Malformed {
        /// Where the data come from.
        origin: String,
        /// The data.
        text: String,
    },
}

impl Error {
    /// Returns the conversion of an error of the operating system, for `map_err`.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        |error| Self::Io {
            what: what.into(),
            error,
        }
    }

    /// Returns the exit code of a process that ends with this error: 2 for an invalid request, 130
    /// after Ctrl-C, 0 if the reader closed stdout, 1 for the rest.
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
        "; nothing on stderr".into()
    } else {
        format!("; its stderr:\n{stderr}")
    }
}
