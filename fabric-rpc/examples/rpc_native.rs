//! Native calls, and the same calls with tonic over the socket that the fabric replaces.
//!
//! `cargo run --release -p fabric-rpc --features native,tonic --example rpc_native`, or with
//! `-- --provider tcp` over TCP
//!
//! The program starts itself a second time as the client, which measures the native calls first and
//! then those of tonic, because over shared memory the native server spins. So each process has a
//! core of its own.

#[allow(dead_code)] // not every example uses all of it
mod common;
mod echo;

use std::convert::Infallible;
use std::time::{Duration, Instant};

use common::{Link, Result, Socket};
use echo::{EchoClient, EchoServer, Message};
use fabric_async::{Endpoint, WaitPolicy};
use fabric_rpc::native::{Client, Request, Response, Server};
use futures_util::future::try_join_all;
use futures_util::stream;
use hyper_util::rt::TokioIo;
use rustix::thread::CpuSet;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;

const ECHO: u32 = 1;
const MEASURE: u32 = 2;
const STOP: u32 = 3;

const SMALL: usize = 64;
const LARGE: usize = 1 << 20;
const IN_FLIGHT: usize = 64;

/// Each rate is the median of several turns.
const TURNS: usize = 5;
const TURN: Duration = Duration::from_millis(70);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    match common::role("rpc_native") {
        common::Role::Server { provider } => serve(&provider).await,
        common::Role::Client { fabric, socket } => run_client(&fabric, &socket).await,
    }
}

/// Takes the first or the last core that this process may use. Called after the first domain is
/// open, because a process with one core does not spin.
fn take_core(is_first: bool) -> Result<()> {
    let allowed = rustix::thread::sched_getaffinity(None)?;
    let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
    let core = if is_first {
        cores.next()
    } else {
        cores.next_back()
    };
    let mut own = CpuSet::new();
    own.set(core.expect("a core"));
    Ok(rustix::thread::sched_setaffinity(None, &own)?)
}

fn wait_policy(address: &str) -> Result<WaitPolicy> {
    let cores = std::thread::available_parallelism()?.get();
    Ok(if address.contains("shm") && cores > 1 {
        WaitPolicy::Spin
    } else {
        WaitPolicy::Adaptive
    })
}

