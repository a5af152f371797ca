//! The setup of a scenario (provider, progress mode, wait policy, runtime, options), and its
//! execution.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fabric_async::info::{MrMode, SHARED_CONTEXT, Threading};
use fabric_async::{
    Caps, Domain, DomainBuilder, EpType, Error, Fabric, Hints, Info, Progress, SocketIo,
    SocketOptions, WaitPolicy, discover,
};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::endpoint_fixture::{EndpointConfig, EndpointFixture};
use crate::requirements::{LEVELS, MSG, Requirements};
use crate::skip::Facility;

/// Longer than any scenario takes on a slow machine; exceeding it means a hang.
const SCENARIO_TIMEOUT: Duration = Duration::from_secs(30);

/// One combination of provider, progress, wait policy and runtime.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    /// The provider's name, which is also the scheme of its addresses.
    pub(crate) provider: &'static str,
    pub(crate) progress: Progress,
    pub(crate) wait_policy: WaitPolicy,
    /// The capabilities of endpoints: those that the scenario requires.
    pub(crate) caps: Caps,
    /// The type of endpoints; `None` where the scenario works with any.
    ep_type: Option<EpType>,
    /// The length in bytes from which messages are copied once, unless the scenario sets it.
    pub(crate) single_copy_threshold: Option<usize>,
    /// How the domain waits for sockets.
    pub(crate) socket_io: SocketIo,
    /// Whether long messages are sent zero-copy, even where the kernel falls back to copying.
    pub(crate) zero_copy: bool,
    /// The provider in the hints, if not `provider` alone: `tcp;ofi_rxm`.
    provider_chain: Option<&'static str>,
    /// Which threads use a domain.
    threads: Threads,
    /// Worker threads of the runtime; `None` is a current-thread runtime.
    worker_threads: Option<usize>,
    /// Control progress in the hints, if it differs from `progress`.
    control_progress: Option<Progress>,
    /// The bits of `mr_mode` that domains require.
    mr_mode: MrMode,
}

/// Which threads use a domain: its thread model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Threads {
    /// All threads.
    Shared,
    /// The thread that opens it.
    Pinned,
    /// One thread at a time.
    Serial,
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
    assert!(
        ended.is_ok(),
        "the scenario did not end within {SCENARIO_TIMEOUT:?}"
    );
}

/// A runtime that is shut down without waiting for its tasks, so that a test with a hanging task
/// ends.
struct BackgroundRuntime(Option<Runtime>);

impl Drop for BackgroundRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Returns the name of a domain of `sim` that requires these bits of `mr_mode`.
pub(crate) fn domain_requiring(mr_mode: MrMode) -> String {
    let names = mr_mode.iter_names().map(|(name, _)| format!("+{name}"));
    format!("sim{}", names.collect::<String>())
}

