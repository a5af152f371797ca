//! Attacks over UDP, by sockets without the library.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use super::Attack;
use super::actions::{ActionCounter, NumberSequence};
use super::tcp::socket_addr;
use crate::{Error, Result};

/// libfabric's longest datagram, in bytes.
const MAX_DATAGRAM: usize = 1472;
/// Lengths of malformed datagrams, in bytes: up to the longest one of IPv4.
const LENGTHS: [usize; 8] = [0, 1, 15, 16, 1472, 1473, 9000, 65_507];
/// Sockets of the attack with many senders: more than the address handles of an endpoint.
const SENDERS: usize = 2000;

/// Runs an attack over UDP forever.
///
/// # Errors
/// The attack cannot begin; the system has no socket left.
pub(super) async fn attack(attack: Attack, target: &str, actions: &ActionCounter) -> Result<()> {
    let (target, source) = (socket_addr(target)?, attack.source());
    match attack {
        Attack::UnexpectedDatagrams => {
            let socket = bind(source)?;
            loop {
                send(&socket, &[7; MAX_DATAGRAM], target, actions);
            }
        }
        Attack::MalformedDatagrams => {
            let socket = bind(source)?;
            let mut bytes = vec![0; 65_507];
            for round in 0.. {
                let mut numbers = NumberSequence::new(round);
                numbers.fill(&mut bytes[..64]);
                let len = LENGTHS[(round % LENGTHS.len() as u64) as usize];
                send(&socket, &bytes[..len], target, actions);
            }
            Ok(())
        }
        Attack::ManySenders => {
            let mut sockets = VecDeque::new();
            for round in 0u64.. {
                // Of 250 machines, with a new port each time.
                let from = Ipv4Addr::new(127, 0, 2, (round % 250) as u8 + 1);
                let socket = bind(from)?;
                send(&socket, &round.to_le_bytes(), target, actions);
                sockets.push_back(socket);
                if sockets.len() > SENDERS {
                    sockets.pop_front();
                }
            }
            Ok(())
        }
        other => Err(Error::InvalidRequest(format!(
            "the attack {} is not over udp",
            other.name()
        ))),
    }
}

fn bind(source: Ipv4Addr) -> Result<UdpSocket> {
    UdpSocket::bind((source, 0)).map_err(Error::io("binding a socket"))
}

/// Sends a datagram; the kernel may drop it.
fn send(socket: &UdpSocket, bytes: &[u8], target: SocketAddr, actions: &ActionCounter) {
    let _ = socket.send_to(bytes, target);
    actions.add_one();
}
