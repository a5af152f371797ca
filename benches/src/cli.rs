//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::compare::{CompareConfig, compare, select_peers};
use crate::goals::{self, run_goals};
use crate::info::{EpTypeArg, build_hints, format_offers};
use crate::measure::{Budget, Plan, default_window, measure};
use crate::options::{
    Api, Bench, BenchOp, DomainLayout, MessageModelKind, ProgressMode, RuntimeKind,
    ThreadModelKind, WaitMode,
};
use crate::output::{Output, print};
use crate::peer_process::{PeerProcess, exit_on_stdin_eof, serve};
use crate::peers::{
    BenchCase, ByteStream, FabricLibrary, FabricUdp, MeasuredLibrary, echo_datagrams, exec_tied,
    measured_libraries, serve_echo,
};
use crate::pin::CorePinning;
use crate::siege::{self, Attack, SiegeProvider};
use crate::size::Size;
use crate::soak::soak;
use crate::stop::Stop;
use crate::{Error, Result, congestion, floor, record, report};

/// Default sizes in bytes.
const LATENCY_SIZES: &[usize] = &[8, 64, 512, 4 << 10, 64 << 10, 1 << 20];
const BANDWIDTH_SIZES: &[usize] = &[4 << 10, 64 << 10, 1 << 20];
const RATE_SIZES: &[usize] = &[8];
/// Default sizes of the arguments of calls: of short ones, and of those measured by `bw`.
const CALL_SIZES: &[usize] = &[64];
const LONG_CALL_SIZES: &[usize] = &[1 << 20];

/// Measures the fabric, the floor of this machine, and other libraries beside it.
#[derive(Debug, Parser)]
#[command(name = "fabric-bench", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The floor of this machine: times of cache lines, memory copies, wake-ups and kernel sockets
    Floor(FloorArgs),
    /// Latency: half round trips between two processes
    Lat(LatencyArgs),
    /// Bandwidth: large messages in one direction
    Bw(StreamArgs),
    /// Message rate: small messages in one direction
    Rate(StreamArgs),
    /// The fabric, libfabric, UCX and Tokio's sockets, measured in turn and repeatedly
    Compare(CompareArgs),
    /// All operations mixed; fails unless every message arrives once and memory does not grow
    Soak(SoakArgs),
    /// Attacks against a server with honest clients; fails if a client loses a request, or if the
    /// server passes a limit or does not return what it used
    Siege(SiegeArgs),
    /// One HTML page with charts, from results in JSON
    Report(ReportArgs),
    /// What the providers offer, as fi_info does
    Info(InfoArgs),
    /// The second process of a measurement
    #[command(hide = true)]
    Serve {
        #[arg(long)]
        listen: String,
    },
    /// The receiving process of a soak
    #[command(hide = true)]
    SoakReceiver {
        #[arg(long)]
        listen: String,
    },
    /// The server process of a siege
    #[command(hide = true)]
    SiegeServer {
        #[arg(long)]
        listen: String,
    },
    /// An attacking process of a siege
    #[command(hide = true)]
    SiegeAttacker {
        #[arg(long, value_enum)]
        attack: Attack,
        #[arg(long)]
        target: String,
        #[arg(long, default_value = "")]
        victim: String,
    },
    /// A process of a siege that only uses the processor
    #[command(hide = true)]
    SiegeBusy,
    /// A process of a siege that begins long messages and is killed
    #[command(hide = true)]
    SiegeSender {
        #[arg(long)]
        target: String,
    },
    /// The peer process of a measurement of byte streams
    #[command(hide = true)]
    Echo {
        #[arg(value_enum)]
        socket: ByteStream,
    },
    /// The server process of a measurement of calls
    #[cfg(feature = "rpc")]
    #[command(hide = true)]
    ServeCalls {
        #[arg(value_enum)]
        service: crate::peers::CallService,
        #[arg(long, value_enum)]
        wait: WaitMode,
        #[arg(long)]
        core: Option<usize>,
    },
    /// The peer process of a datagram measurement
    #[command(hide = true)]
    EchoDatagrams,
    /// Replaces this process by another program, which is killed when its parent ends
    #[command(hide = true)]
    ExecTied {
        #[arg(long)]
        parent: u32,
        #[arg(long)]
        core: Option<usize>,
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// The peer process of an iceoryx2 measurement
    #[cfg(feature = "iceoryx2")]
    #[command(hide = true)]
    EchoIceoryx2 { name: String, size: usize },
}

