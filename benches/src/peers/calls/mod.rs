//! Remote procedure calls: native calls of `fabric-rpc`, tonic and tarpc, over the fabric and over
//! Tokio's sockets.
//!
//! Two processes, each with a current-thread runtime. A latency is the time of a call that returns
//! its argument; a rate is that of the same calls with a window of them in flight; for bandwidth
//! the service returns the length of its argument, which the client writes anew for each call.
//!
//! Each side pins itself when it has opened its endpoint or socket, because a process that begins
//! with one core does not spin.
//!
//! | file | subject |
//! |---|---|
//! | `initiator` | the loop that calls and measures |
//! | `native` | native calls |
//! | `over_tonic`, `over_tarpc` | the frameworks |

mod initiator;
mod native;
mod over_tarpc;
mod over_tonic;

use clap::ValueEnum;

use super::{BenchCase, MeasuredLibrary};
use crate::measure::rounds::fill_record;
use crate::measure::{Budget, MAX_CALL_ARGUMENT, Plan, default_window};
use crate::options::{Bench, BenchOp, RuntimeKind, WaitMode, name};
use crate::peer_process::{ChildProcess, current_program};
use crate::pin::{self, CorePair};
use crate::record::Record;
use crate::stop::Stop;
use crate::{Error, Result};

/// A service whose calls are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CallService {
    /// Native calls over shared memory.
    NativeShm,
    /// Native calls over the fabric's TCP.
    NativeTcp,
    /// tonic over the fabric's shared memory.
    TonicShm,
    /// tonic over the fabric's TCP.
    TonicTcp,
    /// tonic over a Unix socket.
    TonicUnixStream,
    /// tonic over loopback TCP with TCP_NODELAY.
    TonicTcpStream,
    /// tarpc over the fabric's shared memory.
    TarpcShm,
    /// tarpc over a Unix socket.
    TarpcUnixStream,
}

/// A measurement of calls.
#[derive(Clone, Copy, Debug)]
struct CallPlan {
    bench: Bench,
    /// Bytes of the argument.
    size: usize,
    /// Calls in flight.
    window: usize,
    budget: Budget,
    /// The wait policy of native calls.
    wait: WaitMode,
    cores: CorePair,
}

impl CallService {
    /// Returns all services, native calls over this provider first.
    pub(super) fn all(provider: &str) -> Vec<Self> {
        let mut services = Self::value_variants().to_vec();
        services.sort_by_key(|service| Some(*service) != Self::native(provider));
        services
    }

    /// Returns this service as a library.
    pub(crate) fn as_static(self) -> &'static dyn MeasuredLibrary {
        let services = Self::value_variants().iter();
        let found = { services }.find(|service| **service == self);
        found.unwrap_or_else(|| unreachable!("every service is a variant"))
    }

    /// Returns native calls over this provider; `None` if it has none.
    fn native(provider: &str) -> Option<Self> {
        match provider {
            "shm" => Some(Self::NativeShm),
            "tcp" => Some(Self::NativeTcp),
            _ => None,
        }
    }

    /// The longest argument, in bytes.
    fn max_size(self) -> usize {
        match self {
            Self::NativeShm | Self::NativeTcp => MAX_CALL_ARGUMENT,
            // Messages of up to 4 MiB, with the header of the argument.
            Self::TonicShm | Self::TonicTcp | Self::TonicUnixStream | Self::TonicTcpStream => {
                (4 << 20) - 64
            }
            // Frames of up to 8 MiB, with the header of the call.
            Self::TarpcUnixStream => (8 << 20) - 256,
            Self::TarpcShm => over_tarpc::MAX_FABRIC_ARGUMENT,
        }
    }

    /// Measures calls, with a fresh process as the server.
    fn run(self, plan: CallPlan, stop: &Stop) -> Result<Record> {
        let mut command = current_program()?;
        command.args(["serve-calls", &name(self), "--wait", &name(plan.wait)]);
        if let Some(core) = plan.cores.1 {
            command.args(["--core", &core.to_string()]);
        }
        let (mut child, address) = ChildProcess::start(self.name(), command)?;
        let measured = pin::run_on_thread(|| {
            let stop = stop.clone();
            RuntimeKind::Current.run(async move {
                match self {
                    Self::NativeShm | Self::NativeTcp => {
                        let client = native::connect(&address, plan.wait).await?;
                        initiator::measure(client, plan, &stop).await
                    }
                    Self::TonicShm | Self::TonicTcp => {
                        let client = over_tonic::connect_fabric(&address).await?;
                        initiator::measure(client, plan, &stop).await
                    }
                    Self::TonicUnixStream => {
                        let client = over_tonic::connect_unix(&address).await?;
                        initiator::measure(client, plan, &stop).await
                    }
                    Self::TonicTcpStream => {
                        let client = over_tonic::connect_tcp(&address).await?;
                        initiator::measure(client, plan, &stop).await
                    }
                    Self::TarpcShm => {
                        let client = over_tarpc::connect_fabric(&address).await?;
                        initiator::measure(client, plan, &stop).await
                    }
                    Self::TarpcUnixStream => {
                        let client = over_tarpc::connect_unix(&address).await?;
                        initiator::measure(client, plan, &stop).await
                    }
                }
            })
        });
        let outcome = measured.map_err(|error| child.or_death_error(error))?;
        let case = BenchCase {
            bench: plan.bench,
            op: BenchOp::Rpc,
            size: plan.size,
            time: std::time::Duration::ZERO,
            cores: plan.cores,
        };
        let (wait, progress) = match self {
            Self::NativeShm | Self::NativeTcp => (name(plan.wait), "manual"),
            Self::TonicShm | Self::TonicTcp | Self::TarpcShm => {
                (name(WaitMode::Adaptive), "manual")
            }
            Self::TonicUnixStream | Self::TonicTcpStream | Self::TarpcUnixStream => {
                (name(WaitMode::Park), "")
            }
        };
        let mut record = Record {
            api: "await".into(),
            wait,
            progress: progress.into(),
            runtime: "current".into(),
            window: plan.window,
            timer_ns: Some(case.timer_ns()),
            ..case.empty_record(&self)
        };
        fill_record(&[outcome], &mut record);
        Ok(record)
    }
}

