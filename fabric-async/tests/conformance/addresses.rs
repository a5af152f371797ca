//! Peer addresses: unknown sources, auto-inserted peers, stale handles, and peers that do not
//! exist.

use fabric_async::{Address, Class, Error, FiAddr, Scheme};
use futures_util::StreamExt;

use crate::endpoint_fixture::{EndpointConfig, EndpointFixture, endpoint_pair, flush};
use crate::payload::{let_other_tasks_run, poll_once, wait_until_stable};
use crate::setup::Setup;

/// Opens a sender, and a receiver whose address vector does not auto-insert peers.
async fn pair_without_auto_insert(setup: &Setup) -> (EndpointFixture, EndpointFixture, FiAddr) {
    crate::endpoint_fixture::endpoint_pair_with(
        setup,
        EndpointConfig::default(),
        EndpointConfig {
            auto_insert: false,
            ..EndpointConfig::default()
        },
    )
    .await
}

pub(crate) async fn source_is_unknown_until_av_insert(setup: Setup) {
    let (a, b, to_b) = pair_without_auto_insert(&setup).await;
    a.ep.send(to_b, "one").await.unwrap();
    let got = b.ep.recv().await.unwrap();
    assert_eq!(
        (&got[..], got.source()),
        (&b"one"[..], Err(Error::UnknownSource))
    );
    a.ep.send(to_b, "two").await.unwrap();
    flush(&a, &b, to_b).await;
    let from_a = b.av.insert(a.ep.name()).unwrap();
    a.ep.send(to_b, "three").await.unwrap();
    for text in ["two", "three"] {
        let got = b.ep.recv().await.unwrap();
        assert_eq!(
            (&got[..], got.source()),
            (text.as_bytes(), Ok(from_a)),
            "{text}: source after the insert"
        );
    }
}

pub(crate) async fn directed_receive_matches_after_av_insert(setup: Setup) {
    let (a, b, to_b) = pair_without_auto_insert(&setup).await;
    a.ep.send(to_b, "early").await.unwrap();
    flush(&a, &b, to_b).await;
    let from_a = b.av.insert(a.ep.name()).unwrap();
    assert_eq!(&b.ep.recv().from(from_a).await.unwrap()[..], b"early");
    a.ep.send(to_b, "late").await.unwrap();
    assert_eq!(&b.ep.recv().from(from_a).await.unwrap()[..], b"late");
}

/// Messages that arrived before their sender was inserted match receives directed at that sender,
/// and no receive directed at another peer, also after another address was inserted.
pub(crate) async fn av_insert_assigns_source_to_unexpected_messages(setup: Setup) {
    let (a, b, to_b) = pair_without_auto_insert(&setup).await;
    let (c, c_name) = (setup.open_endpoint().await, setup.unique_address("absent"));
    let other = b.av.insert(c.ep.name()).unwrap();
    let mut directed = b.ep.recv().from(other).start().unwrap();
    a.ep.send(to_b, "of unknown source").await.unwrap();
    flush(&a, &b, to_b).await;
    assert!(
        poll_once(&mut directed).await.is_pending(),
        "a message of unknown source matches any-source receives only"
    );
    b.av.insert(c_name.as_str()).unwrap();
    let from_a = b.av.insert(a.ep.name()).unwrap();
    assert!(poll_once(&mut directed).await.is_pending());
    let got = b.ep.recv().from(from_a).await.unwrap();
    assert_eq!(
        (&got[..], got.source()),
        (&b"of unknown source"[..], Ok(from_a))
    );
    let to_b = c.add_peer(&b).await;
    c.ep.send(to_b, "from c").await.unwrap();
    assert_eq!(&directed.await.unwrap()[..], b"from c");
}

