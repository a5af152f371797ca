//! An endpoint with its completion queues, and how messages move over it: the same on both sides.

use fabric_async::buf::IoBuf;
use fabric_async::ops::{BatchOp, RecvOp, SendOp};
use fabric_async::{
    Completion, CompletionQueue, CqBind, Domain, Done, Endpoint, Error as FabricError, Fabric,
    FiAddr, Info, Request, SocketOptions,
};
use futures_util::StreamExt;

use super::plan::Plan;
use crate::options::{Api, BenchOp, DomainLayout, ThreadModelKind, WaitMode};
use crate::{Result, limits};

/// The tag of measured messages, if they have one.
const TAG: u64 = 0xda7a;
/// Completions that are taken from a queue at once.
const BATCH: usize = 64;

/// An endpoint with a completion queue for each direction.
pub(super) struct BenchEndpoint {
    pub(super) ep: Endpoint,
    tx: CompletionQueue,
    rx: CompletionQueue,
    op: BenchOp,
    api: Api,
    completions: Vec<Completion>,
    /// Buffers that earlier rounds have left.
    free_buffers: Vec<Vec<u8>>,
}

/// Descriptors of an endpoint and its connection, and those of the rest of a process.
const DESCRIPTORS_OF_ENDPOINT: u64 = 8;
const OTHER_DESCRIPTORS: u64 = 256;

/// Opens this many endpoints, in one domain or in a domain or resource domain each as planned.
pub(super) async fn open_endpoints(plan: &Plan, count: usize) -> Result<Vec<BenchEndpoint>> {
    // Each endpoint of the initiator is connected, also to one endpoint of the responder.
    let connected = count.max(plan.endpoints);
    if connected > 1 {
        let descriptors = DESCRIPTORS_OF_ENDPOINT * (connected * plan.threads) as u64;
        limits::raise_descriptor_limit(descriptors + OTHER_DESCRIPTORS)?;
    }
    let info = plan.discover_info()?;
    let fabric = Fabric::open(&info)?;
    let parent = open_domain(plan, &fabric, &info)?;
    // The domain of an endpoint, unless it is the parent.
    let mut own = None;
    let address = format!("{}://", plan.provider);
    let mut endpoints = Vec::with_capacity(count);
    for at in 0..count {
        match plan.domains {
            DomainLayout::Own if at > 0 => own = Some(open_domain(plan, &fabric, &info)?),
            DomainLayout::Resource => own = Some(parent.resource_domain().open()?),
            DomainLayout::One | DomainLayout::Own => {}
        }
        let domain = own.as_ref().unwrap_or(&parent);
        let (tx, rx) = (
            domain.completion_queue(plan.queue_size())?,
            domain.completion_queue(plan.queue_size())?,
        );
        let ep = domain
            .endpoint(&info)?
            .name(&address)?
            .bind_cq(&tx, CqBind::TRANSMIT)?
            .bind_cq(&rx, CqBind::RECV)?
            .bind_av(&domain.auto_insert_address_vector()?)?
            .enable()?;
        let completions = Vec::with_capacity(BATCH);
        endpoints.push(BenchEndpoint {
            ep,
            tx,
            rx,
            op: plan.op,
            api: plan.api,
            completions,
            free_buffers: Vec::new(),
        });
    }
    Ok(endpoints)
}

fn open_domain(plan: &Plan, fabric: &Fabric, info: &Info) -> Result<Domain> {
    let mut domain = fabric.domain_builder(info).wait_policy(plan.wait.policy());
    domain = domain.message_model(plan.msg_model.model());
    if let Some(len) = plan.single_copy_threshold {
        domain = domain.single_copy_threshold(len);
    }
    // The data path is that of `Domain<Pinned>` or `Domain<Serial>`, compiled once for all models.
    domain = match plan.threading {
        ThreadModelKind::Shared => domain,
        ThreadModelKind::Pinned => domain.owned_by_this_thread(),
        ThreadModelKind::Serial => domain.used_by_one_thread_at_a_time(),
    };
    if let Some(name) = &plan.congestion {
        domain = domain.socket_options(SocketOptions::new().congestion_control(name));
    }
    Ok(domain.open()?)
}

