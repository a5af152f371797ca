//! Messages of senders that are not in the address vector, with `FI_SOURCE_ERR`.

use std::fmt::Debug;

use bytes::BytesMut;
use fabric_async::{Access, Address, EpType, Error, Failed, FiAddr, Hints, OpKind, discover};
use futures_util::StreamExt;

use crate::endpoint_fixture::{EndpointConfig, EndpointFixture, endpoint_pair_with, flush};
use crate::payload::{LONG_LEN, assert_bytes, pattern, yield_times};
use crate::setup::Setup;
use crate::shared_rx_fixture::SharedRxFixture;

fn without_auto_insert() -> EndpointConfig {
    EndpointConfig {
        auto_insert: false,
        ..EndpointConfig::default()
    }
}

/// Opens a sender, and a receiver whose address vector is empty.
async fn pair(setup: &Setup) -> (EndpointFixture, EndpointFixture, FiAddr) {
    endpoint_pair_with(setup, EndpointConfig::default(), without_auto_insert()).await
}

/// Makes progress until `count` messages are unexpected.
async fn wait_for_unexpected(fixture: &EndpointFixture, count: usize) {
    while fixture.ep.stats().unexpected < count {
        fixture.domain.progress();
        yield_times(1).await;
    }
}

/// Returns the error of a message from a sender with this name.
fn source_error(name: &Address) -> Error {
    Error::SourceNotInserted {
        address: Some(name.clone()),
    }
}

/// Checks that a receive has failed because of its sender, and returns the buffer.
#[track_caller]
fn expect_unknown<T: Debug, B: Debug>(got: Result<T, Failed<B>>, name: &Address, len: usize) -> B {
    let failed = got.expect_err("the sender is not in the address vector");
    assert_eq!(failed.error, source_error(name));
    assert_eq!((failed.transfer.len, failed.transfer.source), (len, None));
    failed.buf
}

/// The error has what the receiver needs to insert the sender and to reply.
pub(crate) async fn unknown_sender_comes_with_its_address(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
    let (sent, got) = tokio::join!(a.ep.send(to_b, "one"), b.ep.recv());
    sent.unwrap();
    assert_bytes(&expect_unknown(got, a.ep.name(), 3), b"one");
    a.ep.send(to_b, "two").await.unwrap();
    a.ep.send(to_b, "three").await.unwrap();
    wait_for_unexpected(&b, 2).await;
    let failed = b.ep.recv().await.unwrap_err();
    let Error::SourceNotInserted {
        address: Some(name),
    } = &failed.error
    else {
        panic!("{failed}")
    };
    assert_eq!(failed.error.errno(), 99);
    assert_bytes(&failed.buf, b"two");

    let to_a = b.av.insert(name).unwrap();
    let got = b.ep.recv().await.unwrap();
    assert_eq!((&got[..], got.source()), (&b"three"[..], Ok(to_a)));
    let (sent, got) = tokio::join!(b.ep.send(to_a, "reply"), a.ep.recv());
    sent.unwrap();
    // The address vector of the sender inserts peers that connect.
    assert_eq!(&got.unwrap()[..], b"reply");
    let stats = b.ep.stats();
    assert_eq!((stats.received.count, stats.failed), (1, 2));
}

/// An error entry has the context, the message and the address; a counter counts an error.
pub(crate) async fn posted_receives_report_unknown_senders(setup: Setup) {
    let (a, mut b, to_b) = pair(&setup).await;
    // A connected endpoint has no address vector.
    let provider = Hints::new().provider(setup.provider);
    let connected = provider.ep_type(EpType::Msg).caps(setup.caps);
    assert!(matches!(discover(&connected), Err(Error::NoMatch(_))));
    for context in 0..3 {
        b.ep.recv_into(vec![0; 16]).context(context).post().unwrap();
        if context == 1 {
            b.av.insert(a.ep.name()).unwrap();
        }
        a.ep.send(to_b, vec![context as u8; 9]).await.unwrap();
        let entry = b.cq.next().await.unwrap();
        assert_eq!(entry.context, context);
        assert_eq!(entry.bytes(), [context as u8; 9]);
        if context == 0 {
            assert_eq!(entry.error.as_deref(), Some(&source_error(a.ep.name())));
        } else {
            assert_eq!((entry.error, entry.transfer.source.is_some()), (None, true));
        }
    }
    assert_eq!((b.recv_counter.value(), b.recv_counter.errors()), (2, 1));
    // A message that does not fit has one error.
    b.av.remove(b.av.peers()[0].0).unwrap();
    b.ep.recv_into(vec![0; 4]).context(3).post().unwrap();
    a.ep.send(to_b, "too long").await.unwrap();
    let error = b.cq.next().await.unwrap().error;
    let truncated = Error::Truncated { len: 4, lost: 4 };
    assert_eq!(error.as_deref(), Some(&truncated));
}

