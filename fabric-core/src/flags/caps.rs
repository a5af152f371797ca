//! Capabilities of endpoints, contexts and domains.

use bitflags::bitflags;

bitflags! {
    /// Capabilities of an endpoint, one of its contexts or a domain (`fi_getinfo(3)`,
    /// capabilities).
    ///
    /// Three classes, which together are all bits: [`Caps::PRIMARY`] features must be requested,
    /// [`Caps::SECONDARY`] features may be granted without a request, and [`Caps::DIRECTIONS`]
    /// restrict the primary ones. A set without any direction of a class of operations means all
    /// directions of that class.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Caps: u64 {
        /// Untagged messages.
        #[doc(alias = "FI_MSG")]
        const MSG = 1;
        /// Messages matched by a 64-bit tag.
        #[doc(alias = "FI_TAGGED")]
        const TAGGED = 1 << 1;
        /// RMA reads and writes of a peer's memory.
        #[doc(alias = "FI_RMA")]
        const RMA = 1 << 2;
        /// Atomic operations on a peer's memory;
        /// [`AtomicOp::is_valid`](crate::atomic::AtomicOp::is_valid) tells which.
        #[doc(alias = "FI_ATOMIC")]
        const ATOMIC = 1 << 3;
        /// One message to many receivers; combined with [`Caps::MSG`].
        #[doc(alias = "FI_MULTICAST")]
        const MULTICAST = 1 << 4;
        /// Collective operations: barriers, broadcasts, reductions.
        #[doc(alias = "FI_COLLECTIVE")]
        const COLLECTIVE = 1 << 5;
        /// A sender may choose among the receive contexts of a scalable endpoint.
        #[doc(alias = "FI_NAMED_RX_CTX")]
        const NAMED_RX_CTX = 1 << 6;
        /// A receive may be directed to one sender. Without this capability a directed receive
        /// fails with `NotSupported`; libfabric ignores the address.
        #[doc(alias = "FI_DIRECTED_RECV")]
        const DIRECTED_RECV = 1 << 7;
        /// Buffers in the memory of a device.
        #[doc(alias = "FI_HMEM")]
        const HMEM = 1 << 8;
        /// The receiver learns the size of a message before it provides the buffer. Removed in 2.x.
        #[doc(alias = "FI_VARIABLE_MSG")]
        const VARIABLE_MSG = 1 << 9;
        /// As [`Caps::DIRECTED_RECV`], for tagged receives only. Since 2.x.
        #[doc(alias = "FI_TAGGED_DIRECTED_RECV")]
        const TAGGED_DIRECTED_RECV = 1 << 10;
        /// Every receive is directed to one sender; receives from any source are not possible.
        /// Since 2.x.
        #[doc(alias = "FI_EXACT_DIRECTED_RECV")]
        const EXACT_DIRECTED_RECV = 1 << 11;
        /// Completions identify the sender by an id that the application chose. Since 2.0; a
        /// capability of domains.
        #[doc(alias = "FI_AV_USER_ID")]
        const AV_USER_ID = 1 << 12;
        /// Queues and counters may belong to another provider. Since 2.0; a capability of domains.
        #[doc(alias = "FI_PEER")]
        const PEER = 1 << 13;

        /// Direction: initiate reads of peers' memory.
        #[doc(alias = "FI_READ")]
        const READ = 1 << 14;
        /// Direction: initiate writes to peers' memory.
        #[doc(alias = "FI_WRITE")]
        const WRITE = 1 << 15;
        /// Direction: send messages.
        #[doc(alias = "FI_SEND")]
        const SEND = 1 << 16;
        /// Direction: receive messages.
        #[doc(alias = "FI_RECV")]
        const RECV = 1 << 17;
        /// Direction: memory may be read by peers.
        #[doc(alias = "FI_REMOTE_READ")]
        const REMOTE_READ = 1 << 18;
        /// Direction: memory may be written by peers.
        #[doc(alias = "FI_REMOTE_WRITE")]
        const REMOTE_WRITE = 1 << 19;

        /// One posted buffer takes several untagged messages.
        #[doc(alias = "FI_MULTI_RECV")]
        const MULTI_RECV = 1 << 20;
        /// One posted buffer takes several tagged messages. Since 2.x.
        #[doc(alias = "FI_TAGGED_MULTI_RECV")]
        const TAGGED_MULTI_RECV = 1 << 21;
        /// A receive completion holds the sender's address handle (connectionless endpoints).
        #[doc(alias = "FI_SOURCE")]
        const SOURCE = 1 << 22;
        /// The receive of a message whose sender is not in the address vector completes with
        /// [`Error::SourceNotInserted`](crate::Error::SourceNotInserted), the sender's address, and
        /// the message in the buffer. Must be requested together with [`Caps::SOURCE`]. Connected
        /// endpoints do not have it.
        #[doc(alias = "FI_SOURCE_ERR")]
        const SOURCE_ERR = 1 << 23;
        /// The target of RMA operations is notified of them; needs a remote direction.
        #[doc(alias = "FI_RMA_EVENT")]
        const RMA_EVENT = 1 << 24;
        /// Address vectors that processes share by name.
        #[doc(alias = "FI_SHARED_AV")]
        const SHARED_AV = 1 << 25;
        /// Operations that start when a counter reaches a threshold.
        #[doc(alias = "FI_TRIGGER")]
        const TRIGGER = 1 << 26;
        /// An operation may wait for earlier operations to the same peer.
        #[doc(alias = "FI_FENCE")]
        const FENCE = 1 << 27;
        /// Reaches endpoints on the same machine.
        #[doc(alias = "FI_LOCAL_COMM")]
        const LOCAL_COMM = 1 << 28;
        /// Reaches endpoints on other machines.
        #[doc(alias = "FI_REMOTE_COMM")]
        const REMOTE_COMM = 1 << 29;
        /// RMA operations support persistent memory; needs [`Caps::RMA`].
        #[doc(alias = "FI_RMA_PMEM")]
        const RMA_PMEM = 1 << 30;
    }
}

