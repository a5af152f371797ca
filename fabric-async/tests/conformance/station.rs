//! An endpoint with everything around it.

use fabric_async::{
    AddressVector, CompletionQueue, Counter, CounterBind, CqBind, Domain, Endpoint, EventQueue,
    Fabric, FiAddr, Info, OpFlags, SocketOptions, TrafficClass,
};

use tokio::task::JoinHandle;

use crate::setup::Setup;

/// What is otherwise than usual.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Entries of the completion queue.
    pub(crate) entries: usize,
    /// Entries of the event queue.
    pub(crate) events: usize,
    /// Sends under way at most.
    pub(crate) tx_size: Option<usize>,
    /// Receives posted at most.
    pub(crate) rx_size: Option<usize>,
    /// The longest message.
    pub(crate) max_msg_size: Option<usize>,
    /// Whether peers that connect get a number.
    pub(crate) welcoming: bool,
    /// Whether the queue hears of success only when asked to.
    pub(crate) selective: bool,
    /// What operations do unless they say otherwise.
    pub(crate) op_flags: OpFlags,
    /// From which length on messages are copied once.
    pub(crate) single_copy_from: Option<usize>,
    /// What is set on sockets.
    pub(crate) sockets: SocketOptions,
    /// Which traffic it is.
    pub(crate) class: Option<TrafficClass>,
}

impl Plan {
    /// Where there are sockets, little that was sent is anywhere between its sender and its
    /// receiver.
    pub(crate) fn narrow(self) -> Self {
        let sockets = self
            .sockets
            .clone()
            .send_buffer(NARROW)
            .receive_buffer(NARROW);
        Self { sockets, ..self }
    }
}

/// Bytes that each end of a narrow connection keeps, of which Linux takes twice as many.
const NARROW: usize = 64 << 10;

impl Default for Plan {
    fn default() -> Self {
        Self {
            entries: 1024,
            events: 256,
            tx_size: None,
            rx_size: None,
            max_msg_size: None,
            welcoming: true,
            selective: false,
            op_flags: OpFlags::empty(),
            single_copy_from: None,
            sockets: SocketOptions::new(),
            class: None,
        }
    }
}

/// An endpoint in a domain of its own. Fields are dropped in this order: children before parents.
#[derive(Debug)]
pub(crate) struct Station {
    pub(crate) ep: Endpoint,
    pub(crate) cq: CompletionQueue,
    pub(crate) av: AddressVector,
    pub(crate) sends: Counter,
    pub(crate) recvs: Counter,
    pub(crate) domain: Domain,
    pub(crate) eq: EventQueue,
    pub(crate) fabric: Fabric,
    pub(crate) info: Info,
}

impl Station {
    pub(crate) async fn open(setup: &Setup, plan: Plan) -> Self {
        let (fabric, mut info) = setup.fabric().await;
        info.tx.size = plan.tx_size.unwrap_or(info.tx.size);
        info.rx.size = plan.rx_size.unwrap_or(info.rx.size);
        info.ep.max_msg_size = plan.max_msg_size.unwrap_or(info.ep.max_msg_size);
        (info.tx.op_flags, info.rx.op_flags) = (plan.op_flags, plan.op_flags & OpFlags::COMPLETION);
        info.domain.tclass = plan.class;
        let mut domain = fabric
            .domain_builder(&info)
            .wait_policy(setup.policy)
            .socket_io(setup.socket_io);
        domain = domain.socket_options(setup.sockets(plan.sockets));
        if let Some(len) = plan.single_copy_from.or(setup.single_copy_from) {
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
        };
        let (av, sends, recvs) = (
            av.unwrap(),
            domain.counter().unwrap(),
            domain.counter().unwrap(),
        );
        let ep = domain.endpoint(&info).unwrap().context(CONTEXT);
        let mut directions = CqBind::TRANSMIT | CqBind::RECV;
        directions.set(CqBind::SELECTIVE_COMPLETION, plan.selective);
        let ep = ep.bind_cq(&cq, directions).unwrap().bind_av(&av).unwrap();
        let ep = ep.bind_counter(&sends, CounterBind::SEND).unwrap();
        let ep = ep
            .bind_counter(&recvs, CounterBind::RECV)
            .unwrap()
            .enable()
            .await
            .unwrap();
        Self {
            ep,
            cq,
            av,
            sends,
            recvs,
            domain,
            eq,
            fabric,
            info,
        }
    }

    /// The number of this peer, once connected to it.
    pub(crate) async fn meet(&self, peer: &Station) -> FiAddr {
        self.ep.lookup(peer.ep.name()).await.unwrap()
    }
}

/// The context of a station's endpoint.
pub(crate) const CONTEXT: u64 = 77;

impl Station {
    /// A task that waits for something that never comes: keeps the domain moving, whatever the mode
    /// of progress.
    pub(crate) fn keep_moving(&self) -> JoinHandle<()> {
        let recvs = self.recvs.clone();
        tokio::spawn(async move {
            let _ = recvs.wait(u64::MAX).await;
        })
    }
}

/// Two stations, and the number by which the first knows the second.
pub(crate) async fn pair(setup: &Setup) -> (Station, Station, FiAddr) {
    pair_of(setup, Plan::default(), Plan::default()).await
}

/// Likewise, both planned.
pub(crate) async fn pair_of(setup: &Setup, a: Plan, b: Plan) -> (Station, Station, FiAddr) {
    let (a, b) = (setup.planned(a).await, setup.planned(b).await);
    let to_b = a.meet(&b).await;
    (a, b, to_b)
}

/// Returns when everything that was sent to `to` before has arrived there: messages of one sender
/// arrive in order, and this one is the last. Needs tags.
pub(crate) async fn fence(from: &Station, to: &Station, peer: FiAddr) {
    const FENCE: u64 = 0xfe4c_e000_0000_0000;
    let (sent, got) = tokio::join!(
        from.ep.send(peer, Vec::new()).tag(FENCE),
        to.ep.recv_into(Vec::new()).tag(FENCE)
    );
    sent.unwrap();
    got.unwrap();
}
