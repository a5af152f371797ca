//! The auto traits of every public type, checked when the crate is compiled: a type that loses one
//! of them breaks programs.

use std::fmt::Debug;

use bytes::BytesMut;

use crate::async_mr::*;
use crate::atomic::*;
use crate::buf::*;
use crate::extension::*;
use crate::info::*;
use crate::ops::*;
use crate::stats::*;
use crate::*;

type Buf = Vec<u8>;
type Atomic<A> = Request<'static, RemoteAtomicOp<u64, A>, u64>;

/// Requires that types can be used from any thread, moved while they are polled, and printed.
macro_rules! assert_shareable {
    ($($public:ty),* $(,)?) => {
        $(const _: () = {
            const fn check<T: Send + Sync + Unpin + Debug>() {}
            check::<$public>()
        };)*
    };
}

// Objects and their builders.
assert_shareable! {
    Fabric, Domain, DomainBuilder<'static>, Endpoint, ConnectedEndpoint, EndpointBuilder,
    BindOptions, Connect, PassiveEndpoint, PassiveEndpointBuilder, ConnectionRequest,
    SharedRxContext, SharedRxContextBuilder, CompletionQueue, EventQueue, EventWriter, Counter,
    AddressVector, MulticastGroup, TcpExtension, ShmExtension, TcpInfo, ShmInfo,
    MemoryRegion<Allocated>, MemoryRegion<Buf>, Allocated, RegisteredBuffer<Buf>,
    RegionRequest<MemoryRegion<Allocated>>, RegionFuture<RegisteredBuffer<Buf>, Failed<Buf>>,
    PendingRegion<MemoryRegion<Buf>, Failed<Buf>>, RegisteredGuard<'static>, RemoteWindow,
    RemoteAddr, RemoteRegion, RemoteSlice, WaitFd, TryWait, WaitPolicy, Shared,
}

// Requests, operations and their results.
assert_shareable! {
    Request<'static, SendOp, Buf>, Request<'static, RecvOp, Buf>, Request<'static, WriteOp, Buf>,
    Request<'static, ReadOp, Buf>, Request<'static, MultiRecvOp, BytesMut>,
    Request<'static, ProbeOp, ()>, Request<'static, ClaimOp, ()>, Atomic<NoFetch>, Atomic<Fetching>,
    RequestFuture<'static, SendOp, Buf>, RequestFuture<'static, RemoteAtomicOp<u64, Fetching>, u64>,
    AtomicOperation<u64, Fetching>, NoFetch, Fetching, MultiRecv, PostedMultiRecv, Message,
    MessageSlice, Probing<'static>, Claiming<'static>, Claimed, Reserving<'static>, Permit,
    Operation<Buf>, WriteTo, ReadFrom,
    CancelOutcome<Buf>, BatchError<Buf>, CloseError<Buf>, Done<Buf>, Failed<Buf>, Completion,
    Transfer, OpKind, Event, EventKind, DownReason, Error, Resource, RefusalReason,
}

// Buffers.
assert_shareable! {
    AnyBuf, Gather, Scatter, Loan, LoanedBuf, PooledBuf, Payload<'static>,
}

// Values.
assert_shareable! {
    Address, FiAddr, Scheme, SocketOptions, SocketIo, Hints, Info, FabricAttr, DomainAttr, EpAttr,
    TxAttr, RxAttr, NoMatch, Mismatch, Access, Caps, CounterBind, CqBind, Mode, MrMode, MsgOrder,
    OpFlags, AddrFormat, AvType, EpType, Progress, Protocol, ResourceMgmt, Threading, TrafficClass,
    Version, DomainStats, EndpointStats, OpStats, Children, Class, AtomicCall, AtomicOp, Datatype,
    AtomicAttr, Parameter, ParameterKind,
}
