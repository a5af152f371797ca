//! Two endpoints that are connected with each other, and what they are made of.

use std::future::IntoFuture;

use fabric_async::{
    CompletionQueue, Connect, ConnectionRequest, CqBind, Domain, Endpoint, EndpointBuilder,
    EventKind, EventQueue, Fabric, Info, PassiveEndpoint, SharedRxContext, SocketOptions,
};

use crate::setup::Setup;

/// Where endpoints are to be connected.
#[derive(Debug)]
pub(crate) struct MsgDomainFixture {
    /// What its endpoints receive with, if not each with a context of its own.
    pub(crate) shared_rx: Option<SharedRxContext>,
    pub(crate) cq: CompletionQueue,
    pub(crate) domain: Domain,
    pub(crate) eq: EventQueue,
    pub(crate) fabric: Fabric,
    pub(crate) info: Info,
}

/// An endpoint that is connected. Fields are dropped in this order: children before parents.
#[derive(Debug)]
pub(crate) struct MsgEndpointFixture {
    pub(crate) ep: Endpoint,
    pub(crate) domain_fixture: MsgDomainFixture,
}

impl MsgDomainFixture {
    pub(crate) async fn open(setup: &Setup) -> Self {
        Self::with_info(setup, setup.info().await)
    }

    /// One whose endpoints share their receives, which report to its queue; nothing, where they
    /// cannot.
    pub(crate) async fn open_shared_rx(setup: &Setup) -> Self {
        let mut room = Self::with_info(setup, setup.shared_rx_info().await);
        let shared = room.domain.shared_rx_context(&room.info).unwrap();
        room.shared_rx = Some(
            shared
                .bind_cq(&room.cq, CqBind::RECV)
                .unwrap()
                .open()
                .unwrap(),
        );
        room
    }

    fn with_info(setup: &Setup, info: Info) -> Self {
        let fabric = Fabric::open(&info).unwrap();
        let domain = fabric
            .domain_builder(&info)
            .wait_policy(setup.wait_policy)
            .socket_io(setup.socket_io);
        let domain = domain.socket_options(setup.socket_options(SocketOptions::new()));
        let (domain, eq) = (domain.open().unwrap(), fabric.event_queue(256).unwrap());
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

    /// What its endpoints receive with.
    pub(crate) fn shared_rx(&self) -> &SharedRxContext {
        self.shared_rx
            .as_ref()
            .expect("a room where receives are shared")
    }

    /// A passive endpoint of its fabric.
    pub(crate) fn listen(&self, setup: &Setup) -> PassiveEndpoint {
        let door = self
            .fabric
            .passive_endpoint(&self.info)
            .unwrap()
            .wait_policy(setup.wait_policy);
        door.bind_eq(&self.eq).unwrap().listen().unwrap()
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

    pub(crate) fn connect(&self, door: &PassiveEndpoint) -> Connect {
        self.endpoint().connect(door.name())
    }

    pub(crate) async fn accept(&self, request: ConnectionRequest, data: &[u8]) -> Endpoint {
        self.endpoint().accept(request, data).await.unwrap()
    }

    /// Connects this room and another one, where the door is.
    pub(crate) async fn connect_to(
        &self,
        there: &Self,
        door: &mut PassiveEndpoint,
    ) -> (Endpoint, Endpoint) {
        let calling = self.connect(door).into_future();
        let accepting = async { there.accept(door.next().await.unwrap(), b"").await };
        let (active, passive) = tokio::join!(calling, accepting);
        (active.unwrap(), passive)
    }

    /// The next event but for those of requests and connections.
    pub(crate) async fn next_other_event(&mut self) -> EventKind {
        loop {
            match self.eq.next().await.kind {
                EventKind::ConnectionRequest { .. } | EventKind::Connected { .. } => {}
                other => return other,
            }
        }
    }
}

/// Two that are connected, and the door where they met.
pub(crate) async fn connected_pair_with_listener(
    setup: &Setup,
) -> (MsgEndpointFixture, MsgEndpointFixture, PassiveEndpoint) {
    let (here, there) = (
        MsgDomainFixture::open(setup).await,
        MsgDomainFixture::open(setup).await,
    );
    let mut door = there.listen(setup);
    let (active, passive) = here.connect_to(&there, &mut door).await;
    (
        MsgEndpointFixture {
            ep: active,
            domain_fixture: here,
        },
        MsgEndpointFixture {
            ep: passive,
            domain_fixture: there,
        },
        door,
    )
}

/// Two that are connected.
pub(crate) async fn connected_pair(setup: &Setup) -> (MsgEndpointFixture, MsgEndpointFixture) {
    let (active, passive, _) = connected_pair_with_listener(setup).await;
    (active, passive)
}
