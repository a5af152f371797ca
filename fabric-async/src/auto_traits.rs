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
use crate::stream::*;
use crate::thread_model::{Pinned, Serial, Shared};
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

/// Requires that types stay on their thread, and can be moved while they are polled, and printed.
macro_rules! assert_pinned {
    ($($public:ty),* $(,)?) => {
        $(const _: () = {
            trait AmbiguousIfSend<A> {
                fn check() {}
            }
            struct IsSend;
            struct IsSync;
            impl<T> AmbiguousIfSend<()> for T {}
            impl<T: Send> AmbiguousIfSend<IsSend> for T {}
            impl<T: Sync> AmbiguousIfSend<IsSync> for T {}
            // Does not compile if a second impl applies: for a type that is `Send` or `Sync`.
            let _ = <$public as AmbiguousIfSend<_>>::check;
            const fn check<T: Unpin + Debug>() {}
            check::<$public>()
        };)*
    };
}

// Streams.
assert_shareable! {
    FabricStream, FabricFrames, FabricListener, FabricListener<FabricFrames>, ReadHalf<'static>,
    WriteHalf<'static>, OwnedReadHalf, OwnedWriteHalf, ReuniteError, ProcessCredentials,
}
// Objects and their builders.
assert_shareable! {
    Fabric, Domain, DomainBuilder<'static>, Endpoint, ConnectedEndpoint, EndpointBuilder,
    BindOptions, Connect, PassiveEndpoint, PassiveEndpointBuilder, ConnectionRequest,
    SharedRxContext, SharedRxContextBuilder, CompletionQueue, EventQueue, EventWriter, Counter,
    AddressVector, MulticastGroup, TcpExtension, ShmExtension, TcpInfo, ShmInfo,
    MemoryRegion<Allocated>, MemoryRegion<Buf>, Allocated, RegisteredBuffer<Buf>,
    RegionRequest<MemoryRegion<Allocated>>, RegionFuture<RegisteredBuffer<Buf>, Failed<Buf>>,
    PendingRegion<MemoryRegion<Buf>, Failed<Buf>>, RegisteredGuard<'static, Buf>, RemoteWindow,
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

// The types whose methods, futures or drops lock a domain of model `Pinned`.
assert_pinned! {
    Domain<Pinned>, DomainBuilder<'static, Pinned>, Endpoint<Pinned>, ConnectedEndpoint<Pinned>,
    EndpointBuilder<Pinned>, BindOptions<Pinned>, Connect<Pinned>, SharedRxContext<Pinned>,
    SharedRxContextBuilder<Pinned>, CompletionQueue<Pinned>, Counter<Pinned>,
    AddressVector<Pinned>, MulticastGroup<Pinned>, MemoryRegion<Allocated, Pinned>,
    MemoryRegion<Buf, Pinned>, RegisteredBuffer<Buf, Pinned>, RegisteredGuard<'static, Buf, Pinned>,
    Request<'static, SendOp, Buf, Pinned>, Request<'static, RecvOp, Buf, Pinned>,
    Request<'static, MultiRecvOp, BytesMut, Pinned>, Request<'static, ProbeOp, (), Pinned>,
    Request<'static, ClaimOp, (), Pinned>, RequestFuture<'static, SendOp, Buf, Pinned>,
    Request<'static, RemoteAtomicOp<u64, Fetching>, u64, Pinned>,
    RequestFuture<'static, RemoteAtomicOp<u64, Fetching>, u64, Pinned>,
    AtomicOperation<u64, Fetching, Pinned>, MultiRecv<Pinned>, PostedMultiRecv<Pinned>,
    Probing<'static, Pinned>, Claiming<'static, Pinned>, Claimed<Pinned>,
    Reserving<'static, Pinned>, Permit<Pinned>, PermitSendOp<Pinned>, ClaimedRecvOp<Pinned>,
    Operation<Buf, Pinned>, Pinned,
}

// The same types of model `Serial`.
assert_shareable! {
    Domain<Serial>, DomainBuilder<'static, Serial>, Endpoint<Serial>, ConnectedEndpoint<Serial>,
    EndpointBuilder<Serial>, BindOptions<Serial>, Connect<Serial>, SharedRxContext<Serial>,
    SharedRxContextBuilder<Serial>, CompletionQueue<Serial>, Counter<Serial>,
    AddressVector<Serial>, MulticastGroup<Serial>, MemoryRegion<Allocated, Serial>,
    MemoryRegion<Buf, Serial>, RegisteredBuffer<Buf, Serial>, RegisteredGuard<'static, Buf, Serial>,
    Request<'static, SendOp, Buf, Serial>, Request<'static, RecvOp, Buf, Serial>,
    Request<'static, MultiRecvOp, BytesMut, Serial>, Request<'static, ProbeOp, (), Serial>,
    Request<'static, ClaimOp, (), Serial>, RequestFuture<'static, SendOp, Buf, Serial>,
    Request<'static, RemoteAtomicOp<u64, Fetching>, u64, Serial>,
    RequestFuture<'static, RemoteAtomicOp<u64, Fetching>, u64, Serial>,
    AtomicOperation<u64, Fetching, Serial>, MultiRecv<Serial>, PostedMultiRecv<Serial>,
    Probing<'static, Serial>, Claiming<'static, Serial>, Claimed<Serial>,
    Reserving<'static, Serial>, Permit<Serial>, PermitSendOp<Serial>, ClaimedRecvOp<Serial>,
    Operation<Buf, Serial>, Serial,
}
