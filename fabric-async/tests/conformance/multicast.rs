//! Multicast groups.

use std::sync::atomic::{AtomicU32, Ordering};

use fabric_async::{Address, Caps, Error};

use crate::endpoint_fixture::EndpointFixture;
use crate::setup::Setup;

/// Returns a group address that no other test of this process uses, nor a process with another id
/// (modulo 65,536).
pub(crate) fn unique_group(setup: &Setup) -> Address {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let ([.., high, low], number) = (
        std::process::id().to_be_bytes(),
        NEXT.fetch_add(1, Ordering::Relaxed),
    );
    format!(
        "{}://239.{high}.{low}.{}:{}",
        setup.provider,
        1 + number % 250,
        7000 + number / 250
    )
    .parse()
    .unwrap()
}

/// Returns the texts of all unread messages to this endpoint or its groups. All were sent by
/// `from`, which also sends the last message.
async fn received_texts(fixture: &EndpointFixture, from: &EndpointFixture) -> Vec<String> {
    let to = from.add_peer(fixture).await;
    from.ep.send(to, "last message").await.unwrap();
    let mut texts = Vec::new();
    loop {
        let got = fixture.ep.recv().await.unwrap();
        assert_eq!(
            fixture.av.lookup(got.source().unwrap()).as_ref(),
            Ok(from.ep.name())
        );
        match std::str::from_utf8(&got).unwrap() {
            // The last message may arrive by another socket, ahead of messages of the groups.
            "last message" => break,
            text => texts.push(text.to_owned()),
        }
    }
    while let Some(seen) = fixture.ep.probe().try_probe().unwrap() {
        let got = fixture.ep.recv().await.unwrap();
        assert_eq!(got.len(), seen.len);
        texts.push(String::from_utf8(got.to_vec()).unwrap());
    }
    texts
}

pub(crate) async fn group_send_reaches_every_member(setup: Setup) {
    let (a, b, c) = (
        setup.open_endpoint().await,
        setup.open_endpoint().await,
        setup.open_endpoint().await,
    );
    let group = unique_group(&setup);
    let (group_of_b, group_of_c) = (
        b.ep.join_multicast(&group).unwrap(),
        c.ep.join_multicast(&group).unwrap(),
    );
    assert_eq!(
        (
            group_of_b.address(),
            b.av.lookup(group_of_b.fi_addr()).as_ref()
        ),
        (&group, Ok(&group))
    );
    // A sender need not be a member.
    let to_all = a.av.insert(&group).unwrap();
    for (number, len) in [0, 5, a.info.ep.max_msg_size].into_iter().enumerate() {
        a.ep.send(to_all, vec![number as u8; len]).await.unwrap();
        for member in [&b, &c] {
            let got = member.ep.recv().await.unwrap();
            assert_eq!(got[..], vec![number as u8; len]);
            assert_eq!(
                member.av.lookup(got.source().unwrap()).as_ref(),
                Ok(a.ep.name()),
                "the source is the sender, not the group"
            );
        }
    }
    // A member receives its own message.
    b.ep.send(group_of_b.fi_addr(), "from a member")
        .await
        .unwrap();
    for member in [&b, &c] {
        let got = member.ep.recv().await.unwrap();
        assert_eq!(
            member.av.lookup(got.source().unwrap()).as_ref(),
            Ok(b.ep.name())
        );
    }
    assert_eq!(a.ep.inject_all(to_all, [&b"one"[..], b"two"]), (2, Ok(())));
    for member in [&b, &c] {
        for text in ["one", "two"] {
            assert_eq!(&member.ep.recv().await.unwrap()[..], text.as_bytes());
        }
    }
    drop((group_of_b, group_of_c));
}

pub(crate) async fn dropping_the_last_handle_leaves_the_group(setup: Setup) {
    let (a, b, c) = (
        setup.open_endpoint().await,
        setup.open_endpoint().await,
        setup.open_endpoint().await,
    );
    let (first, second) = (unique_group(&setup), unique_group(&setup));
    let (to_first, to_second) = (a.av.insert(&first).unwrap(), a.av.insert(&second).unwrap());
    let first_handle = b.ep.join_multicast(&first).unwrap();
    let second_handle = b.ep.join_multicast(&first).unwrap();
    let other = b.ep.join_multicast(&second).unwrap();
    let stays = c.ep.join_multicast(&first).unwrap();
    a.ep.send(to_first, "one").await.unwrap();
    assert_eq!(&b.ep.recv().await.unwrap()[..], b"one");
    assert_eq!(
        received_texts(&b, &a).await,
        [""; 0],
        "one copy, though the group was joined twice"
    );
    drop(first_handle);
    a.ep.send(to_first, "two").await.unwrap();
    assert_eq!(&b.ep.recv().await.unwrap()[..], b"two");
    drop(second_handle);
    a.ep.send(to_first, "three").await.unwrap();
    a.ep.send(to_second, "four").await.unwrap();
    assert_eq!(
        &b.ep.recv().await.unwrap()[..],
        b"four",
        "the endpoint is still a member of this group"
    );
    assert_eq!(received_texts(&b, &a).await, [""; 0]);
    for text in ["one", "two", "three"] {
        assert_eq!(&c.ep.recv().await.unwrap()[..], text.as_bytes());
    }
    drop(other);
    let again = b.ep.join_multicast(&first).unwrap();
    a.ep.send(to_first, "five").await.unwrap();
    assert_eq!(&b.ep.recv().await.unwrap()[..], b"five");
    // The endpoint is closed before its group handle is dropped.
    b.ep.close().unwrap();
    drop((again, stays));
}

pub(crate) async fn invalid_group_address_is_refused(setup: Setup) {
    let a = setup.open_endpoint().await;
    for (text, part) in [("127.0.0.1:5000", "239.1.2.3"), ("239.1.2.3:0", "port")] {
        let error =
            a.ep.join_multicast(format!("{}://{text}", setup.provider))
                .unwrap_err();
        assert!(
            matches!(error, Error::Invalid { what: "group", .. })
                && error.to_string().contains(part),
            "{error}"
        );
    }
    let error =
        a.ep.join_multicast(format!("{}://[ff02::1234]:5000", setup.provider))
            .unwrap_err();
    assert!(matches!(error, Error::NotSupported(_)), "{error}");
    assert!(matches!(
        a.ep.join_multicast("shm://group"),
        Err(Error::WrongScheme { .. })
    ));
    assert!(matches!(
        a.ep.join_multicast("nonsense"),
        Err(Error::BadAddress { .. })
    ));
    let builder = a
        .domain
        .endpoint(&a.info)
        .unwrap()
        .name(unique_group(&setup))
        .unwrap()
        .bind_av(&a.av)
        .unwrap();
    assert!(matches!(
        builder.enable(),
        Err(Error::Invalid {
            what: "address",
            ..
        })
    ));
    assert_eq!(a.av.peers().len(), 0, "the group's address was left behind");
}

pub(crate) async fn groups_require_fi_multicast(setup: Setup) {
    let plain = setup.open_endpoint().await;
    assert!(!plain.info.caps.contains(Caps::MULTICAST));
    let group = unique_group(&setup);
    assert!(matches!(
        plain.ep.join_multicast(&group),
        Err(Error::NotSupported(_))
    ));
    let to_all = plain.av.insert(&group).unwrap();
    assert!(matches!(
        plain.ep.send(to_all, "x").await.unwrap_err().error,
        Error::NotSupported(_)
    ));
}
