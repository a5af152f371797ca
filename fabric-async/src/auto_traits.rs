//! The auto traits of every public type, checked when the crate is compiled: a type that loses one
//! of them breaks programs.

use std::fmt::Debug;

use crate::*;

type Buf = Vec<u8>;
type Atomic<A> = AtomicRequest<'static, u64, A>;

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
    Fabric, Domain, DomainBuilder<'static>, Endpoint, ConnectedEndpoint, EndpointBuilder, BindOptions, Connect,
    PassiveEndpoint, PassiveEndpointBuilder, ConnectionRequest, SharedRxContext,
    SharedRxContextBuilder, CompletionQueue, EventQueue, Counter, AddressVector, MulticastGroup,
    MemoryRegion<Allocated>, MemoryRegion<Buf>, Allocated, RegisteredBuffer<Buf>, RegisteredGuard<'static>,
    RemoteWindow,
    RemoteAddr, RemoteRegion, RemoteSlice, WaitFd, TryWait, WaitPolicy, Shared,
}

// Requests, operations and their results.
assert_shareable! {
    SendRequest<'static, Buf>, RecvRequest<'static, Buf>, LendRequest<'static>,
    WriteRequest<'static, Buf>, ReadRequest<'static, Buf>, Atomic<NoFetch>, Atomic<Fetching>,
    AtomicOperation<u64, Fetching>, NoFetch, Fetching, MultiRecvRequest<'static>, MultiRecv,
    PostedMultiRecv, Message, MessageSlice, Probe<'static>, Claim<'static>, Claimed,
    ClaimedRecvRequest<Buf>, Reserve<'static>, Permit, Operation<Buf>, LendOperation,
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
}
