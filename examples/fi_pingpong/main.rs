//! A peer for libfabric's own `fi_pingpong`, as server or client, over the native protocol of its
//! tcp provider, over RXM, or over its udp provider.
//!
//! ```text
//! cargo run --release --example fi_pingpong -- -c           # server; the client, anywhere:
//! fi_pingpong -p net -e rdm -c SERVER                       # libfabric 1.16 and 1.17 (Debian 12)
//! fi_pingpong -p tcp -e rdm -c SERVER                       # 1.18 and later: native protocol
//!                                                           # until 1.17: RXM, accepted too
//!
//! fi_pingpong -p net -e rdm -c -m tagged                    # server; the client:
//! cargo run --release --example fi_pingpong -- -c -m tagged SERVER
//!
//! cargo run --release --example fi_pingpong -- -c -e msg    # connected endpoints; the client:
//! fi_pingpong -p tcp -e msg -c SERVER                       # any libfabric
//! ```
//!
//! ```text
//! cargo run --release --example fi_pingpong -- -c -e dgram  # datagrams; the client:
//! fi_pingpong -p udp -e dgram -c SERVER                     # any libfabric
//!
//! fi_pingpong -p udp -e dgram -d lo -c                      # server at 127.0.0.1; the client:
//! cargo run --release --example fi_pingpong -- -c -e dgram 127.0.0.1
//! ```
//!
//! Tests run twelve combinations: connected endpoints; RDM endpoints, with and without tags, over
//! the native protocol and over RXM; and datagrams; each with either program as the server.
//! Datagrams have sizes up to 1472 bytes.
//!
//! Options are those of `fi_pingpong`; `-h` lists them. Both sides need the same `-e`, `-I`, `-S`,
//! `-m` and `-c`.
//!
//! # Protocol
//!
//! There are two connections: a control connection (`control.rs`), and the fabric's. The server
//! listens for the former on port 47592. First each side sends the address of its endpoint, the
//! server before the client; with connected endpoints only the server does, and the client
//! connects. Then, for each size, the client asks whether the server is ready; a message goes to
//! the server and one comes back, as often as agreed; and the client sends the number of messages.
//! At the end each side sends the message `fin` over the fabric. libfabric's program requests an
//! acknowledgement of it and waits for that, which the provider sends. Messages have the tag 1234
//! or none.

mod control;
mod data;
mod options;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use fabric_async::ops::{RecvOp, SendOp};
use fabric_async::{
    Address, ConnectedEndpoint, Endpoint, EpType, FiAddr, Info, Operation, PassiveEndpoint, Request,
};

use control::Control;
use data::Pattern;
use options::{Options, ParsedArgs};

/// Errors are only printed.
type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// The tag of tagged messages.
const TAG: u64 = 1234;
/// The last message, with a terminating zero.
const FIN: &[u8] = b"fin\0";

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(ParsedArgs::Run(options)) => options,
        Ok(ParsedArgs::Help) => {
            println!("{}", options::USAGE);
            return ExitCode::SUCCESS;
        }
        Err(reason) => {
            eprintln!("fi_pingpong: {reason}\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime
        .map_err(Into::into)
        .and_then(|runtime| runtime.block_on(run(&options)))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fi_pingpong: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: &Options) -> Result<()> {
    let mut control = match &options.server {
        Some(server) => Control::connect(server, options).await?,
        None => Control::accept(options).await?,
    };
    let ep = if options.ep_type == EpType::Msg {
        FabricEndpoint::Connected(open_msg(&mut control).await?)
    } else {
        let (ep, peer) = open_rdm(&mut control, options).await?;
        FabricEndpoint::Connectionless(ep, peer)
    };
    // Longer messages do not fit into one datagram.
    let limit = ep.info().ep.max_msg_size;
    let sizes = options.sizes.iter().copied().filter(|size| *size <= limit);
    let sizes: Vec<_> = sizes.collect();
    let longest = sizes
        .iter()
        .max()
        .ok_or_else(|| format!("all sizes exceed the limit of {limit} bytes per message"))?;
    let room = FIN.len().max(*longest);
    let mut pingpong = PingPong::new(ep, options, room)?;
    println!(
        "{:<8}{:<8}{:<9}{:<9}{:>7}{:>11}{:>13}{:>12}",
        "bytes", "#sent", "#ack", "total", "time", "MB/sec", "usec/xfer", "Mxfers/sec"
    );
    for size in sizes {
        control.sync().await?;
        let time = pingpong
            .run_round(control.is_client(), size, options.iterations)
            .await?;
        let acknowledged = control.exchange_count(options.iterations).await?;
        print_row(size, options.iterations, acknowledged, time);
    }
    pingpong.finish().await
}

/// Opens endpoints that exchange their addresses.
async fn open_rdm(control: &mut Control, options: &Options) -> Result<(Endpoint, FiAddr)> {
    // Receives match peers by source address, so the endpoint needs the address of the route to the
    // peer.
    let (ep, peer_address) = if control.is_client() {
        let peer_address = control.recv_address().await?;
        let ep = bind(control::local_ip_for(peer_address)?, options).await?;
        control.send_address(address_of(ep.name())?).await?;
        (ep, peer_address)
    } else {
        let ep = bind(control.local_ip()?, options).await?;
        control.send_address(address_of(ep.name())?).await?;
        (ep, control.recv_address().await?)
    };
    let peer_address = Address::from_socket_addr(ep.name().scheme(), peer_address)?;
    let peer = ep.address_vector().insert(&peer_address)?;
    Ok((ep, peer))
}

/// Opens connected endpoints.
async fn open_msg(control: &mut Control) -> Result<ConnectedEndpoint> {
    if control.is_client() {
        let to = format!("tcp://{}", control.recv_address().await?);
        Ok(ConnectedEndpoint::connect(to).await?)
    } else {
        let mut listener =
            PassiveEndpoint::bind(format!("tcp://{}", SocketAddr::new(control.local_ip()?, 0)))
                .await?;
        control.send_address(address_of(listener.name())?).await?;
        Ok(listener.accept().await?.accept("")?)
    }
}

async fn bind(ip: std::net::IpAddr, options: &Options) -> Result<Endpoint> {
    let scheme = if options.ep_type == EpType::Dgram {
        "udp"
    } else {
        "tcp"
    };
    let endpoint = Endpoint::options().protocol(options.protocol);
    Ok(endpoint
        .bind(format!("{scheme}://{}", SocketAddr::new(ip, 0)))
        .await?)
}

fn address_of(name: &Address) -> Result<SocketAddr> {
    name.socket_addr()
        .ok_or_else(|| "the endpoint has no socket address".into())
}

/// An endpoint with the peer of the exchange.
enum FabricEndpoint {
    Connectionless(Endpoint, FiAddr),
    Connected(ConnectedEndpoint),
}

impl FabricEndpoint {
    fn info(&self) -> &Info {
        match self {
            Self::Connectionless(ep, _) => ep.info(),
            Self::Connected(ep) => ep.info(),
        }
    }

    fn send(&self, buf: Vec<u8>) -> Request<'_, SendOp, Vec<u8>> {
        match self {
            Self::Connectionless(ep, peer) => ep.send(*peer, buf),
            Self::Connected(ep) => ep.send(buf),
        }
    }

    /// Receives from the peer only, where the endpoint can have other peers.
    fn recv_into(&self, buf: Vec<u8>) -> Request<'_, RecvOp, Vec<u8>> {
        match self {
            // udp has no directed receives.
            Self::Connectionless(ep, peer) if ep.info().ep.ep_type == EpType::Rdm => {
                ep.recv_into(buf).from(*peer)
            }
            Self::Connectionless(ep, _) => ep.recv_into(buf),
            Self::Connected(ep) => ep.recv_into(buf),
        }
    }
}