pub(crate) async fn removed_address_is_stale(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    assert_eq!(a.av.lookup(to_b).as_ref(), Ok(b.ep.name()));
    assert_eq!(a.av.remove(to_b).as_ref(), Ok(b.ep.name()));
    assert_eq!(a.av.lookup(to_b), Err(Error::StaleAddress(to_b)));
    assert_eq!(a.av.remove(to_b), Err(Error::StaleAddress(to_b)));
    let refused = a.ep.send(to_b, vec![1, 2]).await.unwrap_err();
    assert_eq!(
        (refused.error, refused.buf),
        (Error::StaleAddress(to_b), vec![1, 2])
    );
    let refused = a.ep.send(to_b, vec![0; 100_000]).start().unwrap_err();
    assert_eq!(
        (refused.error, refused.buf.len()),
        (Error::StaleAddress(to_b), 100_000)
    );
    let refused = a.ep.recv_into(vec![3]).from(to_b).start().unwrap_err();
    assert_eq!(
        (refused.error, refused.buf),
        (Error::StaleAddress(to_b), vec![3])
    );
    assert_eq!(
        a.ep.send(to_b, b"x").inject(),
        Err(Error::StaleAddress(to_b))
    );

    // The position is reused with another generation: the old handle stays stale.
    let c = setup.open_endpoint().await;
    let to_c = a.add_peer(&c).await;
    assert_eq!(to_c.index(), to_b.index(), "the lowest free position");
    assert_eq!(
        a.ep.send(to_b, "stale").await.unwrap_err().error,
        Error::StaleAddress(to_b)
    );
    a.ep.send(to_c, "to c").await.unwrap();
    assert_eq!(&c.ep.recv().await.unwrap()[..], b"to c");
    let to_b = a.add_peer(&b).await;
    a.ep.send(to_b, "to b").await.unwrap();
    assert_eq!(&b.ep.recv().await.unwrap()[..], b"to b");
}

pub(crate) async fn removed_peer_is_received_with_unknown_source(setup: Setup) {
    let (a, b, to_b) = pair_without_auto_insert(&setup).await;
    let from_a = b.av.insert(a.ep.name()).unwrap();
    a.ep.send(to_b, "waiting").await.unwrap();
    flush(&a, &b, to_b).await;
    b.av.remove(from_a).unwrap();
    a.ep.send(to_b, "after").await.unwrap();
    for text in ["waiting", "after"] {
        let got = b.ep.recv().await.unwrap();
        assert_eq!(
            (&got[..], got.source()),
            (text.as_bytes(), Err(Error::UnknownSource))
        );
    }
}

pub(crate) async fn address_of_another_av_is_stale(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let to_a = b.add_peer(&a).await;
    let refused = a.ep.send(to_a, vec![9]).await.unwrap_err();
    assert_eq!(
        (refused.error, refused.buf),
        (Error::StaleAddress(to_a), vec![9])
    );
    assert_eq!(a.av.lookup(to_a), Err(Error::StaleAddress(to_a)));
    assert!(a.av.lookup(to_b).is_ok());
}

pub(crate) async fn inserting_twice_returns_the_same_address(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    assert_eq!(a.av.insert(b.ep.name()), Ok(to_b));
    assert_eq!(
        a.av.insert(b.ep.name().to_string()),
        Ok(to_b),
        "an address as text"
    );
    assert_eq!(a.add_peer(&b).await, to_b);
    let peers = a.av.peers();
    assert_eq!(
        peers.iter().filter(|(_, name)| name == b.ep.name()).count(),
        1
    );
}

