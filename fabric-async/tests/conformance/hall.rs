//! Several endpoints that share their receives.

use fabric_async::{
    AddressVector, CompletionQueue, Counter, CounterBind, CqBind, Domain, Endpoint, EventQueue,
    Fabric, FiAddr, Info, SharedReceive,
};

use crate::payload::yields;
use crate::setup::Setup;
use crate::station::{Plan, Station};

/// Endpoints with one receive context. Fields are dropped in this order: children before parents.
#[derive(Debug)]
pub(crate) struct Hall {
    pub(crate) doors: Vec<Endpoint>,
    pub(crate) shared: SharedReceive,
    /// Where the context reports, and counts.
    pub(crate) cq: CompletionQueue,
    pub(crate) received: Counter,
    /// What came in by the first door.
    pub(crate) at_first: Counter,
    pub(crate) av: AddressVector,
    pub(crate) domain: Domain,
    _eq: EventQueue,
    _fabric: Fabric,
    pub(crate) info: Info,
}

impl Hall {
    /// So many doors; nothing, where endpoints cannot share.
    pub(crate) async fn open(setup: &Setup, doors: usize, plan: Plan) -> Option<Self> {
        let mut info = setup.sharing().await?;
        info.rx.size = plan.rx_size.unwrap_or(info.rx.size);
        let fabric = Fabric::open(&info).unwrap();
        let mut domain = fabric.domain_builder(&info).wait_policy(setup.policy);
        if let Some(len) = setup.single_copy_from {
            domain = domain.single_copy_from(len);
        }
        let domain = domain.open().unwrap();
        let eq = fabric.event_queue(plan.events).unwrap();
        domain.bind_eq(&eq).unwrap();
        let cq = domain.completion_queue(plan.entries).unwrap();
        let av = if plan.welcoming {
            domain.welcoming_address_vector()
        } else {
            domain.address_vector()
        }
        .unwrap();
        let (received, at_first) = (domain.counter().unwrap(), domain.counter().unwrap());
        let mut directions = CqBind::RECV;
        directions.set(CqBind::SELECTIVE_COMPLETION, plan.selective);
        let shared = domain
            .shared_receive(&info)
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
            doors: Vec::new(),
            shared,
            cq,
            received,
            at_first,
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
            let mut door = door.bind_shared(&hall.shared).unwrap();
            if number == 0 {
                door = door
                    .bind_counter(&hall.at_first, CounterBind::RECV)
                    .unwrap();
            }
            hall.doors.push(door.enable().await.unwrap());
        }
        Some(hall)
    }

    /// Waits until so many messages wait, all of which have been sent.
    pub(crate) async fn waiting(&self, count: usize) {
        while self.shared.stats().unexpected < count {
            self.domain.progress();
            yields(1).await;
        }
    }
}

impl Station {
    /// The numbers of these doors, once connected to them.
    pub(crate) async fn knock(&self, doors: &[Endpoint]) -> Vec<FiAddr> {
        let mut numbers = Vec::new();
        for door in doors {
            numbers.push(self.ep.lookup(door.name()).await.unwrap());
        }
        numbers
    }
}