#[derive(Debug, Args)]
struct FloorArgs {
    /// Cores of the two sides: auto, none (any core), or two numbers
    #[arg(long, default_value = "auto", value_name = "auto|none|A,B")]
    pin: CorePinning,
    /// One JSON object per line instead of a table
    #[arg(long)]
    json: bool,
}

/// Options that the connecting side sends to the listening one.
const CONFLICTS_WITH_LISTEN: [&str; 22] = [
    "provider",
    "op",
    "size",
    "api",
    "wait",
    "progress",
    "runtime",
    "threading",
    "msg_model",
    "threads",
    "peers",
    "endpoints",
    "fan_in",
    "domains",
    "iters",
    "seconds",
    "pin",
    "connect",
    "json",
    "single_copy_threshold",
    "idle",
    "congestion",
];

#[derive(Debug, Args)]
struct MeasureArgs {
    /// The provider
    #[arg(long, default_value = "shm")]
    provider: String,
    /// The operation to measure
    #[arg(long, value_enum, default_value = "send")]
    op: BenchOp,
    /// Message sizes, for example 8,64KiB,1MiB
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "LIST",
        allow_negative_numbers = true
    )]
    size: Vec<Size>,
    /// How the application takes completions
    #[arg(long, value_enum, default_value = "await")]
    api: Api,
    /// The wait policy
    #[arg(long, value_enum, default_value = "spin")]
    wait: WaitMode,
    /// The progress model
    #[arg(long, value_enum, default_value = "manual")]
    progress: ProgressMode,
    /// The Tokio runtime of each measuring thread
    #[arg(long, value_enum, default_value = "current")]
    runtime: RuntimeKind,
    /// The thread model: which threads may use a domain
    #[arg(long, value_enum, default_value = "shared")]
    threading: ThreadModelKind,
    /// The message model: whether latency or bandwidth matters more
    #[arg(long, value_enum, default_value = "default")]
    msg_model: MessageModelKind,
    /// Measuring threads, each with a domain of its own
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    threads: usize,
    /// Endpoints on the other side, for each endpoint of this side
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    peers: usize,
    /// Endpoints of this side in each thread, each used by a task of its own
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    endpoints: usize,
    /// All endpoints of a thread talk with one endpoint of the other side
    #[arg(long)]
    fan_in: bool,
    /// The domains of the endpoints of a thread, on both sides
    #[arg(long, value_enum, default_value = "one")]
    domains: DomainLayout,
    /// Messages or round trips for each size and thread, rounded up to a multiple of --endpoints
    /// times --peers
    #[arg(
        long,
        conflicts_with = "seconds",
        value_parser = clap::value_parser!(u64).range(1..),
        allow_negative_numbers = true
    )]
    iters: Option<u64>,
    /// Seconds for each size
    #[arg(long, default_value_t = 1.5, value_parser = parse_seconds, allow_negative_numbers = true)]
    seconds: f64,
    /// Length from which messages are copied once (process_vm_readv), for example 64KiB; the
    /// provider's default if omitted
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true)]
    single_copy_threshold: Option<Size>,
    /// Connected but idle endpoints on the other side, for each thread
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    idle: usize,
    /// Congestion control of tcp connections; the provider's default if omitted
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// Cores: auto, none (any core), or numbers, in turn for this side and the other
    #[arg(long, default_value = "auto", value_name = "auto|none|A,B,..")]
    pin: CorePinning,
    /// Serve one measurement at this address; all options come from the connecting side
    #[arg(long, value_name = "ADDR", conflicts_with_all = CONFLICTS_WITH_LISTEN)]
    listen: Option<String>,
    /// Measure against the process started with --listen at this address
    #[arg(long, value_name = "ADDR")]
    connect: Option<String>,
    /// One JSON object per line instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct LatencyArgs {
    #[command(flatten)]
    measure: MeasureArgs,
    /// Endpoints of each thread that stream messages of the same size meanwhile, in the domain of
    /// the measured ones
    #[arg(
        long,
        default_value_t = 0,
        allow_negative_numbers = true,
        conflicts_with = "listen"
    )]
    streams: usize,
}

