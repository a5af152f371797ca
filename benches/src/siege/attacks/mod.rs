//! The attacks. Each runs in a process of its own, until the stdin of the process ends.
//!
//! | file | subject |
//! |---|---|
//! | `actions` | counts what the attacker did, and ends the process |
//! | `tcp` | attacks over `tcp`, mostly by sockets without the library |
//! | `udp` | attacks over `udp`, by sockets without the library |
//! | `library` | attacks that use the library as a peer: all over `shm`, one over `tcp` |

mod actions;
mod library;
mod tcp;
mod udp;

use std::net::Ipv4Addr;
use std::process::Command;

use clap::ValueEnum;

pub use library::begin_long_messages;

use self::actions::ActionCounter;
use super::provider::SiegeProvider;
use crate::limits::raise_descriptor_limit;
use crate::options::{self, RuntimeKind};
use crate::peer_process::{ChildProcess, current_program};
use crate::{Error, Result};

/// The line with which an attacker reports its first action.
pub(super) const BEGUN_LINE: &str = "attacking";
/// Descriptors that an attacker may need.
const ATTACKER_DESCRIPTORS: u64 = 5000;

/// An attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Attack {
    /// Messages of 1 MiB that begin and do not go on, of 64 connections
    StalledMessages,
    /// Messages of up to 512 GiB announced by peers that leave
    ClaimedLengths,
    /// Messages that no receive takes, as fast as they are accepted
    UnexpectedMessages,
    /// As many connections as are accepted, held
    Connections,
    /// As many connections as are accepted, held, each with messages that no receive takes
    HeldMessages,
    /// Connections without a request, or with half of one
    HalfOpenHandshakes,
    /// Connection requests that claim the address of an honest client
    ClaimedAddresses,
    /// Random bytes, and frames with random fields, after the handshake
    MalformedFrames,
    /// 130,000 empty messages that no receive takes, again and again
    EmptyMessages,
    /// Writes and reads with random keys
    WritesWithoutKeys,
    /// RXM packets that no receive takes, on 16 connections
    RxmSetAside,
    /// Peers that connect, leave messages that no receive takes, and close
    ConnectAndLeave,
    /// Datagrams of 1472 bytes, as fast as possible
    UnexpectedDatagrams,
    /// Datagrams of random bytes and many lengths
    MalformedDatagrams,
    /// Datagrams from many addresses and ports
    ManySenders,
    /// Processes that begin messages of 64 MiB and are killed
    KilledSenders,
    /// Requests whose replies are loans, which the attacker keeps
    LoansKept,
}

impl Attack {
    /// Connections of the attack with RXM packets.
    pub(super) const RXM_CONNECTIONS: usize = 16;

    /// Returns the name on the command line.
    pub(super) fn name(self) -> String {
        options::name(self)
    }

    /// Returns the loopback address of the attacker. The limits of connections count all loopback
    /// addresses as one source.
    fn source(self) -> Ipv4Addr {
        Ipv4Addr::new(127, 0, 1, 1 + self as u8)
    }

    /// Starts a process that attacks `target`, and waits for its first action.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be started; [`Error::ProcessDied`].
    pub(super) fn start(self, target: &str, victim: &str) -> Result<ChildProcess> {
        let mut command = current_program()?;
        let name = self.name();
        command
            .args(["siege-attacker", "--attack", &name])
            .args(["--target", target, "--victim", victim]);
        start_attacker(&format!("the attacker {name}"), command)
    }
}

/// Starts a process that only uses the processor.
///
/// # Errors
/// As [`Attack::start`].
pub(super) fn start_busy_process() -> Result<ChildProcess> {
    let mut command = current_program()?;
    command.arg("siege-busy");
    start_attacker("a busy process", command)
}

/// Uses the processor, at the priority of an attacker, until stdin ends; then prints a number and
/// exits.
///
/// # Errors
/// As [`run_attack`].
pub fn run_busy_process() -> Result<()> {
    use_idle_processors()?;
    let actions = ActionCounter::exit_on_stdin_eof()?;
    loop {
        for _ in 0..1_000_000 {
            std::hint::spin_loop();
        }
        actions.add_one();
    }
}

/// Starts a process of an attack, and waits for its first action.
fn start_attacker(name: &str, command: Command) -> Result<ChildProcess> {
    ChildProcess::start_with_line(name, command, BEGUN_LINE).map(|(child, _)| child)
}

/// Makes this process run only where a processor is idle (`SCHED_IDLE`): an attacker on another
/// machine takes no processor time from the server.
fn use_idle_processors() -> Result<()> {
    let status = Command::new("chrt")
        .args(["--idle", "--pid", "0", &std::process::id().to_string()])
        .status()
        .map_err(Error::io("starting chrt"))?;
    if !status.success() {
        let error = std::io::Error::other(format!("chrt: {status}"));
        return Err(Error::io("lowering the priority")(error));
    }
    Ok(())
}

/// Attacks the endpoint `target` until stdin ends; then prints the number of actions and exits.
/// `victim` is the name of an honest client.
///
/// # Errors
/// The attack cannot begin.
pub fn run_attack(attack: Attack, target: &str, victim: &str) -> Result<()> {
    use_idle_processors()?;
    raise_descriptor_limit(ATTACKER_DESCRIPTORS)?;
    let actions = ActionCounter::exit_on_stdin_eof()?;
    let (target, victim) = (target.to_owned(), victim.to_owned());
    let provider = SiegeProvider::of_address(&target).filter(|it| it.attacks().contains(&attack));
    let provider = provider.ok_or_else(|| {
        let name = attack.name();
        Error::InvalidRequest(format!("the attack {name} is not for {target}"))
    })?;
    RuntimeKind::Current.run(async move {
        match provider {
            SiegeProvider::Tcp if attack != Attack::ConnectAndLeave => {
                tcp::attack(attack, &target, &victim, &actions).await
            }
            SiegeProvider::Udp => udp::attack(attack, &target, &actions).await,
            _ => library::attack(attack, provider, &target, &actions).await,
        }
    })
}
