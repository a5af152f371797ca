//! The object tree: close and drop, open children, and which objects can be bound.

use fabric_async::info::ResourceMgmt;
use fabric_async::{
    Access, Address, Caps, Class, CounterBind, CqBind, EpType, Error, FiAddr, Hints, Info,
    Progress, discover,
};

use crate::endpoint_fixture::{EndpointFixture, endpoint_pair};
use crate::setup::Setup;

/// The attributes of the domain that `docs/fi_domain.md` states, and what is granted to hints that
/// leave progress open or disable resource management.
pub(crate) async fn offers_state_the_documented_attributes(setup: Setup) {
    let (fabric, info) = setup.fabric().await;
    let (offered, ep_type) = (&info.domain, info.ep.ep_type);
    let is_udp = ep_type == EpType::Dgram;
    assert_eq!((offered.mr_key_size, offered.max_err_data), (8, 256));
    assert_eq!(offered.cq_data_size, if is_udp { 0 } else { 8 });
    assert_eq!(offered.mr_iov_limit, if is_udp { 1 } else { 4 });
    let contexts = [offered.max_ep_tx_ctx, offered.max_ep_rx_ctx];
    assert_eq!((contexts, offered.max_ep_stx_ctx), ([1, 1], 0));
    assert_eq!(offered.max_ep_srx_ctx > 0, !is_udp);
    assert_eq!((&offered.auth_key, offered.auth_key_size), (&None, 0));
    assert!(info.mode.is_empty() && offered.mode.is_empty());
    let hints = || Hints::new().within(&fabric).ep_type(ep_type);
    let first = discover(&hints()).unwrap().swap_remove(0).domain;
    let progress = [first.control_progress, first.data_progress];
    assert_eq!(progress, [Progress::Manual; 2]);
    let disabled = hints().resource_mgmt(ResourceMgmt::Disabled);
    for found in discover(&disabled).unwrap() {
        assert_eq!(found.domain.resource_mgmt, ResourceMgmt::Enabled);
    }
}

/// An info is negotiated again, with the offers of this moment, whenever an object is opened.
pub(crate) async fn infos_beyond_the_offers_are_refused(setup: Setup) {
    let (fabric, info) = setup.fabric().await;
    let domain = setup.open_domain(&fabric, &info);
    let changes: [(_, fn(&mut Info)); 3] = [
        ("tx_size", |info| info.tx.size += 1),
        ("max_msg_size", |info| info.ep.max_msg_size = usize::MAX),
        ("max_err_data", |info| info.domain.max_err_data += 1),
    ];
    for (attribute, change) in changes {
        let mut beyond = info.clone();
        change(&mut beyond);
        let opened = [
            fabric.domain(&beyond).map(drop),
            domain.endpoint(&beyond).map(drop),
        ];
        for refused in opened {
            let Err(Error::NoMatch(refused)) = refused else {
                panic!("{attribute}: {refused:?}")
            };
            let mut mismatches = refused.mismatches.iter();
            assert!(mismatches.any(|of| of.attribute == attribute), "{refused}");
        }
    }
    assert_eq!(fabric.children().of(Class::Domain), 1);
}

