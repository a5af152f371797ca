//! What is to be measured, complete and checked.

use fabric_async::{Caps, EpType, Error as FabricError, Hints, Info, discover};
use serde::{Deserialize, Serialize};

use crate::choice::{Api, Bench, Drive, Op, Runtime, Wait, name};
use crate::record::Record;
use crate::size::Size;
use crate::{Error, Result, memory};

/// What is to be measured. The other side gets the same.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// What is measured.
    pub bench: Bench,
    /// Over which provider.
    pub provider: String,
    /// By which operation.
    pub op: Op,
    /// How completions are heard of.
    pub api: Api,
    /// How waiting is done.
    pub wait: Wait,
    /// Who makes progress.
    pub progress: Drive,
    /// On which runtime.
    pub runtime: Runtime,
    /// Messages under way, of streams.
    pub window: usize,
    /// Endpoints on the other side, per thread.
    pub peers: usize,
    /// Measuring threads, each with an endpoint and a domain of its own.
    pub threads: usize,
    /// When it is enough, for each size.
    pub budget: Budget,
    /// From which length on messages are copied once; as the provider does unless said otherwise.
    #[serde(default)]
    pub single_copy_from: Option<usize>,
    /// Endpoints on the other side that are connected as well, and silent, per thread.
    #[serde(default)]
    pub idle: usize,
    /// The congestion control of connections over TCP; as the provider does unless said otherwise.
    #[serde(default)]
    pub congestion: Option<String>,
    /// The sizes, in bytes.
    pub sizes: Vec<usize>,
    /// The core of each thread, and that of its counterpart on the other side.
    pub cores: Vec<(Option<usize>, Option<usize>)>,
}

/// When it is enough.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Budget {
    /// After so many seconds.
    Seconds(f64),
    /// After so many messages, or round trips.
    Iters(u64),
}

/// Messages under way in a stream, unless said otherwise.
pub const WINDOW: usize = 32;
/// Bytes of an atomic operation.
const ATOMIC: usize = 8;
/// Most messages under way, most peers and most threads.
const MOST: usize = 512;
/// Most endpoints that are silent.
const MOST_IDLE: usize = 10_000;
/// The provider that reaches no other process.
const ALONE: &str = "sim";

impl Plan {
    /// Checks it against what the provider offers.
    ///
    /// # Errors
    /// [`Error::Refused`], with what is missing and what is allowed.
    pub async fn check(&self) -> Result<()> {
        let offer = self.offer().await?;
        let windowed = matches!(self.op, Op::Write | Op::Read | Op::Atomic);
        match self.api {
            Api::Await => {}
            Api::Window if windowed => {}
            Api::Window => {
                return Err(Error::Refused(
                    "--api window is for write, read and atomic".into(),
                ));
            }
            Api::Cq | Api::Batch if !self.op.is_one_sided() && self.op != Op::Loan => {}
            _ if windowed => return Err(self.refuse("only measured with --api await or window")),
            _ => return Err(self.refuse("only measured with --api await")),
        }
        if self.op.is_one_sided() {
            if self.peers > 1 {
                return Err(self.refuse("only measured with one peer"));
            }
            if self.sizes.contains(&0) {
                return Err(self.refuse("there is nothing to see of 0 bytes"));
            }
            if self.op == Op::Atomic && self.sizes.iter().any(|size| *size != ATOMIC) {
                return Err(self.refuse(&format!("only measured with values of {ATOMIC} bytes")));
            }
        }
        if self.provider == ALONE {
            let mut others: Vec<_> = discover(&self.hints())
                .await?
                .into_iter()
                .map(|info| info.fabric.provider)
                .collect();
            others.retain(|name| name != ALONE);
            others.dedup();
            return Err(Error::Refused(format!(
                "the provider {ALONE} lives inside one process, a measurement takes two; known to reach another: {}",
                others.join(", ")
            )));
        }
        let largest = self.sizes.iter().copied().max().unwrap_or(0);
        let limit = self.limit(&offer);
        if largest > limit {
            let why = format!(
                "messages of {} are over its limit of {}",
                Size(largest),
                Size(limit)
            );
            return Err(self.refuse(&why));
        }
        for (what, count) in [
            ("window", self.window),
            ("peers", self.peers),
            ("threads", self.threads),
        ] {
            if !(1..=MOST).contains(&count) {
                return Err(Error::Refused(format!(
                    "--{what} {count} is not within 1 to {MOST}"
                )));
            }
        }
        if self.idle > MOST_IDLE {
            return Err(Error::Refused(format!(
                "--idle {} is more than {MOST_IDLE}",
                self.idle
            )));
        }
        let (needed, there) = (
            self.memory(largest),
            memory::available().unwrap_or(u64::MAX),
        );
        if needed > there.into() {
            return Err(Error::Refused(format!(
                "messages of {} take {} MiB in buffers of both sides, {} MiB are available; less is needed with a \
                 smaller --size, --window, --threads or --peers",
                Size(largest),
                needed >> 20,
                there >> 20
            )));
        }
        Ok(())
    }

