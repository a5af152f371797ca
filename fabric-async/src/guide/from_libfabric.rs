//! Coming from libfabric: the C call for each call here, and what is not there.
//!
//! After this chapter you can translate a libfabric program, and tell which of its features exist
//! here, which are refused, and which are served differently.
//!
//! Types have libfabric's names, methods have Rust's. The C names are search aliases of this
//! documentation. For all calls:
//!
//! * A return code is a [`Result`]; [`Error::errno`] is the number. There is no `-FI_EAVAIL` and no
//!   second call for the error entry.
//! * A buffer is moved into the operation and returned with its result: see
//!   [`memory`](super::memory).
//! * A context is a `u64`; an awaited operation needs none. The context of an operation comes with
//!   its completion. Each [event](Event) has the context of the object that it is about: an
//!   endpoint, passive endpoint, shared receive context, memory region, domain or event queue.
//!   Objects without events have no context.
//! * Handles close on drop.
//! * An operation reports to one place: its future, or the queue. Counters count in addition.
//!
//! # Objects
//!
//! | C | here |
//! |---|---|
//! | `fi_getinfo` | [`discover`](discover()), with [`Hints`] |
//! | its `node` and `service` | [`resolve`](crate::resolve()), then [`Hints::dest_addr`], or with `FI_SOURCE` [`Hints::src_addr`] |
//! | `FI_PROV_ATTR_ONLY` | [`info::providers`] |
//! | `addr_format`, `struct sockaddr` | [`AddrFormat`], [`SocketAddr`](std::net::SocketAddr) as [`ToAddress`] |
//! | `fi_getparams`, `FI_PROVIDER` | [`parameters`]; see [environment](super::defaults#environment) |
//! | `fi_allocinfo`, `fi_dupinfo`, `fi_freeinfo` | [`Hints::new`], `clone`, drop |
//! | `fi_fabric` | [`Fabric::open`] |
//! | `prov_name` `"tcp;ofi_rxm"`, `FI_PROTO_RXM` | [`Hints::provider`], [`Protocol::Rxm`]; see [`tcp`](super::tcp#the-rxm-protocol) |
//! | `fi_domain`, `fi_domain2` | [`Fabric::domain`], [`Fabric::domain_builder`] |
//! | `domain_attr->domain`, `fabric_attr->fabric` in hints | [`Hints::within`] an open [`Domain`] or [`Fabric`] |
//! | fields of a `fid_domain` | [`Domain::class`], [`Domain::id`], [`Domain::fabric`], [`Domain::info`], [`Domain::children`], [`Domain::context`] |
//! | `fi_domain_bind`; with `FI_REG_MR` | [`Domain::bind_eq`]; [`Domain::bind_eq_reg_mr`] |
//! | `fi_open_ops` | [`Domain::extension`], see [`extension`](mod@crate::extension) |
//! | `fi_set_ops`, `FI_SET_OPS_HMEM_OVERRIDE` | [`Domain::set_device_copy`], see [`device`](mod@crate::buf::device) |
//! | `fi_endpoint`, `fi_ep_bind`, `fi_enable` | [`Domain::endpoint`], `bind_...` and `enable` of [`EndpointBuilder`] |
//! | `fi_setname`, `fi_getname` | [`EndpointBuilder::name`], [`Endpoint::name`] |
//! | `fi_passive_ep`, `fi_pep_bind`, `fi_listen` | [`Fabric::passive_endpoint`], `bind_eq` and `listen` of [`PassiveEndpointBuilder`]; [`PassiveEndpoint::bind`] |
//! | `fi_connect`, `fi_accept` | [`connect`](EndpointBuilder::connect) and [`accept`](EndpointBuilder::accept) instead of `enable`; [`ConnectedEndpoint::connect`], [`ConnectionRequest::accept`] |
//! | `fi_reject` | [`ConnectionRequest::reject`], or drop |
//! | `fi_shutdown`, `fi_getpeer` | [`ConnectedEndpoint::shutdown`], [`ConnectedEndpoint::peer`] |
//! | `FI_CONNREQ`, `FI_CONNECTED`, `FI_SHUTDOWN` | [`EventKind`], see [events](super::connected_endpoints#events) |
//! | `FI_OPT_CM_DATA_SIZE` | [`MAX_PRIVATE_DATA`] |
//! | `fi_cq_open`, `fi_eq_open`, `fi_cntr_open` | [`Domain::completion_queue`], [`Fabric::event_queue`], [`Domain::counter`] |
//! | `fi_av_open` | [`Domain::address_vector`] |
//! | `fi_srx_context`, `FI_SHARED_CONTEXT` | [`Domain::shared_rx_context`], [`SHARED_CONTEXT`]; `fi_ep_bind` of it is [`bind_shared_rx`](EndpointBuilder::bind_shared_rx) |
//! | `fi_mr_reg`, `fi_mr_key` | [`Domain::register`]; [`Domain::register_memfd`]; [`Domain::alloc`], [`Domain::alloc_from`]; [`MemoryRegion::key`] |
//! | `fi_mr_regv`, `fi_mr_regattr` with several segments | the same with a [`Scatter`] |
//! | `fi_mr_reg` with `FI_REG_MR`, `FI_KEY_NOTAVAIL`, `FI_MR_COMPLETE` | [`RegionRequest::post`](crate::async_mr::RegionRequest::post) of [`Domain::register_async`], [`Domain::alloc_async`], [`Domain::alloc_from_async`]; [`PendingRegion::try_take`](crate::async_mr::PendingRegion::try_take); [`EventKind::MrComplete`], [`EventKind::MrFailed`] |
//! | `fi_mr_refresh` | [`MemoryRegion::refresh`] |
//! | `fi_mr_bind`; `fi_mr_enable` | [`MemoryRegion::bind_counter`], [`MemoryRegion::bind_endpoint`]; [`MemoryRegion::enable`] |
//! | `FI_MR_VIRT_ADDR` | [`RemoteRegion::base`], where the hints agree to [`MrMode::BASIC`] |
//! | `fi_mr_raw_attr`; `fi_mr_map_raw`, `fi_mr_unmap_key` | [`MemoryRegion::raw_key`]; [`Domain::map_raw`], [`Domain::unmap_key`] |
//! | `fi_mr_desc`, `FI_MR_LOCAL` | [`Domain::register_local`], where a domain requires the bit |
//! | `fi_close` | `close`, or drop; see [closing](super::errors#closing) |
//! | all of the above up to `fi_enable` | [`Endpoint::bind`] |
//!
//! # Data transfer
//!
//! The calls of an [`Endpoint`]; those of a [`ConnectedEndpoint`] (`FI_EP_MSG`) have the same names
//! and take no peer.
//!
//! | C | here |
//! |---|---|
//! | `fi_send`, `fi_tsend` | [`Endpoint::send`], with [`tag`](Request::tag) |
//! | `fi_senddata`, `fi_tsenddata` | with [`data`](Request::data) |
//! | `fi_inject`, `fi_tinject`, `fi_injectdata`, `fi_tinjectdata` | [`Request::inject`]: `ep.send(peer, &bytes).tag(7).data(1).inject()` |
//! | `fi_recv`, `fi_trecv` | [`Endpoint::recv_into`], [`Endpoint::recv`], with [`tag`](Request::tag) or [`tag_ignoring`](Request::tag_ignoring) |
//! | `src_addr` of a receive: `FI_ADDR_UNSPEC`, or an address | the default, or [`from`](Request::from) |
//! | `fi_write`, `fi_writedata` | [`Endpoint::write`], with [`data`](Request::data) |
//! | `fi_inject_write`, `fi_inject_writedata` | [`Request::inject`] of a write |
//! | `fi_read` | [`Endpoint::read`], [`Endpoint::read_into`] |
//! | `fi_writemsg`, `fi_readmsg` with several `fi_rma_iov` | [`Endpoint::write`], [`Endpoint::read`] with a list of ranges |
//! | `fi_atomic`, `fi_fetch_atomic`, `fi_compare_atomic` | [`Endpoint::atomic`], [`Endpoint::fetch_atomic`], [`Endpoint::compare_atomic`] |
//! | `fi_inject_atomic` | an atomic operation that is started and dropped |
//! | `fi_atomicvalid`, ..., `fi_query_atomic` | [`query_atomic`], [`AtomicOp::is_valid`] |
//! | `fi_sendv`, `fi_tsendv`, `fi_writev`; `fi_recvv`, `fi_trecvv`, `fi_readv` | the same with a [`Gather`]; with a [`Scatter`] |
//! | `fi_sendmsg`, `fi_recvmsg`, ... with flags | the same, with a method of the request for each flag |
//! | `FI_MORE` | [`Endpoint::inject_all`], [`Endpoint::post_all`] |
//! | `FI_MULTI_RECV`, `FI_OPT_MIN_MULTI_RECV` | [`Endpoint::recv_multi`], [`min_free`](Request::min_free); the completion with `FI_MULTI_RECV` is an entry of its own, [`OpKind::MultiRecvRelease`] |
//! | `FI_PEEK`, `FI_PEEK \| FI_CLAIM` | [`Endpoint::probe`], [`Request::claim`] |
//! | `FI_CLAIM`, `FI_DISCARD` | [`Claimed::recv_into`], [`Claimed::discard`] |
//! | `FI_FENCE` | [`fence`](Request::fence) of every request but receives |
//! | `FI_TRANSMIT_COMPLETE`, `FI_MATCH_COMPLETE`, `FI_DELIVERY_COMPLETE` | [completion levels](super::ordering#completion-levels) |
//! | `fi_join`, `fi_mc_addr`, `FI_MULTICAST` | [`Endpoint::join_multicast`], [`MulticastGroup::fi_addr`]; the address says that it is a group |
//! | `-FI_EAGAIN` | [`Error::WouldBlock`] of `.start()`, `.post()`, `.inject()` |
//! | `fi_cancel` | [`Operation::cancel`], [`RequestFuture::cancel`], [`cancel_on_drop`](Request::cancel_on_drop), or drop; `cancel` of [`Endpoint`], [`ConnectedEndpoint`] and [`SharedRxContext`] for what was `.post()`ed, by its context |
//!
//! # Completions, events, addresses
//!
//! | C | here |
//! |---|---|
//! | `FI_CQ_FORMAT_...`, `struct fi_context` | one format, [`Completion`], with a `u64` context |
//! | `fi_cq_read`, `fi_cq_readfrom` | [`CompletionQueue::try_read_batch`], [`Transfer::source`] |
//! | `fi_cq_sread` | [`CompletionQueue::read_batch`], or the queue as a `Stream` |
//! | `fi_cq_readerr` | [`Completion::error`] |
//! | `err_data`; `FI_SOURCE_ERR` | fields of the [`Error`]: `data` of [`RejectedByPeer`](Error::RejectedByPeer); `address` of [`SourceNotInserted`](Error::SourceNotInserted) |
//! | `fi_eq_read`, `fi_eq_sread` | [`EventQueue::try_read`], [`EventQueue::read`]; with `FI_PEEK` [`EventQueue::try_peek`], [`EventQueue::peek`] |
//! | `fi_eq_write` | [`EventWriter::write`] |
//! | `fi_cntr_read`, `fi_cntr_readerr` | [`Counter::value`], [`Counter::errors`] |
//! | `fi_cntr_add`, `fi_cntr_adderr`, `fi_cntr_wait` | [`Counter::add`], [`Counter::add_errors`], [`Counter::wait`] |
//! | `fi_av_insert`, `fi_av_remove`, `fi_av_lookup` | [`AddressVector::insert`], [`AddressVector::remove`], [`AddressVector::lookup`]; [`Endpoint::add_peer`] inserts and connects |
//! | `fi_av_insert` of several addresses, `FI_SYNC_ERR` | [`AddressVector::insert_all`] |
//! | `fi_av_straddr` | `Display` of [`Address`] |
//! | `FI_WAIT_NONE`, `FI_WAIT_UNSPEC`, `FI_WAIT_FD` | [`WaitPolicy`] `Spin`, `Adaptive`, `Park` |
//! | `fi_control` with `FI_GETWAIT` | `wait_fd` of [`CompletionQueue`], [`EventQueue`], [`Counter`], [`Domain`]: a [`WaitFd`] |
//! | `fi_trywait` | `prepare_wait` of the same, which returns a [`TryWait`]; see [`event_loops`](super::event_loops) |
//! | `fi_poll_open`, `fi_poll`, `fi_wait_open`, `fi_wait` | `select!`, `SelectAll`, epoll: see [several objects at once](super::event_loops#several-objects-at-once) |
//! | `FI_SELECTIVE_COMPLETION`, `FI_COMPLETION` | [`CqBind::SELECTIVE_COMPLETION`], [`completion`](Request::completion); only what is `.post()`ed reports to the queue |
//!
//! # Differences
//!
//! * Completions of a [shared receive context](super::client_server#shared-receive-context) go to
//!   its own queue, not to the endpoint's.
//! * The address vector is a table; [`AvType::Map`] is accepted and gives a table. An [`FiAddr`]
//!   carries a generation, so a stale one is an error. `fi_av_insert` contacts no peer.
//!   [`Endpoint::add_peer`] does, and removes a new handle again if it fails.
//! * Every threading hint is accepted. A domain locks as for `FI_THREAD_SAFE`, unless it is opened
//!   from an info with `FI_THREAD_DOMAIN` and the thread model
//!   [`Serial`](crate::thread_model::Serial), which notices a second thread, or
//!   [`Pinned`](crate::thread_model::Pinned), whose messages take no lock: see
//!   [`threads`](super::threads).
//! * [`ResourceMgmt::Disabled`] is accepted and served as enabled; the info says enabled.
//! * Automatic control progress is granted with automatic data progress only
//!   ([`progress`](super::progress)).
//! * The counts `cq_cnt`, `ep_cnt`, `cntr_cnt` and `mr_cnt` of the info that a domain was opened
//!   with are limits: creating more fails with [`Error::TooMany`]. The providers offer
//!   `usize::MAX`, no limit, but `udp` has no memory regions. `tx_ctx_cnt` and `rx_ctx_cnt` are
//!   recommendations.
//! * A connected endpoint exists only once it is connected, so no operation can be posted before.
//!   An error never disables a connectionless endpoint.
//! * `shm` lacks `FI_ORDER_WAS` and `FI_ORDER_RAS`, which libfabric's provider `shm` has.
//! * A program may lower limits of an [`Info`] and remove capabilities (from `caps`, `tx.caps` and
//!   `rx.caps`) before it opens objects; opening a domain checks the info again.
//!
//! # What is not there
//!
//! A hint for a missing feature is refused, with the attribute that caused it:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Caps, EpType, Error, Hints, discover};
//! for (hints, attribute) in [
//!     (Hints::new().caps(Caps::MSG | Caps::TRIGGER), "caps"),
//!     (Hints::new().provider("udp").ep_type(EpType::Msg), "ep_type"),
//!     (Hints::new().provider("shm").tx_size(5000), "tx_size"),
//! ] {
//!     let refused = discover(&hints).unwrap_err();
//!     assert_eq!(refused.errno(), 61);                              // FI_ENODATA
//!     let Error::NoMatch(why) = refused else { panic!("{refused}") };
//!     assert_eq!(why.mismatches[0].attribute, attribute);
//! }
//! let unknown = discover(&Hints::new().provider("verbs")).unwrap_err();
//! assert_eq!(unknown.errno(), 19);                              // FI_ENODEV; lists the providers
//! # Ok(()) }
//! ```
//!
//! | area | not there | a hint or call for it |
//! |---|---|---|
//! | providers | all but `shm`, `tcp`, `udp`, `sim` (for tests inside one process); dynamically loaded and third-party ones; layered ones (LNX, multi-rail, `ofi_rxd`), peers (`FI_PEER`) | [`Error::UnknownProvider`], [`Error::BadAddress`]; `caps` refused |
//! | discovery | `fid_nic`, `FI_*` environment variables but `FI_PROVIDER`, hooks | no call |
//! | [`Hints::api_version`] above this library's | | refused with `FI_ENODATA`, not `FI_ENOSYS` |
//! | domain | `fi_set_ops` with another name than `FI_SET_OPS_HMEM_OVERRIDE` | no call |
//! | thread models | `FI_THREAD_COMPLETION` without locks | served as `FI_THREAD_SAFE`; a [resource domain](crate::resource_domain) for each completion group |
//! | endpoint types | [`EpType::Msg`] and passive endpoints over `udp` and `sim`; `FI_EP_RDM` over `udp` | `ep_type` refused |
//! | endpoints | scalable endpoints, shared transmit contexts, `FI_NAMED_RX_CTX` | `ep_tx_ctx_cnt`, `ep_rx_ctx_cnt` above 1 refused |
//! | | `fi_ep_alias`, `fi_getopt` and `fi_setopt`, `fi_control`, a backlog, taking over a passive endpoint's address (`info.handle`) | no call |
//! | default flags | `FI_INJECT`, `FI_MULTI_RECV`, `FI_MULTICAST` for all operations | `tx_op_flags`, `rx_op_flags` refused |
//! | completion levels | `FI_TRANSMIT_COMPLETE`, `FI_MATCH_COMPLETE` over `tcp`, `FI_DELIVERY_COMPLETE` to RXM peers and over `udp`, `FI_COMMIT_COMPLETE` | refused |
//! | messages | limits for each class (one `max_msg_size`, one `inject_size`); `FI_TAGGED_DIRECTED_RECV`, `FI_EXACT_DIRECTED_RECV`, `FI_RX_CQ_DATA`, tag formats of MPI and CCL | `caps`, `mode` refused, or no call |
//! | | tags to connected libfabric peers that do not [announce them](super::connected_endpoints#tags) | [`Error::NotSupported`] |
//! | one-sided | over `udp`; windows over `tcp` | `caps` refused; [`Error::NotSupported`] |
//! | atomics | `long double` and its complex type; several places in one operation (`fi_rma_ioc`; served for RXM peers); local gather; tagged targets | no call |
//! | | on memory of native libfabric peers over `tcp` | [`Error::NotSupported`] |
//! | memory regions | sub-regions, `FI_MR_DMABUF`, single use, a registration cache | no call |
//! | | regions of device memory (`FI_MR_HMEM`, `FI_XPU`), persistent memory (`FI_RMA_PMEM`) | no call; `caps` refused |
//! | address vectors | shared ones (`FI_SHARED_AV`), user ids (`FI_AV_USER_ID`) | `caps` refused |
//! | | `fi_av_insertsym`, insertion with `FI_EVENT`, `fi_av_set`, `FI_SYMMETRIC`, peer groups, `FI_FIREWALL_ADDR`, names in `fi_ns://` | no call |
//! | completion queues | `fi_cq_signal`, thresholds, affinity, `prov_errno` | no call |
//! | counters | `fi_cntr_set`, `fi_cntr_seterr`, byte counts | no call |
//! | waiting | wait sets and poll sets as objects: see [several objects at once](super::event_loops#several-objects-at-once) | no call |
//! | resource management | `FI_RM_DISABLED`, `FI_ENORX`, endpoints that an overrun disables and `fi_enable` re-enables | served as enabled |
//! | collectives, triggered operations, deferred work | all | `caps` refused |
//! | security | authentication keys; encryption | `auth_key`, `ep_auth_key` refused |
//! | multicast | IPv6, `FI_JOIN_COMPLETE`, joining for one direction | no call |

#[cfg(doc)]
#[allow(unused_imports)]
use crate::{atomic::*, buf::*, info::*, ops::*, stats::*, *};
