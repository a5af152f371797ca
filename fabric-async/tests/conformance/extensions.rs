//! Extensions of providers (`fi_open_ops`).

use fabric_async::extension::{Extension, ShmExtension, ShmInfo, TcpExtension, TcpInfo};
use fabric_async::{Access, Class, CqBind, Error, Protocol};

use crate::connected_pair::connected_pair;
use crate::endpoint_fixture::{EndpointConfig, endpoint_pair, endpoint_pair_with};
use crate::payload::let_other_tasks_run;
use crate::setup::Setup;

/// Each provider has its own extension only, and the error names what is missing.
pub(crate) async fn extensions_belong_to_one_provider(setup: Setup) {
    let a = setup.open_endpoint().await;
    let check = |found: Result<(), Error>, name, provider: &str| {
        if provider == setup.provider {
            return assert_eq!(found, Ok(()));
        }
        let error = found.unwrap_err();
        let expected = Error::NoExtension {
            provider: setup.provider,
            extension: name,
        };
        assert_eq!((&error, error.errno()), (&expected, 38));
        assert!(error.to_string().contains(name), "{error}");
    };
    let (tcp, shm) = (
        a.domain.extension::<TcpExtension>(),
        a.domain.extension::<ShmExtension>(),
    );
    check(tcp.map(drop), TcpExtension::NAME, TcpExtension::PROVIDER);
    check(shm.map(drop), ShmExtension::NAME, ShmExtension::PROVIDER);
    let (fabric, info) = setup.fabric().await;
    let domain = setup.open_domain(&fabric, &info);
    domain.clone().close().unwrap();
    let closed = domain.extension::<TcpExtension>().map(drop);
    assert_eq!(closed, Err(Error::Closed(Class::Domain)));
}

/// The kernel's counters follow the traffic: sent and received bytes, and bytes that stay unsent
/// because the peer does not read.
pub(crate) async fn tcp_info_follows_the_traffic(setup: Setup) {
    const LEN: usize = 32 << 20;
    let config = || EndpointConfig::default().with_small_socket_buffers();
    let (a, b, to_b) = endpoint_pair_with(&setup, config(), config()).await;
    let (at_a, at_b): (TcpExtension, TcpExtension) =
        (a.domain.extension().unwrap(), b.domain.extension().unwrap());
    let info = |at: &TcpExtension| at.info(&a.ep, to_b).unwrap().unwrap();
    let before = info(&at_a);
    assert!(
        before.congestion_window > 0 && before.send_mss > 0,
        "{before:?}"
    );
    assert!(!before.rtt.is_zero() && !before.retransmission_timeout.is_zero());
    a.ep.send(to_b, vec![7; 5000]).await.unwrap();
    let source = b.ep.recv().await.unwrap().source().unwrap();
    let sent = info(&at_a);
    assert!(
        sent.bytes_sent >= before.bytes_sent + 5000,
        "{before:?} {sent:?}"
    );
    // The peer's view, over the connection that the peer has accepted and never sent to.
    let received = at_b.info(&b.ep, source).unwrap().unwrap();
    assert!(received.bytes_received >= 5000, "{received:?}");
    let long = a.ep.send(to_b, vec![7; LEN]).tag(9).start().unwrap();
    // RXM sends the bytes when the peer reads them.
    while a.info.ep.protocol != Some(Protocol::Rxm) {
        let now = info(&at_a);
        if now.bytes_unsent > 0 {
            assert!(now.bytes_sent > sent.bytes_sent, "{now:?}");
            break;
        }
        a.domain.progress();
        let_other_tasks_run().await;
    }
    let (sent_all, got) = tokio::join!(long, b.ep.recv().tag(9));
    sent_all.unwrap();
    assert_eq!(got.unwrap().len(), LEN);
    assert!(info(&at_a).bytes_sent >= LEN as u64);
    // An inserted peer without a connection, a stale handle, and an endpoint of another domain.
    let other = setup.open_endpoint().await;
    let unconnected = a.av.insert(other.ep.name()).unwrap();
    assert_eq!(at_a.info(&a.ep, unconnected), Ok(None));
    a.av.remove(unconnected).unwrap();
    let stale = at_a.info(&a.ep, unconnected).unwrap_err();
    assert_eq!(stale, Error::StaleAddress(unconnected));
    let foreign = Error::WrongParent {
        object: Class::Endpoint,
        parent: Class::Domain,
    };
    assert_eq!(at_b.info(&a.ep, to_b), Err(foreign));
}

