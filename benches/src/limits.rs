//! Resource limits of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{Error, Result};

/// Raises the limit of open descriptors to `count`, unless it is higher.
///
/// # Errors
/// [`Error::InvalidRequest`] if `count` is above the hard limit.
pub fn raise_descriptor_limit(count: u64) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= count) {
        return Ok(());
    }
    if let Some(maximum) = limit.maximum
        && maximum < count
    {
        return Err(Error::InvalidRequest(format!(
            "{count} file descriptors are needed, and the hard limit is {maximum} (ulimit -Hn)"
        )));
    }
    let raised = Rlimit {
        current: Some(count),
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).map_err(|error| Error::io("setrlimit")(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_limit_is_raised_and_never_lowered() {
        let before = getrlimit(Resource::Nofile).current;
        assert!(raise_descriptor_limit(8).is_ok());
        assert_eq!(getrlimit(Resource::Nofile).current, before);
        assert!(before.is_none() || raise_descriptor_limit(u64::MAX - 1).is_err());
    }
}
