//! Tagged messages of connected endpoints, which are sent only to peers known to support tags.

use std::future::IntoFuture;
use std::io::Write;

use bytes::{Bytes, BytesMut};
use fabric_async::buf::Gather;
use fabric_async::{Caps, ConnectedEndpoint, Error};
use futures_util::StreamExt;

use crate::connected_pair::{MsgDomainFixture, connected_pair};
use crate::payload::{
    LONG_LEN, assert_bytes, message_number, numbered_message, pattern, poll_once,
};
use crate::raw_peer::{
    NO_EXTENSION, connect_raw, connect_raw_peer, connect_request, frame_header, read_exact,
    tagged_frame, vendor_extension,
};
use crate::setup::Setup;

const TAGGED_BIT: u32 = 1;

fn is_tags_unsupported(error: &Error) -> bool {
    matches!(error, Error::NotSupported(why) if why.contains("not known to support them"))
}

pub(crate) async fn every_length_arrives_tagged_in_both_directions(setup: Setup) {
    let (a, b) = connected_pair(&setup).await;
    let lens = [
        0,
        1,
        8,
        100,
        16_383,
        16_384,
        16_385,
        65_536,
        1 << 20,
        LONG_LEN,
    ];
    for (len, tag) in lens.into_iter().zip(u64::MAX - 20..).chain([(9, 0)]) {
        for (from, to) in [(&a.ep, &b.ep), (&b.ep, &a.ep)] {
            let sent = from.send(pattern(len, 1)).tag(tag).data(len as u64);
            let (sent, got) = tokio::join!(
                sent.delivery_complete().into_future(),
                to.recv_into(Vec::with_capacity(len)).tag(tag)
            );
            let (sent, got) = (sent.unwrap(), got.unwrap());
            assert_eq!(
                (sent.transfer.tag, got.tag(), got.data()),
                (Some(tag), Some(tag), Some(len as u64))
            );
            assert_bytes(&got, pattern(len, 1));
        }
    }
    // Unexpected messages.
    for len in lens.into_iter().filter(|len| *len <= 1 << 20) {
        let sending = a.ep.send(pattern(len, 3)).tag(7).start().unwrap();
        assert_eq!(b.ep.probe().tag(7).await.unwrap().len, len);
        assert_bytes(&b.ep.recv().tag(7).await.unwrap(), pattern(len, 3));
        sending.await.unwrap();
    }
}

pub(crate) async fn every_send_call_accepts_a_tag(setup: Setup) {
    let (mut a, mut b) = connected_pair(&setup).await;
    a.ep.send(b"injected").tag(1).inject().unwrap();
    a.ep.send(b"with data").tag(1).data(7).inject().unwrap();
    let gather = Gather::from((
        pattern(100, 1).to_vec(),
        Bytes::from_static(pattern(50_000, 2)),
    ));
    let gathered = a.ep.send(gather).tag(1).start().unwrap();
    let mut loan = a.ep.domain().try_loan(1000).unwrap();
    loan.copy_from_slice(pattern(1000, 3));
    let lent = a.ep.send(loan).tag(1).start().unwrap();
    a.ep.send("tried").tag(1).await.unwrap();
    let sends = (0..20u64).map(|number| {
        a.ep.send(numbered_message(number, 30))
            .tag(number % 2 + 5)
            .context(number)
    });
    assert_eq!(a.ep.post_all(sends).unwrap(), 20);
    for (bytes, data) in [(&b"injected"[..], None), (b"with data", Some(7))] {
        let got = b.ep.recv().tag(1).await.unwrap();
        assert_eq!((&got[..], got.data(), got.tag()), (bytes, data, Some(1)));
    }
    let got = b.ep.recv().tag(1).await.unwrap();
    assert_bytes(&got, &[pattern(100, 1), pattern(50_000, 2)].concat());
    assert_bytes(&b.ep.recv().tag(1).await.unwrap(), pattern(1000, 3));
    assert_eq!(&b.ep.recv().tag(1).await.unwrap()[..], b"tried");
    gathered.await.unwrap();
    lent.await.unwrap();
    for number in (0..20)
        .filter(|number| number % 2 == 1)
        .chain((0..20).filter(|number| number % 2 == 0))
    {
        b.ep.recv_into(vec![0; 30])
            .tag(number % 2 + 5)
            .context(number)
            .post()
            .unwrap();
        let got = b.domain_fixture.cq.next().await.unwrap();
        assert_eq!(
            (got.context, got.transfer.tag),
            (number, Some(number % 2 + 5))
        );
        assert_eq!(
            message_number(&got.into_result::<Vec<u8>>().unwrap()),
            number
        );
    }
    for number in 0..20 {
        let sent = a.domain_fixture.cq.next().await.unwrap();
        assert_eq!(
            (sent.context, sent.transfer.tag, &sent.error),
            (number, Some(number % 2 + 5), &None)
        );
    }
}

