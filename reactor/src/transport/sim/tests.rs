//! Tests of names, of the generator of random numbers, and of the network. Conformance scenarios
//! test the data path.

use std::io::IoSlice;

use fabric_core::info::{Hints, Progress, select};
use fabric_core::{Error, Scheme};
use rustix::io::Errno;

use super::config::{SimConfig, SimRng};
use super::network::SimNetwork;
use super::*;
use crate::transport::tcp::{Listener, Network, ReadResult, TcpSocket, WriteResult};

fn address(text: &str) -> Address {
    text.parse().unwrap()
}

fn parse_config(text: &str) -> Result<SimConfig> {
    SimConfig::from_address(&address(text))
}

#[test]
fn name_suffix_overrides_the_defaults() {
    let default = SimConfig::default();
    assert_eq!(
        (default.seed, default.max_delay, default.channel_capacity),
        (0, 3, 16)
    );
    for (text, expected) in [
        ("sim://a", default),
        ("sim://", default),
        ("sim://a@9", SimConfig { seed: 9, ..default }),
        (
            "sim://a@9+0",
            SimConfig {
                seed: 9,
                max_delay: 0,
                ..default
            },
        ),
        (
            "sim://b@a@18446744073709551615+4+2",
            SimConfig {
                seed: u64::MAX,
                max_delay: 4,
                channel_capacity: 2,
            },
        ),
    ] {
        assert_eq!(parse_config(text), Ok(expected), "{text}");
    }
}

#[test]
fn invalid_name_suffix_is_rejected() {
    for (text, part) in [
        ("sim://a@", "seed"),
        ("sim://a@x", "seed"),
        ("sim://a@18446744073709551616", "seed"),
        ("sim://a@1+", "delay"),
        ("sim://a@1+4294967296", "delay"),
        ("sim://a@1+1+0", "capacity"),
        ("sim://a@1+1+1+1", "at most three"),
    ] {
        let error = parse_config(text).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains(text), "{error}");
    }
    assert!(matches!(
        parse_config("shm://a"),
        Err(Error::WrongScheme {
            provider: "sim",
            ..
        })
    ));
}

#[test]
fn numbers_depend_on_seed_and_sender_and_stay_in_range() {
    let numbers = |seed, name| {
        let mut rng = SimRng::new(seed, &address(name));
        (0..64).map(|_| rng.next_up_to(5)).collect::<Vec<_>>()
    };
    let some = numbers(1, "sim://a");
    assert_eq!(some, numbers(1, "sim://a"));
    assert!(some != numbers(2, "sim://a") && some != numbers(1, "sim://b"));
    assert!((0..=5).all(|number| some.contains(&number)) && some.iter().all(|&n| n <= 5));
    assert_eq!(SimRng::new(3, &address("sim://a")).next_up_to(0), 0);
    assert!(SimRng::new(3, &address("sim://a")).next_up_to(u32::MAX) <= u64::from(u32::MAX));
}

#[test]
fn progress_is_manual_by_default() {
    let offers = SimTransport.offers(&Hints::new()).unwrap();
    let first = |hints: &Hints| select(hints, &offers).unwrap()[0].domain.data_progress;
    assert_eq!(first(&Hints::new()), Progress::Manual);
    for level in Progress::ALL {
        assert_eq!(first(&Hints::new().data_progress(level)), level);
    }
}

fn try_listen(at: &str) -> Result<(Box<dyn Listener>, Address)> {
    let info = &SimTransport.offers(&Hints::new())?[0];
    SimNetwork.listen(info, Some(&address(at)), &SocketConfig::default())
}

fn listen(at: &str) -> (Box<dyn Listener>, Address) {
    try_listen(at).unwrap()
}

fn connect(from: &Address, to: &Address) -> Result<TcpSocket, Errno> {
    let [from, to] = [from, to].map(|address| SimNetwork.socket_addr(address).unwrap());
    SimNetwork.open_socket(from, to, &SocketConfig::default())
}