impl Caps {
    /// Directions of messages.
    pub const MSG_DIRECTIONS: Self = Self::SEND.union(Self::RECV);

    /// Directions of RMA and atomic operations.
    pub const RMA_DIRECTIONS: Self = Self::READ
        .union(Self::WRITE)
        .union(Self::REMOTE_READ)
        .union(Self::REMOTE_WRITE);

    /// All directions. libfabric counts directions among the primary capabilities; here they are a
    /// class of their own.
    pub const DIRECTIONS: Self = Self::MSG_DIRECTIONS.union(Self::RMA_DIRECTIONS);

    /// Features that are granted only when requested, because they have a cost.
    #[doc(alias = "FI_PRIMARY_CAPS")]
    pub const PRIMARY: Self = Self::MSG
        .union(Self::TAGGED)
        .union(Self::RMA)
        .union(Self::ATOMIC)
        .union(Self::MULTICAST)
        .union(Self::COLLECTIVE)
        .union(Self::NAMED_RX_CTX)
        .union(Self::DIRECTED_RECV)
        .union(Self::HMEM)
        .union(Self::VARIABLE_MSG)
        .union(Self::TAGGED_DIRECTED_RECV)
        .union(Self::EXACT_DIRECTED_RECV)
        .union(Self::AV_USER_ID)
        .union(Self::PEER);

    /// Features that may be granted without a request where they are harmless.
    #[doc(alias = "FI_SECONDARY_CAPS")]
    pub const SECONDARY: Self = Self::all()
        .difference(Self::PRIMARY)
        .difference(Self::DIRECTIONS);

    /// Returns this set with explicit directions: all directions of a class of operations that is
    /// present without any.
    ///
    /// ```
    /// # use fabric_core::flags as fabric_async;
    /// use fabric_async::Caps;
    /// assert_eq!(Caps::MSG.with_directions(), Caps::MSG | Caps::SEND | Caps::RECV);
    /// assert_eq!((Caps::MSG | Caps::SEND).with_directions(), Caps::MSG | Caps::SEND);
    /// ```
    #[must_use]
    pub const fn with_directions(self) -> Self {
        let mut caps = self;
        if caps.intersects(Self::MSG.union(Self::TAGGED)) && !caps.intersects(Self::MSG_DIRECTIONS)
        {
            caps = caps.union(Self::MSG_DIRECTIONS);
        }
        if caps.intersects(Self::RMA.union(Self::ATOMIC)) && !caps.intersects(Self::RMA_DIRECTIONS)
        {
            caps = caps.union(Self::RMA_DIRECTIONS);
        }
        caps
    }

    /// Returns whether peers may read, write or change memory of an endpoint with these
    /// capabilities.
    #[must_use]
    pub const fn is_rma_target(self) -> bool {
        self.intersects(Self::RMA.union(Self::ATOMIC))
            && self
                .with_directions()
                .intersects(Self::REMOTE_READ.union(Self::REMOTE_WRITE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cap_classes_partition_all_bits() {
        assert!(!Caps::PRIMARY.intersects(Caps::SECONDARY | Caps::DIRECTIONS));
        assert!(!Caps::SECONDARY.intersects(Caps::DIRECTIONS));
        assert_eq!(
            Caps::PRIMARY | Caps::SECONDARY | Caps::DIRECTIONS,
            Caps::all()
        );
        assert_eq!(Caps::SECONDARY.bits().count_ones(), 11);
    }

    #[test]
    fn direction_flag_restricts_only_its_own_class() {
        let caps = (Caps::TAGGED | Caps::RECV | Caps::ATOMIC).with_directions();
        assert_eq!(caps & Caps::DIRECTIONS, Caps::RECV | Caps::RMA_DIRECTIONS);
        assert_eq!(Caps::HMEM.with_directions(), Caps::HMEM);
    }

    #[test]
    fn rma_target_needs_rma_or_atomic_and_a_remote_direction() {
        assert!(Caps::RMA.is_rma_target());
        assert!((Caps::ATOMIC | Caps::REMOTE_READ).is_rma_target());
        assert!(!(Caps::RMA | Caps::READ | Caps::WRITE).is_rma_target());
        assert!(!(Caps::MSG | Caps::REMOTE_WRITE).is_rma_target());
    }

    #[test]
    fn unknown_bits_are_rejected() {
        assert_eq!(Caps::from_bits(1 << 63), None);
    }
}
