//! The options of `fi_pingpong`.

use std::num::NonZeroU32;
use std::str::FromStr;

use fabric_async::{EpType, Protocol};

use crate::data;

/// Default port of the control connection.
const DEFAULT_PORT: u16 = 47592;

pub(crate) const USAGE: &str = "\
Usage:
  fi_pingpong [OPTIONS]             run the server
  fi_pingpong [OPTIONS] SERVER      connect to a server

A ping-pong with libfabric's fi_pingpong, or with itself.

Options:
 -B PORT   local port of the control connection (server: 47592, client: any)
 -P PORT   remote port of the control connection (client: 47592)
  -p NAME   provider: tcp or net (both are tcp here), 'tcp;ofi_rxm', or udp (tcp)
  -e TYPE   endpoint type: rdm, msg (connected), or dgram (rdm; dgram over udp)
  -m MODE   msg or tagged (msg); only rdm endpoints have tags here
 -I COUNT  round trips of each size (10)
 -S SIZE   bytes of a message, or all (64, 256, 1k, 4k, 64k, 1m)
 -c        check message contents
 -6        IPv6
 -h        print this text";

/// A parsed command line.
pub(crate) enum ParsedArgs {
    Run(Options),
    Help,
}

/// Parameters of a run.
pub(crate) struct Options {
    /// The server to connect to; `None` runs the server.
    pub(crate) server: Option<String>,
    pub(crate) source_port: Option<u16>,
    pub(crate) destination_port: u16,
    /// Protocol of tcp connections that this side opens.
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
    /// Parses a command line. The error is a text for the user.
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<ParsedArgs, String> {
        let (mut options, mut arguments) = (Self::default(), arguments);
        let (mut provider, mut ep_type) = (None, None);
        while let Some(argument) = arguments.next() {
            let Some(mut letters) = argument.strip_prefix('-') else {
                if let Some(first) = options.server.replace(argument) {
                    return Err(format!("two servers given, the first is {first}"));
                }
                continue;
            };
            // As with getopt, letters may be combined, and a value may follow its letter directly.
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
                                .ok_or_else(|| format!("-{letter} needs a value"))?,
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

    /// Sets provider and endpoint type, each of which follows from the other where it is not given.
    fn choose(&mut self, provider: Option<&str>, ep_type: Option<&str>) -> Result<(), String> {
        self.ep_type = match (ep_type, provider) {
            (Some("rdm"), _) => EpType::Rdm,
            (Some("msg"), _) => EpType::Msg,
            (Some("dgram"), _) | (None, Some("udp")) => EpType::Dgram,
            (None, _) => EpType::Rdm,
            (Some(other), _) => {
                return Err(format!("endpoint type {other}: not one of rdm, msg, dgram"));
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
                    "-p {name} -e {ep_type}: dgram endpoints need udp, and udp has only these"
                ));
            }
            _ => {
                let name = provider.unwrap_or_default();
                return Err(format!(
                    "provider {name}: not one of tcp, net, tcp;ofi_rxm, udp"
                ));
            }
        };
        if self.is_tagged && self.ep_type != EpType::Rdm {
            return Err("-m tagged: only rdm endpoints have tags here".into());
        }
        Ok(())
    }

    fn set_option(&mut self, letter: char, value: &str) -> Result<(), String> {
        match (letter, value) {
            ('B', _) => self.source_port = Some(parse_number(letter, value)?),
            ('P', _) => self.destination_port = parse_number(letter, value)?,
            ('m', "msg") => self.is_tagged = false,
            ('m', "tagged") => self.is_tagged = true,
            ('m', _) => return Err(format!("-m {value}: not one of msg, tagged")),
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
        .map_err(|_| format!("-{letter} {value}: not a number in the allowed range"))
}
