//! Coming from libfabric: which call is which?
//!
//! The nouns are libfabric's, the verbs are Rust's. The C names are search aliases: type
//! `fi_av_insert` into the search field of this documentation. What differs everywhere:
//!
//! * A return code is a `Result`; [`Error::errno`] gives the number. There is no `-FI_EAVAIL` and
//!   no second call for the error entry.
//! * A buffer is given away and comes back, see [`memory`](super::memory). Nothing has to stay
//!   valid by promise.
//! * A context is a `u64`; an operation that is awaited needs none.
//! * Handles close on drop.
//! * One operation reports to one place: its future, or the queue. Counters count in addition.
//!
//! # Objects
//!
//! | C | here |
//! |---|---|
//! | `fi_getinfo` | [`discover`], with [`Hints`] |
//! | `fi_allocinfo`, `fi_dupinfo`, `fi_freeinfo` | `Hints::new`, `clone`, drop |
//! | `fi_fabric` | [`Fabric::open`] |
//! | `prov_name` `"tcp;ofi_rxm"`, `FI_PROTO_RXM` | [`Hints::provider`](crate::Hints::provider), [`Protocol::Rxm`](crate::Protocol::Rxm); [`tcp`](super::tcp#the-other-dialect) says when that matters |
//! | `fi_domain`, `fi_domain2` | [`Fabric::domain`], [`Fabric::domain_builder`] |
//! | `fi_domain_bind` | [`Domain::bind_eq`] |
//! | `fi_endpoint`, `fi_ep_bind`, `fi_enable` | [`Domain::endpoint`], `bind_…` and `enable` of [`EndpointBuilder`] |
//! | `fi_setname`, `fi_getname` | [`EndpointBuilder::name`], [`Endpoint::name`] |
//! | `fi_passive_ep`, `fi_pep_bind`, `fi_listen` | [`Fabric::passive_endpoint`](crate::Fabric::passive_endpoint), `bind_eq` and `listen` of [`PassiveEndpointBuilder`](crate::PassiveEndpointBuilder); [`PassiveEndpoint::bind`](crate::PassiveEndpoint::bind) |
//! | `fi_connect`, `fi_accept` | [`connect`](crate::EndpointBuilder::connect) and [`accept`](crate::EndpointBuilder::accept) instead of `enable`; [`Endpoint::connect`](crate::Endpoint::connect), [`ConnectionRequest::accept`](crate::ConnectionRequest::accept) |
//! | `fi_reject` | [`ConnectionRequest::reject`](crate::ConnectionRequest::reject), or drop |
//! | `fi_shutdown`, `fi_getpeer` | [`Endpoint::shutdown`](crate::Endpoint::shutdown), [`Endpoint::peer_name`](crate::Endpoint::peer_name) |
//! | `FI_CONNREQ`, `FI_CONNECTED`, `FI_SHUTDOWN` | [`ConnectionRequest`](crate::EventKind::ConnectionRequest), [`Connected`](crate::EventKind::Connected), [`Shutdown`](crate::EventKind::Shutdown); an error entry of a connection is [`ConnectFailed`](crate::EventKind::ConnectFailed) |
//! | `FI_OPT_CM_DATA_SIZE` | [`MAX_PRIVATE_DATA`](crate::MAX_PRIVATE_DATA) |
//! | `fi_cq_open` | [`Domain::completion_queue`] |
//! | `fi_eq_open` | [`Fabric::event_queue`] |
//! | `fi_av_open` | [`Domain::address_vector`] |
//! | `fi_cntr_open` | [`Domain::counter`] |
//! | `fi_srx_context`, `FI_SHARED_CONTEXT` | [`Domain::shared_receive`](crate::Domain::shared_receive), [`SHARED_CONTEXT`](crate::SHARED_CONTEXT); `fi_ep_bind` of it is [`bind_shared`](crate::EndpointBuilder::bind_shared) |
//! | `fi_mr_bind` with a counter | [`MemoryRegion::bind_counter`](crate::MemoryRegion::bind_counter) |
//! | `FI_MR_VIRT_ADDR` | [`RemoteRegion::base`](crate::RemoteRegion::base), where the hints agree to [`MrMode::BASIC`](crate::MrMode::BASIC) |
//! | `fi_mr_reg`, `fi_mr_key` | [`Domain::alloc`], [`Domain::register`], [`Domain::register_buffer`](crate::Domain::register_buffer), [`MemoryRegion::key`](crate::MemoryRegion::key) |
//! | `fi_mr_desc`, `FI_MR_LOCAL` | nothing: no provider here asks for it, and the buffer of an operation is registered nowhere |
//! | `fi_close` | `close`, or drop; see [`errors`](super::errors) |
//! | all of the above up to `fi_enable` | [`Endpoint::bind`] |
//!
//! # Messages
//!
//! | C | here |
//! |---|---|
//! | `fi_send`, `fi_tsend` | [`Endpoint::send`], with [`tag`](crate::SendRequest::tag) |
//! | `fi_senddata`, `fi_tsenddata` | with [`data`](crate::SendRequest::data) |
//! | `fi_write`, `fi_writedata`, `fi_inject_write` | [`Endpoint::write`], with [`data`](crate::WriteRequest::data), [`Endpoint::inject_write`] |
//! | `fi_read` | [`Endpoint::read`], [`Endpoint::read_into`] |
//! | `fi_writemsg`, `fi_readmsg` with several `fi_rma_iov` | [`Endpoint::write_to`](crate::Endpoint::write_to), [`Endpoint::read_from`](crate::Endpoint::read_from), [`Endpoint::read_from_into`](crate::Endpoint::read_from_into) |
//! | `fi_atomic`, `fi_fetch_atomic`, `fi_compare_atomic` | [`Endpoint::atomic`], [`Endpoint::fetch_atomic`], [`Endpoint::compare_atomic`] |
//! | `fi_atomicvalid` and its like | [`AtomicOp::is_valid`](crate::AtomicOp::is_valid) |
//! | `fi_inject`, `fi_tinject` | [`Endpoint::inject`], [`Endpoint::inject_tagged`] |
//! | `fi_injectdata`, `fi_tinjectdata` | [`Endpoint::inject_data`](crate::Endpoint::inject_data), [`Endpoint::inject_tagged_data`](crate::Endpoint::inject_tagged_data) |
//! | `fi_recv`, `fi_trecv` | [`Endpoint::recv_into`], [`Endpoint::recv`], with [`tag`](crate::RecvRequest::tag) or [`tag_mask`](crate::RecvRequest::tag_mask) |
//! | `fi_sendv`, `fi_tsendv`, `fi_writev` | the same with a [`Gather`](crate::Gather) |
//! | `fi_recvv`, `fi_trecvv`, `fi_readv` | the same with a [`Scatter`](crate::Scatter) |
//! | `fi_sendmsg`, `fi_recvmsg` and their like, with flags | the same, with a method of the request for each flag |
//! | `fi_inject_atomic` | an atomic operation that is `.start()`ed, and dropped |
//! | `FI_MORE` | [`Endpoint::inject_all`](crate::Endpoint::inject_all), [`Endpoint::post_all`](crate::Endpoint::post_all) |
//! | `FI_MULTI_RECV`, `FI_OPT_MIN_MULTI_RECV` | [`Endpoint::recv_multi`](crate::Endpoint::recv_multi), [`min_free`](crate::MultiRecvRequest::min_free); the completion with `FI_MULTI_RECV` is an entry of its own, [`OpKind::Release`](crate::OpKind::Release) |
//! | `FI_PEEK`, `FI_PEEK \| FI_CLAIM` | [`Endpoint::probe`](crate::Endpoint::probe), [`Probe::claim`](crate::Probe::claim) |
//! | `FI_CLAIM`, `FI_DISCARD` | [`Claimed::recv_into`](crate::Claimed::recv_into), [`Claimed::discard`](crate::Claimed::discard) |
//! | `FI_FENCE` | [`fence`](crate::SendRequest::fence) of every request but receives |
//! | `FI_TRANSMIT_COMPLETE`, `FI_MATCH_COMPLETE`, `FI_DELIVERY_COMPLETE` | [`transmit_complete`](crate::SendRequest::transmit_complete), [`match_complete`](crate::SendRequest::match_complete), [`delivery_complete`](crate::SendRequest::delivery_complete), or [`tx_op_flags`](crate::Hints::tx_op_flags) for all; [`ordering`](super::ordering#what-sent-means) says what differs |
//! | `fi_join`, `fi_mc_addr`, `FI_MULTICAST` | [`Endpoint::join`](crate::Endpoint::join), [`Group::peer`](crate::Group::peer); the address says that it is a group |
//! | `FI_ADDR_UNSPEC`, or a source | nothing, or [`from`](crate::RecvRequest::from) |
//! | `-FI_EAGAIN` | [`Endpoint::try_send`], `.start()`, `.post()` |
//! | `fi_cancel` | [`Operation::cancel`](crate::Operation::cancel), or drop |
//!
//! # Completions, events, addresses
//!
//! | C | here |
//! |---|---|
//! | `FI_CQ_FORMAT_…`, `struct fi_context` | one format, [`Completion`](crate::Completion); a context is a number |
//! | `fi_cq_read`, `fi_cq_readfrom` | [`CompletionQueue::try_batch`], [`Transfer::source`](crate::Transfer::source) |
//! | `fi_cq_sread` | [`CompletionQueue::next_batch`], or the queue as a `Stream` |
//! | `fi_cq_readerr` | [`Completion::error`](crate::Completion::error) |
//! | `fi_eq_read`, `fi_eq_sread` | [`EventQueue::try_next`], [`EventQueue::next`] |
//! | `fi_cntr_read`, `fi_cntr_readerr` | [`Counter::value`], [`Counter::errors`] |
//! | `fi_cntr_add`, `fi_cntr_adderr`, `fi_cntr_wait` | [`Counter::add`], [`Counter::add_errors`], [`Counter::wait`] |
//! | `fi_av_insert`, `fi_av_remove`, `fi_av_lookup` | the same of [`AddressVector`]; [`Endpoint::lookup`] inserts and connects |
//! | `fi_av_straddr` | `Display` of [`Address`](crate::Address) |
//! | `FI_WAIT_NONE`, `FI_WAIT_UNSPEC`, `FI_WAIT_FD` | [`WaitPolicy`](crate::WaitPolicy) `Spin`, `Adaptive`, `Park` |
//! | `FI_SELECTIVE_COMPLETION`, `FI_COMPLETION` | [`CqBind::SELECTIVE_COMPLETION`](crate::CqBind::SELECTIVE_COMPLETION), [`completion`](crate::SendRequest::completion); what is not `.post()`ed never reports to the queue |
//!
//! # Things to know
//!
//! * What is posted to a [shared receive context](crate::SharedReceive) reports to the queue of the
//!   context, not to that of the endpoint a message comes to;
//!   [`received_by`](crate::SharedReceive::received_by) says which it was. Counters of the endpoint
//!   count it.
//! * The address vector is a table. [`AvType::Map`](crate::AvType::Map) is accepted, and gives a
//!   table. A number carries a generation, so that of a removed peer is an error, never somebody
//!   else.
//! * The five levels of threading are accepted in hints. There is one model of handles yet,
//!   [`Shared`](crate::Shared): every handle is `Send + Sync`, whatever was asked for.
//! * A connected endpoint begins with its connection: there is none before, so nothing is posted
//!   before, and what arrives before the first receive is buffered. Private data beyond the limit
//!   is refused, not cut.
//! * `fi_av_insert` sends nothing; whether the peer exists shows with the first operation, or with
//!   [`Endpoint::lookup`]. A number that was new is taken back when `lookup` fails.
//! * An [`Info`](crate::Info) may be changed before objects are opened from it, to less. Opening a
//!   domain checks it again. A capability is taken out of `caps`, `tx.caps` and `rx.caps`.
//!
//! # What is not there yet
//!
//! Providers: `shm`, `tcp`, `udp`, and `sim` for tests inside one process. Endpoints:
//! [`EpType::Rdm`](crate::EpType::Rdm), over `udp` [`EpType::Dgram`](crate::EpType::Dgram), and
//! over `tcp` also [`EpType::Msg`](crate::EpType::Msg). A hint for something else is refused, and
//! the refusal says by which attribute:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Caps, EpType, Error, Hints, discover};
//! for (hints, attribute) in [
//!     (Hints::new().caps(Caps::MSG | Caps::TRIGGER), "caps"),
//!     (Hints::new().provider("shm").ep_type(EpType::Msg), "ep_type"),
//!     (Hints::new().provider("shm").tx_size(5000), "tx_size"),
//! ] {
//!     let refused = discover(&hints).await.unwrap_err();
//!     assert_eq!(refused.errno(), 61);                              // FI_ENODATA
//!     let Error::NoMatch(why) = refused else { panic!("{refused}") };
//!     assert_eq!(why.refusals[0].attribute, attribute);
//! }
//! let unknown = discover(&Hints::new().provider("verbs")).await.unwrap_err();
//! assert_eq!(unknown.errno(), 19);                                  // FI_ENODEV; lists those there are
//! # Ok(()) }
//! ```
//!
//! | not there | a hint for it |
//! |---|---|
//! | `verbs` and other providers | [`Error::UnknownProvider`]; `verbs://` as an address is [`Error::BadAddress`] |
//! | one-sided operations over `udp` | `caps` refused |
//! | atomic operations on memory of a libfabric peer over `tcp`, connected or not | offered for peers of this library, and those that speak [RXM](super::tcp#the-other-dialect); otherwise [`Error::NotSupported`](crate::Error::NotSupported) |
//! | passive and connected endpoints, but over `tcp` | `ep_type` refused |
//! | tags for connected libfabric peers | sent to those of which the program [says](crate::guide::connected_endpoints#tags) that they take them; otherwise [`Error::NotSupported`](crate::Error::NotSupported) |
//! | collectives, triggered operations, `FI_HMEM` | `caps` refused |
//! | shared transmit contexts, scalable endpoints | `ep_tx_ctx_cnt` above 1, `ep_rx_ctx_cnt` above 1 and not `SHARED_CONTEXT`, refused |
//! | persistent memory | `caps` refused, or there is no hint |
//! | several places in one atomic operation (`rma_iov` of `fi_atomicmsg`) | there is no call: `rma_iov_limit` is about reads and writes; what libfabric peers ask for over RXM is done |
//! | `FI_COMMIT_COMPLETE`, and `FI_INJECT` or `FI_MULTI_RECV` as a default of all operations | `tx_op_flags`, `rx_op_flags` refused |
//! | authentication keys | `auth_key`, `ep_auth_key` refused |
//! | `fi_cntr_set`, `fi_cq_signal`, `fi_getopt`, wait sets | there is no hint |
//!
//! [`discover`]: crate::discover()
//! [`Hints`]: crate::Hints
//! [`Fabric::open`]: crate::Fabric::open
//! [`Fabric::domain`]: crate::Fabric::domain
//! [`Fabric::domain_builder`]: crate::Fabric::domain_builder
//! [`Fabric::event_queue`]: crate::Fabric::event_queue
//! [`Domain::bind_eq`]: crate::Domain::bind_eq
//! [`Domain::endpoint`]: crate::Domain::endpoint
//! [`Domain::completion_queue`]: crate::Domain::completion_queue
//! [`Domain::address_vector`]: crate::Domain::address_vector
//! [`Domain::counter`]: crate::Domain::counter
//! [`Domain::alloc`]: crate::Domain::alloc
//! [`Domain::register`]: crate::Domain::register
//! [`EndpointBuilder`]: crate::EndpointBuilder
//! [`EndpointBuilder::name`]: crate::EndpointBuilder::name
//! [`Endpoint::name`]: crate::Endpoint::name
//! [`Endpoint::bind`]: crate::Endpoint::bind
//! [`Endpoint::send`]: crate::Endpoint::send
//! [`Endpoint::try_send`]: crate::Endpoint::try_send
//! [`Endpoint::inject`]: crate::Endpoint::inject
//! [`Endpoint::inject_tagged`]: crate::Endpoint::inject_tagged
//! [`Endpoint::recv`]: crate::Endpoint::recv
//! [`Endpoint::recv_into`]: crate::Endpoint::recv_into
//! [`Endpoint::lookup`]: crate::Endpoint::lookup
//! [`CompletionQueue::try_batch`]: crate::CompletionQueue::try_batch
//! [`CompletionQueue::next_batch`]: crate::CompletionQueue::next_batch
//! [`EventQueue::try_next`]: crate::EventQueue::try_next
//! [`EventQueue::next`]: crate::EventQueue::next
//! [`Counter::value`]: crate::Counter::value
//! [`Counter::errors`]: crate::Counter::errors
//! [`Counter::add`]: crate::Counter::add
//! [`Counter::add_errors`]: crate::Counter::add_errors
//! [`Counter::wait`]: crate::Counter::wait
//! [`AddressVector`]: crate::AddressVector
//! [`Error::errno`]: crate::Error::errno
//! [`Error::UnknownProvider`]: crate::Error::UnknownProvider
//! [`Error::BadAddress`]: crate::Error::BadAddress
//! [`Endpoint::write`]: crate::Endpoint::write
//! [`Endpoint::inject_write`]: crate::Endpoint::inject_write
//! [`Endpoint::read`]: crate::Endpoint::read
//! [`Endpoint::read_into`]: crate::Endpoint::read_into
//! [`Endpoint::atomic`]: crate::Endpoint::atomic
//! [`Endpoint::fetch_atomic`]: crate::Endpoint::fetch_atomic
//! [`Endpoint::compare_atomic`]: crate::Endpoint::compare_atomic
