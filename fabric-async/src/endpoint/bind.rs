//! The front door: an endpoint with everything around it, in one call.

use fabric_core::flags::{Caps, CqBind};
use fabric_core::info::{EpType, Hints, Info, Progress, Protocol};
use fabric_core::transport::SocketIo;
use fabric_core::{Address, Result, Scheme, SocketOptions};
use fabric_reactor::WaitPolicy;

use super::{Endpoint, EndpointBuilder, OwnedQueues};
use crate::av::ToAddress;
use crate::cq::CompletionQueue;
use crate::discover::discover_sync;
use crate::domain::{Domain, DomainOptions};
use crate::eq::EventQueue;
use crate::fabric::Fabric;
use crate::resolve;

/// Completions that the queue of such an endpoint has room for.
const DEFAULT_CQ_CAPACITY: usize = 1024;
/// Events likewise.
const DEFAULT_EQ_CAPACITY: usize = 256;

/// Options of [`Endpoint::bind`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
/// use fabric_async::{Endpoint, Progress, WaitPolicy};
/// let ep = Endpoint::options().wait_policy(WaitPolicy::Park).progress(Progress::Auto).bind("shm://").await?;
/// # drop(ep); Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct BindOptions {
    progress: Progress,
    pub(crate) options: DomainOptions,
    protocol: Option<Protocol>,
}

impl Endpoint {
    /// Opens an endpoint at this address, or at a fresh one if the name is empty, with a fabric, a
    /// domain, a completion queue, an event queue and a welcoming address vector of its own.
    ///
    /// Short for: discover the provider of the scheme with untagged and tagged messages, and with
    /// one-sided and atomic operations if it has them, or with [datagrams](crate::guide::udp) if
    /// that is what it has, open its fabric and domain, open the queues and the vector, bind,
    /// enable. [`Endpoint::domain`], [`Endpoint::completions`], [`Endpoint::events`] and
    /// [`Endpoint::address_vector`] lead to the parts.
    ///
    /// With the name of a host, as in `tcp://localhost:0`, this is its first address that can be
    /// bound here; see [`resolve`](crate::resolve()).
    ///
    /// A peer that writes to memory here [with data](crate::WriteRequest::data) fills an entry of
    /// the completion queue: read it, or take it out and drop it. Nothing else goes there that was
    /// not posted to it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// let ep = fabric_async::Endpoint::bind("shm://").await?;
    /// println!("reach me at {}", ep.name());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::BadAddress`](crate::Error::BadAddress),
    /// [`Error::AddressInUse`](crate::Error::AddressInUse),
    /// [`Error::Runtime`](crate::Error::Runtime) outside of a Tokio runtime with I/O,
    /// [`Error::NoSuchHost`](crate::Error::NoSuchHost), [`Error::Os`](crate::Error::Os).
    ///
    /// Tokio panics when a descriptor is registered on a runtime without I/O. That panic is caught
    /// and becomes [`Error::Runtime`](crate::Error::Runtime). To hide it from the program's panic
    /// hook, the first domain under manual progress wraps the hook, once in each process. With
    /// `panic = "abort"` the panic cannot be caught: there, manual progress on such a runtime ends
    /// the process.
    ///
    /// # Cancel safety
    /// Nothing is held across an await.
    pub async fn bind(at: impl ToAddress) -> Result<Self> {
        Self::options().bind(at).await
    }

    /// Options to bind with.
    pub fn options() -> BindOptions {
        BindOptions {
            progress: Progress::Manual,
            options: DomainOptions::default(),
            protocol: None,
        }
    }
}

impl BindOptions {
    /// How waiting is done: [`WaitPolicy::Adaptive`] unless said otherwise.
    pub fn wait_policy(mut self, policy: WaitPolicy) -> Self {
        self.options.wait_policy = policy;
        self
    }

    /// Who makes progress: [`Progress::Manual`] unless said otherwise.
    pub fn progress(mut self, progress: Progress) -> Self {
        self.progress = progress;
        self
    }

    /// From which length on messages are copied once instead of twice: as
    /// [`DomainBuilder::single_copy_threshold`](crate::DomainBuilder::single_copy_threshold).
    pub fn single_copy_threshold(mut self, len: usize) -> Self {
        self.options.single_copy_threshold = Some(len);
        self
    }

    /// How sockets are waited for: as
    /// [`DomainBuilder::socket_io`](crate::DomainBuilder::socket_io).
    pub fn socket_io(mut self, io: SocketIo) -> Self {
        self.options.socket_io = io;
        self
    }

