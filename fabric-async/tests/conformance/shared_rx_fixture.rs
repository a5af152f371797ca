//! Several endpoints that share their receives.

use fabric_async::{
    AddressVector, CompletionQueue, Counter, CounterBind, CqBind, Domain, Endpoint, EventQueue,
    Fabric, FiAddr, Info, SharedRxContext,
};

use crate::endpoint_fixture::{EndpointConfig, EndpointFixture};
use crate::payload::yield_times;
use crate::setup::Setup;

/// Endpoints with one receive context. Fields are dropped in this order: children before parents.
#[derive(Debug)]
pub(crate) struct SharedRxFixture {
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) shared_rx: SharedRxContext,
    /// Where the context reports, and counts.
    pub(crate) cq: CompletionQueue,
    pub(crate) recv_counter: Counter,
    /// What came in by the first door.
    pub(crate) first_recv_counter: Counter,
    pub(crate) av: AddressVector,
    pub(crate) domain: Domain,
    _eq: EventQueue,
    _fabric: Fabric,
    pub(crate) info: Info,
}

impl SharedRxFixture {
    /// So many doors; nothing, where endpoints cannot share.
    pub(crate) async fn open(setup: &Setup, doors: usize, plan: EndpointConfig) -> Self {
        let mut info = setup.shared_rx_info().await;
        info.rx.size = plan.rx_size.unwrap_or(info.rx.size);
        let fabric = Fabric::open(&info).unwrap();
        let mut domain = fabric.domain_builder(&info).wait_policy(setup.wait_policy);
        if let Some(len) = setup.single_copy_threshold {
            domain = domain.single_copy_threshold(len);
        }
        let domain = domain.open().unwrap();
        let eq = fabric.event_queue(plan.eq_capacity).unwrap();
        domain.bind_eq(&eq).unwrap();
        let cq = domain.completion_queue(plan.cq_capacity).unwrap();
        let av = if plan.auto_insert {
            domain.auto_insert_address_vector()
        } else {
            domain.address_vector()
        }
        .unwrap();
        let (received, at_first) = (domain.counter().unwrap(), domain.counter().unwrap());
        let mut directions = CqBind::RECV;
        directions.set(CqBind::SELECTIVE_COMPLETION, plan.selective_completion);
        let shared = domain
            .shared_rx_context(&info)
            .unwrap()
            .bind_av(&av)
            .unwrap()
            .bind_cq(&cq, directions)
            .unwrap();
        let shared = shared
            .bind_counter(&received, CounterBind::RECV)
            .unwrap()
            .open()
            .unwrap();
        let mut hall = Self {
            endpoints: Vec::new(),
            shared_rx: shared,
            cq,
            recv_counter: received,
            first_recv_counter: at_first,
            av,
            domain,
            _eq: eq,
            _fabric: fabric,
            info,
        };
        for number in 0..doors {
            let door = hall
                .domain
                .endpoint(&hall.info)
                .unwrap()
                .bind_av(&hall.av)
                .unwrap();
            let mut door = door.bind_shared_rx(&hall.shared_rx).unwrap();
            if number == 0 {
                door = door
                    .bind_counter(&hall.first_recv_counter, CounterBind::RECV)
                    .unwrap();
            }
            hall.endpoints.push(door.enable().await.unwrap());
        }
        hall
    }

    /// Waits until so many messages wait, all of which have been sent.
    pub(crate) async fn wait_for_unexpected(&self, count: usize) {
        while self.shared_rx.stats().unexpected < count {
            self.domain.progress();
            yield_times(1).await;
        }
    }
}

impl EndpointFixture {
    /// The numbers of these doors, once connected to them.
    pub(crate) async fn add_peers(&self, doors: &[Endpoint]) -> Vec<FiAddr> {
        let mut numbers = Vec::new();
        for door in doors {
            numbers.push(self.ep.add_peer(door.name()).await.unwrap());
        }
        numbers
    }
}
