//! The parameters of the environment (`fi_getparams(3)`): each one that the crates read, with its
//! type, its default and its current value. No other module reads the environment.

use std::ffi::OsStr;
use std::fmt;

use fabric_core::info::{Info, Protocol};
use fabric_core::transport::SocketIo;
use fabric_core::{Error, Result, Scheme};

/// The name of the RXM layer in lists of providers.
const RXM_LAYER: &str = "ofi_rxm";

/// The providers that `discover` offers.
pub(crate) static PROVIDER: TypedParameter<ProviderFilter> = TypedParameter {
    name: "FI_PROVIDER",
    kind: ParameterKind::ProviderList,
    default: "all but `sim`",
    help: "the providers that `discover` offers, or after `^` those that it does not offer",
    parse: ProviderFilter::parse,
};

/// The socket I/O of domains whose program requests [`SocketIo::Auto`].
pub(crate) static SOCKET_IO: TypedParameter<SocketIo> = TypedParameter {
    name: "FABRIC_SOCKET_IO",
    kind: ParameterKind::Choice(&["epoll", "io_uring", "auto"]),
    default: "`auto`, which is `epoll`",
    help: "how domains over `tcp` wait for sockets, unless the program chooses",
    parse: parse_socket_io,
};

static ALL: [&dyn AnyParameter; 2] = [&PROVIDER, &SOCKET_IO];

/// A parameter that the crates read from the environment (`struct fi_param`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "fi_param")]
pub struct Parameter {
    /// The name of the environment variable.
    pub name: &'static str,
    /// The type of the value.
    pub kind: ParameterKind,
    /// What applies without a value. A variable that is set to nothing has no value.
    pub default: &'static str,
    /// What the parameter is for.
    pub help: &'static str,
    /// The current value of the variable, valid or not; bytes that are no UTF-8 are replaced.
    pub value: Option<String>,
}

/// The type of a parameter (`enum fi_param_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "fi_param_type")]
pub enum ParameterKind {
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Names of providers, separated by commas, or `^` and such names. `ofi_rxm` is the RXM
    /// protocol of `tcp`, which only a list after `^` affects.
    ProviderList,
}

impl fmt::Display for ParameterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Choice(words) => {
                let words: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
                f.write_str(&words.join(", "))
            }
            Self::ProviderList => f.write_str("list of providers"),
        }
    }
}

/// Returns the parameters that the crates read from the environment, with their current values
/// (`fi_getparams`).
///
/// ```
/// # mod fabric_async { pub use fabric_reactor::parameters as info; }
/// use fabric_async::info::parameters;
/// for parameter in parameters() {
///     let value = parameter.value.as_deref().unwrap_or("not set");
///     println!("{}: {} ({}): {value}", parameter.name, parameter.kind, parameter.help);
/// }
/// let names: Vec<_> = parameters().iter().map(|parameter| parameter.name).collect();
/// assert_eq!(names, ["FI_PROVIDER", "FABRIC_SOCKET_IO"]);
/// ```
#[must_use]
#[doc(alias = "fi_getparams")]
#[doc(alias = "fi_freeparams")]
pub fn parameters() -> Vec<Parameter> {
    ALL.iter().map(|parameter| parameter.describe()).collect()
}

/// Checks the values of all parameters, and returns the filter of providers.
///
/// # Errors
/// [`Error::Invalid`] with the name of the first parameter whose value is not valid.
pub fn check_parameters() -> Result<ProviderFilter> {
    ALL.iter().try_for_each(|parameter| parameter.check())?;
    Ok(PROVIDER.get()?.unwrap_or_default())
}

/// A parameter with values of this type.
pub(crate) struct TypedParameter<T> {
    name: &'static str,
    kind: ParameterKind,
    default: &'static str,
    help: &'static str,
    /// Parses a value, or returns what is wrong with it.
    parse: fn(&str) -> Result<T, String>,
}

impl<T> TypedParameter<T> {
    /// Returns the current value; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the name of the parameter when the value is not valid.
    pub(crate) fn get(&self) -> Result<Option<T>> {
        self.parse_value(std::env::var_os(self.name).as_deref())
    }

    fn parse_value(&self, value: Option<&OsStr>) -> Result<Option<T>> {
        let Some(value) = value.filter(|value| !value.is_empty()) else {
            return Ok(None);
        };
        let text = value.to_str().ok_or_else(|| "it is not UTF-8".to_owned());
        let parsed = text.and_then(self.parse);
        parsed.map(Some).map_err(|reason| Error::Invalid {
            what: self.name,
            why: format!("{value:?}: {reason}"),
        })
    }
}

/// A parameter of any type.
trait AnyParameter: Sync {
    fn describe(&self) -> Parameter;
    fn check(&self) -> Result<()>;
}

impl<T> AnyParameter for TypedParameter<T> {
    fn describe(&self) -> Parameter {
        let value = std::env::var_os(self.name);
        Parameter {
            name: self.name,
            kind: self.kind,
            default: self.default,
            help: self.help,
            value: value.map(|value| value.to_string_lossy().into_owned()),
        }
    }

    fn check(&self) -> Result<()> {
        self.get().map(drop)
    }
}

fn parse_socket_io(value: &str) -> Result<SocketIo, String> {
    match value {
        "epoll" => Ok(SocketIo::Epoll),
        "io_uring" => Ok(SocketIo::IoUring),
        "auto" => Ok(SocketIo::Auto),
        _ => Err(format!("it is not one of {}", SOCKET_IO.kind)),
    }
}