pub(crate) async fn removed_peer_comes_with_its_address(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
    let from_a = b.av.insert(a.ep.name()).unwrap();
    let (sent, got) = tokio::join!(a.ep.send(to_b, "known"), b.ep.recv());
    sent.unwrap();
    assert_eq!(got.unwrap().source(), Ok(from_a));
    a.ep.send(to_b, "waiting").await.unwrap();
    wait_for_unexpected(&b, 1).await;
    b.av.remove(from_a).unwrap();
    let waiting = expect_unknown(b.ep.recv().await, a.ep.name(), 7);
    assert_bytes(&waiting, b"waiting");
    let (sent, got) = tokio::join!(a.ep.send(to_b, "after"), b.ep.recv());
    sent.unwrap();
    assert_bytes(&expect_unknown(got, a.ep.name(), 5), b"after");
}

/// Whole and long messages, tagged ones, claims, multi-receives and loans.
pub(crate) async fn every_kind_of_receive_reports_unknown_senders(setup: Setup) {
    let (a, mut b, to_b) = pair(&setup).await;
    let name = a.ep.name().clone();
    for is_unexpected in [false, true] {
        for len in [0, 40, 5000, LONG_LEN] {
            let bytes = pattern(len, 1);
            let send = async { a.ep.send(to_b, bytes).tag(7).await.unwrap() };
            let receive = async {
                if is_unexpected {
                    wait_for_unexpected(&b, 1).await;
                }
                b.ep.recv_into(Vec::with_capacity(len)).tag(7).await
            };
            let (_, got) = tokio::join!(send, receive);
            assert_bytes(&expect_unknown(got, &name, len), bytes);
        }
    }
    a.ep.send(to_b, "claimed").await.unwrap();
    let claimed = b.ep.probe().claim().await.unwrap();
    assert_eq!(claimed.source(), Err(Error::UnknownSource));
    let got = claimed.recv().await;
    assert_bytes(&expect_unknown(got, &name, 7), b"claimed");
    let (sent, got) = tokio::join!(a.ep.send(to_b, "copied"), b.ep.recv_loan());
    sent.unwrap();
    assert_eq!(expect_unknown(got, &name, 6).to_vec(), b"copied");

    let stream = b.ep.recv_multi(BytesMut::with_capacity(4096));
    let mut stream = stream.min_free(64).start().unwrap();
    for text in ["first", "second"] {
        a.ep.send(to_b, text).await.unwrap();
        let got = stream.next().await.unwrap();
        assert_bytes(&expect_unknown(got, &name, text.len()), text.as_bytes());
    }
    drop(stream);
    let multi = b.ep.recv_multi(BytesMut::with_capacity(4096)).context(5);
    let multi = multi.post().unwrap();
    a.ep.send(to_b, "third").await.unwrap();
    let entry = b.cq.next().await.unwrap();
    assert_eq!((entry.context, entry.bytes()), (5, &b"third"[..]));
    assert_eq!(entry.error.as_deref(), Some(&source_error(&name)));
    multi.cancel();
    let from_a = b.av.insert(&name).unwrap();
    flush(&a, &b, to_b).await;
    let (sent, got) = tokio::join!(a.ep.send(to_b, "known"), b.ep.recv());
    sent.unwrap();
    assert_eq!(got.unwrap().source(), Ok(from_a));
}