pub(crate) async fn receives_match_by_tag(setup: Setup) {
    let (a, b) = connected_pair(&setup).await;
    let (plain, seven) = (
        b.ep.recv().start().unwrap(),
        b.ep.recv().tag(7).start().unwrap(),
    );
    let any = b.ep.recv().tag_ignoring(0x100, 0xff).start().unwrap();
    let mut multi_recv =
        b.ep.recv_multi(BytesMut::with_capacity(300))
            .min_free(100)
            .tag(9)
            .start()
            .unwrap();
    for (number, tag) in [
        (0, Some(9)),
        (1, Some(0x1ab)),
        (2, None),
        (3, Some(7)),
        (4, Some(9)),
        (5, Some(8)),
    ] {
        let message = a.ep.send(numbered_message(number, 100));
        match tag {
            Some(tag) => message.tag(tag).await.unwrap(),
            None => message.await.unwrap(),
        };
    }
    assert_eq!(message_number(&plain.await.unwrap()), 2);
    assert_eq!(message_number(&seven.await.unwrap()), 3);
    let any = any.await.unwrap();
    assert_eq!((message_number(&any), any.tag()), (1, Some(0x1ab)));
    for number in [0, 4] {
        assert_eq!(
            message_number(&multi_recv.next().await.unwrap().unwrap()),
            number
        );
    }
    // The last message is claimed and requeued, and can still be received.
    let claimed = b.ep.probe().tag(8).claim().await.unwrap();
    drop(claimed);
    drop(b.ep.recv().tag(8).start().unwrap());
    assert_eq!(message_number(&b.ep.recv().tag(8).await.unwrap()), 5);
    let mut receive = b.ep.recv().tag(8).start().unwrap();
    assert!(poll_once(&mut receive).await.is_pending());
    a.ep.close().unwrap();
    assert!(receive.await.unwrap_err().error.is_peer_unavailable());
}

pub(crate) async fn shared_rx_receives_match_by_tag(setup: Setup) {
    let shared = MsgDomainFixture::open_shared_rx(&setup).await;
    let (other, mut pep) = (MsgDomainFixture::open(&setup).await, shared.listen(&setup));
    let mut pairs = Vec::new();
    for _ in 0..3 {
        pairs.push(other.connect_to(&shared, &mut pep).await);
    }
    let mut receives: Vec<_> = (0..6)
        .map(|tag| shared.shared_rx().recv().tag(tag).start().unwrap())
        .collect();
    for tag in (0..6usize).rev() {
        let (active, passive) = &pairs[tag % 3];
        active
            .send(numbered_message(tag as u64, 40))
            .tag(tag as u64)
            .await
            .unwrap();
        let got = receives.pop().unwrap().await.unwrap();
        assert_eq!(message_number(&got), tag as u64);
        assert_eq!(
            shared.shared_rx().received_by(&got.transfer),
            Some(passive.id())
        );
        passive.send("back").tag(3).await.unwrap();
        assert_eq!(&active.recv().tag(3).await.unwrap()[..], b"back");
    }
}