/// The counts of the info that a domain was opened with are limits, and the offer has none.
pub(crate) async fn objects_beyond_the_counts_are_refused(setup: Setup) {
    let (fabric, mut info) = setup.fabric().await;
    let offered = &info.domain;
    let counts = [offered.cq_cnt, offered.ep_cnt, offered.cntr_cnt];
    assert_eq!(counts, [usize::MAX; 3]);
    info.domain.cq_cnt = 2;
    info.domain.ep_cnt = 1;
    info.domain.cntr_cnt = 0;
    info.domain.mr_cnt = info.domain.mr_cnt.min(1);
    let domain = setup.open_domain(&fabric, &info);
    let av = domain.address_vector().unwrap();
    let queues = [(); 2].map(|()| domain.completion_queue(8).unwrap());
    let bound = CqBind::TRANSMIT | CqBind::RECV;
    let open_endpoint = || {
        let ep = domain.endpoint(&info).unwrap();
        ep.bind_cq(&queues[0], bound)?.bind_av(&av)?.enable()
    };
    let ep = open_endpoint().unwrap();
    let mut refused = vec![
        (domain.completion_queue(8).err(), "3 completion queues"),
        (domain.counter().err(), "no counters"),
        (open_endpoint().err(), "2 endpoints"),
    ];
    if setup.offers(Caps::RMA).await {
        let region = || domain.alloc(64, Access::REMOTE_READ);
        let first = region().unwrap();
        refused.push((region().err(), "2 memory regions"));
        drop(first);
        region().unwrap();
    }
    for (error, what) in refused {
        let error = error.expect(what);
        assert!(matches!(error, Error::TooMany { .. }), "{error}");
        assert!(error.to_string().starts_with(what), "{error}");
    }
    // A closed object makes room.
    ep.close().unwrap();
    let ep = open_endpoint().unwrap();
    assert_eq!(domain.children().of(Class::Endpoint), 1);
    drop(ep);
}

/// The fields of a `fid_domain`, one by one.
pub(crate) async fn domain_states_what_it_was_opened_with(setup: Setup) {
    let (fabric, mut info) = setup.fabric().await;
    (info.domain.cq_cnt, info.domain.ep_cnt) = (4, 128);
    let builder = fabric.domain_builder(&info).socket_io(setup.socket_io);
    let domain = builder.context(42).open().unwrap();
    let other = setup.open_domain(&fabric, &info);
    assert_eq!(
        (domain.class(), fabric.class()),
        (Class::Domain, Class::Fabric)
    );
    // Ids are of one space.
    let ids = [fabric.id(), domain.id(), other.id()];
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
    assert_eq!(domain.fabric().id(), fabric.id());
    let opened = domain.info();
    assert_eq!(opened.fabric.provider, fabric.attr().provider);
    assert_eq!((opened.caps, opened.mode), (info.caps, info.mode));
    assert_eq!(opened.domain.mr_key_size, info.domain.mr_key_size);
    assert_eq!((opened.domain.cq_cnt, opened.domain.ep_cnt), (4, 128));
    assert_eq!(domain.context(), 42);
    assert_eq!(domain.children().total(), 0);
    let cq = domain.completion_queue(8).unwrap();
    assert_eq!(domain.children().total(), 1);
    // Each domain counts its own children, and the fabric counts both domains.
    assert_eq!(other.children().total(), 0);
    assert_eq!(fabric.children().of(Class::Domain), 2);
    // `Debug` prints the same fields.
    let debug = format!("{domain:?}");
    for field in [
        "class: Domain".to_owned(),
        format!("id: {}", domain.id()),
        format!("parent: Some({})", fabric.id()),
        format!("provider: {:?}", opened.fabric.provider),
        format!("caps: {:?}", opened.caps),
        format!("mode: {:?}", opened.mode),
        format!("mr_key_size: {}", opened.domain.mr_key_size),
        "cq_cnt: 4".to_owned(),
        "ep_cnt: 128".to_owned(),
        "children: 1 completion queue".to_owned(),
        "context: 42".to_owned(),
    ] {
        assert!(debug.contains(&field), "{field} in {debug}");
    }
    cq.close().unwrap();
    domain.close().unwrap();
    assert_eq!(fabric.children().of(Class::Domain), 1);
}