impl Setup {
    /// Returns a setup with manual progress on a current-thread runtime.
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
            threads: Threads::Shared,
            worker_threads: None,
            control_progress: None,
            mr_mode: MrMode::empty(),
        }
    }

    /// Asks for automatic control progress, whatever the setup asks for data.
    pub(crate) fn automatic_control_progress(self) -> Self {
        Self {
            control_progress: Some(Progress::Auto),
            ..self
        }
    }

    pub(crate) fn auto(self) -> Self {
        Self {
            progress: Progress::Auto,
            ..self
        }
    }

    pub(crate) fn manual(self) -> Self {
        Self {
            progress: Progress::Manual,
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

    /// Opens domains that require these bits of `mr_mode`, over a provider whose domains can.
    pub(crate) fn requiring(self, mr_mode: MrMode) -> Self {
        Self { mr_mode, ..self }
    }

    /// Adds this setup's socket options to those of the scenario.
    pub(crate) fn socket_options(&self, mut sockets: SocketOptions) -> SocketOptions {
        if self.zero_copy {
            sockets = sockets.zero_copy_threshold(0);
            sockets.force_zero_copy = true;
        }
        sockets
    }

    /// Returns whether long messages are sent without a copy when `zero_copy` is set: with io_uring
    /// since Linux 6.2, and not with RXM, where peers read long messages.
    pub(crate) fn supports_zero_copy(&self) -> bool {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let mut parts = release
            .split(|c: char| !c.is_ascii_digit())
            .map(|part| part.parse::<u32>().unwrap_or(0));
        let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        self.socket_io == SocketIo::IoUring && self.provider_chain.is_none() && version >= (6, 2)
    }

    /// Uses the RXM protocol.
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

    /// Opens domains that one thread owns.
    pub(crate) fn pinned(self) -> Self {
        Self {
            threads: Threads::Pinned,
            ..self
        }
    }

    /// Opens domains that one thread at a time uses.
    pub(crate) fn serial(self) -> Self {
        Self {
            threads: Threads::Serial,
            ..self
        }
    }

    /// Returns whether tasks may run in parallel.
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

    /// Returns the hints of every discovery.
    pub(crate) fn hints(&self) -> Hints {
        let mut hints = Hints::new()
            .provider(self.provider_chain.unwrap_or(self.provider))
            .progress(self.progress);
        if self.threads != Threads::Shared {
            hints = hints.threading(Threading::Domain);
        }
        if !self.mr_mode.is_empty() {
            hints = hints
                .domain_name(domain_requiring(self.mr_mode))
                .mr_mode(self.mr_mode);
        }
        hints.control_progress(self.control_progress.unwrap_or(self.progress))
    }

    fn discover(&self, caps: Caps) -> fabric_async::Result<Info> {
        discover(&self.hints_for(caps, self.ep_type)).map(|mut found| found.swap_remove(0))
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
    pub(crate) fn offers_all(&self, needs: Requirements) -> fabric_async::Result<bool> {
        let hints = || {
            let hints = self.hints_for(needs.caps, needs.ep_type);
            let hints = hints.tx_op_flags(needs.tx_op_flags);
            if needs.shared_rx {
                hints.ep_rx_ctx_cnt(SHARED_CONTEXT)
            } else {
                hints
            }
        };
        let info = match discover(&hints()) {
            Ok(mut found) => found.swap_remove(0),
            Err(Error::NoMatch(_)) => return Ok(false),
            Err(error) => return Err(error),
        };
        if needs.lacks_a_level {
            for level in LEVELS {
                match discover(&hints().tx_op_flags(level)) {
                    Ok(_) => {}
                    Err(Error::NoMatch(_)) => return Ok(true),
                    Err(error) => return Err(error),
                }
            }
            return Ok(false);
        }
        // No attribute tells shared memory or cross-memory attach, which shm alone has, or socket
        // addresses: the address format is FI_ADDR_STR with every provider.
        Ok(info.tx.rma_iov_limit >= needs.rma_iov_limit
            && (!needs.sockets || matches!(self.provider, "tcp" | "udp"))
            && (!needs.chosen_mr_mode || self.can_choose_mr_mode())
            && (!needs.auto_progress || self.progress == Progress::Auto)
            && (!needs.event_loop || self.can_block_in_event_loop())
            && !(needs.other_threads && self.threads != Threads::Shared)
            && (!(needs.shared_memory || needs.single_copy || needs.loans) || self.shares_memory()))
    }

    /// Returns whether an event loop can drive domains of this setup and block.
    fn can_block_in_event_loop(&self) -> bool {
        self.progress != Progress::Auto && self.wait_policy != WaitPolicy::Spin
    }

    /// Returns the key of discovery's offers: setups with equal keys get equal offers.
    pub(crate) fn offer_key(&self) -> (&'static str, Progress, WaitPolicy, bool) {
        let provider = self.provider_chain.unwrap_or(self.provider);
        let other_threads = self.threads == Threads::Shared;
        (provider, self.progress, self.wait_policy, other_threads)
    }

    /// Returns the facility that the machine lacks for domains of this setup with io_uring, and the
    /// error of the system call; `None` if such a domain can be opened.
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

    /// Returns this setup with other capabilities.
    pub(crate) fn with_caps(self, caps: Caps) -> Self {
        Self { caps, ..self }
    }

    /// Returns the offer for the scenario's requirements.
    pub(crate) async fn info(&self) -> Info {
        self.discover(self.caps)
            .expect("discovery offered this at registration")
    }

    /// Returns whether peers map each other's memory, as windows require. The close of such a peer
    /// is known at once.
    pub(crate) fn shares_memory(&self) -> bool {
        self.provider == "shm"
    }

    /// Returns whether domains can require any bits of `mr_mode`.
    pub(crate) fn can_choose_mr_mode(&self) -> bool {
        self.provider == "sim"
    }

    /// Returns whether the provider offers these capabilities.
    pub(crate) async fn offers(&self, caps: Caps) -> bool {
        self.discover(caps).is_ok()
    }

    /// Returns the offer with what the scenario requires and shared receive contexts.
    pub(crate) fn shared_rx_info(&self) -> Info {
        let hints = self.hints_for(self.caps, self.ep_type);
        let found = discover(&hints.ep_rx_ctx_cnt(SHARED_CONTEXT));
        found
            .expect("discovery offered shared receive contexts at registration")
            .swap_remove(0)
    }

    /// Opens a fabric, and returns it with the offer.
    pub(crate) async fn fabric(&self) -> (Fabric, Info) {
        let info = self.info().await;
        (Fabric::open(&info).unwrap(), info)
    }

    /// Opens a domain from this info.
    pub(crate) fn open_domain(&self, fabric: &Fabric, info: &Info) -> Domain {
        self.domain_builder(fabric, info).open().unwrap()
    }

    /// Returns a builder of a domain with the options of this setup.
    pub(crate) fn domain_builder<'a>(
        &self,
        fabric: &'a Fabric,
        info: &'a Info,
    ) -> DomainBuilder<'a> {
        let mut builder = fabric
            .domain_builder(info)
            .wait_policy(self.wait_policy)
            .socket_io(self.socket_io)
            .socket_options(self.socket_options(SocketOptions::new()));
        if let Some(len) = self.single_copy_threshold {
            builder = builder.single_copy_threshold(len);
        }
        match self.threads {
            Threads::Shared => builder,
            Threads::Pinned => builder.owned_by_this_thread(),
            Threads::Serial => builder.used_by_one_thread_at_a_time(),
        }
    }

    /// Opens an endpoint with a domain of its own, at an unused address.
    pub(crate) async fn open_endpoint(&self) -> EndpointFixture {
        self.open_endpoint_with(EndpointConfig::default()).await
    }

    /// As [`open_endpoint`](Self::open_endpoint), with a configuration.
    pub(crate) async fn open_endpoint_with(&self, config: EndpointConfig) -> EndpointFixture {
        EndpointFixture::open(self, config).await
    }

    /// Returns the address with which an endpoint gets an unused name.
    pub(crate) fn unnamed_address(&self) -> String {
        format!("{}://", self.provider)
    }

    /// Returns an address that no other test uses.
    pub(crate) fn unique_address(&self, what: &str) -> String {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        if let provider @ ("tcp" | "udp") = self.provider {
            // Each process uses addresses of its own in 127.0.0.0/8.
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
