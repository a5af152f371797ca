//! Message order: which later operation must not overtake which earlier one.

use bitflags::bitflags;

bitflags! {
    /// Pairs of operations that are ordered between two endpoints (`fi_endpoint(3)`, message
    /// ordering).
    ///
    /// A name reads "LATER after EARLIER": with [`MsgOrder::SAW`] a send is processed after a write
    /// that was posted before it. The flags in hints are the pairs that the application requires.
    /// The flags in an offer are the pairs that the provider orders, which may be more than
    /// required. The order is the one in which the target processes operations from one transmit
    /// context to one receive context.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct MsgOrder: u64 {
        /// Read after read, RMA and atomic together.
        #[doc(alias = "FI_ORDER_RAR")]
        const RAR = 1;
        /// Read after write, RMA and atomic together.
        #[doc(alias = "FI_ORDER_RAW")]
        const RAW = 1 << 1;
        /// Read after send.
        #[doc(alias = "FI_ORDER_RAS")]
        const RAS = 1 << 2;
        /// Write after read, RMA and atomic together.
        #[doc(alias = "FI_ORDER_WAR")]
        const WAR = 1 << 3;
        /// Write after write, RMA and atomic together.
        #[doc(alias = "FI_ORDER_WAW")]
        const WAW = 1 << 4;
        /// Write after send.
        #[doc(alias = "FI_ORDER_WAS")]
        const WAS = 1 << 5;
        /// Send after read.
        #[doc(alias = "FI_ORDER_SAR")]
        const SAR = 1 << 6;
        /// Send after write.
        #[doc(alias = "FI_ORDER_SAW")]
        const SAW = 1 << 7;
        /// Send after send, tagged or not.
        #[doc(alias = "FI_ORDER_SAS")]
        const SAS = 1 << 8;
        /// Read after read, without atomics.
        #[doc(alias = "FI_ORDER_RMA_RAR")]
        const RMA_RAR = 1 << 9;
        /// Read after write, without atomics.
        #[doc(alias = "FI_ORDER_RMA_RAW")]
        const RMA_RAW = 1 << 10;
        /// Write after read, without atomics.
        #[doc(alias = "FI_ORDER_RMA_WAR")]
        const RMA_WAR = 1 << 11;
        /// Write after write, without atomics.
        #[doc(alias = "FI_ORDER_RMA_WAW")]
        const RMA_WAW = 1 << 12;
        /// Read after read, atomics only.
        #[doc(alias = "FI_ORDER_ATOMIC_RAR")]
        const ATOMIC_RAR = 1 << 13;
        /// Read after write, atomics only.
        #[doc(alias = "FI_ORDER_ATOMIC_RAW")]
        const ATOMIC_RAW = 1 << 14;
        /// Write after read, atomics only.
        #[doc(alias = "FI_ORDER_ATOMIC_WAR")]
        const ATOMIC_WAR = 1 << 15;
        /// Write after write, atomics only.
        #[doc(alias = "FI_ORDER_ATOMIC_WAW")]
        const ATOMIC_WAW = 1 << 16;
    }
}

impl MsgOrder {
    /// The nine pairs of reads, writes and sends. libfabric 2 deprecates the name.
    #[doc(alias = "FI_ORDER_STRICT")]
    pub const STRICT: Self = Self::RAR
        .union(Self::RAW)
        .union(Self::RAS)
        .union(Self::WAR)
        .union(Self::WAW)
        .union(Self::WAS)
        .union(Self::SAR)
        .union(Self::SAW)
        .union(Self::SAS);

    /// Returns this set with the narrower pairs that the set implies: a provider that orders all
    /// reads and writes orders RMA alone and atomics alone.
    #[must_use]
    pub fn with_implied(self) -> Self {
        [
            (Self::RAR, Self::RMA_RAR | Self::ATOMIC_RAR),
            (Self::RAW, Self::RMA_RAW | Self::ATOMIC_RAW),
            (Self::WAR, Self::RMA_WAR | Self::ATOMIC_WAR),
            (Self::WAW, Self::RMA_WAW | Self::ATOMIC_WAW),
        ]
        .into_iter()
        .filter(|(general, _)| self.contains(*general))
        .fold(self, |order, (_, narrower)| order | narrower)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn general_order_implies_narrower_orders() {
        assert_eq!(MsgOrder::STRICT.with_implied(), MsgOrder::all());
        let narrow = MsgOrder::RMA_WAW | MsgOrder::ATOMIC_WAW;
        assert_eq!(narrow.with_implied(), narrow);
    }
}