pub(crate) async fn children_use_the_attributes_of_their_domain(setup: Setup) {
    let (fabric, mut info) = setup.fabric().await;
    info.domain.cntr_cnt = 8;
    let domain = setup.open_domain(&fabric, &info);
    let refused = |change: fn(&mut Info)| {
        let mut info = info.clone();
        change(&mut info);
        [
            domain.endpoint(&info).err(),
            domain.shared_rx_context(&info).err(),
        ]
    };
    // The provider offers more than this domain was opened with.
    for error in refused(|info| info.domain.cntr_cnt = 9) {
        let error = error.unwrap();
        assert_eq!(error.errno(), 22);
        assert!(error.to_string().contains("cntr_cnt 9"), "{error}");
        assert!(error.to_string().contains("opened with 8"), "{error}");
    }
    if info.domain.data_progress == Progress::Manual {
        for error in refused(|info| info.domain.data_progress = Progress::Auto) {
            let error = error.unwrap().to_string();
            assert!(error.contains("data_progress"), "{error}");
        }
    }
    let mut others = [info.clone(), info.clone()];
    others[0].fabric.provider = "other".into();
    others[1].fabric.name = "other".into();
    let attr = fabric.attr();
    for (other, own) in others.iter().zip([&attr.provider, &attr.name]) {
        let opened = [
            fabric.domain(other).map(drop),
            domain.endpoint(other).map(drop),
        ];
        for refused in opened {
            let error = refused.unwrap_err();
            let names = [format!("{own:?}"), "\"other\"".to_owned()];
            let text = error.to_string();
            assert!(matches!(error, Error::Invalid { what: "info", .. }));
            assert!(names.iter().all(|name| text.contains(name)), "{text}");
        }
    }
    assert_eq!(domain.children().total(), 0);
    let _ = domain.endpoint(&info).unwrap();
}

/// An info has the id of the first open instance of its domain, or of the one that the hints name.
pub(crate) async fn discovery_finds_open_domains(setup: Setup) {
    let (fabric, mut info) = setup.fabric().await;
    info.domain.cntr_cnt = 8;
    let first = setup.open_domain(&fabric, &info);
    let second = setup.open_domain(&fabric, &info);
    let ep_type = info.ep.ep_type;
    let of_fabric = discover(&Hints::new().within(&fabric).ep_type(ep_type)).unwrap();
    assert!(
        of_fabric
            .iter()
            .all(|info| info.fabric.name == fabric.attr().name)
    );
    let same_name = |found: &&Info| found.domain.name == info.domain.name;
    let instance = of_fabric.iter().find(same_name).unwrap().domain.domain;
    // Other tests open instances, too.
    assert!(instance.is_some_and(|instance| instance <= first.id()));
    for domain in [&first, &second] {
        let within = || Hints::new().within(domain).ep_type(ep_type);
        for found in discover(&within()).unwrap() {
            assert_eq!(found.domain.domain, Some(domain.id()));
            assert_eq!(found.domain.cntr_cnt, 8);
            let _ = domain.endpoint(&found).unwrap();
            // The instance is no attribute of another domain.
            setup.open_domain(&fabric, &found).close().unwrap();
        }
        let Err(Error::NoMatch(refused)) = discover(&within().cntr_cnt(9)) else {
            panic!("the domain was opened for 8 counters");
        };
        assert!(refused.mismatches.iter().any(|m| m.attribute == "cntr_cnt"));
    }
    let within_second = Hints::new().within(&second);
    let clone = second.clone();
    second.close().unwrap();
    let Err(Error::NoMatch(refused)) = discover(&within_second) else {
        panic!("the domain is closed, although a handle exists");
    };
    assert!(refused.mismatches.iter().any(|m| m.attribute == "domain"));
    drop(clone);

    // A domain ends with its last handle, even while an operation has not ended.
    let third = setup.open_domain(&fabric, &info);
    let within_third = Hints::new().within(&third);
    let av = third.address_vector().unwrap();
    let ep = third.endpoint(&info).unwrap();
    let ep = match ep_type {
        EpType::Msg => None,
        _ => Some(ep.bind_av(&av).unwrap().enable().unwrap()),
    };
    let receive = ep.as_ref().map(|ep| ep.recv().start().unwrap());
    discover(&within_third).unwrap();
    drop((ep, av, third));
    assert!(discover(&within_third).is_err());
    drop(receive);
}