/// Opens a domain with this many endpoints that only accept connections, and sleep.
pub(super) async fn open_idle_endpoints(plan: &Plan, count: usize) -> Result<Vec<BenchEndpoint>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    // A listener, a timer and a connection for each.
    limits::raise_descriptor_limit(3 * count as u64 + 256)?;
    open_endpoints(
        &Plan {
            wait: WaitMode::Park,
            window: 1,
            domains: DomainLayout::One,
            ..plan.clone()
        },
        count,
    )
    .await
}

impl BenchEndpoint {
    /// Returns `count` buffers of this size, those of earlier rounds first. They were written to,
    /// so that no page fault happens during the round.
    pub(super) fn buffers(&mut self, count: usize, size: usize) -> Vec<Vec<u8>> {
        let mut buffers = std::mem::take(&mut self.free_buffers);
        buffers.retain(|buf| buf.len() == size);
        buffers.resize_with(count, || vec![7u8; size]);
        buffers
    }

    /// Allocates `count` buffers of this size for the next round.
    pub(super) fn prepare_buffers(&mut self, count: usize, size: usize) {
        let buffers = self.buffers(count, size);
        self.recycle(buffers);
    }

    /// Keeps buffers for the next round.
    pub(super) fn recycle(&mut self, buffers: impl IntoIterator<Item = Vec<u8>>) {
        self.free_buffers.extend(buffers);
    }

