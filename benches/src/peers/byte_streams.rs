//! Byte streams: Tokio's sockets, which an async service would use without a fabric, and the
//! fabric's `FabricStream`.
//!
//! Two processes, each with a current-thread runtime, as for the fabric. The initiator sends in 24
//! bytes what a round consists of, and begins the round when the responder is ready.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use fabric_async::stream::{FabricListener, FabricStream};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::{BenchCase, MeasuredLibrary};
use crate::measure::Budget;
use crate::measure::rounds::{MeasureOutcome, RoundScheduler, fill_record};
use crate::options::{Bench, BenchOp, RuntimeKind, WaitMode, name};
use crate::peer_process::{ChildProcess, current_program};
use crate::record::Record;
use crate::samples::TimeStamps;
use crate::stop::Stop;
use crate::{Error, Result, pin};

/// What the responder does with the messages of a round.
const ECHO: u64 = 1;
const SINK: u64 = 2;
/// Replies before a round, and after the messages of a sink.
const READY: u8 = 1;
const FINISHED: u8 = 2;
/// Stands for the zero byte in front of an abstract Unix socket name, which vanishes with its
/// process, unlike a file.
const ABSTRACT_PREFIX: char = '@';

/// A kind of byte stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ByteStream {
    /// Loopback TCP with TCP_NODELAY.
    Tcp,
    /// A Unix socket.
    Unix,
    /// A `FabricStream` over shared memory.
    FabricShm,
    /// A `FabricStream` over TCP.
    FabricTcp,
}

impl MeasuredLibrary for ByteStream {
    fn name(&self) -> &str {
        match self {
            Self::Tcp => "tokio TcpStream",
            Self::Unix => "tokio UnixStream",
            Self::FabricShm => "FabricStream shm",
            Self::FabricTcp => "FabricStream tcp",
        }
    }

    fn unavailable(&self) -> Option<String> {
        None
    }

    /// A byte stream has no empty messages.
    fn supports(&self, case: &BenchCase) -> bool {
        case.op == BenchOp::Send && case.size > 0
    }

    fn measure(&self, case: &BenchCase, stop: &Stop) -> Result<Record> {
        let mut command = current_program()?;
        command.args(["echo", &name(*self)]);
        let (mut child, address) =
            pin::run_on_core(case.cores.1, || ChildProcess::start(self.name(), command))?;
        let measured = pin::run_on_core(case.cores.0, || {
            let (kind, case, stop) = (*self, *case, stop.clone());
            // As a task, like the fabric: a future that `block_on` polls itself is slower.
            RuntimeKind::Current.run(async move {
                let measured = match kind {
                    Self::Tcp => run_tcp_initiator(&address, &case, &stop).await,
                    Self::Unix => run_unix_initiator(&address, &case, &stop).await,
                    Self::FabricShm | Self::FabricTcp => {
                        run_fabric_initiator(&address, &case, &stop).await
                    }
                };
                measured.map_err(Error::io(format!("talking to {address}")))
            })
        });
        let outcome = measured.map_err(|error| child.or_death_error(error))?;
        let mut record = Record {
            api: "await".into(),
            wait: match self {
                Self::Tcp | Self::Unix => name(WaitMode::Park),
                Self::FabricShm | Self::FabricTcp => name(WaitMode::Adaptive),
            },
            runtime: "current".into(),
            timer_ns: Some(case.timer_ns()),
            ..case.empty_record(self)
        };
        fill_record(&[outcome], &mut record);
        Ok(record)
    }
}

