//! One slice of the time: attackers and clients run, the server is observed, and then the server
//! must return what the attackers made it use. In reference slices other processes run instead of
//! the attackers, or none.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::attacks::{Attack, start_busy_process};
use super::client::{ClientReport, HonestClient};
use super::message::RequestKind;
use super::provider::SiegeProvider;
use super::server::ServerStats;
use super::usage::{ProcessUsage, UsageLimits};
use crate::options::RuntimeKind;
use crate::peer_process::{ChildProcess, current_program};
use crate::stop::Stop;
use crate::{Error, Result, progress_bar};

/// Honest clients.
const CLIENTS: usize = 2;
/// Time between two samples of the server's usage.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(25);
/// How long the server may take to return what the attackers made it use.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(3);

/// The processes that run beside the server and the clients in a slice.
#[derive(Clone, Copy, Debug)]
pub(super) enum Load<'a> {
    /// None. The first slice is one without processes.
    Quiet,
    /// This number of processes that only use the processor, at the priority of the attackers.
    Busy(usize),
    /// These attackers.
    Attacks(&'a [Attack]),
}

impl Load<'_> {
    /// Returns the number of processes.
    fn processes(self) -> usize {
        match self {
            Self::Quiet => 0,
            Self::Busy(processes) => processes,
            Self::Attacks(attacks) => attacks.len(),
        }
    }

    /// Starts the processes, and waits until each has begun. `victim` is the name of a client.
    fn start(self, target: &str, victim: &str) -> Result<Vec<ChildProcess>> {
        match self {
            Self::Quiet => Ok(Vec::new()),
            Self::Busy(processes) => (0..processes).map(|_| start_busy_process()).collect(),
            Self::Attacks(attacks) => attacks
                .iter()
                .map(|attack| attack.start(target, victim))
                .collect(),
        }
    }
}

/// What happened in a slice.
#[derive(Debug)]
pub(super) struct SliceOutcome {
    /// Actions of all attackers; `None` without an attacker.
    pub(super) actions: Option<u64>,
    /// What the honest clients lost and measured.
    pub(super) clients: ClientReport,
    /// The 99th percentile divided by that of the quiet slice.
    pub(super) quiet_ratio: Option<f64>,
    /// The 99th percentile divided by that beside as many busy processes as attackers.
    pub(super) busy_ratio: Option<f64>,
    /// The highest usage of the server.
    pub(super) peak: ProcessUsage,
    /// The usage of the server after the attackers have ended.
    pub(super) after: ProcessUsage,
    /// What the server counted in this slice.
    pub(super) stats: ServerStats,
    /// What must not be.
    pub(super) findings: Vec<String>,
}

/// A server and its honest clients.
pub(super) struct Siege {
    provider: SiegeProvider,
    limits: UsageLimits,
    /// Usage and 99th percentile of the quiet slice.
    quiet: Option<(ProcessUsage, Option<f64>)>,
    /// The 99th percentile beside busy processes, by the number of processes.
    busy: HashMap<usize, f64>,
    clients: Vec<HonestClient>,
    server: SiegeServerProcess,
    // Dropped last: the drivers of the clients' endpoints run on it.
    runtime: Runtime,
}

/// The server process.
struct SiegeServerProcess {
    child: ChildProcess,
    address: String,
}

impl SiegeServerProcess {
    fn start(provider: SiegeProvider) -> Result<Self> {
        let mut command = current_program()?;
        command.args(["siege-server", "--listen", provider.bind_address()]);
        let (child, address) = ChildProcess::start("the server", command)?;
        Ok(Self { child, address })
    }

    /// Connects honest clients.
    fn connect_clients(
        &mut self,
        provider: SiegeProvider,
        runtime: &Runtime,
    ) -> Result<Vec<HonestClient>> {
        let connect = async {
            let mut clients = Vec::new();
            for _ in 0..CLIENTS {
                clients.push(HonestClient::connect(provider, &self.address).await?);
            }
            Ok(clients)
        };
        let clients = runtime.block_on(connect);
        clients.map_err(|error| self.child.or_death_error(error))
    }
}

impl Siege {
    /// Starts a server, and connects the clients.
    ///
    /// # Errors
    /// [`Error::Io`] if a process cannot be started; [`Error::ProcessDied`].
    pub(super) fn start(provider: SiegeProvider) -> Result<Self> {
        let mut server = SiegeServerProcess::start(provider)?;
        let runtime = RuntimeKind::Multi
            .build()
            .map_err(Error::io("starting a runtime"))?;
        Ok(Self {
            provider,
            limits: provider.limits(),
            quiet: None,
            busy: HashMap::new(),
            clients: server.connect_clients(provider, &runtime)?,
            server,
            runtime,
        })
    }

    /// Replaces the server and the clients by new ones.
    ///
    /// # Errors
    /// As [`Siege::start`].
    pub(super) fn restart(&mut self) -> Result<()> {
        self.clients.clear();
        self.server = SiegeServerProcess::start(self.provider)?;
        self.clients = self.server.connect_clients(self.provider, &self.runtime)?;
        Ok(())
    }

    /// Runs the clients for this time beside these processes. The first slice is the quiet one.
    /// Slices with attackers are compared with it, and with one beside as many busy processes.
    ///
    /// # Errors
    /// [`Error::ProcessDied`] if the server or an attacker died.
    pub(super) fn run_slice(
        &mut self,
        load: Load<'_>,
        time: Duration,
        stop: &Stop,
    ) -> Result<SliceOutcome> {
        let outcome = self.try_slice(load, time, stop);
        outcome.map_err(|error| {
            if self.server.child.has_ended() {
                return self.server.child.or_death_error(error);
            }
            error
        })
    }