    /// Bytes of the buffers of both sides for messages of this size, or of the floor's if they are
    /// more.
    fn memory(&self, size: usize) -> u128 {
        let (near, far) = (self.near_buffers(), self.far_buffers() * self.peers);
        let lanes = (near as u128 + far as u128) * self.threads as u128;
        lanes.max(2) * size as u128
    }

    /// How many buffers the measuring side of a lane has: a ping and a pong, or those under way.
    pub(super) fn near_buffers(&self) -> usize {
        match (self.bench, self.op) {
            (Bench::Lat, _) => 2,
            (_, op) if op == Op::Inject || op == Op::Loan || op.is_one_sided() => 1,
            _ => self.window,
        }
    }

    /// How many buffers each endpoint of the other side has: streams that report to a queue post
    /// ahead.
    pub(super) fn far_buffers(&self) -> usize {
        match (self.bench, self.api) {
            (Bench::Lat, _) | (_, Api::Await) => 1,
            _ => self.window,
        }
    }

    /// Leaves out the sizes that are over the provider's limit; measures the limit when none is
    /// left.
    ///
    /// # Errors
    /// [`Error::Refused`], when the provider cannot do this at any size.
    pub async fn cut_sizes(&mut self) -> Result<()> {
        let limit = self.limit(&self.offer().await?);
        self.sizes.retain(|size| *size <= limit);
        if self.sizes.is_empty() {
            self.sizes.push(limit);
        }
        Ok(())
    }

    fn limit(&self, offer: &Info) -> usize {
        match self.op {
            Op::Inject => offer.tx.inject_size,
            Op::Atomic => ATOMIC,
            _ => offer.ep.max_msg_size,
        }
    }

    /// What a provider must be able to do: the operation, and what the two sides need to speak to
    /// each other.
    pub(super) fn caps(&self) -> Caps {
        let talk = Caps::MSG | Caps::TAGGED | Caps::DIRECTED_RECV | Caps::SOURCE;
        talk | self.op.caps()
    }

    fn hints(&self) -> Hints {
        Hints::new()
            .ep_type(EpType::Rdm)
            .caps(self.caps())
            .progress(self.progress.progress())
    }

    /// What the provider offers, if it can do this.
    pub(super) async fn offer(&self) -> Result<Info> {
        match discover(&self.hints().provider(&self.provider)).await {
            Ok(mut offers) => Ok(offers.swap_remove(0)),
            Err(FabricError::NoMatch(none)) => {
                let theirs = none
                    .refusals
                    .iter()
                    .find(|refusal| refusal.provider == self.provider);
                Err(self.refuse(&match theirs {
                    Some(refusal) if refusal.attribute == "caps" => {
                        let names = refusal.asked.split(" | ").map(|name| format!("FI_{name}"));
                        format!(
                            "the capability {} is missing",
                            names.collect::<Vec<_>>().join(" | ")
                        )
                    }
                    Some(refusal) => refusal.to_string(),
                    None => none.to_string(),
                }))
            }
            Err(unknown @ FabricError::UnknownProvider { .. }) => {
                Err(Error::Refused(unknown.to_string()))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn refuse(&self, why: &str) -> Error {
        Error::Refused(format!(
            "--op {} over {}: {why}",
            name(self.op),
            self.provider
        ))
    }

    /// A result of this plan without numbers.
    pub(super) fn record(&self, size: usize) -> Record {
        Record {
            bench: name(self.bench),
            provider: self.provider.clone(),
            op: name(self.op),
            api: name(self.api),
            size,
            wait: name(self.wait),
            progress: name(self.progress),
            runtime: name(self.runtime),
            window: match (self.bench, self.op) {
                (Bench::Lat, _) => 1,
                // Nothing is under way: the bytes are copied at once.
                (_, op) if op == Op::Inject || op == Op::Loan || op.is_one_sided() => 0,
                _ => self.window,
            },
            peers: self.peers,
            threads: self.threads,
            ..Record::default()
        }
    }
}