pub(crate) async fn busy_domain_reports_open_children(setup: Setup) {
    let EndpointFixture {
        ep,
        cq,
        av,
        send_counter: sends,
        recv_counter: recvs,
        domain,
        eq,
        fabric,
        ..
    } = setup.open_endpoint().await;
    let regions = u32::from(setup.offers(Caps::RMA).await);
    let region = (regions > 0).then(|| {
        domain
            .alloc_from(vec![0_u8; 64], Access::REMOTE_READ, None)
            .unwrap()
    });
    let refused = domain.close().unwrap_err();
    let Error::Busy(children) = &refused.error else {
        panic!("{}", refused.error)
    };
    let classes = [
        (Class::Endpoint, 1),
        (Class::CompletionQueue, 1),
        (Class::AddressVector, 1),
        (Class::MemoryRegion, regions),
        (Class::Counter, 2),
    ];
    for (class, count) in classes {
        assert_eq!(children.of(class), count, "{children}");
    }
    assert_eq!(children.total(), 5 + regions);
    // The returned handle still works.
    let domain = refused.handle;
    let me = av.insert(ep.name()).unwrap();
    let (sent, got) = tokio::join!(ep.send(me, "still open"), ep.recv());
    sent.unwrap();
    assert_eq!(&got.unwrap()[..], b"still open");
    let another = domain.counter().unwrap();
    assert_eq!(domain.children().of(Class::Counter), 3);
    another.close().unwrap();

    let refused = fabric.close().unwrap_err();
    let Error::Busy(children) = &refused.error else {
        panic!("{}", refused.error)
    };
    assert_eq!(
        (children.of(Class::Domain), children.of(Class::EventQueue)),
        (1, 1)
    );
    let fabric = refused.handle;

    ep.close().unwrap();
    if let Some(region) = region {
        region.close().unwrap();
    }
    cq.close().unwrap();
    av.close().unwrap();
    sends.close().unwrap();
    recvs.close().unwrap();
    assert_eq!(domain.children().total(), 0);
    domain.close().unwrap();
    eq.close().unwrap();
    fabric.close().unwrap();
}

pub(crate) async fn queues_and_avs_are_busy_while_bound(setup: Setup) {
    let EndpointFixture {
        ep,
        cq,
        av,
        send_counter: sends,
        domain,
        eq,
        ..
    } = setup.open_endpoint().await;
    let busy = |error: &Error, class| match error {
        Error::Busy(by) => by.of(class) == 1 && by.total() == 1,
        _ => false,
    };
    let refused = cq.close().unwrap_err();
    assert!(busy(&refused.error, Class::Endpoint), "{refused}");
    let cq = refused.handle;
    let refused = av.close().unwrap_err();
    assert!(busy(&refused.error, Class::Endpoint), "{refused}");
    let av = refused.handle;
    let refused = sends.close().unwrap_err();
    assert!(busy(&refused.error, Class::Endpoint), "{refused}");
    let sends = refused.handle;
    let refused = eq.close().unwrap_err();
    assert!(busy(&refused.error, Class::Domain), "{refused}");

    let me = av.insert(ep.name()).unwrap();
    ep.send(me, "queue and vector still work")
        .context(3)
        .post()
        .unwrap();
    let mut cq = cq;
    let mut out = Vec::new();
    while cq.read_batch(&mut out, 1).await == 0 {}
    assert_eq!(out[0].context, 3);
    assert!(sends.value() >= 1);
    drop(ep);
    cq.close().unwrap();
    av.close().unwrap();
    sends.close().unwrap();
    drop(domain);
}

pub(crate) async fn closing_an_endpoint_closes_all_clones(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let clone = b.ep.clone();
    a.ep.send(to_b, "before").await.unwrap();
    assert_eq!(&clone.recv().await.unwrap()[..], b"before");
    b.ep.close().unwrap();
    let again = clone.close().unwrap_err();
    assert_eq!(again.error, Error::Closed(Class::Endpoint));
    assert_eq!(b.domain.children().of(Class::Endpoint), 0);
}