/// A receive that has ended with the error and is dropped gives its message to the next one.
pub(crate) async fn dropped_receive_of_unknown_sender_loses_no_message(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
    let name = a.ep.name().clone();
    for len in [9, 5000, LONG_LEN] {
        let (first, second) = (pattern(len, 2), pattern(len, 3));
        let dropped = b.ep.recv().start().unwrap();
        let sends = async {
            a.ep.send(to_b, first).await.unwrap();
            a.ep.send(to_b, second).await.unwrap();
        };
        let receives = async {
            // The second message arrives behind the first one.
            wait_for_unexpected(&b, 1).await;
            drop(dropped);
            [b.ep.recv().await, b.ep.recv().await]
        };
        let ((), [got_first, got_second]) = tokio::join!(sends, receives);
        assert_bytes(&expect_unknown(got_first, &name, len), first);
        assert_bytes(&expect_unknown(got_second, &name, len), second);
    }
    // The sender that was inserted meanwhile is no error.
    let dropped = b.ep.recv().start().unwrap();
    a.ep.send(to_b, "one").await.unwrap();
    a.ep.send(to_b, "two").await.unwrap();
    wait_for_unexpected(&b, 1).await;
    let from_a = b.av.insert(&name).unwrap();
    drop(dropped);
    for text in ["one", "two"] {
        let got = b.ep.recv().await.unwrap();
        assert_eq!((&got[..], got.source()), (text.as_bytes(), Ok(from_a)));
    }
}

/// The address is known until the last message was received.
pub(crate) async fn senders_that_have_left_are_reported(setup: Setup) {
    let b = setup.open_endpoint_with(without_auto_insert()).await;
    let mut names = Vec::new();
    for number in 0..3 {
        let a = setup.open_endpoint().await;
        let to_b = a.add_peer(&b).await;
        a.ep.send(to_b, vec![number]).await.unwrap();
        wait_for_unexpected(&b, 1 + usize::from(number)).await;
        names.push(a.ep.name().clone());
        drop(a);
        while b.ep.stats().peers > 0 {
            b.domain.progress();
            yield_times(1).await;
        }
    }
    for (number, name) in names.iter().enumerate() {
        let bytes = expect_unknown(b.ep.recv().await, name, 1);
        assert_eq!(bytes[..], [number as u8]);
    }
}

/// Messages of all endpoints of the context, also of one that is closed.
pub(crate) async fn shared_contexts_report_unknown_senders(setup: Setup) {
    let mut b = SharedRxFixture::open(&setup, 2, without_auto_insert()).await;
    let (a, c) = (setup.open_endpoint().await, setup.open_endpoint().await);
    let from_a = a.add_peers(&b.endpoints).await;
    let from_c = c.add_peers(&b.endpoints).await;
    a.ep.send(from_a[0], "a to 0").await.unwrap();
    b.wait_for_unexpected(1).await;
    c.ep.send(from_c[1], "c to 1").await.unwrap();
    b.wait_for_unexpected(2).await;
    a.ep.send(from_a[1], "a to 1").await.unwrap();
    b.wait_for_unexpected(3).await;
    b.endpoints.pop().unwrap().close().unwrap();
    for (from, text) in [(&a, "a to 0"), (&c, "c to 1"), (&a, "a to 1")] {
        let got = b.shared_rx.recv().await;
        let bytes = expect_unknown(got, from.ep.name(), text.len());
        assert_bytes(&bytes, text.as_bytes());
    }
    let from = b.av.insert(c.ep.name()).unwrap();
    let (sent, got) = tokio::join!(c.ep.send(from_c[0], "c to 0"), b.shared_rx.recv());
    sent.unwrap();
    assert_eq!(got.unwrap().source(), Ok(from));
    assert_eq!((b.recv_counter.value(), b.recv_counter.errors()), (1, 3));
}

pub(crate) async fn unknown_senders_are_no_error_without_fi_source_err(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
    assert!(!b.info.caps.contains(fabric_async::Caps::SOURCE_ERR));
    let (sent, got) = tokio::join!(a.ep.send(to_b, "one"), b.ep.recv());
    sent.unwrap();
    assert_eq!(got.unwrap().source(), Err(Error::UnknownSource));
}

pub(crate) async fn writes_with_data_are_no_errors(setup: Setup) {
    let (a, mut b, to_b) = pair(&setup).await;
    let region = b.domain.alloc(8, Access::REMOTE_WRITE).unwrap();
    let write = a.ep.write(to_b, region.remote().at(0), "x").data(5);
    let (written, entry) = tokio::join!(write, b.cq.next());
    written.unwrap();
    let entry = entry.unwrap();
    let transfer = (entry.transfer.data, entry.transfer.source);
    assert_eq!(
        (entry.kind, transfer),
        (OpKind::RemoteWrite, (Some(5), None))
    );
    assert_eq!(entry.error, None);
}