#[derive(Debug, Args)]
struct StreamArgs {
    #[command(flatten)]
    measure: MeasureArgs,
    /// Messages or calls in flight; has no effect with --op inject. 32 if omitted; with --op rpc 64
    /// for rates, and 1 for bandwidth
    #[arg(long, allow_negative_numbers = true, conflicts_with = "listen")]
    window: Option<usize>,
}

#[derive(Debug, Args)]
struct SoakArgs {
    /// The provider
    #[arg(long, default_value = "shm")]
    provider: String,
    /// Duration in seconds
    #[arg(long, default_value = "60", value_parser = parse_seconds, allow_negative_numbers = true)]
    seconds: f64,
}

#[derive(Debug, Args)]
struct SiegeArgs {
    /// The providers to attack, in turn; all if omitted
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    provider: Vec<SiegeProvider>,
    /// Only these attacks; all if omitted
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    attack: Vec<Attack>,
    /// Duration in seconds, divided equally among the providers. Of each provider's time, one part
    /// is a slice without attackers, one part a slice for each attack, and two parts a slice with
    /// all attacks at once. After each slice the server has up to 3 seconds more to return what it
    /// used
    #[arg(long, default_value = "60", value_parser = parse_seconds, allow_negative_numbers = true)]
    seconds: f64,
}

#[derive(Debug, Args)]
struct CompareArgs {
    /// The provider of the fabric
    #[arg(long, default_value = "shm")]
    provider: String,
    /// The operation to compare; peers without an equivalent are left out
    #[arg(long, value_enum, default_value_t = BenchOp::Send)]
    op: BenchOp,
    /// Fewer sizes and shorter runs: less than three minutes
    #[arg(long)]
    quick: bool,
    /// Only the goals of this provider, and whether they are met
    #[arg(long, conflicts_with_all = ["op", "quick", "size", "peer", "json"])]
    goals: bool,
    /// Sizes of messages in bytes, for latencies and streams alike
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "LIST",
        allow_negative_numbers = true
    )]
    size: Vec<Size>,
    /// Only peers whose name contains one of these, ignoring case
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    peer: Vec<String>,
    /// How often each measurement is repeated
    #[arg(
        long,
        value_parser = clap::value_parser!(u16).range(1..=100),
        allow_negative_numbers = true
    )]
    repeat: Option<u16>,
    /// Seconds of one measurement
    #[arg(long, value_parser = parse_seconds, allow_negative_numbers = true)]
    seconds: Option<f64>,
    /// Cores of the two sides: auto, none (any core), or two numbers
    #[arg(long, default_value = "auto", value_name = "auto|none|A,B")]
    pin: CorePinning,
    /// One JSON object per line for every run, instead of tables
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ReportArgs {
    /// Files with the output that other commands print with --json
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The HTML file to write
    #[arg(short, long, default_value = "fabric-bench.html")]
    output: PathBuf,
}

#[derive(Debug, Args)]
struct InfoArgs {
    /// All attributes
    #[arg(short, long)]
    verbose: bool,
    /// Only this provider
    #[arg(short, long)]
    provider: Option<String>,
    /// Only endpoints of this type
    #[arg(short = 't', long, value_enum)]
    ep_type: Option<EpTypeArg>,
    /// Only offers with these capabilities, for example msg,tagged
    #[arg(short, long, value_name = "LIST")]
    caps: Option<String>,
}