/// After `close` of an endpoint or a domain, its clones do not keep the bound objects busy.
pub(crate) async fn close_releases_bindings_despite_clones(setup: Setup) {
    let EndpointFixture {
        ep,
        cq,
        av,
        send_counter: sends,
        recv_counter: recvs,
        domain,
        eq,
        ..
    } = setup.open_endpoint().await;
    let clones = (ep.clone(), domain.clone());
    ep.close().unwrap();
    cq.close().unwrap();
    av.close().unwrap();
    sends.close().unwrap();
    recvs.close().unwrap();
    domain.close().unwrap();
    eq.close().unwrap();
    drop(clones);
}

pub(crate) async fn second_close_is_refused_as_closed(setup: Setup) {
    let EndpointFixture {
        ep,
        cq,
        av,
        send_counter: sends,
        recv_counter: recvs,
        domain,
        eq,
        fabric,
        ..
    } = setup.open_endpoint().await;
    let again = (
        ep.clone(),
        av.clone(),
        sends.clone(),
        domain.clone(),
        fabric.clone(),
    );
    ep.close().unwrap();
    let refused = again.0.close().unwrap_err();
    assert_eq!(refused.error, Error::Closed(Class::Endpoint));
    av.close().unwrap();
    let refused = again.1.close().unwrap_err();
    assert_eq!(refused.error, Error::Closed(Class::AddressVector));
    sends.close().unwrap();
    let refused = again.2.close().unwrap_err();
    assert_eq!(refused.error, Error::Closed(Class::Counter));
    drop((cq, recvs));
    domain.close().unwrap();
    let refused = again.3.close().unwrap_err();
    assert_eq!(refused.error, Error::Closed(Class::Domain));
    eq.close().unwrap();
    fabric.close().unwrap();
    let refused = again.4.close().unwrap_err();
    assert_eq!(refused.error, Error::Closed(Class::Fabric));
}

pub(crate) async fn operations_on_closed_endpoint_are_refused(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let clone = a.ep.clone();
    a.ep.close().unwrap();
    let closed = Error::Closed(Class::Endpoint);
    let refused = clone.send(to_b, vec![1]).await.unwrap_err();
    assert_eq!((refused.error, refused.buf), (closed.clone(), vec![1]));
    assert_eq!(clone.send(to_b, vec![1]).start().unwrap_err().error, closed);
    assert_eq!(clone.send(to_b, vec![1]).post().unwrap_err().error, closed);
    let refused = clone.recv_into(vec![2]).await.unwrap_err();
    assert_eq!((refused.error, refused.buf), (closed.clone(), vec![2]));
    assert_eq!(
        clone.recv_into(vec![2]).tag(1).start().unwrap_err().error,
        closed
    );
    assert_eq!(clone.recv_into(vec![2]).post().unwrap_err().error, closed);
    assert_eq!(clone.send(to_b, b"x").inject(), Err(closed.clone()));
    assert_eq!(clone.reserve(to_b).await.map(drop), Err(closed.clone()));
    assert_eq!(clone.add_peer(b.ep.name()).await, Err(closed));
}

pub(crate) async fn closed_domain_accepts_no_children(setup: Setup) {
    let (fabric, info) = setup.fabric().await;
    let domain = fabric.domain(&info).unwrap();
    let clone = domain.clone();
    domain.close().unwrap();
    let closed = Error::Closed(Class::Domain);
    assert_eq!(clone.completion_queue(4).map(drop), Err(closed.clone()));
    assert_eq!(clone.address_vector().map(drop), Err(closed.clone()));
    assert_eq!(
        clone.auto_insert_address_vector().map(drop),
        Err(closed.clone())
    );
    assert_eq!(clone.counter().map(drop), Err(closed.clone()));
    assert_eq!(clone.endpoint(&info).map(drop), Err(closed.clone()));
    let refused = clone.alloc_from(vec![0_u8; 8], Access::REMOTE_READ, None);
    assert_eq!(refused.unwrap_err().error, closed);
    assert_eq!(clone.close().unwrap_err().error, closed);
    let other = fabric.clone();
    fabric.close().unwrap();
    assert_eq!(
        other.domain(&info).map(drop),
        Err(Error::Closed(Class::Fabric))
    );
    assert_eq!(
        other.event_queue(4).map(drop),
        Err(Error::Closed(Class::Fabric))
    );
}

