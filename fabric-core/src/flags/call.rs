//! Flags of single calls: default operation flags, binding of queues and counters, rights of
//! memory.

use bitflags::bitflags;

bitflags! {
    /// What every operation of a context does unless its post says otherwise (`op_flags` of
    /// `fi_tx_attr` and `fi_rx_attr`).
    ///
    /// What concerns one operation only (fence, batching, completion-queue data, peek) is a method
    /// of that operation's request instead of a flag.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct OpFlags: u32 {
        /// The source buffer is free again as soon as the call returns; limited by the inject size.
        #[doc(alias = "FI_INJECT")]
        const INJECT = 1;
        /// Report success too, where the queue is bound with [`CqBind::SELECTIVE_COMPLETION`].
        #[doc(alias = "FI_COMPLETION")]
        const COMPLETION = 1 << 1;
        /// Complete when the source buffer is free.
        #[doc(alias = "FI_INJECT_COMPLETE")]
        const INJECT_COMPLETE = 1 << 2;
        /// Complete when the operation no longer depends on local resources.
        #[doc(alias = "FI_TRANSMIT_COMPLETE")]
        const TRANSMIT_COMPLETE = 1 << 3;
        /// Complete when the data is in the target's buffer.
        #[doc(alias = "FI_DELIVERY_COMPLETE")]
        const DELIVERY_COMPLETE = 1 << 4;
        /// Complete when the message has met a receive.
        #[doc(alias = "FI_MATCH_COMPLETE")]
        const MATCH_COMPLETE = 1 << 5;
        /// Complete when the data is persistent at the target.
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
    /// What a completion queue hears of an endpoint (`fi_ep_bind` with a queue).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[doc(alias = "fi_ep_bind")]
    pub struct CqBind: u32 {
        /// Operations that were started here: sends, one-sided and atomic ones.
        #[doc(alias = "FI_TRANSMIT")]
        const TRANSMIT = 1;
        /// Received messages, and writes of peers that carry completion-queue data.
        #[doc(alias = "FI_RECV")]
        const RECV = 1 << 1;
        /// Success is reported only for operations that ask for it; failure always. Goes with one
        /// of the others.
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
        /// Reads, and atomics that fetch.
        #[doc(alias = "FI_READ")]
        const READ = 1 << 2;
        /// Writes, and atomics that do not fetch.
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
    /// What a memory region may be used for (`fi_mr_reg`, access).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[doc(alias = "fi_mr_reg")]
    pub struct Access: u32 {
        /// Holds the result of reads that start here.
        #[doc(alias = "FI_READ")]
        const READ = 1;
        /// Is the source of writes that start here.
        #[doc(alias = "FI_WRITE")]
        const WRITE = 1 << 1;
        /// May be read by peers.
        #[doc(alias = "FI_REMOTE_READ")]
        const REMOTE_READ = 1 << 2;
        /// May be written by peers.
        #[doc(alias = "FI_REMOTE_WRITE")]
        const REMOTE_WRITE = 1 << 3;
        /// Is the source of messages.
        #[doc(alias = "FI_SEND")]
        const SEND = 1 << 4;
        /// Receives messages.
        #[doc(alias = "FI_RECV")]
        const RECV = 1 << 5;
    }
}
