//! The plan of a measurement, complete and checked.

use fabric_async::info::Threading;
use fabric_async::{Caps, EpType, Error as FabricError, Hints, Info, discover};
use serde::{Deserialize, Serialize};

use crate::options::{
    Api, Bench, BenchOp, DomainLayout, MessageModelKind, ProgressMode, RuntimeKind,
    ThreadModelKind, WaitMode, name,
};
use crate::record::Record;
use crate::size::Size;
use crate::{Error, Result, memory};

/// The plan of a measurement. Both sides have the same.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The kind of measurement.
    pub bench: Bench,
    /// The provider.
    pub provider: String,
    /// The operation.
    pub op: BenchOp,
    /// How completions are taken.
    pub api: Api,
    /// The wait policy.
    pub wait: WaitMode,
    /// The progress model.
    pub progress: ProgressMode,
    /// The Tokio runtime.
    pub runtime: RuntimeKind,
    /// The thread model.
    #[serde(default)]
    pub threading: ThreadModelKind,
    /// The message model.
    #[serde(default)]
    pub msg_model: MessageModelKind,
    /// Messages in flight in streams.
    pub window: usize,
    /// Endpoints of the responder, for each endpoint of the initiator.
    pub peers: usize,
    /// Endpoints of the initiator in each thread, each used by a task of its own.
    #[serde(default = "one")]
    pub endpoints: usize,
    /// Whether all endpoints of a thread talk with the same endpoint of the responder.
    #[serde(default)]
    pub fan_in: bool,
    /// The domains of the endpoints of a thread, on both sides.
    #[serde(default)]
    pub domains: DomainLayout,
    /// Endpoints of each side, in the domain of the measured ones, that stream messages of the
    /// measured size while round trips are measured.
    #[serde(default)]
    pub streams: usize,
    /// Measuring threads, each with domains of its own.
    pub threads: usize,
    /// When the measurement of a size ends.
    pub budget: Budget,
    /// Shortest message that is copied once; the provider's default if `None`.
    #[serde(default)]
    pub single_copy_threshold: Option<usize>,
    /// Connected, idle endpoints of the responder, for each thread.
    #[serde(default)]
    pub idle: usize,
    /// Congestion control of TCP connections; the provider's default if `None`.
    #[serde(default)]
    pub congestion: Option<String>,
    /// The sizes, in bytes.
    pub sizes: Vec<usize>,
    /// The core of each thread, and that of its responder.
    pub cores: Vec<(Option<usize>, Option<usize>)>,
}

/// When the measurement of a size ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Budget {
    /// After this many seconds.
    Seconds(f64),
    /// After this many messages or round trips.
    Messages(u64),
}

/// Default number of messages in flight in a stream.
pub const DEFAULT_WINDOW: usize = 32;
/// Default number of short calls in flight when their rate is measured.
const DEFAULT_CALLS: usize = 64;
/// Longest argument of native calls, in bytes: the limit of a server without options.
pub(crate) const MAX_CALL_ARGUMENT: usize = 16 << 20;
/// Most native calls in flight: the limit of a server for each client, without options.
const MAX_CALLS: usize = 256;
/// Length of the values of atomic operations, in bytes.
const ATOMIC_BYTES: usize = 8;
/// Upper limit of window, peers, endpoints and threads.
const MAX_COUNT: usize = 512;
/// Upper limit of idle endpoints.
const MAX_IDLE_PEERS: usize = 10_000;
/// A provider without inter-process communication.
const IN_PROCESS_PROVIDER: &str = "sim";

/// Returns the number of messages or calls in flight, unless the window is set.
#[must_use]
pub fn default_window(bench: Bench, op: BenchOp) -> usize {
    match (bench, op) {
        (Bench::Lat, _) | (Bench::Bw, BenchOp::Rpc) => 1,
        (Bench::Rate, BenchOp::Rpc) => DEFAULT_CALLS,
        _ => DEFAULT_WINDOW,
    }
}

/// The number of endpoints in plans that do not state it.
fn one() -> usize {
    1
}