pub(crate) async fn endpoint_name_is_in_use_until_close(setup: Setup) {
    let a = setup.open_endpoint().await;
    let name: Address = setup.unique_address("taken").parse().unwrap();
    let open = async |fixture: &EndpointFixture| {
        let builder = fixture
            .domain
            .endpoint(&fixture.info)
            .unwrap()
            .name(&name)
            .unwrap();
        builder.bind_av(&fixture.av).unwrap().enable()
    };
    let first = open(&a).await.unwrap();
    assert_eq!(first.name(), &name);
    let b = setup.open_endpoint().await;
    for fixture in [&a, &b] {
        assert_eq!(
            open(fixture).await.map(drop),
            Err(Error::AddressInUse(name.clone()))
        );
    }
    assert_eq!(
        a.domain.children().of(Class::Endpoint),
        2,
        "the failed attempt has left children"
    );
    let to_first: FiAddr = b.ep.add_peer(&name).await.unwrap();
    let (sent, got) = tokio::join!(b.ep.send(to_first, "first"), first.recv());
    sent.unwrap();
    assert_eq!(
        &got.unwrap()[..],
        b"first",
        "refused attempts do not affect the endpoint"
    );
    first.close().unwrap();
    let second = open(&b).await.expect("the name is free again");
    let c = setup.open_endpoint().await;
    let to_second = c.ep.add_peer(&name).await.unwrap();
    let (sent, got) = tokio::join!(c.ep.send(to_second, "second"), second.recv());
    sent.unwrap();
    assert_eq!(&got.unwrap()[..], b"second");
}

pub(crate) async fn objects_of_another_domain_cannot_be_bound(setup: Setup) {
    let (a, b) = (setup.open_endpoint().await, setup.open_endpoint().await);
    let builder = || a.domain.endpoint(&a.info).unwrap();
    let foreign = |class| {
        Err(Error::WrongParent {
            object: class,
            parent: Class::Domain,
        })
    };
    assert_eq!(
        builder().bind_cq(&b.cq, CqBind::RECV).map(drop),
        foreign(Class::CompletionQueue)
    );
    assert_eq!(
        builder().bind_av(&b.av).map(drop),
        foreign(Class::AddressVector)
    );
    assert_eq!(
        builder()
            .bind_counter(&b.send_counter, CounterBind::SEND)
            .map(drop),
        foreign(Class::Counter)
    );
    let of_fabric = Err(Error::WrongParent {
        object: Class::EventQueue,
        parent: Class::Fabric,
    });
    assert_eq!(builder().bind_eq(&b.eq).map(drop), of_fabric);
    let fresh = a.fabric.domain(&a.info).unwrap();
    assert_eq!(fresh.bind_eq(&b.eq), of_fabric.clone().map(drop));
    // A refused bind keeps no reference.
    let EndpointFixture { ep, cq, av, .. } = b;
    ep.close().unwrap();
    cq.close().unwrap();
    av.close().unwrap();
}