/// The value of `FI_PROVIDER`: which providers `discover` offers. The default is an empty list
/// after `^`, which admits all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderFilter {
    /// The names, in lower case.
    names: Vec<String>,
    /// Whether the named providers are not offered (`^`), or only the named ones are.
    is_negated: bool,
}

impl Default for ProviderFilter {
    fn default() -> Self {
        Self {
            names: Vec::new(),
            is_negated: true,
        }
    }
}

impl ProviderFilter {
    fn parse(value: &str) -> Result<Self, String> {
        let (list, is_negated) = match value.strip_prefix('^') {
            Some(list) => (list, true),
            None => (value, false),
        };
        let names = list.split(',').map(|name| name.trim().to_ascii_lowercase());
        let names: Vec<_> = names.collect();
        let is_known = |name: &str| name == RXM_LAYER || Scheme::from_provider(name).is_some();
        match names.iter().find(|name| !is_known(name)) {
            Some(unknown) => {
                let known = Scheme::ALL.map(Scheme::provider).join(", ");
                Err(format!(
                    "{unknown:?} is no provider; known: {known}, {RXM_LAYER}"
                ))
            }
            None => Ok(Self { names, is_negated }),
        }
    }

    /// Returns whether the filter selects this provider by its name.
    #[must_use]
    pub fn selects(&self, provider: &str) -> bool {
        !self.is_negated && self.contains(provider)
    }

    /// Returns whether this offer is admitted.
    #[must_use]
    pub fn admits(&self, offer: &Info) -> bool {
        let is_named = self.contains(&offer.fabric.provider);
        let is_rxm = offer.ep.protocol == Some(Protocol::Rxm);
        match self.is_negated {
            true => !(is_named || is_rxm && self.contains(RXM_LAYER)),
            false => is_named,
        }
    }

    fn contains(&self, name: &str) -> bool {
        self.names.iter().any(|other| other == name)
    }
}

impl fmt::Display for ProviderFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.is_negated { "^" } else { "" };
        write!(f, "{}={sign}{}", PROVIDER.name, self.names.join(","))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn offer(provider: &str, protocol: Protocol) -> Info {
        let mut offer = Info::template(provider, provider, provider);
        offer.ep.protocol = Some(protocol);
        offer
    }

    /// The offers that a value of `FI_PROVIDER` admits.
    fn admitted(value: &str) -> Vec<&'static str> {
        let value = PROVIDER.parse_value(Some(OsStr::new(value)));
        let filter = value.expect("a valid list").unwrap_or_default();
        let offers = [
            ("shm", offer("shm", Protocol::Shm)),
            ("tcp", offer("tcp", Protocol::Tcp)),
            ("tcp;ofi_rxm", offer("tcp", Protocol::Rxm)),
            ("udp", offer("udp", Protocol::Udp)),
        ];
        let admitted = offers.iter().filter(|(_, offer)| filter.admits(offer));
        admitted.map(|(name, _)| *name).collect()
    }

    #[test]
    fn fi_provider_selects_or_excludes_providers() {
        let all = ["shm", "tcp", "tcp;ofi_rxm", "udp"];
        assert_eq!(admitted(""), all);
        assert_eq!(admitted("tcp, SHM"), ["shm", "tcp", "tcp;ofi_rxm"]);
        assert_eq!(admitted("^tcp"), ["shm", "udp"]);
        assert_eq!(admitted("^ofi_rxm,udp"), ["shm", "tcp"]);
        // A list without `^` applies to core providers only, as in libfabric.
        assert_eq!(admitted("tcp,ofi_rxm"), ["tcp", "tcp;ofi_rxm"]);
        assert!(admitted("ofi_rxm").is_empty());
    }

    #[test]
    fn invalid_values_are_refused_by_name() {
        let refused = |result: Result<()>, parts: [&str; 3]| {
            let error = result.expect_err("the value is not valid");
            assert_eq!(error.errno(), 22);
            let text = error.to_string();
            for part in parts {
                assert!(text.contains(part), "{part}: {text}");
            }
        };
        for value in ["tcpp", "tcp,", "^", "^tcp,verbs", "tcp;ofi_rxm", "tcp,^shm"] {
            let parsed = PROVIDER.parse_value(Some(OsStr::new(value))).map(drop);
            refused(parsed, ["FI_PROVIDER", value, "shm, tcp, udp, sim"]);
        }
        let parsed = SOCKET_IO.parse_value(Some(OsStr::new("rubbish")));
        refused(parsed.map(drop), ["FABRIC_SOCKET_IO", "rubbish", "epoll"]);
        let not_utf8 = std::os::unix::ffi::OsStrExt::from_bytes(b"\xff");
        let parsed = PROVIDER.parse_value(Some(not_utf8));
        refused(parsed.map(drop), ["FI_PROVIDER", "xFF", "UTF-8"]);
    }

    #[test]
    fn every_choice_is_a_valid_value() {
        let ParameterKind::Choice(words) = SOCKET_IO.kind else {
            panic!("the socket I/O is a choice")
        };
        let parse = |word: &str| SOCKET_IO.parse_value(Some(OsStr::new(word)));
        let parsed: Vec<_> = words.iter().map(|word| parse(word)).collect();
        let expected = [SocketIo::Epoll, SocketIo::IoUring, SocketIo::Auto];
        assert_eq!(parsed, expected.map(|io| Ok(Some(io))));
        assert_eq!(parse(""), Ok(None));
    }
}
