//! Tests of numbers and texts.

use super::*;

#[test]
fn errno_values_match_fi_errno() {
    let full = Resource::ReceiveEntry { limit: 1 };
    assert_eq!(Error::WouldBlock(full).errno(), 11);
    assert_eq!(Error::Truncated { len: 1, lost: 2 }.errno(), 265);
    assert_eq!(Error::os("mmap", 12).errno(), 12);
    for (class, errno) in [
        (Class::CompletionQueue, 263),
        (Class::AddressVector, 267),
        (Class::EventQueue, 261),
        (Class::Domain, 262),
        (Class::SharedReceive, 258),
    ] {
        assert_eq!(Error::Unbound(class).errno(), errno, "{class}");
    }
}

#[test]
fn peer_is_unavailable_for_exactly_four_errors() {
    let mut unavailable = Vec::new();
    for (error, _) in examples() {
        if error.is_peer_unavailable() {
            let text = format!("{error:?}");
            unavailable.push(text.split('(').next().unwrap().to_string());
        }
    }
    assert_eq!(
        unavailable,
        ["NoSuchPeer", "PeerGone", "TimedOut", "StaleAddress"]
    );
}

#[test]
fn canceled_text_names_the_closed_endpoint() {
    let text = Error::Canceled.to_string();
    assert!(text.contains("its endpoint was closed"), "{text}");
    assert_eq!(Error::Canceled.errno(), 125);
}

#[test]
fn too_long_text_names_subject_and_limit() {
    let error = Error::TooLong {
        what: "message",
        len: 10,
        limit: 4,
    };
    assert_eq!(
        error.to_string(),
        "message of 10 bytes exceeds the limit of 4 bytes; send it in parts"
    );
}

#[test]
fn errors_stay_small_enough_to_return_by_value() {
    assert!(size_of::<Error>() <= 64, "{}", size_of::<Error>());
}

/// Position of a variant in `examples`. The match is exhaustive: a new variant does not compile
/// without an example.
fn position(error: &Error) -> usize {
    match error {
        Error::WouldBlock(_) => 0,
        Error::NoMatch(_) => 1,
        Error::Busy(_) => 2,
        Error::Closed(_) => 3,
        Error::Canceled => 4,
        Error::Truncated { .. } => 5,
        Error::CounterError { .. } => 6,
        Error::TooLong { .. } => 7,
        Error::OutOfMemory { .. } => 8,
        Error::NoSuchPeer(_) => 9,
        Error::PeerGone(_) => 10,
        Error::ConnectionRefused { .. } => 11,
        Error::RejectedByPeer { .. } => 12,
        Error::TimedOut(_) => 13,
        Error::Unreachable { .. } => 14,
        Error::OtherUser { .. } => 15,
        Error::Protocol { .. } => 16,
        Error::StaleAddress(_) => 17,
        Error::UnknownSource => 18,
        Error::AddressInUse(_) => 19,
        Error::BadAddress { .. } => 20,
        Error::NoSuchHost { .. } => 21,
        Error::WrongScheme { .. } => 22,
        Error::UnknownProvider { .. } => 23,
        Error::Invalid { .. } => 24,
        Error::BadFlags { .. } => 25,
        Error::Unbound(_) => 26,
        Error::Key { .. } => 27,
        Error::WrongParent { .. } => 28,
        Error::NotSupported(_) => 29,
        Error::Runtime(_) => 30,
        Error::Os { .. } => 31,
        Error::TooMany { .. } => 32,
        Error::OutOfBounds { .. } => 33,
        Error::BufferTooSmall { .. } => 34,
        Error::ShutDown => 35,
        Error::AddressNotLocal(_) => 36,
        Error::NoExtension { .. } => 37,
        Error::SourceNotInserted { .. } => 38,
        Error::NotReserved(_) => 39,
        Error::ConcurrentUse => 40,
    }
}