impl Plan {
    /// Checks the plan against the provider's offer.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`], with what is missing and what is allowed.
    pub fn check(&self) -> Result<()> {
        let offer = self.discover_info()?;
        let is_mappable = matches!(self.op, BenchOp::Write | BenchOp::Read | BenchOp::Atomic);
        match self.api {
            Api::Await => {}
            Api::Mapped if is_mappable => {}
            Api::Mapped => {
                return Err(Error::InvalidRequest(
                    "--api mapped needs --op write, read or atomic".into(),
                ));
            }
            Api::Cq | Api::Batch
                if !self.op.is_one_sided() && !matches!(self.op, BenchOp::Loan | BenchOp::Rpc) => {}
            Api::Batch if self.op == BenchOp::Write && self.bench != Bench::Lat => {}
            Api::Batch if self.op == BenchOp::Write => {
                return Err(self.invalid_request("batches are only measured by bw and rate"));
            }
            _ if is_mappable => {
                return Err(self.invalid_request("only measured with --api await or mapped"));
            }
            _ => return Err(self.invalid_request("only measured with --api await")),
        }
        let is_pinned = self.threading == ThreadModelKind::Pinned;
        if is_pinned && self.progress != ProgressMode::Manual {
            return Err(Error::InvalidRequest(
                "--threading pinned needs --progress manual".into(),
            ));
        }
        // The tasks of a measuring thread would use its domain from several threads.
        if self.threading != ThreadModelKind::Shared && self.runtime != RuntimeKind::Current {
            return Err(Error::InvalidRequest(
                "--threading pinned and --threading serial need --runtime current".into(),
            ));
        }
        if self.fan_in && self.peers > 1 {
            return Err(Error::InvalidRequest(
                "--fan-in has one peer for all endpoints: leave out --peers".into(),
            ));
        }
        if self.fan_in && self.op == BenchOp::Loan && self.bench == Bench::Lat {
            return Err(self.invalid_request("round trips are not measured with --fan-in"));
        }
        if self.streams > 0 && (self.fan_in || self.op != BenchOp::Send) {
            return Err(self.invalid_request("--streams needs --op send, and no --fan-in"));
        }
        if self.op == BenchOp::Rpc {
            self.check_calls()?;
        }
        if self.op.is_one_sided() {
            if self.peers > 1 {
                return Err(self.invalid_request("only measured with one peer"));
            }
            if self.endpoints > 1 {
                return Err(self.invalid_request("only measured with one endpoint"));
            }
            if self.sizes.contains(&0) {
                return Err(self.invalid_request("an operation of 0 bytes cannot be observed"));
            }
            if self.op == BenchOp::Atomic && self.sizes.iter().any(|size| *size != ATOMIC_BYTES) {
                return Err(self.invalid_request(&format!(
                    "only measured with values of {ATOMIC_BYTES} bytes"
                )));
            }
        }
        if self.provider == IN_PROCESS_PROVIDER {
            let mut others: Vec<_> = discover(&self.hints())?
                .into_iter()
                .map(|info| info.fabric.provider)
                .collect();
            others.retain(|name| name != IN_PROCESS_PROVIDER);
            others.dedup();
            return Err(Error::InvalidRequest(format!(
                "the provider {IN_PROCESS_PROVIDER} works inside one process only, a measurement \
                 needs two; providers between processes: {}",
                others.join(", ")
            )));
        }
        let largest = self.sizes.iter().copied().max().unwrap_or(0);
        let limit = self.max_size(&offer);
        if largest > limit {
            let why = format!(
                "messages of {} exceed the limit of {}",
                Size(largest),
                Size(limit)
            );
            return Err(self.invalid_request(&why));
        }
        for (what, count) in [
            ("window", self.window),
            ("peers", self.peers),
            ("endpoints", self.endpoints),
            ("threads", self.threads),
        ] {
            if !(1..=MAX_COUNT).contains(&count) {
                return Err(Error::InvalidRequest(format!(
                    "--{what} {count} is not within 1 to {MAX_COUNT}"
                )));
            }
        }
        if self.streams > MAX_COUNT {
            return Err(Error::InvalidRequest(format!(
                "--streams {} is more than {MAX_COUNT}",
                self.streams
            )));
        }
        if self.idle > MAX_IDLE_PEERS {
            return Err(Error::InvalidRequest(format!(
                "--idle {} is more than {MAX_IDLE_PEERS}",
                self.idle
            )));
        }
        let (needed, available) = (
            self.buffer_bytes(largest),
            memory::available().unwrap_or(u64::MAX),
        );
        if needed > available.into() {
            return Err(Error::InvalidRequest(format!(
                "the buffers of both sides for messages of {} take {} MiB, {} MiB are available; \
                 use a smaller --size, --window, --threads, --endpoints or --peers",
                Size(largest),
                needed >> 20,
                available >> 20
            )));
        }
        Ok(())
    }

