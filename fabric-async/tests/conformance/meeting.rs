//! Two endpoints that are connected with each other, and what they are made of.

use std::future::IntoFuture;

use fabric_async::{
    CompletionQueue, Connect, ConnectionRequest, CqBind, Domain, Endpoint, EndpointBuilder,
    EventKind, EventQueue, Fabric, Info, PassiveEndpoint, SharedReceive, SocketOptions,
};

use crate::setup::Setup;

/// Where endpoints are to be connected.
#[derive(Debug)]
pub(crate) struct Room {
    /// What its endpoints receive with, if not each with a context of its own.
    pub(crate) shared: Option<SharedReceive>,
    pub(crate) cq: CompletionQueue,
    pub(crate) domain: Domain,
    pub(crate) eq: EventQueue,
    pub(crate) fabric: Fabric,
    pub(crate) info: Info,
}

/// An endpoint that is connected. Fields are dropped in this order: children before parents.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) ep: Endpoint,
    pub(crate) room: Room,
}

impl Room {
    pub(crate) async fn open(setup: &Setup) -> Self {
        Self::furnished(setup, setup.info().await)
    }

    /// One whose endpoints share their receives, which report to its queue; nothing, where they
    /// cannot.
    pub(crate) async fn open_sharing(setup: &Setup) -> Option<Self> {
        let mut room = Self::furnished(setup, setup.sharing().await?);
        let shared = room.domain.shared_receive(&room.info).unwrap();
        room.shared = Some(
            shared
                .bind_cq(&room.cq, CqBind::RECV)
                .unwrap()
                .open()
                .unwrap(),
        );
        Some(room)
    }

    fn furnished(setup: &Setup, info: Info) -> Self {
        let fabric = Fabric::open(&info).unwrap();
        let domain = fabric
            .domain_builder(&info)
            .wait_policy(setup.policy)
            .socket_io(setup.socket_io);
        let domain = domain.socket_options(setup.sockets(SocketOptions::new()));
        let (domain, eq) = (domain.open().unwrap(), fabric.event_queue(256).unwrap());
        domain.bind_eq(&eq).unwrap();
        let cq = domain.completion_queue(1024).unwrap();
        Self {
            shared: None,
            cq,
            domain,
            eq,
            fabric,
            info,
        }
    }

    /// What its endpoints receive with.
    pub(crate) fn shared(&self) -> &SharedReceive {
        self.shared
            .as_ref()
            .expect("a room where receives are shared")
    }

    /// A passive endpoint of its fabric.
    pub(crate) fn door(&self, setup: &Setup) -> PassiveEndpoint {
        let door = self
            .fabric
            .passive_endpoint(&self.info)
            .unwrap()
            .wait_policy(setup.policy);
        door.bind_eq(&self.eq).unwrap().listen().unwrap()
    }

    pub(crate) fn endpoint(&self) -> EndpointBuilder {
        let ep = self.domain.endpoint(&self.info).unwrap();
        let ep = ep
            .bind_cq(&self.cq, CqBind::TRANSMIT | CqBind::RECV)
            .unwrap();
        match &self.shared {
            Some(shared) => ep.bind_shared(shared).unwrap(),
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
    pub(crate) async fn meet(
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
    pub(crate) async fn next_event(&mut self) -> EventKind {
        loop {
            match self.eq.next().await.kind {
                EventKind::ConnectionRequest { .. } | EventKind::Connected { .. } => {}
                other => return other,
            }
        }
    }
}

/// Two that are connected, and the door where they met.
pub(crate) async fn pair_at_a_door(setup: &Setup) -> (Side, Side, PassiveEndpoint) {
    let (here, there) = (Room::open(setup).await, Room::open(setup).await);
    let mut door = there.door(setup);
    let (active, passive) = here.meet(&there, &mut door).await;
    (
        Side {
            ep: active,
            room: here,
        },
        Side {
            ep: passive,
            room: there,
        },
        door,
    )
}

/// Two that are connected.
pub(crate) async fn pair(setup: &Setup) -> (Side, Side) {
    let (active, passive, _) = pair_at_a_door(setup).await;
    (active, passive)
}