/// Checks that every tagged send call is refused at once, and that untagged sends work.
async fn expect_tags_refused(ep: &ConnectedEndpoint) {
    let failed = ep.send(vec![7; 9]).tag(1).await.unwrap_err();
    assert!(is_tags_unsupported(&failed.error), "{}", failed.error);
    assert_eq!((failed.buf, failed.error.errno()), (vec![7; 9], 95));
    let failed = ep
        .send(vec![7; 100_000])
        .tag(1)
        .delivery_complete()
        .await
        .unwrap_err();
    assert!(is_tags_unsupported(&failed.error) && failed.buf.len() == 100_000);
    assert!(is_tags_unsupported(
        &ep.send("posted").tag(1).post().unwrap_err().error
    ));
    assert!(is_tags_unsupported(
        &ep.send(b"injected").tag(1).inject().unwrap_err()
    ));
    let stopped = ep
        .post_all([ep.send("a").tag(1), ep.send("b").tag(1)])
        .unwrap_err();
    assert!(
        is_tags_unsupported(&stopped.error) && stopped.posted == 0,
        "{}",
        stopped.error
    );
    let mut loan = ep.domain().try_loan(10).unwrap();
    loan.fill(1);
    assert!(is_tags_unsupported(
        &ep.send(loan).tag(1).await.unwrap_err().error
    ));
}

pub(crate) async fn tagged_send_to_untagged_peer_is_refused(setup: Setup) {
    for is_initiator in [false, true] {
        let (tagged, untagged) = (
            MsgDomainFixture::open(&setup).await,
            MsgDomainFixture::open(&setup.with_caps(Caps::MSG)).await,
        );
        let (mut tagged_pep, mut untagged_pep) = (tagged.listen(&setup), untagged.listen(&setup));
        let (tagged_ep, untagged_ep) = if is_initiator {
            tagged.connect_to(&untagged, &mut untagged_pep).await
        } else {
            let (active, passive) = untagged.connect_to(&tagged, &mut tagged_pep).await;
            (passive, active)
        };
        expect_tags_refused(&tagged_ep).await;
        tagged_ep.send("without a tag").await.unwrap();
        assert_eq!(&untagged_ep.recv().await.unwrap()[..], b"without a tag");
        let own = untagged_ep.send("x").tag(1).await.unwrap_err().error;
        assert!(
            matches!(own, Error::NotSupported(why) if why.contains("FI_TAGGED")),
            "{own}"
        );
        untagged_ep.send("and back").await.unwrap();
        assert_eq!(&tagged_ep.recv().await.unwrap()[..], b"and back");
    }
}

pub(crate) async fn peer_supports_tags_option_enables_tagged_sends(setup: Setup) {
    let fixture = MsgDomainFixture::open(&setup).await;
    for is_initiator in [false, true] {
        let (ep, mut socket, sent_extension) =
            connect_raw_peer((&fixture, &setup), is_initiator, NO_EXTENSION, false).await;
        assert_eq!(
            sent_extension,
            if is_initiator {
                NO_EXTENSION
            } else {
                vendor_extension(true, TAGGED_BIT)
            }
        );
        expect_tags_refused(&ep).await;
        ep.send(b"good").inject().unwrap();
        let good = [&frame_header(0, 0, 0, 16, 20)[..], b"good"].concat();
        assert_eq!(read_exact(&mut socket, good.len()).await, good);

        let (ep, mut socket, _) =
            connect_raw_peer((&fixture, &setup), is_initiator, NO_EXTENSION, true).await;
        ep.send(b"good").tag(0x1234).inject().unwrap();
        let good = tagged_frame(0x1234, b"good");
        assert_eq!(read_exact(&mut socket, good.len()).await, good);

        // The peer's own announcement overrides the application's option.
        let (ep, _socket, _) = connect_raw_peer(
            (&fixture, &setup),
            is_initiator,
            vendor_extension(is_initiator, 0),
            true,
        )
        .await;
        expect_tags_refused(&ep).await;
    }
}