    fn try_slice(&mut self, load: Load<'_>, time: Duration, stop: &Stop) -> Result<SliceOutcome> {
        let before = self.server_stats(RequestKind::Stats)?;
        let end = Stop::default();
        let victim = self
            .clients
            .first()
            .map_or_else(String::new, HonestClient::name);
        let running: Vec<_> = self
            .clients
            .drain(..)
            .map(|client| self.runtime.spawn(client.run(end.clone())))
            .collect();
        let attacked = self.observe(load, &victim, time, stop, &running, &end);
        end.raise();
        let mut clients = ClientReport::new();
        for client in running {
            let (client, report) = self
                .runtime
                .block_on(client)
                .map_err(|panic| Error::io("running a client")(panic.into()))?;
            self.clients.push(client);
            clients.merge(report);
        }
        let (peak, actions) = attacked?;
        let stats = self.server_stats(RequestKind::Stats)?.since(before);
        let p99 = clients.p99_ns();
        let (quiet, quiet_p99) = match self.quiet {
            Some(quiet) => quiet,
            None => *self.quiet.insert((self.server_usage()?, p99)),
        };
        if let (Load::Busy(processes), Some(p99)) = (load, p99) {
            self.busy.insert(processes, p99);
        }
        self.server_stats(RequestKind::TakeAll)?;
        let after = self.wait_settled(quiet)?;
        let mut findings = find_losses(&clients);
        findings.extend(peak.excesses(quiet, self.limits));
        for excess in after.excesses(quiet, self.provider.limits_after()) {
            findings.push(format!("after the attack: {excess}"));
        }
        let new_client = HonestClient::connect(self.provider, &self.server.address);
        if let Err(error) = self.runtime.block_on(new_client) {
            findings.push(format!(
                "after the attack: a new client is not served: {error}"
            ));
        }
        let attacked_p99 = p99.filter(|_| matches!(load, Load::Attacks(_)));
        let busy_p99 = self.busy.get(&load.processes());
        Ok(SliceOutcome {
            actions: matches!(load, Load::Attacks(_)).then_some(actions),
            quiet_ratio: attacked_p99.and_then(|p99| Some(p99 / quiet_p99?)),
            busy_ratio: attacked_p99.and_then(|p99| Some(p99 / busy_p99?)),
            clients,
            peak,
            after,
            stats,
            findings,
        })
    }

    /// Starts the processes, samples the usage of the server for this time and until the clients
    /// have ended, and ends the processes. Returns the highest usage and the number of actions.
    fn observe(
        &mut self,
        load: Load<'_>,
        victim: &str,
        time: Duration,
        stop: &Stop,
        running: &[JoinHandle<(HonestClient, ClientReport)>],
        end: &Stop,
    ) -> Result<(ProcessUsage, u64)> {
        let processes = load.start(&self.server.address, victim)?;
        let began = Instant::now();
        let mut peak = ProcessUsage::default();
        loop {
            peak = peak.max(self.server_usage()?);
            if began.elapsed() >= time || stop.raised() {
                end.raise();
            }
            if running.iter().all(JoinHandle::is_finished) {
                break;
            }
            let part = began.elapsed().as_secs_f64() / time.as_secs_f64();
            progress_bar::show(&format!("{} processes beside", processes.len()), part);
            thread::sleep(SAMPLE_INTERVAL.min(time / 4));
        }
        let mut actions = 0;
        for mut process in processes {
            let text = process.end()?;
            actions += text.trim().parse::<u64>().map_err(|_| {
                process.or_death_error(Error::Malformed {
                    origin: "an attacker".into(),
                    text,
                })
            })?;
        }
        Ok((peak, actions))
    }

    /// Waits until the server uses no more than the limits allow after an attack; returns its
    /// usage then, or at the end of the time for that.
    fn wait_settled(&self, quiet: ProcessUsage) -> Result<ProcessUsage> {
        let began = Instant::now();
        loop {
            let usage = self.server_usage()?;
            let is_settled = usage
                .excesses(quiet, self.provider.limits_after())
                .is_empty();
            if is_settled || began.elapsed() >= SETTLE_TIMEOUT {
                return Ok(usage);
            }
            thread::sleep(SAMPLE_INTERVAL);
        }
    }

    fn server_usage(&self) -> Result<ProcessUsage> {
        ProcessUsage::of_process(self.server.child.id())
    }

    fn server_stats(&mut self, kind: RequestKind) -> Result<ServerStats> {
        match self.clients.first_mut() {
            Some(client) => self.runtime.block_on(client.server_stats(kind)),
            None => Ok(ServerStats::default()),
        }
    }
}

/// Returns what the clients lost, as text for the user.
fn find_losses(clients: &ClientReport) -> Vec<String> {
    let mut found = Vec::new();
    if clients.lost > 0 {
        let first = clients.first_loss.as_deref().unwrap_or("unknown");
        found.push(format!("{} requests lost; first: {first}", clients.lost));
    }
    if clients.requests == 0 {
        found.push("the clients sent no request".into());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_requests_are_findings() {
        let mut clients = ClientReport::new();
        assert_eq!(find_losses(&clients), ["the clients sent no request"]);
        clients.requests = 5;
        assert!(find_losses(&clients).is_empty());
        clients.lost = 2;
        clients.first_loss = Some("request 3: gone".into());
        assert_eq!(
            find_losses(&clients),
            ["2 requests lost; first: request 3: gone"]
        );
    }
}
