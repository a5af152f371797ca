//! The fixture of several endpoints with one shared receive context.

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
    /// The completion queue of the context.
    pub(crate) cq: CompletionQueue,
    /// Counts the messages of the context.
    pub(crate) recv_counter: Counter,
    /// Counts the messages of the first endpoint.
    pub(crate) first_recv_counter: Counter,
    pub(crate) av: AddressVector,
    pub(crate) domain: Domain,
    _eq: EventQueue,
    _fabric: Fabric,
    pub(crate) info: Info,
}

impl SharedRxFixture {
    /// Opens `count` endpoints.
    pub(crate) async fn open(setup: &Setup, count: usize, config: EndpointConfig) -> Self {
        let mut info = setup.shared_rx_info();
        info.rx.size = config.rx_size.unwrap_or(info.rx.size);
        let fabric = Fabric::open(&info).unwrap();
        let domain = setup.open_domain(&fabric, &info);
        let eq = fabric.event_queue(config.eq_capacity).unwrap();
        domain.bind_eq(&eq).unwrap();
        let cq = domain.completion_queue(config.cq_capacity).unwrap();
        let av = if config.auto_insert {
            domain.auto_insert_address_vector()
        } else {
            domain.address_vector()
        }
        .unwrap();
        let (recv_counter, first_recv_counter) =
            (domain.counter().unwrap(), domain.counter().unwrap());
        let mut directions = CqBind::RECV;
        directions.set(CqBind::SELECTIVE_COMPLETION, config.selective_completion);
        let shared = domain
            .shared_rx_context(&info)
            .unwrap()
            .bind_av(&av)
            .unwrap()
            .bind_cq(&cq, directions)
            .unwrap();
        let shared = shared
            .bind_counter(&recv_counter, CounterBind::RECV)
            .unwrap()
            .open()
            .unwrap();
        let mut fixture = Self {
            endpoints: Vec::new(),
            shared_rx: shared,
            cq,
            recv_counter,
            first_recv_counter,
            av,
            domain,
            _eq: eq,
            _fabric: fabric,
            info,
        };
        for number in 0..count {
            let ep = fixture
                .domain
                .endpoint(&fixture.info)
                .unwrap()
                .bind_av(&fixture.av)
                .unwrap();
            let mut ep = ep.bind_shared_rx(&fixture.shared_rx).unwrap();
            if number == 0 {
                ep = ep
                    .bind_counter(&fixture.first_recv_counter, CounterBind::RECV)
                    .unwrap();
            }
            fixture.endpoints.push(ep.enable().unwrap());
        }
        fixture
    }

    /// Makes progress until `count` messages are unexpected.
    pub(crate) async fn wait_for_unexpected(&self, count: usize) {
        while self.shared_rx.stats().unexpected < count {
            self.domain.progress();
            yield_times(1).await;
        }
    }
}

impl EndpointFixture {
    /// Connects to these endpoints, and returns their handles.
    pub(crate) async fn add_peers(&self, endpoints: &[Endpoint]) -> Vec<FiAddr> {
        let mut addrs = Vec::new();
        for endpoint in endpoints {
            addrs.push(self.ep.add_peer(endpoint.name()).await.unwrap());
        }
        addrs
    }
}