    /// Checks that native calls can be measured with the options of this plan.
    fn check_calls(&self) -> Result<()> {
        if !cfg!(feature = "rpc") {
            return Err(self.invalid_request("fabric-bench was built without its feature rpc"));
        }
        let conditions = [
            (self.progress == ProgressMode::Manual, "--progress manual"),
            (self.runtime == RuntimeKind::Current, "--runtime current"),
            (
                self.threading == ThreadModelKind::Shared,
                "--threading shared",
            ),
            (
                self.msg_model == MessageModelKind::Default,
                "--msg-model default",
            ),
            (self.domains == DomainLayout::One, "--domains one"),
            (self.threads == 1, "one thread"),
            (self.peers == 1, "one peer"),
            (self.endpoints == 1 && !self.fan_in, "one endpoint"),
            (self.idle == 0, "no --idle connections"),
            (self.congestion.is_none(), "the default of --congestion"),
            (
                self.single_copy_threshold.is_none(),
                "the default of --single-copy-threshold",
            ),
        ];
        for (holds, what) in conditions {
            if !holds {
                return Err(self.invalid_request(&format!("only measured with {what}")));
            }
        }
        if self.window > MAX_CALLS {
            return Err(self.invalid_request(&format!(
                "--window {} is more than the {MAX_CALLS} calls that a server takes from a \
                 client",
                self.window
            )));
        }
        Ok(())
    }

    /// Returns the bytes of all buffers of both sides for messages of this size, or of the floor's
    /// buffers if those are more.
    fn buffer_bytes(&self, size: usize) -> u128 {
        let (initiator, responder) = (
            self.initiator_buffers() * self.endpoints,
            self.responder_buffers() * self.responder_endpoints(),
        );
        let streaming = self.streams * (self.stream_plan().responder_buffers() + DEFAULT_WINDOW);
        let buffers = (initiator + responder + streaming) as u128 * self.threads as u128;
        buffers.max(2) * size as u128
    }

    /// Returns how many active endpoints the responder has for each thread.
    pub(super) fn responder_endpoints(&self) -> usize {
        if self.fan_in {
            1
        } else {
            self.endpoints * self.peers
        }
    }

    /// Returns the number of entries of each completion queue.
    pub(super) fn queue_size(&self) -> usize {
        if self.streams > 0 {
            self.window.max(DEFAULT_WINDOW)
        } else {
            self.window
        }
    }

    /// Returns the plan of the endpoints that stream messages beside the measured ones.
    pub(super) fn stream_plan(&self) -> Self {
        Self {
            bench: Bench::Rate,
            window: DEFAULT_WINDOW,
            peers: 1,
            endpoints: self.streams,
            ..self.clone()
        }
    }

    /// Returns the number of buffers of an endpoint of the initiator: a ping and a pong; for
    /// streams one whose bytes are sent again and again, or the window where completions return the
    /// buffers.
    pub(super) fn initiator_buffers(&self) -> usize {
        match (self.bench, self.op) {
            (Bench::Lat, _) => 2,
            (_, op) if op == BenchOp::Inject || op == BenchOp::Loan => 1,
            (_, op) if op.is_one_sided() && self.api != Api::Batch => 1,
            _ if self.api == Api::Await => 1,
            _ => self.window,
        }
    }

