//! The options of `fi_pingpong`.

use std::num::NonZeroU32;
use std::str::FromStr;

use fabric_async::{EpType, Protocol};

use crate::data;

/// The port on which the two programs agree on what comes next.
const DEFAULT_PORT: u16 = 47592;

pub(crate) const USAGE: &str = "\
Usage:
  fi_pingpong [OPTIONS]             serve
  fi_pingpong [OPTIONS] SERVER      call a server

A ping-pong with libfabric's fi_pingpong, or with itself.

Options:
 -B PORT   port of the control connection here (server: 47592, client: any)
 -P PORT   port of the control connection there (client: 47592)
  -p NAME   provider: tcp or net, which is the same here, 'tcp;ofi_rxm', or udp (tcp)
  -e TYPE   endpoint type: rdm, msg, which is connected, or dgram (rdm; dgram over udp)
  -m MODE   msg or tagged (msg); endpoints of type msg and dgram have no tags
 -I COUNT  messages there and back of each size (10)
 -S SIZE   bytes of a message, or all (64, 256, 1k, 4k, 64k, 1m)
 -c        check what is in the messages
 -6        IPv6
 -h        this";

/// What the user wants.
pub(crate) enum ParsedArgs {
    Run(Options),
    Help,
}

/// How to play.
pub(crate) struct Options {
    /// Whom to call; `None` serves.
    pub(crate) server: Option<String>,
    pub(crate) source_port: Option<u16>,
    pub(crate) destination_port: u16,
    /// Which protocol connections over tcp begin with.
    pub(crate) protocol: Protocol,
    pub(crate) ep_type: EpType,
    pub(crate) is_tagged: bool,
    pub(crate) iterations: usize,
    pub(crate) sizes: Vec<usize>,
    pub(crate) is_checked: bool,
    pub(crate) is_ipv6: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            server: None,
            source_port: None,
            destination_port: DEFAULT_PORT,
            protocol: Protocol::Tcp,
            ep_type: EpType::Rdm,
            is_tagged: false,
            iterations: 10,
            sizes: data::DEFAULT_SIZES.to_vec(),
            is_checked: false,
            is_ipv6: false,
        }
    }
}

impl Options {
    /// Understands a command line; otherwise says what is wrong with it.
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<ParsedArgs, String> {
        let (mut options, mut arguments) = (Self::default(), arguments);
        let (mut provider, mut ep_type) = (None, None);
        while let Some(argument) = arguments.next() {
            let Some(mut letters) = argument.strip_prefix('-') else {
                if let Some(first) = options.server.replace(argument) {
                    return Err(format!("two servers, of which one is {first}"));
                }
                continue;
            };
            // As getopt has it: letters may stand together, and what belongs to one may stand
            // behind it.
            while let Some(letter) = letters.chars().next() {
                letters = &letters[letter.len_utf8()..];
                match letter {
                    'h' => return Ok(ParsedArgs::Help),
                    'c' => options.is_checked = true,
                    '6' => options.is_ipv6 = true,
                    'B' | 'P' | 'p' | 'e' | 'm' | 'I' | 'S' => {
                        let value = match std::mem::take(&mut letters) {
                            "" => arguments
                                .next()
                                .ok_or_else(|| format!("-{letter} without a value"))?,
                            value => value.to_owned(),
                        };
                        match letter {
                            'p' => provider = Some(value),
                            'e' => ep_type = Some(value),
                            _ => options.set_option(letter, &value)?,
                        }
                    }
                    _ => return Err(format!("unknown option -{letter}")),
                }
            }
        }
        options.choose(provider.as_deref(), ep_type.as_deref())?;
        Ok(ParsedArgs::Run(options))
    }

    /// The provider and the endpoint type, each of which follows from the other where it is not
    /// given.
    fn choose(&mut self, provider: Option<&str>, ep_type: Option<&str>) -> Result<(), String> {
        self.ep_type = match (ep_type, provider) {
            (Some("rdm"), _) => EpType::Rdm,
            (Some("msg"), _) => EpType::Msg,
            (Some("dgram"), _) | (None, Some("udp")) => EpType::Dgram,
            (None, _) => EpType::Rdm,
            (Some(other), _) => {
                return Err(format!(
                    "endpoint type {other}: here are rdm, msg and dgram"
                ));
            }
        };
        let is_dgram = self.ep_type == EpType::Dgram;
        self.protocol = match provider {
            None | Some("udp") if is_dgram => Protocol::Udp,
            None | Some("tcp" | "net") if !is_dgram => Protocol::Tcp,
            Some("tcp;ofi_rxm") if !is_dgram => Protocol::Rxm,
            Some(name @ ("udp" | "tcp" | "net" | "tcp;ofi_rxm")) => {
                let ep_type = ep_type.unwrap_or("rdm");
                return Err(format!(
                    "-p {name} -e {ep_type}: dgram is over udp, and nothing else"
                ));
            }
            _ => {
                let name = provider.unwrap_or_default();
                return Err(format!(
                    "provider {name}: here are tcp, net, tcp;ofi_rxm and udp"
                ));
            }
        };
        if self.is_tagged && self.ep_type != EpType::Rdm {
            return Err("-m tagged: endpoints of type msg and dgram have no tags".into());
        }
        Ok(())
    }

    fn set_option(&mut self, letter: char, value: &str) -> Result<(), String> {
        match (letter, value) {
            ('B', _) => self.source_port = Some(parse_number(letter, value)?),
            ('P', _) => self.destination_port = parse_number(letter, value)?,
            ('m', "msg") => self.is_tagged = false,
            ('m', "tagged") => self.is_tagged = true,
            ('m', _) => return Err(format!("-m {value}: there are msg and tagged")),
            ('I', _) => self.iterations = parse_number::<NonZeroU32>(letter, value)?.get() as usize,
            ('S', "all") => self.sizes = data::all_sizes(),
            _ => self.sizes = vec![parse_number::<u32>(letter, value)? as usize],
        }
        Ok(())
    }
}

fn parse_number<T: FromStr>(letter: char, value: &str) -> Result<T, String> {
    value
        .parse()
        .map_err(|_| format!("-{letter} {value}: not a number that it takes"))
}
