//! The options of `fi_pingpong`.

use std::num::NonZeroU32;
use std::str::FromStr;

use fabric_async::Protocol;

use crate::data;

/// The port on which the two programs agree on what comes next.
const PORT: u16 = 47592;

pub(crate) const USAGE: &str = "\
Usage:
  fi_pingpong [OPTIONS]             serve
  fi_pingpong [OPTIONS] SERVER      call a server

A ping-pong with libfabric's fi_pingpong, or with itself.

Options:
 -B PORT   port of the control connection here (server: 47592, client: any)
 -P PORT   port of the control connection there (client: 47592)
  -p NAME   provider: tcp or net, which is the same here, or 'tcp;ofi_rxm' (tcp)
  -e TYPE   endpoint type: rdm or msg, which is connected (rdm)
  -m MODE   msg or tagged (msg); connected endpoints have no tags
 -I COUNT  messages there and back of each size (10)
 -S SIZE   bytes of a message, or all (64, 256, 1k, 4k, 64k, 1m)
 -c        check what is in the messages
 -6        IPv6
 -h        this";

/// What the user wants.
pub(crate) enum Asked {
    Run(Options),
    Help,
}

/// How to play.
pub(crate) struct Options {
    /// Whom to call; `None` serves.
    pub(crate) server: Option<String>,
    pub(crate) source_port: Option<u16>,
    pub(crate) destination_port: u16,
    /// Which protocol to begin with.
    pub(crate) protocol: Protocol,
    pub(crate) is_connected: bool,
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
            destination_port: PORT,
            protocol: Protocol::Tcp,
            is_connected: false,
            is_tagged: false,
            iterations: 10,
            sizes: data::USUAL.to_vec(),
            is_checked: false,
            is_ipv6: false,
        }
    }
}

impl Options {
    /// Understands a command line; otherwise says what is wrong with it.
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Asked, String> {
        let (mut options, mut arguments) = (Self::default(), arguments);
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
                    'h' => return Ok(Asked::Help),
                    'c' => options.is_checked = true,
                    '6' => options.is_ipv6 = true,
                    'B' | 'P' | 'p' | 'e' | 'm' | 'I' | 'S' => {
                        let value = match std::mem::take(&mut letters) {
                            "" => arguments
                                .next()
                                .ok_or_else(|| format!("-{letter} without a value"))?,
                            value => value.to_owned(),
                        };
                        options.set(letter, &value)?;
                    }
                    _ => return Err(format!("unknown option -{letter}")),
                }
            }
        }
        if options.is_connected && options.is_tagged {
            return Err("-m tagged: endpoints of type msg have no tags".into());
        }
        Ok(Asked::Run(options))
    }

    fn set(&mut self, letter: char, value: &str) -> Result<(), String> {
        match (letter, value) {
            ('B', _) => self.source_port = Some(number(letter, value)?),
            ('P', _) => self.destination_port = number(letter, value)?,
            ('p', "tcp" | "net") => self.protocol = Protocol::Tcp,
            ('p', "tcp;ofi_rxm") => self.protocol = Protocol::Rxm,
            ('p', _) => {
                return Err(format!(
                    "provider {value}: here are tcp, net and tcp;ofi_rxm"
                ));
            }
            ('e', "rdm") => self.is_connected = false,
            ('e', "msg") => self.is_connected = true,
            ('e', _) => return Err(format!("endpoint type {value}: here are rdm and msg")),
            ('m', "msg") => self.is_tagged = false,
            ('m', "tagged") => self.is_tagged = true,
            ('m', _) => return Err(format!("-m {value}: there are msg and tagged")),
            ('I', _) => self.iterations = number::<NonZeroU32>(letter, value)?.get() as usize,
            ('S', "all") => self.sizes = data::all_sizes(),
            _ => self.sizes = vec![number::<u32>(letter, value)? as usize],
        }
        Ok(())
    }
}

fn number<T: FromStr>(letter: char, value: &str) -> Result<T, String> {
    value
        .parse()
        .map_err(|_| format!("-{letter} {value}: not a number that it takes"))
}
