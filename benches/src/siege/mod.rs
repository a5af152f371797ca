//! The siege: attacks against a server that serves honest clients. The clients must lose nothing,
//! and the server must stay within its limits and return what the attackers made it use.
//!
//! | file | subject |
//! |---|---|
//! | `provider` | what differs between providers: attacks, limits |
//! | `server` | the server process |
//! | `client` | the honest clients |
//! | `retransmission` | when a client sends a datagram again |
//! | `message` | bytes and tags of requests and replies |
//! | `attacks` | the attackers, each in a process |
//! | `usage` | memory, descriptors and mappings of the server |
//! | `slice` | one slice of the time: attackers, clients, figures |
//! | `report` | the table |

mod attacks;
mod client;
mod message;
mod provider;
mod report;
mod retransmission;
mod server;
mod slice;
mod usage;

use std::time::Duration;

pub use attacks::{Attack, begin_long_messages, run_attack, run_busy_process};
pub use provider::SiegeProvider;
pub use server::serve_siege;

use self::slice::{Load, Siege};
use crate::output::print;
use crate::stop::Stop;
use crate::{Error, Result, progress_bar};

/// Parts of the time of a provider for the slice with all attacks at once.
const ALL_AT_ONCE_PARTS: u32 = 2;

/// Runs the attacks over each of the providers, and prints a table.
///
/// An empty list of providers or attacks means all.
///
/// # Errors
/// [`Error::InvalidRequest`] if an honest client lost a request, if the server passed a limit or
/// did not return what it had used, or if no attack is selected; [`Error::ProcessDied`] if the
/// server or an attacker died.
pub fn siege(
    providers: &[SiegeProvider],
    attacks: &[Attack],
    time: Duration,
    stop: &Stop,
) -> Result<()> {
    let selected = select_attacks(providers, attacks)?;
    let provider_time = time / selected.len() as u32;
    let mut findings = 0;
    for (provider, attacks) in selected {
        let slice_time = slice_time(provider_time, attacks.len());
        let mut siege = Siege::start(provider)?;
        print(&report::heading(provider, attacks.len(), slice_time))?;
        let run = |siege: &mut Siege, name: &str, load: Load<'_>, time| {
            let outcome = siege.run_slice(load, time, stop)?;
            progress_bar::clear();
            print(&report::row(name, &outcome))?;
            for finding in &outcome.findings {
                print(&format!("  {name}: {finding}"))?;
            }
            if !outcome.findings.is_empty() {
                // What this attack did must not affect the next row.
                siege.restart()?;
            }
            stop.check()?;
            Ok::<_, Error>(outcome.findings.len())
        };
        findings += run(&mut siege, "quiet", Load::Quiet, slice_time)?;
        findings += run(&mut siege, "1 busy process", Load::Busy(1), slice_time)?;
        if attacks.len() > 1 {
            let name = format!("{} busy processes", attacks.len());
            findings += run(&mut siege, &name, Load::Busy(attacks.len()), slice_time)?;
        }
        for attack in &attacks {
            let load = Load::Attacks(std::slice::from_ref(attack));
            findings += run(&mut siege, &attack.name(), load, slice_time)?;
        }
        if attacks.len() > 1 {
            let time = slice_time * ALL_AT_ONCE_PARTS;
            findings += run(&mut siege, "all at once", Load::Attacks(&attacks), time)?;
        }
        print("")?;
    }
    print(report::LEGEND)?;
    if findings > 0 {
        return Err(Error::InvalidRequest(format!(
            "{findings} findings: see the lines below the rows"
        )));
    }
    print("no honest request was lost, and the server stayed within its limits")
}

/// Returns the providers and the attacks over each.
fn select_attacks(
    providers: &[SiegeProvider],
    attacks: &[Attack],
) -> Result<Vec<(SiegeProvider, Vec<Attack>)>> {
    let providers = match providers {
        [] => &SiegeProvider::ALL,
        some => some,
    };
    let is_selected = |attack: &&Attack| attacks.is_empty() || attacks.contains(attack);
    let selected: Vec<_> = providers
        .iter()
        .map(|provider| {
            let of_provider = provider.attacks().iter();
            (
                *provider,
                of_provider.filter(is_selected).copied().collect(),
            )
        })
        .filter(|(_, attacks): &(_, Vec<_>)| !attacks.is_empty())
        .collect();
    if selected.is_empty() {
        let names = providers.iter().map(|provider| {
            let attacks = provider.attacks().iter().map(|attack| attack.name());
            let attacks: Vec<_> = attacks.collect();
            format!("{}: {}", provider.name(), attacks.join(", "))
        });
        let names: Vec<_> = names.collect();
        return Err(Error::InvalidRequest(format!(
            "no such attack over these providers; known: {}",
            names.join("; ")
        )));
    }
    Ok(selected)
}

/// Returns the time of one slice: a quiet one, one for each attack, and a longer one for all. The
/// slices beside busy processes take as much, in addition to the time of the provider.
fn slice_time(provider_time: Duration, attacks: usize) -> Duration {
    let all_at_once = if attacks > 1 { ALL_AT_ONCE_PARTS } else { 0 };
    provider_time / (1 + attacks as u32 + all_at_once)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attacks_are_selected_by_provider() {
        let all = select_attacks(&[], &[]).unwrap_or_default();
        assert_eq!(all.len(), 3);
        let shared = select_attacks(&[], &[Attack::EmptyMessages]).unwrap_or_default();
        assert_eq!(
            shared,
            [
                (SiegeProvider::Shm, vec![Attack::EmptyMessages]),
                (SiegeProvider::Tcp, vec![Attack::EmptyMessages])
            ]
        );
        let none = select_attacks(&[SiegeProvider::Udp], &[Attack::EmptyMessages]);
        assert!(
            matches!(&none, Err(Error::InvalidRequest(text)) if text.contains("many-senders")),
            "{none:?}"
        );
    }

    #[test]
    fn slices_fill_the_time() {
        let second = Duration::from_secs(1);
        assert_eq!(slice_time(14 * second, 11), second);
        assert_eq!(slice_time(2 * second, 1), second);
    }
}