/// An error of each variant, with the values that its text must name.
pub(super) fn examples() -> Vec<(Error, Vec<&'static str>)> {
    let peer = || "tcp://10.0.0.5:7000".parse::<Address>().unwrap();
    let no_match = Error::from(crate::info::NoMatch {
        mismatches: vec![crate::info::Mismatch {
            provider: "tcp".into(),
            domain: "lo".into(),
            ep_type: crate::info::EpType::Rdm,
            protocol: Some(crate::info::Protocol::Rxm),
            attribute: "max_msg_size",
            requested: "5368709120".into(),
            offered: "4294967296".into(),
        }],
    });
    let fabric = crate::tree::ObjectNode::new(Class::Fabric, None);
    let domain = crate::tree::ObjectNode::new(Class::Domain, Some(fabric.clone()));
    domain.attach_to_parent().unwrap();
    let handle = FiAddr::new(17, 0, std::num::NonZeroU16::MIN);
    let refused = |reason| Error::ConnectionRefused {
        peer: peer(),
        reason,
    };
    vec![
        (
            Error::WouldBlock(Resource::TransmitCredit {
                peer: handle,
                in_use: 256,
                peer_limit: 256,
                free: 768,
            }),
            vec![
                "address handle 17",
                "256 of 256",
                "768",
                "Endpoint::reserve",
            ],
        ),
        (
            Error::WouldBlock(Resource::TransmitCredit {
                peer: handle,
                in_use: 3,
                peer_limit: 256,
                free: 768,
            }),
            vec![
                "earlier operations",
                "address handle 17",
                "Endpoint::reserve",
            ],
        ),
        (
            Error::WouldBlock(Resource::ReceiveEntry { limit: 1024 }),
            vec!["receive queue", "1024", ".await", "has completed"],
        ),
        (
            Error::WouldBlock(Resource::CompletionEntry { capacity: 64 }),
            vec!["completion queue", "64", "take completions"],
        ),
        (
            Error::WouldBlock(Resource::EventEntry { capacity: 16 }),
            vec!["event queue", "all 16", "read events"],
        ),
        (
            Error::WouldBlock(Resource::LoanMemory {
                in_use: 4000,
                limit: 4096,
            }),
            vec!["loan", "4000 of 4096 bytes", "peers"],
        ),
        (
            Error::WouldBlock(Resource::BufferBeyondBudget {
                len: 9000,
                in_use: 4000,
                limit: 4096,
            }),
            vec!["9000", "4000 of 4096 bytes", "budget", "claim"],
        ),
        (no_match, vec!["tcp", "max_msg_size", "5368709120"]),
        (fabric.close().unwrap_err(), vec!["1 domain"]),
        (Error::Closed(Class::Endpoint), vec!["endpoint"]),
        (
            Error::Closed(Class::CompletionQueue),
            vec!["completion queue", ".post()", ".await"],
        ),
        (Error::ShutDown, vec!["connection", "shut down"]),
        (Error::Canceled, vec!["endpoint", "closed"]),
        (
            Error::Truncated {
                len: 4096,
                lost: 904,
            },
            vec!["4096", "904", "capacity"],
        ),
        (
            Error::CounterError {
                value: 9,
                threshold: 12,
                errors: 3,
            },
            vec!["at 9", "waited for 12", "rose to 3", "queue or event"],
        ),
        (
            Error::TooLong {
                what: "injected message",
                len: 5000,
                limit: 4096,
            },
            vec!["injected message", "5000", "4096", ".post()"],
        ),
        (
            Error::OutOfBounds {
                offset: 90,
                len: 11,
                limit: 100,
            },
            vec!["11 bytes", "offset 90", "region of 100 bytes", "range"],
        ),
        (
            Error::BufferTooSmall {
                len: 100,
                capacity: 99,
            },
            vec!["buffer of 99 bytes", "read of 100 bytes", "larger buffer"],
        ),
        (
            Error::TooMany {
                what: "buffers",
                count: 20,
                limit: 15,
            },
            vec!["20 buffers exceed the limit of 15"],
        ),
        (
            Error::TooMany {
                what: "memory regions",
                count: 1,
                limit: 0,
            },
            vec!["no memory regions are allowed: the limit is 0"],
        ),
        (
            Error::OutOfMemory {
                what: "buffer",
                len: 5000,
            },
            vec!["buffer", "5000"],
        ),
        (
            Error::NoSuchPeer(peer()),
            vec!["10.0.0.5:7000", "start the peer", "retry later"],
        ),
        (
            Error::PeerGone(peer()),
            vec!["10.0.0.5:7000", "may have been executed"],
        ),
        (
            refused(RefusalReason::Version { theirs: 3, ours: 4 }),
            vec![
                "10.0.0.5:7000",
                "version 3",
                "side 4",
                "build both programs",
            ],
        ),
        (refused(RefusalReason::User), vec!["user"]),
        (refused(RefusalReason::Malformed), vec!["handshake"]),
        (
            refused(RefusalReason::Resources),
            vec!["descriptors", "retry later"],
        ),
        (
            refused(RefusalReason::EpType),
            vec!["add_peer for FI_EP_RDM", "connect for FI_EP_MSG"],
        ),
        (refused(RefusalReason::Other(77)), vec!["77"]),
        (
            Error::RejectedByPeer {
                peer: peer(),
                data: Vec::new(),
            },
            vec!["10.0.0.5:7000", "without private data", "add_peer"],
        ),
        (
            Error::RejectedByPeer {
                peer: peer(),
                data: vec![0; 9],
            },
            vec!["10.0.0.5:7000", "9 bytes"],
        ),
        (
            Error::TimedOut(peer()),
            vec!["10.0.0.5:7000", "makes progress", "retry later"],
        ),
        (
            Error::Unreachable {
                peer: peer(),
                why: "from 127.0.0.1: Network is unreachable (os error 101)".into(),
            },
            vec!["10.0.0.5:7000", "127.0.0.1"],
        ),
        (
            Error::OtherUser {
                peer: peer(),
                theirs: 1001,
                ours: 1000,
            },
            vec!["10.0.0.5:7000", "1001", "1000"],
        ),
        (
            Error::Protocol {
                peer: peer(),
                what: "unknown frame type 9".into(),
            },
            vec!["10.0.0.5:7000", "frame type 9", "version at that address"],
        ),
        (
            Error::StaleAddress(handle),
            vec![
                "handle 17 of vector 1",
                "add an inserted peer again",
                "drop",
            ],
        ),
        (Error::UnknownSource, vec!["address vector"]),
        (
            Error::SourceNotInserted {
                address: Some(peer()),
            },
            vec!["10.0.0.5:7000", "FI_SOURCE_ERR", "insert"],
        ),
        (
            Error::SourceNotInserted { address: None },
            vec!["a peer that has left", "address vector"],
        ),
        (
            Error::AddressInUse(peer()),
            vec!["10.0.0.5:7000", "another name or port"],
        ),
        (
            Error::AddressNotLocal(peer()),
            vec!["10.0.0.5:7000", "machine", "`ip address`"],
        ),
        (
            "tcp://localhost:99999".parse::<Address>().unwrap_err(),
            vec!["tcp://localhost:99999", "port", "65535"],
        ),
        (
            Error::NoSuchHost {
                host: "storage-7".into(),
                why: "Name or service not known".into(),
            },
            vec!["storage-7", "not known"],
        ),
        (
            Error::WrongScheme {
                provider: "shm",
                address: peer(),
            },
            vec!["provider shm", "10.0.0.5:7000", "provider tcp"],
        ),
        (
            Error::UnknownProvider {
                requested: "verbs".into(),
                known: vec!["shm", "tcp", "udp", "sim"],
            },
            vec!["verbs", "shm, tcp, udp, sim"],
        ),
        (
            Error::Invalid {
                what: "port range",
                why: "9 to 7 is empty: the first port must not be above the last".into(),
            },
            vec!["port range", "9 to 7"],
        ),
        (
            Error::BadFlags {
                what: "send",
                flags: "MULTI_RECV".into(),
            },
            vec!["send", "MULTI_RECV"],
        ),
        (
            Error::Unbound(Class::CompletionQueue),
            vec!["completion queue", "bind one"],
        ),
        (
            Error::Unbound(Class::AddressVector),
            vec!["address vector", "bind one"],
        ),
        (
            Error::Unbound(Class::Domain),
            vec!["passive endpoint", "no domain", "EndpointBuilder"],
        ),
        (
            Error::Key {
                key: 0x1f,
                why: "is unknown",
            },
            vec!["0x1f", "unknown", "request a new RemoteRegion"],
        ),
        (
            Error::Key {
                key: 7,
                why: "is in use",
            },
            vec!["0x7", "in use", "another key"],
        ),
        (
            Error::WrongParent {
                object: Class::CompletionQueue,
                parent: Class::Domain,
            },
            vec![
                "completion queue",
                "not opened in the domain",
                "open it there",
            ],
        ),
        (
            Error::NotSupported("windows of a registered buffer"),
            vec!["windows"],
        ),
        (
            Error::NoExtension {
                provider: "udp",
                extension: "tcp_info",
            },
            vec!["udp", "tcp_info", "FI_ENOSYS"],
        ),
        (
            Error::NotReserved("all 2 cores are reserved".into()),
            vec!["ForceLowLatency", "FI_ENOSPC", "all 2 cores"],
        ),
        (
            Error::ConcurrentUse,
            vec!["another call", "FI_EBUSY", "Serial"],
        ),
        (
            Error::Runtime("no Tokio runtime is running on this thread"),
            vec!["Tokio"],
        ),
        (
            Error::os("eventfd2", 24),
            vec!["eventfd2", "RLIMIT_NOFILE", "6 descriptors"],
        ),
        (Error::os("mmap", 12), vec!["mmap", "os error 12"]),
        (
            Error::os("fallocate", 12),
            vec!["fallocate", "os error 12", "memory region or loan"],
        ),
    ]
}