impl Cli {
    /// Runs the command.
    ///
    /// # Errors
    /// Those of the command.
    pub fn run(self) -> Result<()> {
        match self.command {
            Command::Floor(args) => {
                let (stop, mut output) = (Stop::on_ctrl_c()?, Output::new(args.json));
                floor::measure(&args.pin, &stop, |record| output.emit(&record))?;
                stop.check()
            }
            Command::Lat(args) => args.measure.run(Bench::Lat, Some(1), args.streams),
            Command::Bw(args) => args.measure.run(Bench::Bw, args.window, 0),
            Command::Rate(args) => args.measure.run(Bench::Rate, args.window, 0),
            Command::Compare(args) => args.run(),
            Command::Report(args) => {
                let mut records = Vec::new();
                for file in &args.files {
                    records.extend(record::read(file)?);
                }
                let address = args.output.display();
                std::fs::write(&args.output, report::render_page(&records)?)
                    .map_err(Error::io(format!("writing {address}")))?;
                print(&format!("{address} shows {} results", records.len()))
            }
            Command::Info(args) => {
                let hints =
                    build_hints(args.provider.as_deref(), args.ep_type, args.caps.as_deref())?;
                let offers = fabric_async::discover(&hints)?;
                print(format_offers(&offers, args.verbose).trim_end())
            }
            Command::Soak(args) => {
                let stop = Stop::on_ctrl_c()?;
                soak(&args.provider, Duration::from_secs_f64(args.seconds), &stop)
            }
            Command::SoakReceiver { listen } => {
                exit_on_stdin_eof()?;
                crate::soak::serve_soak(&listen)
            }
            Command::Siege(args) => {
                let (stop, time) = (Stop::on_ctrl_c()?, Duration::from_secs_f64(args.seconds));
                siege::siege(&args.provider, &args.attack, time, &stop)
            }
            Command::SiegeServer { listen } => {
                exit_on_stdin_eof()?;
                siege::serve_siege(&listen)
            }
            // Ends by itself when its stdin ends, after it has printed what it did.
            Command::SiegeAttacker {
                attack,
                target,
                victim,
            } => siege::run_attack(attack, &target, &victim),
            Command::SiegeBusy => siege::run_busy_process(),
            Command::SiegeSender { target } => {
                exit_on_stdin_eof()?;
                siege::begin_long_messages(&target)
            }
            Command::Serve { listen } => {
                exit_on_stdin_eof()?;
                serve(&listen)
            }
            Command::Echo { socket } => {
                exit_on_stdin_eof()?;
                serve_echo(socket)
            }
            #[cfg(feature = "rpc")]
            Command::ServeCalls {
                service,
                wait,
                core,
            } => {
                exit_on_stdin_eof()?;
                crate::peers::serve_calls(service, wait, core)
            }
            Command::EchoDatagrams => {
                exit_on_stdin_eof()?;
                echo_datagrams()
            }
            Command::ExecTied {
                parent,
                core,
                command,
            } => exec_tied(parent, core, &command),
            #[cfg(feature = "iceoryx2")]
            Command::EchoIceoryx2 { name, size } => {
                exit_on_stdin_eof()?;
                crate::peers::echo_iceoryx2(&name, size)
            }
        }
    }
}