/// Both sides of a connected endpoint see their connection.
pub(crate) async fn connected_endpoints_have_provider_information(setup: Setup) {
    let (a, b) = connected_pair(&setup).await;
    a.ep.send(vec![7; 3000]).await.unwrap();
    b.ep.recv().await.unwrap();
    b.ep.send("back").await.unwrap();
    a.ep.recv().await.unwrap();
    let (a_domain, b_domain) = (&a.domain_fixture.domain, &b.domain_fixture.domain);
    if setup.shares_memory() {
        let info = |domain: &fabric_async::Domain, ep| -> ShmInfo {
            let shm: ShmExtension = domain.extension().unwrap();
            shm.connected_info(ep).unwrap().unwrap()
        };
        assert_eq!(info(a_domain, &a.ep).segments, 2);
        assert_eq!(info(b_domain, &b.ep).segments, 2);
        return;
    }
    let info = |domain: &fabric_async::Domain, ep| -> TcpInfo {
        let tcp: TcpExtension = domain.extension().unwrap();
        tcp.connected_info(ep).unwrap().unwrap()
    };
    assert!(info(a_domain, &a.ep).bytes_sent >= 3000);
    assert!(info(b_domain, &b.ep).bytes_received >= 3000);
}

/// Segments, regions and loan memory that a process has mapped for its peer are counted.
pub(crate) async fn shm_info_counts_mapped_memory(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let (at_a, at_b): (ShmExtension, ShmExtension) =
        (a.domain.extension().unwrap(), b.domain.extension().unwrap());
    let info = |at: &ShmExtension| at.info(&a.ep, to_b).unwrap().unwrap();
    let one_way = info(&at_a);
    assert_eq!(
        (one_way.segments, one_way.regions, one_way.loans),
        (1, 0, 0)
    );
    assert!(one_way.segment_bytes >= 128 << 10, "{one_way:?}");
    a.ep.send(to_b, "names the sender").await.unwrap();
    let source = b.ep.recv().await.unwrap().source().unwrap();
    b.ep.send(source, "connects back").await.unwrap();
    a.ep.recv().await.unwrap();
    let both_ways = info(&at_a);
    assert_eq!(both_ways.segments, 2);
    assert_eq!(both_ways.segment_bytes, 2 * one_way.segment_bytes);
    let region = b.domain.alloc(100_000, Access::REMOTE_READ).unwrap();
    a.ep.read(to_b, region.remote().slice(..8)).await.unwrap();
    let mapped = info(&at_a);
    assert_eq!((mapped.regions, mapped.region_bytes), (1, 100_000));
    assert_eq!(mapped.total_bytes(), mapped.segment_bytes + 100_000);
    drop(region);
    assert_eq!(info(&at_a).regions, 0, "a revoked region is not counted");
    // The memory of a loan is mapped by its receiver.
    let mut loan = a.domain.loan(50_000).await.unwrap();
    loan.fill(7);
    a.ep.send(to_b, loan).await.unwrap();
    let got = b.ep.recv_loan().await.unwrap();
    let lent = at_b.info(&b.ep, source).unwrap().unwrap();
    assert!(lent.loans == 1 && lent.loan_bytes >= 50_000, "{lent:?}");
    drop(got);
    let other = setup.open_endpoint().await;
    let unconnected = a.av.insert(other.ep.name()).unwrap();
    assert_eq!(at_a.info(&a.ep, unconnected), Ok(None));
    let foreign = at_b.info(&a.ep, to_b).unwrap_err();
    assert!(matches!(foreign, Error::WrongParent { .. }), "{foreign}");
    let both = CqBind::TRANSMIT | CqBind::RECV;
    let second = b.domain.endpoint(&b.info).unwrap().bind_cq(&b.cq, both);
    let second = second.unwrap().bind_av(&b.av).unwrap().enable().unwrap();
    assert_eq!(
        at_b.info(&second, source),
        Ok(None),
        "not connected by this endpoint"
    );
}
