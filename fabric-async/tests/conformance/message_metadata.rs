//! Metadata of messages (tag, data, source, length), and messages that are refused.

use fabric_async::{Caps, Error, discover};

use crate::endpoint_fixture::{EndpointConfig, endpoint_pair, endpoint_pair_with};
use crate::payload::{assert_bytes, message_number, numbered_message, pattern};
use crate::setup::Setup;

/// One length for each way to send a message.
const LENGTHS: [usize; 4] = [0, 20, 5000, 300_000];

pub(crate) async fn message_carries_data_tag_and_source(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let from_a = b.av.insert(a.ep.name()).unwrap();
    for (which, len) in LENGTHS.into_iter().enumerate() {
        for (tag, data) in [
            (None, None),
            (Some(0), None),
            (None, Some(0)),
            (Some(u64::MAX), Some(u64::MAX - 3)),
        ] {
            let mut send = a.ep.send(to_b, pattern(len, which));
            let mut recv = b.ep.recv();
            if let Some(tag) = tag {
                (send, recv) = (send.tag(tag), recv.tag(tag));
            }
            if let Some(data) = data {
                send = send.data(data);
            }
            let (sent, got) = tokio::join!(send, recv);
            sent.unwrap();
            let got = got.unwrap();
            assert_bytes(&got, pattern(len, which));
            assert_eq!(
                (got.tag(), got.data(), got.source()),
                (tag, data, Ok(from_a))
            );
        }
    }
}

pub(crate) async fn omitted_tag_and_data_are_absent(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for tagged in [true, false, true] {
        let (send, recv) = (a.ep.send(to_b, "x"), b.ep.recv());
        let (send, recv) = if tagged {
            (send.tag(3).data(4), recv.tag(3))
        } else {
            (send, recv)
        };
        let (sent, got) = tokio::join!(send, recv);
        sent.unwrap();
        let got = got.unwrap();
        let expected = if tagged {
            (Some(3), Some(4))
        } else {
            (None, None)
        };
        assert_eq!(
            (got.tag(), got.data()),
            expected,
            "metadata of the previous message was kept"
        );
    }
}

pub(crate) async fn send_reports_its_length_and_tag(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for len in LENGTHS {
        let (sent, got) = tokio::join!(a.ep.send(to_b, pattern(len, 0)).tag(8), b.ep.recv().tag(8));
        got.unwrap();
        let sent = sent.unwrap();
        assert_eq!((sent.len(), sent.tag(), sent.data()), (len, Some(8), None));
        assert_eq!(sent.source(), Err(Error::UnknownSource));
    }
}

pub(crate) async fn inject_delivers_up_to_inject_size(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let limit = a.ep.info().tx.inject_size;
    for len in [0, 1, limit / 2, limit] {
        let mut bytes = pattern(len, 3).to_vec();
        a.ep.send(to_b, &bytes).inject().unwrap();
        a.ep.send(to_b, &bytes).tag(5).inject().unwrap();
        bytes.fill(0);
        assert_bytes(&b.ep.recv().tag(5).await.unwrap(), pattern(len, 3));
        assert_bytes(&b.ep.recv().await.unwrap(), pattern(len, 3));
    }
    let long = vec![0; limit + 1];
    let refused = a.ep.send(to_b, &long).inject().unwrap_err();
    let Error::TooLong {
        len, limit: max, ..
    } = refused
    else {
        panic!("{refused}");
    };
    assert_eq!((len, max), (limit + 1, limit));
}

/// Some messages are sent at once, and others are queued.
pub(crate) async fn inject_data_delivers_cq_data(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let count = a.ep.info().tx.size as u64 / 16;
    for number in 0..count {
        a.ep.send(to_b, &numbered_message(number, 4000))
            .data(number)
            .inject()
            .unwrap();
        a.ep.send(to_b, &numbered_message(number, 9))
            .tag(5)
            .data(u64::MAX - number)
            .inject()
            .unwrap();
    }
    for number in 0..count {
        let (plain, tagged) = (
            b.ep.recv().await.unwrap(),
            b.ep.recv().tag(5).await.unwrap(),
        );
        assert_eq!(
            (message_number(&plain), plain.data(), plain.tag()),
            (number, Some(number), None)
        );
        assert_eq!(
            (message_number(&tagged), tagged.data()),
            (number, Some(u64::MAX - number))
        );
    }
    a.ep.send(to_b, b"no data").inject().unwrap();
    assert_eq!(b.ep.recv().await.unwrap().data(), None);
    let long = vec![0; a.ep.info().tx.inject_size + 1];
    assert!(matches!(
        a.ep.send(to_b, &long).data(1).inject(),
        Err(Error::TooLong { .. })
    ));
}

pub(crate) async fn send_beyond_max_msg_size_is_refused(setup: Setup) {
    let config = EndpointConfig {
        max_msg_size: Some(1000),
        ..EndpointConfig::default()
    };
    let (a, b, to_b) = endpoint_pair_with(&setup, config, EndpointConfig::default()).await;
    let message = vec![1; 1001];
    let at = message.as_ptr();
    let refused = a.ep.send(to_b, message).await.unwrap_err();
    assert!(
        matches!(
            refused.error,
            Error::TooLong {
                len: 1001,
                limit: 1000,
                ..
            }
        ),
        "{}",
        refused.error
    );
    assert_eq!(refused.buf.as_ptr(), at);
    let (sent, got) = tokio::join!(a.ep.send(to_b, vec![2; 1000]), b.ep.recv());
    sent.unwrap();
    assert_bytes(&got.unwrap(), &[2; 1000]);
}

/// An endpoint refuses operations whose capabilities it was not opened with, even if the provider
/// offers them.
pub(crate) async fn ops_without_requested_caps_are_refused(setup: Setup) {
    let (a, _b, to_b) = endpoint_pair(&setup).await;
    assert!(
        !a.ep
            .info()
            .caps
            .intersects(Caps::TAGGED | Caps::DIRECTED_RECV)
    );
    let refused = a.ep.send(to_b, vec![1]).tag(1).await.unwrap_err();
    assert!(
        matches!(refused.error, Error::NotSupported(_)),
        "{}",
        refused.error
    );
    assert_eq!(refused.buf, [1]);
    let refused = a.ep.recv_into(vec![2]).tag(1).start().unwrap_err();
    assert!(
        matches!(refused.error, Error::NotSupported(_)),
        "{}",
        refused.error
    );
    let refused = a.ep.recv().from(to_b).await.unwrap_err();
    assert!(
        matches!(refused.error, Error::NotSupported(_)),
        "{}",
        refused.error
    );
    let refused = a.ep.send(to_b, b"x").tag(1).inject().unwrap_err();
    assert!(matches!(refused, Error::NotSupported(_)), "{refused}");
    let hints = setup.hints().caps(Caps::MSG | Caps::SEND);
    let info = discover(&hints).unwrap().swap_remove(0);
    let send_only = a.domain.endpoint(&info).unwrap();
    let send_only = send_only.bind_av(&a.av).unwrap().enable().unwrap();
    let refused = send_only.recv().await.unwrap_err();
    assert!(
        matches!(refused.error, Error::NotSupported(what) if what.contains("FI_RECV")),
        "{}",
        refused.error
    );
}