impl CompareArgs {
    fn run(self) -> Result<()> {
        let stop = Stop::on_ctrl_c()?;
        if self.goals {
            goals::check_provider(&self.provider)?;
            return self.goals(&stop);
        }
        let requested: Vec<usize> = self.size.iter().map(|size| size.0).collect();
        let (latencies, streams, repeat, time) = match self.quick {
            true => (vec![8, 4 << 10, 64 << 10], vec![64 << 10], 3, 0.4),
            false => (
                LATENCY_SIZES.to_vec(),
                [RATE_SIZES, BANDWIDTH_SIZES].concat(),
                5,
                1.0,
            ),
        };
        let is_calls = self.op == BenchOp::Rpc;
        let (latencies, streams) = match is_calls {
            true => (CALL_SIZES.to_vec(), LONG_CALL_SIZES.to_vec()),
            false => (latencies, streams),
        };
        let requested = if self.op == BenchOp::Atomic && requested.is_empty() {
            vec![8]
        } else {
            requested
        };
        let or_default = |sizes| {
            if requested.is_empty() {
                sizes
            } else {
                requested.clone()
            }
        };
        let config = CompareConfig {
            op: self.op,
            latencies: or_default(latencies),
            rates: match is_calls {
                true => or_default(CALL_SIZES.to_vec()),
                false => Vec::new(),
            },
            streams: or_default(streams),
            repeat: self.repeat.unwrap_or(repeat).into(),
            time: Duration::from_secs_f64(self.seconds.unwrap_or(time)),
            pin: self.pin.clone(),
        };
        self.check(&config)?;
        let libraries = measured_libraries(&self.provider, self.op);
        let peers = select_peers(libraries, self.op, &self.peer)?;
        compare(&peers, &config, self.json, &stop)?;
        let everything = self.size.is_empty() && self.peer.is_empty() && self.op == BenchOp::Send;
        if !self.json {
            congestion::describe(&self.provider, None).map_or(Ok(()), |note| print(&note))?;
        }
        if everything && !self.quick && !self.json && goals::check_provider(&self.provider).is_ok()
        {
            self.goals(&stop)?;
        }
        Ok(())
    }

    /// Checks that the fabric can be measured with this configuration.
    fn check(&self, config: &CompareConfig) -> Result<()> {
        let (op, time, cores) = (config.op, config.time, config.pin.worker_cores(0));
        let case = |bench, size| BenchCase {
            bench,
            op,
            size,
            time,
            cores,
        };
        if self.provider == "udp" {
            let is_unsupported = |size: &&Size| !FabricUdp.supports(&case(Bench::Lat, size.0));
            return match self.size.iter().find(is_unsupported) {
                _ if op != BenchOp::Send => Err(Error::InvalidRequest(
                    "only --op send is measured over udp".into(),
                )),
                Some(size) => Err(Error::InvalidRequest(format!(
                    "messages of {size} do not fit into a datagram (at most 1472 bytes)"
                ))),
                None => Ok(()),
            };
        }
        let fabric = FabricLibrary::new(&self.provider);
        for (bench, sizes) in [
            (Bench::Lat, &config.latencies),
            (Bench::Bw, &config.streams),
        ] {
            let plan = fabric.plan(&case(bench, sizes.iter().copied().max().unwrap_or(0)));
            plan.check()?;
        }
        Ok(())
    }

    fn goals(&self, stop: &Stop) -> Result<()> {
        let time = Duration::from_secs_f64(self.seconds.unwrap_or(0.4));
        run_goals(
            &self.provider,
            self.repeat.unwrap_or(3).into(),
            time,
            &self.pin,
            stop,
        )
    }
}