async fn serve(provider: &str) -> Result<()> {
    let socket = Socket::bind(provider).await?;
    let server_name = format!("{provider}://");
    let options = Endpoint::options().wait_policy(wait_policy(provider)?);
    let server = Server::builder().endpoint_options(options);
    let server = server.bind(server_name).await?;
    let mut client = common::start_client(&server.name().to_string(), &socket.address())?;
    // The client has inherited all cores.
    take_core(true)?;

    let stop = std::sync::Arc::new(Notify::new());
    let on_stop = stop.clone();
    let handler = tower::service_fn(move |request: Request| {
        let response = match request.method {
            ECHO => Response::new(request.body),
            MEASURE => {
                // The argument is read where the client wrote it.
                let mut last = [0];
                let len = request.body.len();
                let read = request
                    .body
                    .as_loaned()
                    .map(|arg| arg.read_at(len - 1, &mut last));
                assert_eq!((read, last), (Some(1), [7]));
                Response::new((len as u64).to_le_bytes().to_vec())
            }
            _ => {
                on_stop.notify_one();
                Response::default()
            }
        };
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let ended = client.ended();
    server
        .serve_with_shutdown(handler, async {
            tokio::select! {
                () = stop.notified() => {}
                () = ended => {}
            }
        })
        .await?;

    let tonic = tonic::transport::Server::builder().add_service(EchoServer);
    let ended = client.ended();
    match socket {
        Socket::Unix(listener, _) => {
            let accepts = stream::poll_fn(move |cx| {
                listener
                    .poll_accept(cx)
                    .map(|accepted| Some(accepted.map(|(io, _)| io)))
            });
            tonic.serve_with_incoming_shutdown(accepts, ended).await?;
        }
        Socket::Tcp(listener) => {
            let accepts = stream::poll_fn(move |cx| {
                listener.poll_accept(cx).map(|accepted| {
                    let stream = accepted.and_then(|(io, _)| io.set_nodelay(true).map(|()| io));
                    Some(stream)
                })
            });
            tonic.serve_with_incoming_shutdown(accepts, ended).await?;
        }
    }
    client.wait().await
}

async fn run_client(fabric: &str, socket: &str) -> Result<()> {
    let options = Endpoint::options().wait_policy(wait_policy(fabric)?);
    let client = Client::builder(fabric).endpoint_options(options);
    let client = client.connect().await?;
    take_core(false)?;
    let payload = bytes::Bytes::from(vec![7; SMALL]);
    let reply = client.call(Request::new(ECHO, payload.clone())).await?;
    assert_eq!(reply.body.into_bytes(), payload, "the echo differs");

    let echo = || async {
        client.call(Request::new(ECHO, payload.clone())).await?;
        Ok(())
    };
    let native_one = median_rate(1, echo).await?;
    let native_many = median_rate(IN_FLIGHT, echo).await?;
    let native_bulk = median_rate(1, || async {
        let mut argument = client.lend(LARGE).await?;
        argument.fill(7);
        let reply = client.call(Request::new(MEASURE, argument)).await?;
        assert_eq!(reply.body.into_bytes(), (LARGE as u64).to_le_bytes()[..]);
        Ok(())
    })
    .await?;
    client.call(Request::new(STOP, "")).await?;
    drop(client);

    let client = connect_tonic(&Link::socket(socket)).await?;
    let message = Message { payload };
    let echo = || async {
        client.clone().unary(message.clone()).await?;
        Ok(())
    };
    let tonic_one = median_rate(1, echo).await?;
    let tonic_many = median_rate(IN_FLIGHT, echo).await?;
    let tonic_bulk = median_rate(1, || async {
        let payload = vec![7; LARGE].into();
        let reply = client.clone().measure(Message { payload }).await?;
        assert_eq!(reply.into_inner().len, LARGE as u64);
        Ok(())
    })
    .await?;

    for (what, native, tonic) in [
        ("calls of 64 B, one at a time", native_one, tonic_one),
        ("calls of 64 B, 64 in flight", native_many, tonic_many),
        ("calls with an argument of 1 MiB", native_bulk, tonic_bulk),
    ] {
        println!(
            "{what}: {native:.0} calls/s native ({:.2} us each), {tonic:.0} with tonic: \
             {:.1} times",
            1e6 / native,
            native / tonic
        );
    }
    Ok(())
}

/// Makes calls, as many at a time, and returns the median rate in calls per second.
async fn median_rate<F: Future<Output = Result<()>>>(
    callers: usize,
    call: impl Fn() -> F,
) -> Result<f64> {
    let mut rates = Vec::new();
    for _ in 0..TURNS {
        let began = Instant::now();
        let counts = try_join_all((0..callers).map(|_| async {
            let mut calls = 0;
            while began.elapsed() < TURN {
                call().await?;
                calls += 1;
            }
            Result::Ok(calls)
        }))
        .await?;
        let calls: u32 = counts.into_iter().sum();
        rates.push(f64::from(calls) / began.elapsed().as_secs_f64());
    }
    rates.sort_by(f64::total_cmp);
    Ok(rates[TURNS / 2])
}

async fn connect_tonic(link: &Link) -> Result<EchoClient> {
    let endpoint = tonic::transport::Endpoint::from_static("http://echo");
    let link = link.clone();
    let channel = match link {
        Link::Tcp(address) => {
            let connector = tower::service_fn(move |_: http::Uri| {
                let address = address.clone();
                async move {
                    let stream = TcpStream::connect(address).await?;
                    stream.set_nodelay(true)?;
                    std::io::Result::Ok(TokioIo::new(stream))
                }
            });
            endpoint.connect_with_connector(connector).await?
        }
        Link::Unix(name) | Link::Fabric(name) => {
            let connector = tower::service_fn(move |_: http::Uri| {
                let name = name.clone();
                async move { UnixStream::connect(name).await.map(TokioIo::new) }
            });
            endpoint.connect_with_connector(connector).await?
        }
    };
    Ok(EchoClient::new(channel))
}