    /// Returns the number of buffers of each responder endpoint: with a completion queue, streams
    /// post receives ahead.
    pub(super) fn responder_buffers(&self) -> usize {
        match (self.bench, self.api) {
            (Bench::Lat, _) | (_, Api::Await) => 1,
            _ => self.window,
        }
    }

    /// Removes the sizes above the provider's limit; measures the limit if none is left.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if the provider does not support the operation.
    pub fn drop_oversized(&mut self) -> Result<()> {
        let limit = self.max_size(&self.discover_info()?);
        self.sizes.retain(|size| *size <= limit);
        if self.sizes.is_empty() {
            self.sizes.push(limit);
        }
        Ok(())
    }

    fn max_size(&self, offer: &Info) -> usize {
        match self.op {
            BenchOp::Inject => offer.tx.inject_size,
            BenchOp::Atomic => ATOMIC_BYTES,
            BenchOp::Rpc => offer.ep.max_msg_size.min(MAX_CALL_ARGUMENT),
            _ => offer.ep.max_msg_size,
        }
    }

    /// Returns the capabilities that are needed by the operation and by control messages.
    pub(super) fn caps(&self) -> Caps {
        let control = Caps::MSG | Caps::TAGGED | Caps::DIRECTED_RECV | Caps::SOURCE;
        control | self.op.caps()
    }

    fn hints(&self) -> Hints {
        let hints = Hints::new()
            .ep_type(EpType::Rdm)
            .caps(self.caps())
            .progress(self.progress.model());
        match self.threading {
            ThreadModelKind::Shared => hints,
            ThreadModelKind::Pinned | ThreadModelKind::Serial => hints.threading(Threading::Domain),
        }
    }

    /// Returns the provider's offer.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if the provider cannot do this.
    pub(super) fn discover_info(&self) -> Result<Info> {
        match discover(&self.hints().provider(&self.provider)) {
            Ok(mut offers) => Ok(offers.swap_remove(0)),
            Err(FabricError::NoMatch(no_match)) => {
                let mismatch = no_match
                    .mismatches
                    .iter()
                    .find(|refusal| refusal.provider == self.provider);
                Err(self.invalid_request(&match mismatch {
                    Some(refusal) if refusal.attribute == "caps" => {
                        let names = refusal
                            .requested
                            .split(" | ")
                            .map(|name| format!("FI_{name}"));
                        format!(
                            "missing capability {}",
                            names.collect::<Vec<_>>().join(" | ")
                        )
                    }
                    Some(refusal) => refusal.to_string(),
                    None => no_match.to_string(),
                }))
            }
            Err(unknown @ FabricError::UnknownProvider { .. }) => {
                Err(Error::InvalidRequest(unknown.to_string()))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn invalid_request(&self, why: &str) -> Error {
        Error::InvalidRequest(format!(
            "--op {} over {}: {why}",
            name(self.op),
            self.provider
        ))
    }

    /// Returns a result of this plan without figures.
    pub(super) fn empty_record(&self, size: usize) -> Record {
        Record {
            bench: name(self.bench),
            provider: self.provider.clone(),
            op: name(self.op),
            api: name(self.api),
            size,
            wait: name(self.wait),
            progress: name(self.progress),
            runtime: name(self.runtime),
            threading: name(self.threading),
            msg_model: name(self.msg_model),
            window: match (self.bench, self.op) {
                (Bench::Lat, _) => 1,
                // Nothing is in flight: the bytes are copied at once.
                (_, op) if op == BenchOp::Inject || op == BenchOp::Loan => 0,
                (_, op) if op.is_one_sided() && self.api != Api::Batch => 0,
                _ => self.window,
            },
            peers: self.peers,
            threads: self.threads,
            endpoints: self.endpoints,
            fan_in: self.fan_in,
            domains: name(self.domains),
            streams: self.streams,
            ..Record::default()
        }
    }
}
