//! An endpoint with a fabric, domain, queues and counters of its own.

use std::sync::Arc;

use fabric_async::info::TrafficClass;
use fabric_async::{
    AddressVector, CompletionQueue, Counter, CounterBind, CqBind, Domain, Endpoint, EventQueue,
    Fabric, FiAddr, Info, OpFlags, SocketOptions,
};

use tokio::task::JoinHandle;

use crate::device_memory::TestDevice;
use crate::setup::Setup;

/// The settings of an [`EndpointFixture`]; the default is what most scenarios use.
#[derive(Clone, Debug)]
pub(crate) struct EndpointConfig {
    /// Entries of the completion queue.
    pub(crate) cq_capacity: usize,
    /// Entries of the event queue.
    pub(crate) eq_capacity: usize,
    /// Transmit credits, if not the provider's default.
    pub(crate) tx_size: Option<usize>,
    /// Maximum number of posted receives, if not the provider's default.
    pub(crate) rx_size: Option<usize>,
    /// The longest message, if not the provider's default.
    pub(crate) max_msg_size: Option<usize>,
    /// Whether the domain registers memory asynchronously (`FI_REG_MR`).
    pub(crate) reg_mr: bool,
    /// Whether the address vector inserts peers that connect.
    pub(crate) auto_insert: bool,
    /// Whether the queue reports success only with `FI_COMPLETION` (`FI_SELECTIVE_COMPLETION`).
    pub(crate) selective_completion: bool,
    /// The default flags of operations.
    pub(crate) op_flags: OpFlags,
    /// The length in bytes from which messages are copied once.
    pub(crate) single_copy_threshold: Option<usize>,
    /// The socket options of the domain.
    pub(crate) socket_options: SocketOptions,
    /// The traffic class of the domain.
    pub(crate) tclass: Option<TrafficClass>,
    /// The device whose memory the domain copies.
    pub(crate) device: Option<Arc<TestDevice>>,
}

impl EndpointConfig {
    /// Returns the configuration with small socket buffers, so that few sent bytes are in transit.
    /// Not for long messages: see [`WINDOW_OF_A_SEGMENT`].
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

/// Bytes of a small receive buffer for long messages over loopback, where segments have up to
/// 64 KiB. If the window that the receiver announces is shorter than a segment, the sender's kernel
/// sends a part of one each 200 ms only.
pub(crate) const WINDOW_OF_A_SEGMENT: usize = 256 << 10;

/// Bytes of each small socket buffer; Linux doubles the value.
const SMALL_SOCKET_BUFFER: usize = 64 << 10;

impl Default for EndpointConfig {
    fn default() -> Self {
        Self {
            cq_capacity: 1024,
            eq_capacity: 256,
            tx_size: None,
            rx_size: None,
            max_msg_size: None,
            reg_mr: false,
            auto_insert: true,
            selective_completion: false,
            op_flags: OpFlags::empty(),
            single_copy_threshold: None,
            socket_options: SocketOptions::new(),
            tclass: None,
            device: None,
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
    pub(crate) async fn open(setup: &Setup, config: EndpointConfig) -> Self {
        let (fabric, mut info) = setup.fabric().await;
        info.tx.size = config.tx_size.unwrap_or(info.tx.size);
        info.rx.size = config.rx_size.unwrap_or(info.rx.size);
        info.ep.max_msg_size = config.max_msg_size.unwrap_or(info.ep.max_msg_size);
        (info.tx.op_flags, info.rx.op_flags) =
            (config.op_flags, config.op_flags & OpFlags::COMPLETION);
        info.domain.tclass = config.tclass;
        let mut domain = setup.domain_builder(&fabric, &info);
        domain = domain.socket_options(setup.socket_options(config.socket_options));
        if let Some(len) = config.single_copy_threshold {
            domain = domain.single_copy_threshold(len);
        }
        let domain = domain.open().unwrap();
        if let Some(device) = config.device {
            domain.set_device_copy(device).unwrap();
        }
        let eq = fabric.event_queue_with_context(config.eq_capacity, EQ_CONTEXT);
        let eq = eq.unwrap();
        match config.reg_mr {
            true => domain.bind_eq_reg_mr(&eq).unwrap(),
            false => domain.bind_eq(&eq).unwrap(),
        }
        let cq = domain.completion_queue(config.cq_capacity).unwrap();
        let av = if config.auto_insert {
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
        directions.set(CqBind::SELECTIVE_COMPLETION, config.selective_completion);
        let ep = ep.bind_cq(&cq, directions).unwrap().bind_av(&av).unwrap();
        let ep = ep.bind_counter(&sends, CounterBind::SEND).unwrap();
        let ep = ep
            .bind_counter(&recvs, CounterBind::RECV)
            .unwrap()
            .enable()
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

    /// Connects to a peer, and returns its address handle.
    pub(crate) async fn add_peer(&self, peer: &EndpointFixture) -> FiAddr {
        self.ep.add_peer(peer.ep.name()).await.unwrap()
    }
}

/// The context of a fixture's endpoint.
pub(crate) const ENDPOINT_CONTEXT: u64 = 77;
/// The context of a fixture's event queue.
pub(crate) const EQ_CONTEXT: u64 = 78;

impl EndpointFixture {
    /// Spawns a task that waits for a counter value that is never reached. The wait keeps the
    /// domain making progress in every progress mode.
    pub(crate) fn spawn_progress(&self) -> JoinHandle<()> {
        let counter = self.recv_counter.clone();
        tokio::spawn(async move {
            let _ = counter.wait(u64::MAX).await;
        })
    }
}

/// Opens two endpoints, and returns them with the handle of the second at the first.
pub(crate) async fn endpoint_pair(setup: &Setup) -> (EndpointFixture, EndpointFixture, FiAddr) {
    endpoint_pair_with(setup, EndpointConfig::default(), EndpointConfig::default()).await
}

/// As [`endpoint_pair`], with configurations.
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

/// Returns when all messages that `from` has sent to `to` have arrived: messages of one sender
/// arrive in order, and `flush` sends the last one. Requires tags.
pub(crate) async fn flush(from: &EndpointFixture, to: &EndpointFixture, peer: FiAddr) {
    const FENCE: u64 = 0xfe4c_e000_0000_0000;
    let (sent, got) = tokio::join!(
        from.ep.send(peer, Vec::new()).tag(FENCE),
        to.ep.recv_into(Vec::new()).tag(FENCE)
    );
    sent.unwrap();
    got.unwrap();
}
