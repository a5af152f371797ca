//! The second process: started, spoken to, and ended by the first, or run by hand.
//!
//! | file | subject |
//! |---|---|
//! | `child` | a process that is started and watched; its stderr is kept for the day it dies |
//! | `drain` | what a process prints, read while it runs |
//! | `serve` | what the second process does |
//! | `talk` | what the two say to each other |

mod child;
pub(crate) mod drain;
mod serve;
pub(crate) mod talk;

use fabric_async::{Endpoint, FiAddr};
use serde::{Deserialize, Serialize};

pub use child::{Child, program};
pub use serve::{serve, until_stdin_ends};

use crate::choice::Runtime;
use crate::cpu::Cpu;
use crate::measure::Plan;
use crate::{Error, Result};
use talk::{hear, tell};

/// What the first process asks the second.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Ask {
    /// Open the lanes of this plan.
    Lanes(Box<Plan>),
    /// How much processor time have you used?
    Cpu,
    /// That was all.
    End,
}

/// The names of the endpoints of each lane.
type Names = Vec<Vec<String>>;

/// The connection to the second process.
pub struct Pair {
    ep: Endpoint,
    peer: FiAddr,
    child: Option<Child>,
    // Dropped last: the endpoint's driver lives on it.
    runtime: tokio::runtime::Runtime,
}

impl Pair {
    /// Starts the second process and connects to it.
    ///
    /// # Errors
    /// It cannot be started, or dies at once.
    pub fn start(provider: &str) -> Result<Self> {
        let mut command = program()?;
        command.args(["serve", "--listen", &format!("{provider}://")]);
        let (child, at) = Child::start("the peer process", command)?;
        Self::connected(&at, Some(child))
    }

    /// Connects to one that was started by hand with `--listen`.
    ///
    /// # Errors
    /// Nobody is there.
    pub fn connect(at: &str) -> Result<Self> {
        Self::connected(at, None)
    }

    fn connected(at: &str, mut child: Option<Child>) -> Result<Self> {
        let runtime = Runtime::Current
            .build()
            .map_err(Error::io("starting a runtime"))?;
        let connect = async {
            let scheme = at.split_once("://").map_or(at, |(scheme, _)| scheme);
            let ep = Endpoint::bind(&format!("{scheme}://")[..]).await?;
            let peer = ep.lookup(at).await?;
            Ok((ep, peer))
        };
        match runtime.block_on(connect) {
            Ok((ep, peer)) => Ok(Self {
                ep,
                peer,
                child,
                runtime,
            }),
            Err(error) => Err(explain(error, child.as_mut())),
        }
    }

    /// Has the other side open its half of the lanes; returns the names of its endpoints, lane by
    /// lane.
    ///
    /// # Errors
    /// It is gone or cannot.
    pub fn set_up(&mut self, plan: &Plan) -> Result<Names> {
        self.ask(&Ask::Lanes(Box::new(plan.clone())))
    }

    /// Processor time of the other side.
    ///
    /// # Errors
    /// It is gone.
    pub fn cpu(&mut self) -> Result<Option<Cpu>> {
        self.ask(&Ask::Cpu)
    }

    /// Tells the other side that that was all.
    ///
    /// # Errors
    /// It is gone already.
    pub fn end(&mut self) -> Result<()> {
        self.runtime.block_on(tell(&self.ep, self.peer, &Ask::End))
    }

    /// Looks behind an error: when the other process is dead, that is the reason.
    pub fn explain(&mut self, error: Error) -> Error {
        explain(error, self.child.as_mut())
    }

    fn ask<T: serde::de::DeserializeOwned>(&self, what: &Ask) -> Result<T> {
        self.runtime.block_on(async {
            tell(&self.ep, self.peer, what).await?;
            Ok(hear(&self.ep, Some(self.peer)).await?.1)
        })
    }
}

fn explain(error: Error, child: Option<&mut Child>) -> Error {
    match child {
        Some(child) => child.explain(error),
        None => error,
    }
}
