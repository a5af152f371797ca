//! Who makes progress in the domain of a test's endpoint, and which threads use the domain.

use fabric_async::{BindOptions, Endpoint, Progress};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DomainMode {
    /// Manual progress; threads share the domain.
    Manual,
    /// Automatic progress; threads share the domain.
    Auto,
    /// Manual progress; the test's thread owns the domain, as in `thread_model::Pinned`.
    Pinned,
}

impl DomainMode {
    pub(crate) const ALL: [Self; 3] = [Self::Manual, Self::Auto, Self::Pinned];

    /// Returns options for an endpoint with a domain of this mode.
    pub(crate) fn options(self) -> BindOptions {
        let options = Endpoint::options();
        match self {
            Self::Manual => options,
            Self::Auto => options.progress(Progress::Auto),
            Self::Pinned => options.owned_by_this_thread(),
        }
    }
}
