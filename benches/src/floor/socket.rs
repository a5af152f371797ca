//! Eight bytes over a kernel socket with plain system calls: blocking in `read`, or spinning on it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use super::ping_pong::{PingPongEnd, ping_pong};
use crate::pin;
use crate::samples::Samples;

/// Messages between two readings of the clock.
const SENDS_PER_CLOCK_READ: u64 = 100;

type CorePair = (Option<usize>, Option<usize>);

pub(super) fn tcp_blocking(cores: CorePair, time: Duration) -> io::Result<Samples> {
    let (local, remote) = tcp_pair()?;
    ping_pong(cores, (SocketEnd(local), SocketEnd(remote)), time)
}

pub(super) fn tcp_spinning(cores: CorePair, time: Duration) -> io::Result<Samples> {
    let (local, remote) = tcp_pair()?;
    local.set_nonblocking(true)?;
    remote.set_nonblocking(true)?;
    ping_pong(cores, (SocketEnd(local), SocketEnd(remote)), time)
}

pub(super) fn unix_blocking(cores: CorePair, time: Duration) -> io::Result<Samples> {
    let (local, remote) = UnixStream::pair()?;
    ping_pong(cores, (SocketEnd(local), SocketEnd(remote)), time)
}

pub(super) fn unix_spinning(cores: CorePair, time: Duration) -> io::Result<Samples> {
    let (local, remote) = UnixStream::pair()?;
    local.set_nonblocking(true)?;
    remote.set_nonblocking(true)?;
    ping_pong(cores, (SocketEnd(local), SocketEnd(remote)), time)
}

/// Measures eight-byte messages per second in one direction, one call each; the receiver reads as
/// much as there is.
pub(super) fn tcp_send_rate(
    (local_core, remote_core): CorePair,
    time: Duration,
) -> io::Result<f64> {
    let (mut local, mut remote) = tcp_pair()?;
    let read = move || {
        remote_core.map(pin::pin_to_core);
        let mut buf = vec![0; 64 << 10];
        while remote.read(&mut buf)? > 0 {}
        io::Result::Ok(())
    };
    let send = move || {
        local_core.map(pin::pin_to_core);
        let (began, mut count) = (Instant::now(), 0u64);
        while began.elapsed() < time {
            for _ in 0..SENDS_PER_CLOCK_READ {
                local.write_all(&[7; 8])?;
            }
            count += SENDS_PER_CLOCK_READ;
        }
        io::Result::Ok(count as f64 / began.elapsed().as_secs_f64())
    };
    thread::scope(|scope| {
        let died = |_| io::Error::other("a measuring thread panicked");
        let reader = scope.spawn(read);
        let rate = scope.spawn(send).join().map_err(died)??;
        reader.join().map_err(died)?.map(|()| rate)
    })
}

fn tcp_pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let local = TcpStream::connect(listener.local_addr()?)?;
    let (remote, _) = listener.accept()?;
    local.set_nodelay(true)?;
    remote.set_nodelay(true)?;
    Ok((local, remote))
}

struct SocketEnd<S>(S);

impl<S: Read + Write + Send> PingPongEnd for SocketEnd<S> {
    fn signal(&mut self) -> io::Result<()> {
        // Eight bytes always have room: at most one message is in flight.
        self.0.write_all(&[7; 8])
    }

    fn wait(&mut self) -> io::Result<()> {
        let (mut buf, mut len) = ([0; 8], 0);
        while len < buf.len() {
            match self.0.read(&mut buf[len..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => len += count,
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