#[test]
fn every_error_text_is_one_short_line_with_its_values() {
    let mut seen = [false; 41];
    for (error, values) in examples() {
        seen[position(&error)] = true;
        let text = error.to_string();
        println!("{:3} {text}", error.errno());
        assert!(!text.trim().is_empty(), "{error:?} has no text");
        assert!(!text.contains('\n'), "{text:?} has several lines");
        let len = text.chars().count();
        assert!(len <= 160, "{len} characters: {text}");
        for value in values {
            assert!(text.contains(value), "{value:?} is missing in {text:?}");
        }
    }
    assert_eq!(seen, [true; 41], "a variant has no example");
}

#[test]
fn no_match_of_ep_type_names_the_providers_of_the_type() {
    let text_of = |attribute, requested: &str| {
        let mismatch = crate::info::Mismatch {
            provider: "udp".into(),
            domain: "lo".into(),
            ep_type: crate::info::EpType::Dgram,
            protocol: None,
            attribute,
            requested: requested.into(),
            offered: "Dgram".into(),
        };
        let mismatches = vec![mismatch];
        Error::from(crate::info::NoMatch { mismatches }).to_string()
    };
    let text = text_of("ep_type", "Msg");
    assert!(
        text.ends_with("; FI_EP_MSG is offered by shm and tcp"),
        "{text}"
    );
    let text = text_of("provider", "Msg");
    assert!(!text.contains("FI_EP"), "{text}");
}