/// The message exchange.
struct PingPong {
    ep: FabricEndpoint,
    is_tagged: bool,
    /// Patterns of sent and received messages, with `-c`.
    patterns: Option<(Pattern, Pattern)>,
    /// The buffer of sends.
    send_buf: Vec<u8>,
    /// The posted receive. There is always one.
    posted_recv: Operation<Vec<u8>>,
}

impl PingPong {
    fn new(ep: FabricEndpoint, options: &Options, room: usize) -> Result<Self> {
        let next = post_recv(&ep, options.is_tagged, vec![0; room])?;
        let patterns = options.is_checked.then(Default::default);
        Ok(Self {
            ep,
            is_tagged: options.is_tagged,
            patterns,
            send_buf: vec![0; room],
            posted_recv: next,
        })
    }

    /// Sends and receives `count` messages each. Returns the time it took.
    async fn run_round(&mut self, is_first: bool, size: usize, count: usize) -> Result<Duration> {
        let start = Instant::now();
        for _ in 0..count {
            if is_first {
                self.send(size).await?;
                self.recv_message(size).await?;
            } else {
                self.recv_message(size).await?;
                self.send(size).await?;
            }
        }
        Ok(start.elapsed())
    }

    async fn send(&mut self, size: usize) -> Result<()> {
        let mut buf = std::mem::take(&mut self.send_buf);
        buf.resize(size, 0);
        if let Some((sent, _)) = &mut self.patterns {
            sent.fill(&mut buf);
        }
        self.send_buf = self.send_bytes(buf).await?;
        Ok(())
    }

    async fn send_bytes(&self, buf: Vec<u8>) -> Result<Vec<u8>> {
        let send = self.ep.send(buf);
        let send = if self.is_tagged { send.tag(TAG) } else { send };
        Ok(send.await?.into_buf())
    }

    async fn recv_message(&mut self, size: usize) -> Result<()> {
        let got = (&mut self.posted_recv).await?;
        if got.len() != size {
            return Err(
                format!("received a message of {} bytes, expected {size}", got.len()).into(),
            );
        }
        if let Some((_, received)) = &mut self.patterns {
            received.check(&got)?;
        }
        self.posted_recv = post_recv(&self.ep, self.is_tagged, got.into_buf())?;
        Ok(())
    }

    /// Sends `fin` and waits for that of the peer.
    async fn finish(self) -> Result<()> {
        self.send_bytes(FIN.to_vec()).await?;
        let got = self.posted_recv.await?;
        if got[..] == *FIN {
            Ok(())
        } else {
            Err("the last message of the peer is not fin".into())
        }
    }
}

/// Posts the receive for the next message.
fn post_recv(ep: &FabricEndpoint, is_tagged: bool, buf: Vec<u8>) -> Result<Operation<Vec<u8>>> {
    let receive = ep.recv_into(buf);
    let receive = if is_tagged { receive.tag(TAG) } else { receive };
    Ok(receive.start()?)
}

/// Prints a line in the format of `fi_pingpong`.
fn print_row(size: usize, count: usize, acknowledged: usize, time: Duration) {
    let (messages, seconds) = (2 * count, time.as_secs_f64());
    let mega = |count: usize| count as f64 / seconds / 1e6;
    println!(
        "{:<8}{:<8}={:<8}{:<9}{:>6.2}s{:>11.2}{:>13.2}{:>12.2}",
        data::format_short(size),
        data::format_short(count),
        data::format_short(acknowledged),
        data::format_short(size * messages),
        seconds,
        mega(size * messages),
        seconds * 1e6 / messages as f64,
        mega(messages),
    );
}
