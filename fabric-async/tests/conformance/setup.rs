//! What a scenario runs on, and how it is run.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fabric_async::{
    Caps, EpType, Error, Fabric, Hints, Info, Progress, SHARED_CONTEXT, SocketIo, SocketOptions,
    WaitPolicy, discover,
};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::endpoint_fixture::{EndpointConfig, EndpointFixture};
use crate::requirements::{LEVELS, MSG, Requirements};
use crate::skip::Facility;

/// Longer than any scenario takes on a slow machine: only tells a hang from the rest.
const SCENARIO_TIMEOUT: Duration = Duration::from_secs(30);

/// One combination of provider, progress, wait policy and runtime.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    /// The provider, which is also the scheme of its addresses.
    pub(crate) provider: &'static str,
    pub(crate) progress: Progress,
    pub(crate) wait_policy: WaitPolicy,
    /// What endpoints are asked to do: what the scenario needs.
    pub(crate) caps: Caps,
    /// Of which type endpoints are; `None` where it does not matter.
    ep_type: Option<EpType>,
    /// From which length on messages are copied once, if the scenario does not say.
    pub(crate) single_copy_threshold: Option<usize>,
    /// How sockets are waited for.
    pub(crate) socket_io: SocketIo,
    /// Long messages are taken from where they lie, also where that does not pay.
    pub(crate) zero_copy: bool,
    /// What is asked for where that is more than the provider.
    provider_chain: Option<&'static str>,
    worker_threads: Option<usize>,
}

/// Runs a scenario.
///
/// The scenario itself runs on the thread of the test, and the tasks that it spawns on the workers
/// of a multi-thread runtime.
///
/// # Panics
///
/// When the scenario panics or exceeds [`SCENARIO_TIMEOUT`].
pub(crate) fn run<F: Future<Output = ()>>(setup: Setup, scenario: impl FnOnce(Setup) -> F) {
    let runtime = BackgroundRuntime(Some(setup.runtime()));
    let runtime = runtime.0.as_ref().expect("present until drop");
    let ended = runtime.block_on(async { timeout(SCENARIO_TIMEOUT, scenario(setup)).await });
    assert!(ended.is_ok(), "still not done after {SCENARIO_TIMEOUT:?}");
}

/// Tasks that hang must not keep a test from failing.
struct BackgroundRuntime(Option<Runtime>);

impl Drop for BackgroundRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Setup {
    /// This provider under manual progress, on a runtime of one thread.
    pub(crate) fn new(provider: &'static str) -> Self {
        let (progress, wait_policy) = (Progress::Manual, WaitPolicy::default());
        Self {
            provider,
            progress,
            wait_policy,
            caps: Caps::empty(),
            ep_type: None,
            single_copy_threshold: None,
            socket_io: SocketIo::default(),
            zero_copy: false,
            provider_chain: None,
            worker_threads: None,
        }
    }

    pub(crate) fn auto(self) -> Self {
        Self {
            progress: Progress::Auto,
            ..self
        }
    }

    pub(crate) fn spin(self) -> Self {
        Self {
            wait_policy: WaitPolicy::Spin,
            ..self
        }
    }

    pub(crate) fn park(self) -> Self {
        Self {
            wait_policy: WaitPolicy::Park,
            ..self
        }
    }

    pub(crate) fn single_copy_threshold(self, len: usize) -> Self {
        Self {
            single_copy_threshold: Some(len),
            ..self
        }
    }

    pub(crate) fn epoll(self) -> Self {
        Self {
            socket_io: SocketIo::Epoll,
            ..self
        }
    }

    pub(crate) fn io_uring(self) -> Self {
        Self {
            socket_io: SocketIo::IoUring,
            ..self
        }
    }

    pub(crate) fn zero_copy(self) -> Self {
        Self {
            zero_copy: true,
            ..self
        }
    }

    /// What is set on sockets where the scenario does not say.
    pub(crate) fn socket_options(&self, mut sockets: SocketOptions) -> SocketOptions {
        if self.zero_copy {
            sockets = sockets.zero_copy_threshold(0);
            sockets.force_zero_copy = true;
        }
        sockets
    }

    /// Whether long messages are taken from where they lie where that is asked for: Linux can since
    /// 6.2, and in RXM they are read by peers.
    pub(crate) fn supports_zero_copy(&self) -> bool {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let mut parts = release
            .split(|c: char| !c.is_ascii_digit())
            .map(|part| part.parse::<u32>().unwrap_or(0));
        let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        self.socket_io == SocketIo::IoUring && self.provider_chain.is_none() && version >= (6, 2)
    }

    /// Endpoints that connect in RXM.
    pub(crate) fn rxm(self) -> Self {
        Self {
            provider_chain: Some("tcp;ofi_rxm"),
            ..self
        }
    }

    pub(crate) fn multi_thread(self) -> Self {
        Self {
            worker_threads: Some(2),
            ..self
        }
    }

    /// Whether tasks may run at the same time.
    pub(crate) fn is_multi_thread(&self) -> bool {
        self.worker_threads.is_some()
    }

    fn runtime(&self) -> Runtime {
        let built = match self.worker_threads {
            None => Builder::new_current_thread().enable_all().build(),
            Some(workers) => Builder::new_multi_thread()
                .worker_threads(workers)
                .enable_all()
                .build(),
        };
        built.expect("a runtime")
    }

    /// What every scenario asks for.
    pub(crate) fn hints(&self) -> Hints {
        Hints::new()
            .provider(self.provider_chain.unwrap_or(self.provider))
            .progress(self.progress)
    }

    async fn discover(&self, caps: Caps) -> fabric_async::Result<Info> {
        discover(&self.hints_for(caps, self.ep_type))
            .await
            .map(|mut found| found.swap_remove(0))
    }

