//! Tokio's sockets: what an async service would use without a fabric.
//!
//! Two processes, each with a current-thread runtime, as for the fabric. The measuring side says in
//! 24 bytes what a round is made of, and begins it when the other side is ready.

use std::io;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::{Case, Peer};
use crate::choice::{Bench, Op, Runtime, name};
use crate::measure::Budget;
use crate::measure::rounds::{Outcome, Rounds, describe};
use crate::pair::{Child, program};
use crate::record::Record;
use crate::samples::Stamps;
use crate::stop::Stop;
use crate::{Error, Result, pin};

/// What the other side is to do with the messages of a round.
const ECHO: u64 = 1;
const SINK: u64 = 2;
/// What it says before, and after the messages of a sink.
const READY: u8 = 1;
const FINISHED: u8 = 2;
/// A Unix socket has a name that ends with its process: as a file it would stay. The zero byte in
/// front is written so.
const ABSTRACT: char = '@';

/// A kind of socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sockets {
    /// Loopback TCP without delay.
    Tcp,
    /// A Unix socket.
    Unix,
}

impl Peer for Sockets {
    fn name(&self) -> &str {
        match self {
            Self::Tcp => "tokio TcpStream",
            Self::Unix => "tokio UnixStream",
        }
    }

    fn missing(&self) -> Option<String> {
        None
    }

    /// Nothing at all is no message on a stream of bytes.
    fn measures(&self, case: &Case) -> bool {
        case.op == Op::Send && case.size > 0
    }

    fn measure(&self, case: &Case, stop: &Stop) -> Result<Record> {
        let mut command = program()?;
        command.args(["echo", &name(*self)]);
        let (mut child, at) = pin::on(case.cores.1, || Child::start(self.name(), command))?;
        let measured = pin::on(case.cores.0, || {
            let (kind, case, stop) = (*self, *case, stop.clone());
            // As a task, as the fabric is measured: the future that `block_on` polls itself is
            // slower.
            Runtime::Current.run(async move {
                let measured = match kind {
                    Self::Tcp => near_tcp(&at, &case, &stop).await,
                    Self::Unix => near_unix(&at, &case, &stop).await,
                };
                measured.map_err(Error::io(format!("talking to {at}")))
            })
        });
        let outcome = measured.map_err(|error| child.explain(error))?;
        let mut record = Record {
            api: "await".into(),
            wait: "park".into(),
            runtime: "current".into(),
            timer_ns: Some(case.timer_ns()),
            ..case.record(self)
        };
        describe(&[outcome], &mut record);
        Ok(record)
    }
}

async fn near_tcp(at: &str, case: &Case, stop: &Stop) -> io::Result<Outcome> {
    let stream = TcpStream::connect(at).await?;
    stream.set_nodelay(true)?;
    near(stream, case, stop).await
}

async fn near_unix(at: &str, case: &Case, stop: &Stop) -> io::Result<Outcome> {
    near(
        UnixStream::connect(at.replace(ABSTRACT, "\0")).await?,
        case,
        stop,
    )
    .await
}

async fn near(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    case: &Case,
    stop: &Stop,
) -> io::Result<Outcome> {
    let (ping, mut pong) = (vec![7u8; case.size], vec![7u8; case.size]);
    let mut stamps = Stamps::new(0);
    let mut rounds = Rounds::new(
        case.bench,
        Budget::Seconds(case.time.as_secs_f64()),
        case.size,
    );
    while let Some(count) = rounds.next(1, stop) {
        let what = if case.bench == Bench::Lat { ECHO } else { SINK };
        for number in [what, case.size as u64, count] {
            stream.write_u64(number).await?;
        }
        stamps.reserve(count as usize);
        stream.read_u8().await?;
        let began = Instant::now();
        stamps.begin();
        let took: Duration = if what == ECHO {
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
        rounds.ended(count, took, &stamps);
    }
    Ok(rounds.outcome())
}

/// The other side: says on stdout where it listens, serves one connection, and ends with it.
///
/// # Errors
/// The socket cannot be made.
pub fn echo(kind: Sockets) -> Result<()> {
    Runtime::Current.run(async move {
        let served = match kind {
            Sockets::Tcp => far_tcp().await,
            Sockets::Unix => far_unix().await,
        };
        served.map_err(Error::io("serving a socket"))
    })
}

async fn far_tcp() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on {}", listener.local_addr()?);
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    far(stream).await
}

async fn far_unix() -> io::Result<()> {
    let name = format!("{ABSTRACT}fabric-bench-{}", std::process::id());
    let listener = UnixListener::bind(name.replace(ABSTRACT, "\0"))?;
    println!("listening on {name}");
    let (stream, _) = listener.accept().await?;
    far(stream).await
}

async fn far(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let (mut ping, mut pong) = (Vec::new(), Vec::new());
    loop {
        let what = match stream.read_u64().await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        };
        let (size, count) = (stream.read_u64().await?, stream.read_u64().await?);
        ping.resize(size as usize, 7u8);
        pong.resize(size as usize, 7u8);
        stream.write_u8(READY).await?;
        for _ in 0..count {
            stream.read_exact(&mut ping).await?;
            if what == ECHO {
                stream.write_all(&pong).await?;
            }
        }
        if what == SINK {
            stream.write_u8(FINISHED).await?;
        }
    }
}