pub(crate) async fn invalid_bindings_are_refused(setup: Setup) {
    let a = setup.open_endpoint().await;
    let builder = || a.domain.endpoint(&a.info).unwrap();
    for flags in [CqBind::empty(), CqBind::SELECTIVE_COMPLETION] {
        let refused = builder().bind_cq(&a.cq, flags).map(drop).unwrap_err();
        assert!(matches!(refused, Error::BadFlags { .. }), "{refused}");
        assert_eq!(refused.errno(), 260);
    }
    let refused = builder()
        .bind_counter(&a.send_counter, CounterBind::empty())
        .map(drop)
        .unwrap_err();
    assert!(matches!(refused, Error::BadFlags { .. }), "{refused}");
    let refused = builder()
        .bind_counter(
            &a.send_counter,
            CounterBind::SEND | CounterBind::REMOTE_READ,
        )
        .map(drop);
    assert!(matches!(refused, Err(Error::NotSupported(what)) if what.contains("FI_RMA_EVENT")));
    let twice = builder()
        .bind_av(&a.av)
        .unwrap()
        .bind_av(&a.av)
        .map(drop)
        .unwrap_err();
    assert!(matches!(twice, Error::Invalid { .. }), "{twice}");
    let twice = builder()
        .bind_cq(&a.cq, CqBind::RECV)
        .unwrap()
        .bind_cq(&a.cq, CqBind::RECV)
        .map(drop);
    assert!(matches!(twice, Err(Error::Invalid { .. })));
    let both = builder()
        .bind_cq(&a.cq, CqBind::RECV)
        .unwrap()
        .bind_cq(&a.cq, CqBind::TRANSMIT);
    assert!(both.is_ok(), "one queue for each direction");
    for capacity in [0, usize::MAX] {
        let refused = a.domain.completion_queue(capacity).map(drop).unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
    }
    assert!(matches!(
        a.fabric.event_queue(0).map(drop),
        Err(Error::Invalid { .. })
    ));
}

pub(crate) async fn endpoint_needs_an_address_vector(setup: Setup) {
    let a = setup.open_endpoint().await;
    let builder = a
        .domain
        .endpoint(&a.info)
        .unwrap()
        .bind_cq(&a.cq, CqBind::RECV)
        .unwrap();
    assert_eq!(
        builder.enable().map(drop),
        Err(Error::Unbound(Class::AddressVector))
    );
    assert_eq!(a.domain.children().of(Class::Endpoint), 1);
}

pub(crate) async fn dropped_handles_close_their_objects(setup: Setup) {
    let EndpointFixture {
        ep,
        cq,
        av,
        send_counter: sends,
        recv_counter: recvs,
        domain,
        eq,
        fabric,
        info,
    } = setup.open_endpoint().await;
    let name = ep.name().clone();
    drop((cq, av, sends, recvs));
    let other = setup.open_endpoint().await;
    assert!(
        other.ep.add_peer(&name).await.is_ok(),
        "the endpoint works without the handles it was bound with"
    );
    drop(ep);
    assert_eq!(domain.children().total(), 0, "{}", domain.children());
    assert_eq!(
        setup.open_endpoint().await.ep.add_peer(&name).await,
        Err(Error::NoSuchPeer(name))
    );
    domain.close().unwrap();
    drop(eq);
    assert_eq!(fabric.children().total(), 0, "{}", fabric.children());
    drop(info);
    fabric.close().unwrap();
}

pub(crate) async fn closing_an_av_closes_all_clones(setup: Setup) {
    let a = setup.open_endpoint().await;
    let av = a.domain.address_vector().unwrap();
    let (clone, addr) = (av.clone(), av.insert(a.ep.name()).unwrap());
    av.close().unwrap();
    let closed = Error::Closed(Class::AddressVector);
    assert_eq!(clone.insert(a.ep.name()), Err(closed.clone()));
    assert_eq!(clone.lookup(addr), Err(closed.clone()));
    assert_eq!(clone.remove(addr), Err(closed));
    assert!(clone.peers().is_empty());
}

/// Receives of a dropped queue take no messages, because their completions could never be read.
pub(crate) async fn dropped_cq_loses_no_message(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for context in 0..3 {
        b.ep.recv_into(vec![0; 8]).context(context).post().unwrap();
    }
    let EndpointFixture { ep, cq, .. } = b;
    drop(cq);
    let failed = ep.recv().post().map(drop).unwrap_err();
    assert_eq!(failed.error, Error::Closed(Class::CompletionQueue));
    a.ep.send(to_b, "for a receive").await.unwrap();
    assert_eq!(&ep.recv().await.unwrap()[..], b"for a receive");
}