impl MeasureArgs {
    fn run(self, bench: Bench, window: Option<usize>, streams: usize) -> Result<()> {
        if let Some(address) = &self.listen {
            return serve(address);
        }
        let (stop, mut output, connect) = (
            Stop::on_ctrl_c()?,
            Output::new(self.json),
            self.connect.clone(),
        );
        let window = window.unwrap_or_else(|| default_window(bench, self.op));
        let plan = self.plan(bench, window, streams)?;
        #[cfg(feature = "rpc")]
        if plan.op == BenchOp::Rpc {
            return match connect {
                Some(_) => Err(Error::InvalidRequest(
                    "--op rpc starts its server itself: leave out --connect".into(),
                )),
                None => measure_calls(&plan, &stop, &mut output),
            };
        }
        let mut peer_process = match connect {
            Some(address) => PeerProcess::connect(&address)?,
            None => PeerProcess::start(&plan.provider)?,
        };
        let (mut floor, mut timer, mut idle) = (None, 0.0, None);
        measure(&plan, &mut peer_process, &stop, |record| {
            floor = floor.max(Some(record.floor_ns.is_some()));
            timer = record.timer_ns.unwrap_or_default();
            idle = idle.or(record.idle_bytes);
            output.emit(&record)
        })?;
        stop.check()?;
        if let Some(note) = congestion::describe(&plan.provider, plan.congestion.as_deref()) {
            output.note(&note)?;
        }
        if let Some(bytes) = idle {
            let kib = bytes / 1024.0;
            output.note(&format!(
                "Each of {} idle connections takes {kib:.1} KiB of this process.",
                plan.idle
            ))?;
        }
        output.note(&match bench {
            Bench::Lat => {
                let floor = match floor {
                    Some(false) => {
                        "Both sides share a core: there is no floor, and a spinning side waits \
                         for the scheduler."
                    }
                    _ => "The floor is a cache line from core to core and one copy of the message.",
                };
                let half = timer / 2.0;
                format!(
                    "Reading the clock takes {timer:.0} ns, once in each round trip: {half:.0} ns \
                     of each half.\n{floor}"
                )
            }
            Bench::Bw | Bench::Rate => {
                format!(
                    "Reading the clock takes {timer:.0} ns, twice in each round of many messages."
                )
            }
        })
    }

    fn plan(self, bench: Bench, window: usize, streams: usize) -> Result<Plan> {
        let sizes: Vec<usize> = match (self.size.is_empty(), bench) {
            (false, _) => self.size.iter().map(|size| size.0).collect(),
            (true, Bench::Lat | Bench::Rate) if self.op == BenchOp::Rpc => CALL_SIZES.to_vec(),
            (true, Bench::Bw) if self.op == BenchOp::Rpc => LONG_CALL_SIZES.to_vec(),
            (true, Bench::Lat) => LATENCY_SIZES.to_vec(),
            (true, Bench::Bw) => BANDWIDTH_SIZES.to_vec(),
            (true, Bench::Rate) => RATE_SIZES.to_vec(),
        };
        let uses_default_sizes = self.size.is_empty();
        let mut plan = Plan {
            bench,
            provider: self.provider,
            op: self.op,
            api: self.api,
            wait: self.wait,
            progress: self.progress,
            runtime: self.runtime,
            threading: self.threading,
            msg_model: self.msg_model,
            window,
            peers: self.peers,
            endpoints: self.endpoints,
            fan_in: self.fan_in,
            domains: self.domains,
            streams,
            threads: self.threads,
            budget: self
                .iters
                .map_or(Budget::Seconds(self.seconds), Budget::Messages),
            single_copy_threshold: self.single_copy_threshold.map(|size| size.0),
            idle: self.idle,
            congestion: self.congestion,
            sizes,
            cores: (0..self.threads)
                .map(|worker| self.pin.worker_cores(worker))
                .collect(),
        };
        if uses_default_sizes {
            plan.drop_oversized()?;
        }
        plan.check()?;
        Ok(plan)
    }
}

/// Measures native calls, and prints the results with notes.
#[cfg(feature = "rpc")]
fn measure_calls(plan: &Plan, stop: &Stop, output: &mut Output) -> Result<()> {
    let mut timer = 0.0;
    crate::peers::measure_native(plan, stop, |record| {
        timer = record.timer_ns.unwrap_or_default();
        output.emit(&record)
    })?;
    stop.check()?;
    if let Some(note) = congestion::describe(&plan.provider, None) {
        output.note(&note)?;
    }
    let readings = match plan.bench {
        Bench::Lat => "once in each call",
        Bench::Bw | Bench::Rate => "twice in each round of many calls",
    };
    output.note(&format!(
        "Reading the clock takes {timer:.0} ns, {readings}."
    ))
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds: Option<f64> = text.parse().ok();
    seconds
        .filter(|seconds| (0.001..=3600.0).contains(seconds))
        .ok_or_else(|| format!("{text:?} is not a number of seconds between 0.001 and 3600"))
}