impl MeasuredLibrary for CallService {
    fn name(&self) -> &str {
        match self {
            Self::NativeShm => "native shm",
            Self::NativeTcp => "native tcp",
            Self::TonicShm => "tonic fabric shm",
            Self::TonicTcp => "tonic fabric tcp",
            Self::TonicUnixStream => "tonic UnixStream",
            Self::TonicTcpStream => "tonic TcpStream",
            Self::TarpcShm => "tarpc fabric shm",
            Self::TarpcUnixStream => "tarpc UnixStream",
        }
    }

    fn unavailable(&self) -> Option<String> {
        None
    }

    fn supports(&self, case: &BenchCase) -> bool {
        case.op == BenchOp::Rpc && case.size <= self.max_size()
    }

    fn measure(&self, case: &BenchCase, stop: &Stop) -> Result<Record> {
        let plan = CallPlan {
            bench: case.bench,
            size: case.size,
            window: default_window(case.bench, case.op),
            budget: Budget::Seconds(case.time.as_secs_f64()),
            wait: WaitMode::Spin,
            cores: case.cores,
        };
        self.run(plan, stop)
    }
}

/// Measures native calls with all sizes of a checked plan; passes each result to `emit` when it is
/// there. After a stop it ends early, with the results so far.
///
/// # Errors
/// [`Error::InvalidRequest`] for a provider without native calls; the server died or failed; those
/// of `emit`.
pub(crate) fn measure_native(
    plan: &Plan,
    stop: &Stop,
    mut emit: impl FnMut(Record) -> Result<()>,
) -> Result<()> {
    let service = CallService::native(&plan.provider).ok_or_else(|| {
        let provider = &plan.provider;
        Error::InvalidRequest(format!(
            "--op rpc over {provider}: no native calls; known: shm, tcp"
        ))
    })?;
    for size in plan.sizes.iter().copied() {
        let calls = CallPlan {
            bench: plan.bench,
            size,
            window: plan.window,
            budget: plan.budget,
            wait: plan.wait,
            cores: plan.cores.first().copied().unwrap_or_default(),
        };
        let record = service.run(calls, stop)?;
        if record.samples > 0 {
            emit(record)?;
        }
        if stop.raised() {
            break;
        }
    }
    Ok(())
}

/// Runs the server process: prints its address on stdout, pins itself, and serves for ever.
///
/// # Errors
/// The endpoint or socket cannot be opened, or fails.
pub fn serve_calls(service: CallService, wait: WaitMode, core: Option<usize>) -> Result<()> {
    RuntimeKind::Current.run(async move {
        match service {
            CallService::NativeShm => native::serve("shm://", wait, core).await,
            CallService::NativeTcp => native::serve(TCP_ADDRESS, wait, core).await,
            CallService::TonicShm => over_tonic::serve_fabric("shm://", core).await,
            CallService::TonicTcp => over_tonic::serve_fabric(TCP_ADDRESS, core).await,
            CallService::TonicUnixStream => over_tonic::serve_unix(core).await,
            CallService::TonicTcpStream => over_tonic::serve_tcp(core).await,
            CallService::TarpcShm => over_tarpc::serve_fabric("shm://", core).await,
            CallService::TarpcUnixStream => over_tarpc::serve_unix(core).await,
        }
    })
}

const TCP_ADDRESS: &str = "tcp://127.0.0.1:0";

/// Pins this thread and prints the address of the server.
fn announce(address: impl std::fmt::Display, core: Option<usize>) {
    if let Some(core) = core {
        pin::pin_to_core(core);
    }
    println!("listening on {address}");
}

/// Converts the error of a framework.
fn service_error(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Io {
        what: "calling a service".into(),
        error: std::io::Error::other(error),
    }
}