/// The entries that cannot be inserted fail, each with its own error, and all others are inserted.
pub(crate) async fn insert_all_reports_each_entry(setup: Setup) {
    let a = setup.open_endpoint().await;
    let known: Address = setup.unique_address("known").parse().unwrap();
    let kept = a.av.insert(&known).unwrap();
    let other_scheme = match setup.provider {
        "shm" => "sim://other",
        _ => "shm://other",
    };
    let mut entries = vec![
        known.to_string(),
        other_scheme.into(),
        "no address".into(),
        setup.unnamed_address(),
        known.to_string(),
    ];
    // More than are inserted under one lock.
    let new: Vec<_> = (0..200).map(|_| setup.unique_address("new")).collect();
    entries.extend(new.iter().cloned());
    let inserted = a.av.insert_all(&entries);
    assert_eq!(inserted.len(), entries.len());
    assert_eq!((&inserted[0], &inserted[4]), (&Ok(kept), &Ok(kept)));
    assert!(matches!(inserted[1], Err(Error::WrongScheme { .. })));
    let Err(Error::BadAddress { text, .. }) = &inserted[2] else {
        panic!("{:?}", inserted[2])
    };
    assert_eq!(text, "no address");
    assert!(matches!(inserted[3], Err(Error::Invalid { .. })));
    for (number, (name, addr)) in new.iter().zip(&inserted[5..]).enumerate() {
        let addr = *addr.as_ref().unwrap();
        assert_eq!(
            addr.index(),
            kept.index() + 1 + number,
            "handles are consecutive"
        );
        assert_eq!(a.av.lookup(addr), name.parse());
    }
    assert_eq!(a.av.peers().len(), 1 + new.len());
    assert!(a.av.insert_all([""; 0]).is_empty());

    let av = a.domain.address_vector().unwrap();
    let closed = av.clone();
    av.close().unwrap();
    let entry_of_closed = Err(Error::Closed(Class::AddressVector));
    assert_eq!(closed.insert_all(&new), vec![entry_of_closed; new.len()]);
}

/// The endpoint learns of each address: messages that arrived before get their sources.
pub(crate) async fn insert_all_assigns_sources(setup: Setup) {
    let (a, b, to_b) = pair_without_auto_insert(&setup).await;
    let c = setup.open_endpoint().await;
    let c_to_b = c.add_peer(&b).await;
    a.ep.send(to_b, "from a").await.unwrap();
    flush(&a, &b, to_b).await;
    c.ep.send(c_to_b, "from c").await.unwrap();
    flush(&c, &b, c_to_b).await;
    let absent = setup.unique_address("absent");
    let names = [c.ep.name().to_string(), "no address".into(), absent];
    let names = names.into_iter().chain([a.ep.name().to_string()]);
    let inserted = b.av.insert_all(names);
    let [Ok(from_c), Err(_), Ok(_), Ok(from_a)] = inserted[..] else {
        panic!("{inserted:?}")
    };
    for (from, text) in [(from_c, "from c"), (from_a, "from a")] {
        let got = b.ep.recv().from(from).await.unwrap();
        assert_eq!((&got[..], got.source()), (text.as_bytes(), Ok(from)));
    }
    // A peer that was inserted so is reached too.
    let (sent, got) = tokio::join!(b.ep.send(from_c, "reply"), c.ep.recv());
    sent.unwrap();
    assert_eq!(&got.unwrap()[..], b"reply");
}

pub(crate) async fn add_peer_error_names_the_missing_peer(setup: Setup) {
    let a = setup.open_endpoint().await;
    let absent: Address = setup.unique_address("absent").parse().unwrap();
    assert_eq!(
        a.ep.add_peer(&absent).await,
        Err(Error::NoSuchPeer(absent.clone()))
    );
    assert_eq!(
        a.ep.add_peer(&absent).await,
        Err(Error::NoSuchPeer(absent)),
        "the second call"
    );
}