/// Opens a TCP listener, and returns it with its address.
pub(super) async fn bind_tcp() -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// Connects to a TCP listener, with TCP_NODELAY.
pub(super) async fn connect_tcp(address: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Opens a listener in the abstract namespace, and returns it with its address.
pub(super) fn bind_unix() -> io::Result<(UnixListener, String)> {
    let address = format!("{ABSTRACT_PREFIX}fabric-bench-{}", std::process::id());
    let listener = UnixListener::bind(address.replace(ABSTRACT_PREFIX, "\0"))?;
    Ok((listener, address))
}

/// Connects to a listener of [`bind_unix`].
pub(super) async fn connect_unix(address: &str) -> io::Result<UnixStream> {
    UnixStream::connect(address.replace(ABSTRACT_PREFIX, "\0")).await
}

async fn run_tcp_initiator(
    address: &str,
    case: &BenchCase,
    stop: &Stop,
) -> io::Result<MeasureOutcome> {
    run_initiator(connect_tcp(address).await?, case, stop).await
}

async fn run_unix_initiator(
    address: &str,
    case: &BenchCase,
    stop: &Stop,
) -> io::Result<MeasureOutcome> {
    run_initiator(connect_unix(address).await?, case, stop).await
}

async fn run_fabric_initiator(
    address: &str,
    case: &BenchCase,
    stop: &Stop,
) -> io::Result<MeasureOutcome> {
    run_initiator(FabricStream::connect(address).await?, case, stop).await
}

async fn run_initiator(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    case: &BenchCase,
    stop: &Stop,
) -> io::Result<MeasureOutcome> {
    let (ping, mut pong) = (vec![7u8; case.size], vec![7u8; case.size]);
    let mut stamps = TimeStamps::new(0);
    let mut rounds = RoundScheduler::new(
        case.bench,
        Budget::Seconds(case.time.as_secs_f64()),
        case.size,
    );
    while let Some(count) = rounds.next_round(1, stop) {
        let request = if case.bench == Bench::Lat { ECHO } else { SINK };
        for field in [request, case.size as u64, count] {
            stream.write_u64(field).await?;
        }
        stamps.reserve(count as usize);
        stream.read_u8().await?;
        let began = Instant::now();
        stamps.begin();
        let elapsed: Duration = if request == ECHO {
            for _ in 0..count {
                stream.write_all(&ping).await?;
                stream.read_exact(&mut pong).await?;
                stamps.stamp();
            }
            stamps.elapsed()
        } else {
            for _ in 0..count {
                stream.write_all(&ping).await?;
            }
            stream.read_u8().await?;
            began.elapsed()
        };
        rounds.record_round(count, elapsed, &stamps);
    }
    Ok(rounds.into_outcome())
}

/// Runs the responder: prints its address on stdout, serves one connection, and ends with it.
///
/// # Errors
/// [`Error::Io`] if the socket fails.
pub fn serve_echo(kind: ByteStream) -> Result<()> {
    RuntimeKind::Current.run(async move {
        let served = match kind {
            ByteStream::Tcp => serve_tcp().await,
            ByteStream::Unix => serve_unix().await,
            ByteStream::FabricShm => serve_fabric("shm://").await,
            ByteStream::FabricTcp => serve_fabric("tcp://127.0.0.1:0").await,
        };
        served.map_err(Error::io("serving a socket"))
    })
}

async fn serve_tcp() -> io::Result<()> {
    let (listener, address) = bind_tcp().await?;
    println!("listening on {address}");
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    serve_stream(stream).await
}

async fn serve_unix() -> io::Result<()> {
    let (listener, address) = bind_unix()?;
    println!("listening on {address}");
    let (stream, _) = listener.accept().await?;
    serve_stream(stream).await
}

async fn serve_fabric(at: &str) -> io::Result<()> {
    let mut listener = FabricListener::bind(at).await?;
    println!("listening on {}", listener.local_addr());
    serve_stream(listener.accept().await?).await
}

async fn serve_stream(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let (mut ping, mut pong) = (Vec::new(), Vec::new());
    loop {
        let request = match stream.read_u64().await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        };
        let (size, count) = (stream.read_u64().await?, stream.read_u64().await?);
        ping.resize(size as usize, 7u8);
        pong.resize(size as usize, 7u8);
        stream.write_u8(READY).await?;
        for _ in 0..count {
            stream.read_exact(&mut ping).await?;
            if request == ECHO {
                stream.write_all(&pong).await?;
            }
        }
        if request == SINK {
            stream.write_u8(FINISHED).await?;
        }
    }
}