    fn hints_for(&self, caps: Caps, ep_type: Option<EpType>) -> Hints {
        let hints = self.hints().caps(caps);
        match ep_type {
            Some(ep_type) => hints.ep_type(ep_type),
            None => hints,
        }
    }

    /// Returns this setup with the capabilities and the endpoint type of a scenario.
    pub(crate) fn with_requirements(self, needs: Requirements) -> Self {
        Self {
            caps: needs.caps,
            ep_type: needs.ep_type,
            ..self
        }
    }

    /// Returns whether discovery offers everything that a scenario requires.
    pub(crate) async fn offers_all(&self, needs: Requirements) -> fabric_async::Result<bool> {
        let hints = || {
            let hints = self.hints_for(needs.caps, needs.ep_type);
            let hints = hints.tx_op_flags(needs.tx_op_flags);
            if needs.shared_rx {
                hints.ep_rx_ctx_cnt(SHARED_CONTEXT)
            } else {
                hints
            }
        };
        let info = match discover(&hints()).await {
            Ok(mut found) => found.swap_remove(0),
            Err(Error::NoMatch(_)) => return Ok(false),
            Err(error) => return Err(error),
        };
        if needs.lacks_a_level {
            for level in LEVELS {
                match discover(&hints().tx_op_flags(level)).await {
                    Ok(_) => {}
                    Err(Error::NoMatch(_)) => return Ok(true),
                    Err(error) => return Err(error),
                }
            }
            return Ok(false);
        }
        let is_remote = info.domain.caps.contains(Caps::REMOTE_COMM);
        // No attribute tells cross-memory attach, which shm alone has, or socket addresses: the
        // address format is FI_ADDR_STR with every provider.
        Ok(info.tx.rma_iov_limit >= needs.rma_iov_limit
            && (!needs.local_comm_only || !is_remote)
            && (!needs.sockets || matches!(self.provider, "tcp" | "udp"))
            && (!needs.auto_progress || self.progress == Progress::Auto)
            && (!needs.single_copy || self.provider == "shm"))
    }

    /// Returns what an offer depends on: setups of one value are offered the same.
    pub(crate) fn offer_key(&self) -> (&'static str, Progress) {
        (self.provider_chain.unwrap_or(self.provider), self.progress)
    }

    /// Returns what the machine lacks for domains of this setup with io_uring, and the error that
    /// tells so.
    ///
    /// # Panics
    ///
    /// When such a domain cannot be opened for another reason.
    pub(crate) async fn machine_lacks(&self) -> Option<(Facility, String)> {
        let setup = self.with_requirements(MSG);
        let (fabric, info) = setup.fabric().await;
        match fabric
            .domain_builder(&info)
            .socket_io(self.socket_io)
            .open()
        {
            Ok(_) => None,
            Err(
                error @ Error::Os {
                    call: "io_uring_setup",
                    ..
                },
            ) => Some((Facility::Uring, error.to_string())),
            Err(error) => panic!("a domain with io_uring cannot be opened: {error}"),
        }
    }

    /// The same, for endpoints that can do this and no more.
    pub(crate) fn with_caps(self, caps: Caps) -> Self {
        Self { caps, ..self }
    }

    /// The offer with what the scenario needs.
    pub(crate) async fn info(&self) -> Info {
        self.discover(self.caps)
            .await
            .expect("it was there before the scenario began")
    }

    /// Whether peers may be on other machines: what becomes of them is learned later then.
    pub(crate) async fn has_remote_comm(&self) -> bool {
        self.info().await.domain.caps.contains(Caps::REMOTE_COMM)
    }

    /// Whether peers map each other's memory, so that there are windows on it; they do not where
    /// they may be on other machines.
    pub(crate) async fn supports_windows(&self) -> bool {
        !self.has_remote_comm().await
    }

    /// Whether the provider can do this.
    pub(crate) async fn offers(&self, caps: Caps) -> bool {
        self.discover(caps).await.is_ok()
    }

    /// Returns the offer with what the scenario requires and shared receive contexts.
    pub(crate) async fn shared_rx_info(&self) -> Info {
        let hints = self.hints_for(self.caps, self.ep_type);
        let found = discover(&hints.ep_rx_ctx_cnt(SHARED_CONTEXT)).await;
        found
            .expect("discovery offered shared receive contexts at registration")
            .swap_remove(0)
    }

    /// A fabric and its offer.
    pub(crate) async fn fabric(&self) -> (Fabric, Info) {
        let info = self.info().await;
        (Fabric::open(&info).unwrap(), info)
    }

    /// An endpoint with a domain of its own, at a fresh address.
    pub(crate) async fn open_endpoint(&self) -> EndpointFixture {
        self.open_endpoint_with(EndpointConfig::default()).await
    }

    /// Likewise, with some things otherwise than usual.
    pub(crate) async fn open_endpoint_with(&self, plan: EndpointConfig) -> EndpointFixture {
        EndpointFixture::open(self, plan).await
    }

    /// The address that asks for a fresh one.
    pub(crate) fn unnamed_address(&self) -> String {
        format!("{}://", self.provider)
    }

    /// A name no other test has.
    pub(crate) fn unique_address(&self, what: &str) -> String {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        if let provider @ ("tcp" | "udp") = self.provider {
            // Every process has a network of its own for this.
            let [.., high, low] = std::process::id().to_be_bytes();
            return format!(
                "{provider}://127.{high}.{low}.{}:{}",
                1 + number % 250,
                7000 + number / 250
            );
        }
        format!("{}://{what}-{}-{number}", self.provider, std::process::id())
    }
}