    /// What is set on sockets: as
    /// [`DomainBuilder::socket_options`](crate::DomainBuilder::socket_options).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::{Endpoint, SocketOptions};
    /// // Only these ports are open in the firewall.
    /// let options = SocketOptions::new().port_range(41_000..=41_999);
    /// let ep = Endpoint::options().socket_options(options).bind("tcp://").await?;
    /// assert!((41_000..=41_999).contains(&ep.name().socket_addr().unwrap().port()));
    /// # Ok(()) }
    /// ```
    pub fn socket_options(mut self, options: SocketOptions) -> Self {
        self.options.socket_options = options;
        self
    }

    /// What is spoken to peers, where the provider of the scheme speaks several protocols; the
    /// first that it offers unless said otherwise. Over tcp that is [`Protocol::Tcp`]. With
    /// [`Protocol::Rxm`] peers are asked in [that dialect](crate::guide::tcp#the-rxm-protocol)
    /// first; who asks is answered in its own.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::{Endpoint, Protocol};
    /// let (server, client) = (Endpoint::bind("tcp://").await?, Endpoint::options().protocol(Protocol::Rxm));
    /// let client = client.bind("tcp://").await?;
    /// let peer = client.add_peer(server.name()).await?;
    /// client.send(peer, "in another dialect").await?;
    /// assert_eq!(&server.recv().await?[..], b"in another dialect");
    /// # Ok(()) }
    /// ```
    #[doc(alias = "FI_PROTO_RXM")]
    #[doc(alias = "ofi_rxm")]
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = Some(protocol);
        self
    }

    /// Opens the endpoint.
    ///
    /// # Errors
    /// As [`Endpoint::bind`].
    pub async fn bind(self, at: impl ToAddress) -> Result<Endpoint> {
        let found = resolve::resolve_filtered(&at, Scheme::Tcp, |_| true).await?;
        let (last, others) = found.split_last().expect("there is one at least");
        others
            .iter()
            .find_map(|at| self.bind_at(at).ok())
            .map_or_else(|| self.bind_at(last), Ok)
    }

    fn bind_at(&self, at: &Address) -> Result<Endpoint> {
        let mut hints = Hints::new()
            .provider(at.scheme().provider())
            .progress(self.progress);
        if let Some(protocol) = self.protocol {
            hints = hints.protocol(protocol);
        }
        let reliable = |caps| discover_sync(&hints.clone().ep_type(EpType::Rdm).caps(caps));
        let messages = Caps::MSG | Caps::TAGGED | Caps::DIRECTED_RECV | Caps::SOURCE;
        let datagrams = Caps::MSG | Caps::SOURCE | Caps::MULTICAST;
        // The most that the provider has.
        let info = reliable(messages | Caps::RMA | Caps::ATOMIC)
            .or_else(|_| reliable(messages))
            .or_else(|refused| {
                discover_sync(&hints.clone().ep_type(EpType::Dgram).caps(datagrams))
                    .map_err(|_| refused)
            })?
            .swap_remove(0);
        let domain = self.open_domain(&info)?;
        let (completions, events) = open_queues(&domain)?;
        domain.bind_eq(&events)?;
        domain
            .endpoint(&info)?
            .name(at)?
            .bind_cq(&completions, CqBind::TRANSMIT | CqBind::RECV)?
            .bind_av(&domain.auto_insert_address_vector()?)?
            .owned_queues(OwnedQueues {
                completions: Some(completions),
                events: Some(events),
            })
            .enable_sync()
    }

    /// A domain for connected endpoints, whose addresses are of this kind.
    pub(crate) fn open_msg_domain(&self, scheme: Scheme) -> Result<Domain> {
        let hints = Hints::new()
            .provider(scheme.provider())
            .progress(self.progress);
        self.open_domain(&discover_sync(&hints.ep_type(EpType::Msg))?.swap_remove(0))
    }

    fn open_domain(&self, info: &Info) -> Result<Domain> {
        Fabric::open(info)?
            .domain_builder(info)
            .options(self.options.clone())
            .open()
    }
}

fn open_queues(domain: &Domain) -> Result<(CompletionQueue, EventQueue)> {
    Ok((
        domain.completion_queue(DEFAULT_CQ_CAPACITY)?,
        domain.fabric().event_queue(DEFAULT_EQ_CAPACITY)?,
    ))
}

/// An endpoint of this domain with queues of its own, to be connected.
pub(crate) fn builder_with_queues(domain: &Domain, info: &Info) -> Result<EndpointBuilder> {
    let (completions, events) = open_queues(domain)?;
    let ep = domain
        .endpoint(info)?
        .bind_cq(&completions, CqBind::TRANSMIT | CqBind::RECV)?;
    Ok(ep.bind_eq(&events)?.owned_queues(OwnedQueues {
        completions: Some(completions),
        events: Some(events),
    }))
}
