//! Flags of single calls: default operation flags, binding of completion queues and counters, and
//! access rights of memory regions.

use bitflags::bitflags;

bitflags! {
    /// Default flags of the operations of a context (`op_flags` of `fi_tx_attr` and `fi_rx_attr`).
    ///
    /// Flags that concern one operation only (fence, batching, remote completion data, peek) are
    /// methods of that operation's request instead.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct OpFlags: u32 {
        /// The source buffer is reusable as soon as the call returns; limited by the inject size.
        #[doc(alias = "FI_INJECT")]
        const INJECT = 1;
        /// Success is reported too, where the queue is bound with [`CqBind::SELECTIVE_COMPLETION`].
        #[doc(alias = "FI_COMPLETION")]
        const COMPLETION = 1 << 1;
        /// Completes when the source buffer is reusable.
        #[doc(alias = "FI_INJECT_COMPLETE")]
        const INJECT_COMPLETE = 1 << 2;
        /// Completes when the operation no longer depends on local resources.
        #[doc(alias = "FI_TRANSMIT_COMPLETE")]
        const TRANSMIT_COMPLETE = 1 << 3;
        /// Completes when the data is in the target's buffer.
        #[doc(alias = "FI_DELIVERY_COMPLETE")]
        const DELIVERY_COMPLETE = 1 << 4;
        /// Completes when a receive has matched the message.
        #[doc(alias = "FI_MATCH_COMPLETE")]
        const MATCH_COMPLETE = 1 << 5;
        /// Completes when the data is persistent at the target.
        #[doc(alias = "FI_COMMIT_COMPLETE")]
        const COMMIT_COMPLETE = 1 << 6;
        /// The destination is a multicast group.
        #[doc(alias = "FI_MULTICAST")]
        const MULTICAST = 1 << 7;
        /// A posted buffer takes several messages.
        #[doc(alias = "FI_MULTI_RECV")]
        const MULTI_RECV = 1 << 8;
    }
}

bitflags! {
    /// Which completions of an endpoint a completion queue reports (`fi_ep_bind` with a queue).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[doc(alias = "fi_ep_bind")]
    pub struct CqBind: u32 {
        /// Completions of operations that this endpoint started: sends, RMA and atomic operations.
        #[doc(alias = "FI_TRANSMIT")]
        const TRANSMIT = 1;
        /// Completions of receives, and of peers' writes with remote completion data.
        #[doc(alias = "FI_RECV")]
        const RECV = 1 << 1;
        /// Success is reported only for operations with [`OpFlags::COMPLETION`]; failure always.
        /// Combined with one of the other flags.
        #[doc(alias = "FI_SELECTIVE_COMPLETION")]
        const SELECTIVE_COMPLETION = 1 << 2;
    }
}

bitflags! {
    /// Which operations of an endpoint a counter counts (`fi_ep_bind` with a counter).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CounterBind: u32 {
        /// Sends.
        #[doc(alias = "FI_SEND")]
        const SEND = 1;
        /// Receives.
        #[doc(alias = "FI_RECV")]
        const RECV = 1 << 1;
        /// Reads, and fetching atomic operations.
        #[doc(alias = "FI_READ")]
        const READ = 1 << 2;
        /// Writes, and atomic operations that do not fetch.
        #[doc(alias = "FI_WRITE")]
        const WRITE = 1 << 3;
        /// Reads by peers; the endpoint needs [`Caps::RMA_EVENT`](super::Caps::RMA_EVENT).
        #[doc(alias = "FI_REMOTE_READ")]
        const REMOTE_READ = 1 << 4;
        /// Writes by peers; the endpoint needs [`Caps::RMA_EVENT`](super::Caps::RMA_EVENT).
        #[doc(alias = "FI_REMOTE_WRITE")]
        const REMOTE_WRITE = 1 << 5;
    }
}

bitflags! {
    /// The access that a memory region permits (`fi_mr_reg`, access).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[doc(alias = "fi_mr_reg")]
    pub struct Access: u32 {
        /// May hold the result of local reads.
        #[doc(alias = "FI_READ")]
        const READ = 1;
        /// May be the source of local writes.
        #[doc(alias = "FI_WRITE")]
        const WRITE = 1 << 1;
        /// May be read by peers.
        #[doc(alias = "FI_REMOTE_READ")]
        const REMOTE_READ = 1 << 2;
        /// May be written by peers. Without `REMOTE_READ` peers cannot read the bytes: over `shm`
        /// the owner executes the writes then, because a mapping for writing can also be read.
        #[doc(alias = "FI_REMOTE_WRITE")]
        const REMOTE_WRITE = 1 << 3;
        /// May be the source of messages.
        #[doc(alias = "FI_SEND")]
        const SEND = 1 << 4;
        /// May receive messages.
        #[doc(alias = "FI_RECV")]
        const RECV = 1 << 5;
    }
}
