//! The second process: started, spoken to, and ended by the first, or run by hand.
//!
//! | file | subject |
//! |---|---|
//! | `child` | a process that is started and watched; its stderr is kept for the day it dies |
//! | `drain` | what a process prints, read while it runs |
//! | `serve` | what the second process does |
//! | `talk` | what the two say to each other |

mod child;
pub(crate) mod control;
pub(crate) mod pipe_reader;
mod serve;

use fabric_async::{Endpoint, FiAddr};
use serde::{Deserialize, Serialize};

pub use child::{ChildProcess, current_program};
pub use serve::{exit_on_stdin_eof, serve};

use crate::cpu::CpuTime;
use crate::measure::Plan;
use crate::options::RuntimeKind;
use crate::{Error, Result};
use control::{recv_control, send_control};

/// What the first process asks the second.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum ControlRequest {
    /// Open the lanes of this plan.
    StartWorkers(Box<Plan>),
    /// How much processor time have you used?
    CpuTime,
    /// That was all.
    Shutdown,
}

/// The names of the endpoints of each lane.
type EndpointNames = Vec<Vec<String>>;

/// The connection to the second process.
pub struct PeerProcess {
    ep: Endpoint,
    peer: FiAddr,
    child: Option<ChildProcess>,
    // Dropped last: the endpoint's driver lives on it.
    runtime: tokio::runtime::Runtime,
}

impl PeerProcess {
    /// Starts the second process and connects to it.
    ///
    /// # Errors
    /// It cannot be started, or dies at once.
    pub fn start(provider: &str) -> Result<Self> {
        let mut command = current_program()?;
        command.args(["serve", "--listen", &format!("{provider}://")]);
        let (child, at) = ChildProcess::start("the peer process", command)?;
        Self::connect_control(&at, Some(child))
    }

    /// Connects to one that was started by hand with `--listen`.
    ///
    /// # Errors
    /// Nobody is there.
    pub fn connect(at: &str) -> Result<Self> {
        Self::connect_control(at, None)
    }

    fn connect_control(at: &str, mut child: Option<ChildProcess>) -> Result<Self> {
        let runtime = RuntimeKind::Current
            .build()
            .map_err(Error::io("starting a runtime"))?;
        let connect = async {
            let scheme = at.split_once("://").map_or(at, |(scheme, _)| scheme);
            let ep = Endpoint::bind(&format!("{scheme}://")[..]).await?;
            let peer = ep.add_peer(at).await?;
            Ok((ep, peer))
        };
        match runtime.block_on(connect) {
            Ok((ep, peer)) => Ok(Self {
                ep,
                peer,
                child,
                runtime,
            }),
            Err(error) => Err(or_death_error(error, child.as_mut())),
        }
    }

    /// Has the other side open its half of the lanes; returns the names of its endpoints, lane by
    /// lane.
    ///
    /// # Errors
    /// It is gone or cannot.
    pub fn start_workers(&mut self, plan: &Plan) -> Result<EndpointNames> {
        self.request(&ControlRequest::StartWorkers(Box::new(plan.clone())))
    }

    /// Processor time of the other side.
    ///
    /// # Errors
    /// It is gone.
    pub fn cpu_time(&mut self) -> Result<Option<CpuTime>> {
        self.request(&ControlRequest::CpuTime)
    }

    /// Tells the other side that that was all.
    ///
    /// # Errors
    /// It is gone already.
    pub fn shutdown(&mut self) -> Result<()> {
        self.runtime
            .block_on(send_control(&self.ep, self.peer, &ControlRequest::Shutdown))
    }

    /// Looks behind an error: when the other process is dead, that is the reason.
    pub fn or_death_error(&mut self, error: Error) -> Error {
        or_death_error(error, self.child.as_mut())
    }

    fn request<T: serde::de::DeserializeOwned>(&self, what: &ControlRequest) -> Result<T> {
        self.runtime.block_on(async {
            send_control(&self.ep, self.peer, what).await?;
            Ok(recv_control(&self.ep, Some(self.peer)).await?.1)
        })
    }
}

fn or_death_error(error: Error, child: Option<&mut ChildProcess>) -> Error {
    match child {
        Some(child) => child.or_death_error(error),
        None => error,
    }
}
