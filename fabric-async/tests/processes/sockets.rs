//! Sockets of this process that belong to endpoints, found by their addresses in the tables of the kernel.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

/// Another descriptor of the socket of this kind (`tcp` or `udp`) at this address; of the one that listens there, or that is
/// connected with nobody, or of the one that is connected with this peer.
pub(crate) fn socket_of(kind: &str, here: SocketAddr, there: Option<SocketAddr>) -> OwnedFd {
    let table = if here.is_ipv4() { format!("/proc/net/{kind}") } else { format!("/proc/net/{kind}6") };
    let any = SocketAddr::new(if here.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() }, 0);
    let (here, there) = (written(here), written(there.unwrap_or(any)));
    let table = std::fs::read_to_string(table).unwrap();
    let rows = table.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let row = rows.into_iter().find(|row| row[1..3] == [&here[..], &there[..]]).expect("such a socket");
    let link = format!("socket:[{}]", row[9]);
    let own = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let is_it =
        |path: &std::path::PathBuf| std::fs::read_link(path).is_ok_and(|to| to.as_os_str() == &link[..]);
    let number = own.into_iter().find(is_it).expect("a descriptor of this process");
    let number = number.file_name().unwrap().to_str().unwrap().parse().unwrap();
    let this = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    pidfd_getfd(this, number, PidfdGetfdFlags::empty()).unwrap()
}

/// As the kernel writes it there: words of the machine's order in hexadecimal digits.
fn written(at: SocketAddr) -> String {
    let bytes = match at.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words = bytes.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap()));
    let ip: String = words.map(|word| format!("{word:08X}")).collect();
    format!("{ip}:{:04X}", at.port())
}
