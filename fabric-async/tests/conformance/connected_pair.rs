//! Fixtures of connected endpoints (`FI_EP_MSG`).

use std::future::IntoFuture;

use fabric_async::{
    CompletionQueue, Connect, ConnectedEndpoint, ConnectionRequest, CqBind, Domain,
    EndpointBuilder, EventKind, EventQueue, Fabric, Info, PassiveEndpoint, SharedRxContext,
};

use crate::setup::Setup;

/// A domain for connected endpoints. Fields are dropped in this order: children before parents.
#[derive(Debug)]
pub(crate) struct MsgDomainFixture {
    /// The shared receive context of the endpoints; `None` if they have receives of their own.
    pub(crate) shared_rx: Option<SharedRxContext>,
    pub(crate) cq: CompletionQueue,
    pub(crate) domain: Domain,
    pub(crate) eq: EventQueue,
    pub(crate) fabric: Fabric,
    pub(crate) info: Info,
}

/// A connected endpoint. Fields are dropped in this order: children before parents.
#[derive(Debug)]
pub(crate) struct MsgEndpointFixture {
    pub(crate) ep: ConnectedEndpoint,
    pub(crate) domain_fixture: MsgDomainFixture,
}

impl MsgDomainFixture {
    pub(crate) async fn open(setup: &Setup) -> Self {
        Self::with_info(setup, setup.info().await)
    }

    /// Opens a domain whose endpoints share a receive context, which is bound to the queue `cq`.
    pub(crate) async fn open_shared_rx(setup: &Setup) -> Self {
        let mut fixture = Self::with_info(setup, setup.shared_rx_info());
        let shared = fixture.domain.shared_rx_context(&fixture.info).unwrap();
        fixture.shared_rx = Some(
            shared
                .bind_cq(&fixture.cq, CqBind::RECV)
                .unwrap()
                .open()
                .unwrap(),
        );
        fixture
    }

    fn with_info(setup: &Setup, info: Info) -> Self {
        let fabric = Fabric::open(&info).unwrap();
        let domain = setup.open_domain(&fabric, &info);
        let eq = fabric.event_queue(256).unwrap();
        domain.bind_eq(&eq).unwrap();
        let cq = domain.completion_queue(1024).unwrap();
        Self {
            shared_rx: None,
            cq,
            domain,
            eq,
            fabric,
            info,
        }
    }

    /// Returns the shared receive context.
    pub(crate) fn shared_rx(&self) -> &SharedRxContext {
        self.shared_rx.as_ref().expect("opened by `open_shared_rx`")
    }

    /// Opens a passive endpoint of the fabric.
    pub(crate) fn listen(&self, setup: &Setup) -> PassiveEndpoint {
        let pep = self
            .fabric
            .passive_endpoint(&self.info)
            .unwrap()
            .wait_policy(setup.wait_policy);
        pep.bind_eq(&self.eq).unwrap().listen().unwrap()
    }

    pub(crate) fn endpoint(&self) -> EndpointBuilder {
        let ep = self.domain.endpoint(&self.info).unwrap();
        let ep = ep
            .bind_cq(&self.cq, CqBind::TRANSMIT | CqBind::RECV)
            .unwrap();
        match &self.shared_rx {
            Some(shared) => ep.bind_shared_rx(shared).unwrap(),
            None => ep,
        }
    }

    pub(crate) fn connect(&self, pep: &PassiveEndpoint) -> Connect {
        self.endpoint().connect(pep.name())
    }

    pub(crate) fn accept(&self, request: ConnectionRequest, data: &[u8]) -> ConnectedEndpoint {
        self.endpoint().accept(request, data).unwrap()
    }

    /// Connects an endpoint of this domain to the listener of another domain; returns both ends.
    pub(crate) async fn connect_to(
        &self,
        there: &Self,
        pep: &mut PassiveEndpoint,
    ) -> (ConnectedEndpoint, ConnectedEndpoint) {
        let initiating = self.connect(pep).into_future();
        let accepting = async { there.accept(pep.accept().await.unwrap(), b"") };
        let (active, passive) = tokio::join!(initiating, accepting);
        (active.unwrap(), passive)
    }

    /// Returns the next event other than connection requests and connects.
    pub(crate) async fn next_other_event(&mut self) -> EventKind {
        loop {
            match self.eq.read().await.kind {
                EventKind::ConnectionRequest { .. } | EventKind::Connected { .. } => {}
                other => return other,
            }
        }
    }
}

/// Opens two connected endpoints, and returns them with the passive endpoint.
pub(crate) async fn connected_pair_with_listener(
    setup: &Setup,
) -> (MsgEndpointFixture, MsgEndpointFixture, PassiveEndpoint) {
    let (here, there) = (
        MsgDomainFixture::open(setup).await,
        MsgDomainFixture::open(setup).await,
    );
    let mut pep = there.listen(setup);
    let (active, passive) = here.connect_to(&there, &mut pep).await;
    (
        MsgEndpointFixture {
            ep: active,
            domain_fixture: here,
        },
        MsgEndpointFixture {
            ep: passive,
            domain_fixture: there,
        },
        pep,
    )
}

/// Opens two connected endpoints.
pub(crate) async fn connected_pair(setup: &Setup) -> (MsgEndpointFixture, MsgEndpointFixture) {
    let (active, passive, _) = connected_pair_with_listener(setup).await;
    (active, passive)
}
