//! An endpoint with everything around it.

use fabric_async::{
    AddressVector, CompletionQueue, Counter, CounterBind, CqBind, Domain, Endpoint, EventQueue,
    Fabric, FiAddr, Info, OpFlags, SocketOptions, TrafficClass,
};

use tokio::task::JoinHandle;

use crate::setup::Setup;

/// What is otherwise than usual.
#[derive(Clone, Debug)]
pub(crate) struct EndpointConfig {
    /// Entries of the completion queue.
    pub(crate) cq_capacity: usize,
    /// Entries of the event queue.
    pub(crate) eq_capacity: usize,
    /// Sends under way at most.
    pub(crate) tx_size: Option<usize>,
    /// Receives posted at most.
    pub(crate) rx_size: Option<usize>,
    /// The longest message.
    pub(crate) max_msg_size: Option<usize>,
    /// Whether peers that connect get a number.
    pub(crate) auto_insert: bool,
    /// Whether the queue hears of success only when asked to.
    pub(crate) selective_completion: bool,
    /// What operations do unless they say otherwise.
    pub(crate) op_flags: OpFlags,
    /// From which length on messages are copied once.
    pub(crate) single_copy_threshold: Option<usize>,
    /// What is set on sockets.
    pub(crate) socket_options: SocketOptions,
    /// Which traffic it is.
    pub(crate) tclass: Option<TrafficClass>,
}

impl EndpointConfig {
    /// Where there are sockets, little that was sent is anywhere between its sender and its
    /// receiver.
    pub(crate) fn with_small_socket_buffers(self) -> Self {
        let sockets = self
            .socket_options
            .clone()
            .send_buffer(SMALL_SOCKET_BUFFER)
            .receive_buffer(SMALL_SOCKET_BUFFER);
        Self {
            socket_options: sockets,
            ..self
        }
    }
}

/// Bytes that each end of a narrow connection keeps, of which Linux takes twice as many.
const SMALL_SOCKET_BUFFER: usize = 64 << 10;

impl Default for EndpointConfig {
    fn default() -> Self {
        Self {
            cq_capacity: 1024,
            eq_capacity: 256,
            tx_size: None,
            rx_size: None,
            max_msg_size: None,
            auto_insert: true,
            selective_completion: false,
            op_flags: OpFlags::empty(),
            single_copy_threshold: None,
            socket_options: SocketOptions::new(),
            tclass: None,
        }
    }
}

/// An endpoint in a domain of its own. Fields are dropped in this order: children before parents.
#[derive(Debug)]
pub(crate) struct EndpointFixture {
    pub(crate) ep: Endpoint,
    pub(crate) cq: CompletionQueue,
    pub(crate) av: AddressVector,
    pub(crate) send_counter: Counter,
    pub(crate) recv_counter: Counter,
    pub(crate) domain: Domain,
    pub(crate) eq: EventQueue,
    pub(crate) fabric: Fabric,
    pub(crate) info: Info,
}

impl EndpointFixture {
    pub(crate) async fn open(setup: &Setup, plan: EndpointConfig) -> Self {
        let (fabric, mut info) = setup.fabric().await;
        info.tx.size = plan.tx_size.unwrap_or(info.tx.size);
        info.rx.size = plan.rx_size.unwrap_or(info.rx.size);
        info.ep.max_msg_size = plan.max_msg_size.unwrap_or(info.ep.max_msg_size);
        (info.tx.op_flags, info.rx.op_flags) = (plan.op_flags, plan.op_flags & OpFlags::COMPLETION);
        info.domain.tclass = plan.tclass;
        let mut domain = fabric
            .domain_builder(&info)
            .wait_policy(setup.wait_policy)
            .socket_io(setup.socket_io);
        domain = domain.socket_options(setup.socket_options(plan.socket_options));
        if let Some(len) = plan.single_copy_threshold.or(setup.single_copy_threshold) {
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
        };
        let (av, sends, recvs) = (
            av.unwrap(),
            domain.counter().unwrap(),
            domain.counter().unwrap(),
        );
        let ep = domain.endpoint(&info).unwrap().context(ENDPOINT_CONTEXT);
        let mut directions = CqBind::TRANSMIT | CqBind::RECV;
        directions.set(CqBind::SELECTIVE_COMPLETION, plan.selective_completion);
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
            send_counter: sends,
            recv_counter: recvs,
            domain,
            eq,
            fabric,
            info,
        }
    }

    /// The number of this peer, once connected to it.
    pub(crate) async fn add_peer(&self, peer: &EndpointFixture) -> FiAddr {
        self.ep.add_peer(peer.ep.name()).await.unwrap()
    }
}

/// The context of a station's endpoint.
pub(crate) const ENDPOINT_CONTEXT: u64 = 77;

impl EndpointFixture {
    /// A task that waits for something that never comes: keeps the domain moving, whatever the mode
    /// of progress.
    pub(crate) fn spawn_progress(&self) -> JoinHandle<()> {
        let recvs = self.recv_counter.clone();
        tokio::spawn(async move {
            let _ = recvs.wait(u64::MAX).await;
        })
    }
}

/// Two stations, and the number by which the first knows the second.
pub(crate) async fn endpoint_pair(setup: &Setup) -> (EndpointFixture, EndpointFixture, FiAddr) {
    endpoint_pair_with(setup, EndpointConfig::default(), EndpointConfig::default()).await
}

/// Likewise, both planned.
pub(crate) async fn endpoint_pair_with(
    setup: &Setup,
    a: EndpointConfig,
    b: EndpointConfig,
) -> (EndpointFixture, EndpointFixture, FiAddr) {
    let (a, b) = (
        setup.open_endpoint_with(a).await,
        setup.open_endpoint_with(b).await,
    );
    let to_b = a.add_peer(&b).await;
    (a, b, to_b)
}

/// Returns when everything that was sent to `to` before has arrived there: messages of one sender
/// arrive in order, and this one is the last. Needs tags.
pub(crate) async fn flush(from: &EndpointFixture, to: &EndpointFixture, peer: FiAddr) {
    const FENCE: u64 = 0xfe4c_e000_0000_0000;
    let (sent, got) = tokio::join!(
        from.ep.send(peer, Vec::new()).tag(FENCE),
        to.ep.recv_into(Vec::new()).tag(FENCE)
    );
    sent.unwrap();
    got.unwrap();
}