pub(crate) async fn send_error_names_the_missing_peer(setup: Setup) {
    let a = setup.open_endpoint().await;
    let absent: Address = setup.unique_address("absent").parse().unwrap();
    let addr = a.av.insert(&absent).unwrap();
    for len in [3, 100_000] {
        let refused = a.ep.send(addr, vec![0; len]).await.unwrap_err();
        assert_eq!(
            (refused.error, refused.buf.len()),
            (Error::NoSuchPeer(absent.clone()), len)
        );
    }
    // An endpoint opens under that address later: the same handle reaches it.
    let (domain, info) = (&a.domain, &a.info);
    let av = domain.address_vector().unwrap();
    let late = domain
        .endpoint(info)
        .unwrap()
        .name(&absent)
        .unwrap()
        .bind_av(&av)
        .unwrap();
    let late = late.enable().unwrap();
    let (sent, got) = tokio::join!(a.ep.send(addr, "there you are"), late.recv());
    sent.unwrap();
    assert_eq!(&got.unwrap()[..], b"there you are");
}

pub(crate) async fn wrong_scheme_and_malformed_addresses_are_refused(setup: Setup) {
    let a = setup.open_endpoint().await;
    let others = [Scheme::Shm, Scheme::Sim]
        .into_iter()
        .filter(|other| other.provider() != setup.provider);
    for other in others {
        let address = Address::new(other, "other").unwrap();
        let expected = |error: &Error| match error {
            Error::WrongScheme {
                provider,
                address: named,
            } => *provider == setup.provider && *named == address,
            _ => false,
        };
        assert!(expected(&a.av.insert(&address).unwrap_err()));
        assert!(expected(&a.ep.add_peer(&address).await.unwrap_err()));
        let builder = a.domain.endpoint(&a.info).unwrap().bind_av(&a.av).unwrap();
        assert!(expected(
            &builder.name(&address).unwrap().enable().unwrap_err()
        ));
    }
    for text in [
        "",
        "echo",
        "tcq://echo",
        "shm://a/b",
        "shm://a b",
        "sim://\u{e9}",
    ] {
        let error = a.ep.add_peer(text).await.unwrap_err();
        assert!(
            matches!(&error, Error::BadAddress { text: named, .. } if named == text),
            "{text:?}: {error}"
        );
        let example = format!("as in {}://", a.ep.name().scheme().provider());
        assert!(
            text.contains("://") || error.to_string().contains(&example),
            "{text:?}: {error}"
        );
    }
    let empty = a.ep.add_peer(setup.unnamed_address()).await.unwrap_err();
    assert!(
        matches!(empty, Error::Invalid { .. }),
        "an address without a name is no peer: {empty}"
    );
    if a.ep.name().socket_addr().is_none() {
        return;
    }
    let unbound = format!("{}://127.0.0.1:0", setup.provider);
    let error = a.av.insert(&unbound[..]).unwrap_err();
    assert!(
        matches!(&error, Error::Invalid { why, .. } if why.contains("port 0")),
        "{error}"
    );
    // 192.0.2.0/24 is reserved for documentation: no interface has such an address.
    let elsewhere = format!("{}://192.0.2.1:7000", setup.provider);
    let builder = a.domain.endpoint(&a.info).unwrap().bind_av(&a.av).unwrap();
    let error = builder.name(&elsewhere[..]).unwrap().enable().unwrap_err();
    assert!(
        matches!(&error, Error::AddressNotLocal(at) if at.to_string().contains("192.0.2.1:7000")),
        "{error}"
    );
}

pub(crate) async fn auto_inserted_peers_are_released_on_close(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let c = setup.open_endpoint().await;
    let kept = b.av.insert(c.ep.name()).unwrap();
    a.ep.send(to_b, "hello").await.unwrap();
    let auto_addr = b.ep.recv().await.unwrap().source().unwrap();
    assert_eq!(b.av.lookup(auto_addr).as_ref(), Ok(a.ep.name()));
    let to_b = c.add_peer(&b).await;
    c.ep.send(to_b, "hello").await.unwrap();
    assert_eq!(
        b.ep.recv().await.unwrap().source(),
        Ok(kept),
        "a peer that was inserted keeps its handle"
    );
    a.ep.close().unwrap();
    c.ep.close().unwrap();
    // The domain learns of the disconnects only while it makes progress.
    while b.av.lookup(auto_addr).is_ok() {
        b.domain.progress();
        tokio::task::yield_now().await;
    }
    wait_until_stable(|| b.av.peers().len() as u64).await;
    assert!(
        b.av.lookup(kept).is_ok(),
        "peers that were inserted explicitly stay"
    );
}

