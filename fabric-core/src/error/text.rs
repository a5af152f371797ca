//! Parts of the error texts that depend on the values of the error.

use crate::address::{Address, Scheme};
use crate::info::NoMatch;
use crate::tree::Class;

/// Returns the end of the text of [`Error::NoMatch`](super::Error::NoMatch): the providers of the
/// requested type of endpoint, if an offer was refused because of its type.
pub(super) fn providers_of_ep_type(no_match: &NoMatch) -> &'static str {
    let mut mismatches = no_match.mismatches.iter();
    let requested = mismatches
        .find(|mismatch| mismatch.attribute == "ep_type")
        .map(|mismatch| mismatch.requested.as_str());
    match requested {
        Some("Rdm") => "; FI_EP_RDM is offered by shm, tcp and sim",
        Some("Msg") => "; FI_EP_MSG is offered by shm and tcp",
        Some("Dgram") => "; FI_EP_DGRAM is offered by udp",
        _ => "",
    }
}

/// Returns the end of the text of [`Error::Closed`](super::Error::Closed).
pub(super) fn closed_remedy(class: Class) -> &'static str {
    match class {
        Class::CompletionQueue => "; keep its handle while .post() is used, or use .await",
        _ => "",
    }
}

/// Returns the end of the text of [`Error::TooLong`](super::Error::TooLong).
pub(super) fn too_long_remedy(what: &str) -> &'static str {
    match what {
        "injected message" => "; send it with .await, .start() or .post()",
        "message" => "; send it in parts",
        _ => "",
    }
}

/// Returns the text of [`Error::TooMany`](super::Error::TooMany). Names are in the plural, and a
/// single one exceeds no limit but 0.
pub(super) fn describe_count(what: &str, count: usize, limit: usize) -> String {
    match limit {
        0 => format!("no {what} are allowed: the limit is 0"),
        _ => format!("{count} {what} exceed the limit of {limit}"),
    }
}

/// Returns the end of the text of [`Error::Key`](super::Error::Key).
pub(super) fn key_remedy(why: &str) -> &'static str {
    match why {
        "is in use" => "; use another key, or none for a free one",
        "is unknown" => {
            ": its region was closed, or its owner was restarted; request a new RemoteRegion"
        }
        _ if why.contains("was revoked") => "; request a new RemoteRegion",
        _ => "",
    }
}

/// Returns the end of the text of [`Error::RejectedByPeer`](super::Error::RejectedByPeer): over
/// `tcp` a connectionless endpoint rejects the request in the same way, without private data.
pub(super) fn rejection_note(peer: &Address, data: &[u8]) -> &'static str {
    if peer.scheme() == Scheme::Tcp && data.is_empty() {
        ", or is a connectionless endpoint: use add_peer"
    } else {
        ""
    }
}

/// Returns advice on the resource limit that caused this error number, if any.
pub(super) fn describe_limit(call: &str, errno: i32) -> &'static str {
    const ENOMEM: i32 = 12;
    const EMFILE: i32 = 24;
    match errno {
        ENOMEM if call == "fallocate" => {
            "; a memory region or loan takes its whole length at once: use less, or free memory"
        }
        EMFILE => {
            "; raise RLIMIT_NOFILE: an endpoint takes up to 6 descriptors, a connection 1 or more"
        }
        _ => "",
    }
}

/// Returns the text of [`Error::Unbound`](super::Error::Unbound).
pub(super) fn describe_unbound(class: Class) -> String {
    match class {
        Class::Domain => "the passive endpoint has no domain to accept in; accept with an \
                          EndpointBuilder"
            .into(),
        class => format!("no {class} is bound; bind one first"),
    }
}

/// Returns the part of the text of [`Error::RejectedByPeer`](super::Error::RejectedByPeer)
/// about the private data.
pub(super) fn describe_private_data(data: &[u8]) -> String {
    match data.len() {
        0 => "without private data".into(),
        len @ ..=64 if data.iter().all(|byte| matches!(byte, b' '..=b'~')) => {
            let text = String::from_utf8_lossy(data);
            format!("with {len} bytes of private data: {text:?}")
        }
        len => format!("with {len} bytes of private data"),
    }
}

/// Returns the sender in the text of
/// [`Error::SourceNotInserted`](super::Error::SourceNotInserted).
pub(super) fn describe_sender(address: Option<&Address>) -> String {
    address.map_or_else(|| "a peer that has left".into(), Address::to_string)
}

/// Returns the end of the text of [`Error::OtherUser`](super::Error::OtherUser).
pub(super) fn overflow_note(theirs: u32, ours: u32) -> &'static str {
    if theirs == ours {
        " (users not mapped by the user namespace have the same id)"
    } else {
        ""
    }
}