/// A peer that sends tagged frames without the announcement still gets no tagged sends.
pub(crate) async fn tagged_frame_of_raw_peer_is_read_at_every_split(setup: Setup) {
    let fixture = MsgDomainFixture::open(&setup).await;
    let whole = tagged_frame(0xabcd, b"some bytes");
    let (ep, mut socket, _) = connect_raw_peer((&fixture, &setup), true, NO_EXTENSION, false).await;
    for split in 1..whole.len() {
        socket.write_all(&whole[..split]).unwrap();
        fixture.domain.progress();
        socket.write_all(&whole[split..]).unwrap();
        let got = ep.recv().tag(0xabcd).await.unwrap();
        assert_eq!((&got[..], got.tag()), (&b"some bytes"[..], Some(0xabcd)));
    }
    expect_tags_refused(&ep).await;
    let mut receive = ep.recv().tag(0xabcd).start().unwrap();
    socket.write_all(&whole[..20]).unwrap();
    assert!(poll_once(&mut receive).await.is_pending());
    drop(socket);
    assert!(receive.await.unwrap_err().error.is_peer_unavailable());
}

/// Malformed extensions, extensions of later versions, and extensions with unknown capabilities.
pub(crate) async fn vendor_extension_enables_only_announced_caps(setup: Setup) {
    let fixture = MsgDomainFixture::open(&setup).await;
    for is_initiator in [false, true] {
        let (mut later_version, mut version_zero) = (
            vendor_extension(is_initiator, u32::MAX),
            vendor_extension(is_initiator, u32::MAX),
        );
        (later_version[12], version_zero[12]) = (0xff, 0);
        later_version[..4].fill(0xff);
        for (extension, is_extension, supports_tags) in [
            ([0xff; 20], false, false),
            ([1; 20], false, false),
            (vendor_extension(!is_initiator, TAGGED_BIT), false, false),
            (version_zero, false, false),
            (vendor_extension(is_initiator, 0), true, false),
            (vendor_extension(is_initiator, !TAGGED_BIT), true, false),
            (vendor_extension(is_initiator, TAGGED_BIT), true, true),
            (later_version, true, true),
        ] {
            let (ep, mut socket, sent_extension) =
                connect_raw_peer((&fixture, &setup), is_initiator, extension, false).await;
            // A peer without the extension gets a response without it.
            assert_eq!(
                sent_extension,
                if is_initiator && !is_extension {
                    NO_EXTENSION
                } else {
                    vendor_extension(!is_initiator, TAGGED_BIT)
                }
            );
            if supports_tags {
                ep.send(b"good").tag(5).inject().unwrap();
                let good = tagged_frame(5, b"good");
                assert_eq!(read_exact(&mut socket, good.len()).await, good);
            } else {
                expect_tags_refused(&ep).await;
            }
            socket.write_all(&tagged_frame(6, b"back")).unwrap();
            assert_eq!(
                &ep.recv().tag(6).await.unwrap()[..],
                b"back",
                "{extension:?}"
            );
        }
    }
}

pub(crate) async fn tagged_frame_closes_untagged_connection(setup: Setup) {
    let fixture = MsgDomainFixture::open(&setup).await;
    for whole in [tagged_frame(1, b""), tagged_frame(1, b"bytes")] {
        for split in [1, 16, 23, 24] {
            let mut pep = fixture.listen(&setup);
            let mut socket = connect_raw(&pep);
            socket.write_all(&connect_request(b"")).unwrap();
            let ep = fixture.accept(pep.accept().await.unwrap(), b"");
            let receive = ep.recv().start().unwrap();
            socket.write_all(&whole[..split]).unwrap();
            fixture.domain.progress();
            // The endpoint may have closed the socket already.
            let _ = socket.write_all(&whole[split..]);
            let failed = receive.await.unwrap_err().error;
            assert!(
                matches!(&failed, Error::Protocol { what, .. } if what.contains("tagged")),
                "{failed}"
            );
        }
    }
}