/// As `av_insert_assigns_source_to_unexpected_messages`, but the sender has closed before the
/// insert.
pub(crate) async fn av_insert_assigns_source_after_peer_closed(setup: Setup) {
    let b = setup
        .open_endpoint_with(EndpointConfig {
            auto_insert: false,
            ..EndpointConfig::default()
        })
        .await;
    let a = setup.open_endpoint().await;
    let (name, to_b) = (a.ep.name().clone(), a.add_peer(&b).await);
    for tag in [1, 2] {
        a.ep.send(to_b, "from a closed peer")
            .tag(tag)
            .await
            .unwrap();
    }
    assert_eq!(
        b.ep.recv().tag(1).await.unwrap().source(),
        Err(Error::UnknownSource)
    );
    let progress_task = b.spawn_progress();
    drop(a);
    let_other_tasks_run().await;
    progress_task.abort();
    let addr = b.av.insert(&name).unwrap();
    assert_eq!(
        b.ep.recv().tag(2).from(addr).await.unwrap().source(),
        Ok(addr)
    );
}

/// A receive that is directed at a handle fails when the handle is removed.
pub(crate) async fn av_remove_fails_directed_receives(setup: Setup) {
    let (a, mut b, _) = endpoint_pair(&setup).await;
    let addr = b.av.insert(a.ep.name()).unwrap();
    let directed = b.ep.recv_into(vec![0; 8]).from(addr).start().unwrap();
    b.ep.recv().from(addr).context(3).post().unwrap();
    b.av.remove(addr).unwrap();
    let failed = directed.await.unwrap_err();
    assert_eq!(
        (failed.error, failed.buf.capacity()),
        (Error::StaleAddress(addr), 8)
    );
    let posted = b.cq.next().await.unwrap();
    assert_eq!(
        (posted.context, posted.error.as_deref()),
        (3, Some(&Error::StaleAddress(addr)))
    );
}

/// Two endpoints share an address vector, and one of them knows an auto-inserted peer of the other
/// only by its handle.
pub(crate) async fn auto_inserted_peer_close_fails_all_directed_receives(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let other = b
        .domain
        .endpoint(&b.info)
        .unwrap()
        .bind_av(&b.av)
        .unwrap()
        .enable()
        .unwrap();
    a.ep.send(to_b, "hello").await.unwrap();
    let auto_addr = b.ep.recv().await.unwrap().source().unwrap();
    let directed = other.recv().from(auto_addr).start().unwrap();
    drop(a);
    assert_eq!(
        directed.await.unwrap_err().error,
        Error::StaleAddress(auto_addr)
    );
}

/// A handle that was removed and assigned again to the same auto-inserted peer is not released by
/// the end of the peer's old connection.
pub(crate) async fn reinserted_address_survives_old_connection_close(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let other = b
        .domain
        .endpoint(&b.info)
        .unwrap()
        .bind_av(&b.av)
        .unwrap()
        .enable()
        .unwrap();
    a.ep.send(to_b, "one").await.unwrap();
    let first = b.ep.recv().await.unwrap().source().unwrap();
    b.av.remove(first).unwrap();
    let to_other = a.ep.add_peer(other.name()).await.unwrap();
    a.ep.send(to_other, "two").await.unwrap();
    let second = other.recv().await.unwrap().source().unwrap();
    assert_ne!(first, second);
    let progress_task = b.spawn_progress();
    b.ep.close().unwrap();
    let_other_tasks_run().await;
    progress_task.abort();
    a.ep.send(to_other, "three").await.unwrap();
    assert_eq!(
        other.recv().await.unwrap().source(),
        Ok(second),
        "still connected"
    );
}