fn accept(listener: &dyn Listener) -> Option<(TcpSocket, Address)> {
    let local = ([127, 0, 0, 1], 1).into();
    let (socket, from) = listener.accept(local, &SocketConfig::default()).unwrap()?;
    Some((socket, SimNetwork.address(from).unwrap()))
}

#[test]
fn name_is_in_use_by_one_endpoint_at_a_time() {
    let (first, name) = listen("sim://in-use");
    let refused = try_listen("sim://in-use").err();
    assert_eq!(refused, Some(Error::AddressInUse(name)));
    drop(first);
    listen("sim://in-use");
    let ((_fresh, fresh), (_other, other)) = (listen("sim://"), listen("sim://@7+0"));
    assert!(fresh != other && !fresh.name().is_empty());
    assert!(other.name().ends_with("@7+0") && other.name().len() > 4);
    assert!(matches!(
        try_listen("sim://a@b"),
        Err(Error::BadAddress { .. })
    ));
}

#[test]
fn connect_reaches_the_endpoint_that_listens() {
    let ((_a, a), (b, b_name)) = (listen("sim://connect-a"), listen("sim://connect-b"));
    let unknown = Address::new(Scheme::Sim, "connect-unknown").unwrap();
    assert_eq!(connect(&a, &unknown).err(), Some(Errno::CONNREFUSED));
    assert!(accept(&*b).is_none());
    let _to_b = connect(&a, &b_name).unwrap();
    let (from_a, from) = accept(&*b).expect("a connection");
    assert_eq!(from, a);
    assert!(accept(&*b).is_none());
    drop(b);
    assert_eq!(connect(&a, &b_name).err(), Some(Errno::CONNREFUSED));
    // The name of the sender is known while the stream is open.
    drop(_a);
    let at = SimNetwork.socket_addr(&a).unwrap();
    assert_eq!(SimNetwork.address(at), Ok(a.clone()));
    drop((from_a, _to_b));
    assert!(SimNetwork.address(at).is_err());
}

/// Returns the lengths of the reads that receive 4096 bytes, with 0 for a delayed read.
fn read_lengths(name: &str) -> Vec<usize> {
    let ((_a, a), (b, b_name)) = (listen("sim://reads-a"), listen(name));
    let mut to_b = connect(&a, &b_name).unwrap();
    let (mut from_a, _) = accept(&*b).expect("a connection");
    let mut into = [0; 4096];
    assert_eq!(from_a.recv(&mut into), ReadResult::WouldBlock);
    assert_eq!(
        to_b.send(&[IoSlice::new(&[7; 4096])]),
        WriteResult::Bytes(4096)
    );
    let (mut lengths, mut total) = (Vec::new(), 0);
    while total < 4096 {
        match from_a.recv(&mut into) {
            ReadResult::Bytes(count) => {
                total += count;
                lengths.push(count);
            }
            ReadResult::WouldBlock => lengths.push(0),
            other => panic!("{other:?}"),
        }
    }
    drop(from_a);
    assert_eq!(to_b.recv(&mut into), ReadResult::Eof);
    lengths
}

#[test]
fn seed_determines_delays_and_lengths_of_reads() {
    let lengths = (0..20).map(|seed| read_lengths(&format!("sim://reads-b@{seed}+5")));
    let lengths: Vec<_> = lengths.collect();
    assert_eq!(lengths[3], read_lengths("sim://reads-b@3+5"));
    assert!(lengths.iter().any(|reads| *reads != lengths[0]));
    assert!(
        lengths.iter().any(|reads| reads[0] == 0),
        "a read is delayed"
    );
    assert!(
        lengths.iter().flatten().any(|len| (1..=64).contains(len)),
        "a read is shortened"
    );
    assert!(read_lengths("sim://reads-b@3+0").iter().all(|&len| len > 0));
}