    pub(super) fn send<B: IoBuf>(&self, peer: FiAddr, buf: B) -> Request<'_, SendOp, B> {
        let request = self.ep.send(peer, buf);
        if self.op == BenchOp::Tagged {
            request.tag(TAG)
        } else {
            request
        }
    }

    /// Receives a message of this peer, or of any peer.
    pub(super) fn recv(&self, peer: Option<FiAddr>, buf: Vec<u8>) -> Request<'_, RecvOp, Vec<u8>> {
        let request = self.ep.recv_into(buf);
        let request = match peer {
            Some(peer) => request.from(peer),
            None => request,
        };
        if self.op == BenchOp::Tagged {
            request.tag(TAG)
        } else {
            request
        }
    }

    /// Injects a message, waiting for room if there is none.
    pub(super) async fn inject(&self, peer: FiAddr, bytes: &[u8]) -> Result<()> {
        loop {
            match self.ep.send(peer, bytes).inject() {
                Err(FabricError::WouldBlock(_)) => drop(self.ep.reserve(peer).await?),
                other => return Ok(other?),
            }
        }
    }

    /// Injects `count` messages to a peer in batches.
    pub(super) async fn inject_all(
        &self,
        peer: FiAddr,
        bytes: &[u8],
        mut count: usize,
    ) -> Result<()> {
        while count > 0 {
            let (accepted, ended) = self.ep.inject_all(peer, std::iter::repeat_n(bytes, count));
            count -= accepted;
            match ended {
                Err(FabricError::WouldBlock(_)) => drop(self.ep.reserve(peer).await?),
                other => other?,
            }
        }
        Ok(())
    }

    /// Posts requests that complete on a queue, one by one or in a batch as planned. Returns how
    /// many there was room for, and the buffers of the others.
    pub(super) fn post_all<'a, O: BatchOp<Vec<u8>>>(
        &'a self,
        requests: impl Iterator<Item = Request<'a, O, Vec<u8>>>,
    ) -> Result<(usize, Vec<Vec<u8>>)> {
        let mut posted = 0;
        if self.api == Api::Batch {
            return match self.ep.post_all(requests) {
                Ok(posted) => Ok((posted, Vec::new())),
                Err(stopped) if matches!(stopped.error, FabricError::WouldBlock(_)) => Ok((
                    stopped.posted,
                    stopped
                        .unposted
                        .into_iter()
                        .map(Request::into_buf)
                        .collect(),
                )),
                Err(stopped) => Err(stopped.error.into()),
            };
        }
        for request in requests {
            match request.post() {
                Ok(()) => posted += 1,
                Err(failed) if matches!(failed.error, FabricError::WouldBlock(_)) => {
                    return Ok((posted, vec![failed.buf]));
                }
                Err(failed) => return Err(failed.into()),
            }
        }
        Ok((posted, Vec::new()))
    }

    /// Sends one message and waits until its buffer is back.
    pub(super) async fn send_one(&mut self, peer: FiAddr, buf: Vec<u8>) -> Result<Vec<u8>> {
        match (self.op, self.api) {
            (BenchOp::Inject, _) => self.inject(peer, &buf).await.map(|()| buf),
            (BenchOp::Loan, _) => {
                let loan = self.ep.domain().loan(buf.len()).await?;
                self.ep
                    .send(peer, loan)
                    .await
                    .map_err(|failed| failed.error)?;
                Ok(buf)
            }
            (_, Api::Await) => Ok(self.send(peer, buf).await?.into_buf()),
            _ => {
                self.send(peer, buf).post()?;
                self.wait_tx_completions().await?;
                self.take_buffer()
            }
        }
    }

    /// Receives one message of this peer, or of any peer.
    pub(super) async fn recv_one(&mut self, peer: Option<FiAddr>, buf: Vec<u8>) -> Result<Vec<u8>> {
        if self.op == BenchOp::Loan {
            let request = self.ep.recv_loan();
            drop(match peer {
                Some(peer) => request.from(peer).await?,
                None => request.await?,
            });
            return Ok(buf);
        }
        Ok(self.recv_done(peer, buf).await?.into_buf())
    }

    /// Receives one message of any peer. Returns the buffer and the peer.
    pub(super) async fn recv_from_any(&mut self, buf: Vec<u8>) -> Result<(Vec<u8>, FiAddr)> {
        let done = self.recv_done(None, buf).await?;
        let peer = done.source()?;
        Ok((done.into_buf(), peer))
    }

    async fn recv_done(&mut self, peer: Option<FiAddr>, buf: Vec<u8>) -> Result<Done<Vec<u8>>> {
        if self.api == Api::Await {
            return Ok(self.recv(peer, buf).await?);
        }
        self.recv(peer, buf).post()?;
        self.wait_rx_completions().await?;
        self.take_done()
    }

    /// Waits for completions of sends, one or all available; [`take_buffer`](Self::take_buffer)
    /// returns their buffers.
    pub(super) async fn wait_tx_completions(&mut self) -> Result<()> {
        wait_completions(&mut self.tx, self.api, &mut self.completions).await
    }

    /// Waits for completions of receives.
    pub(super) async fn wait_rx_completions(&mut self) -> Result<()> {
        wait_completions(&mut self.rx, self.api, &mut self.completions).await
    }

    /// Waits for this many remote writes with data.
    pub(super) async fn wait_remote_writes(&mut self, mut count: u64) -> Result<()> {
        while count > 0 {
            self.wait_rx_completions().await?;
            count = count.saturating_sub(self.completions.len() as u64);
            self.completions.clear();
        }
        Ok(())
    }

    /// Returns the buffer of a completion that was waited for.
    pub(super) fn take_buffer(&mut self) -> Result<Vec<u8>> {
        Ok(self.take_done()?.into_buf())
    }

    fn take_done(&mut self) -> Result<Done<Vec<u8>>> {
        let completion = self.completions.pop().ok_or(FabricError::Canceled)?;
        Ok(completion.into_result::<Vec<u8>>()?)
    }

    /// Returns how completions are taken.
    pub(super) fn api(&self) -> Api {
        self.api
    }

    /// Returns the number of completions that were waited for and not taken.
    pub(super) fn completion_count(&self) -> usize {
        self.completions.len()
    }
}

async fn wait_completions(
    queue: &mut CompletionQueue,
    api: Api,
    completions: &mut Vec<Completion>,
) -> Result<()> {
    if api == Api::Batch {
        queue.read_batch(completions, BATCH).await;
    } else {
        completions.extend(queue.next().await);
    }
    Ok(())
}
