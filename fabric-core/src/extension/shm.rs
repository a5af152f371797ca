//! What the extension of provider `shm` reports.

/// The shared memory that this process has mapped for one peer of an endpoint, in both directions.
/// Counts of mappings, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShmInfo {
    /// Segments, each with the ring of one direction: two if both sides have connected.
    pub segments: usize,
    /// Bytes of the segments. Of a ring that was never full, a quarter is allocated.
    pub segment_bytes: usize,
    /// Memory regions of the peer that this side has accessed.
    pub regions: usize,
    /// Bytes of the memory regions.
    pub region_bytes: usize,
    /// Loan memory of the peer, whether its messages are held or not.
    pub loans: usize,
    /// Bytes of the loan memory.
    pub loan_bytes: usize,
    /// Buffers through which accesses to registered buffers go.
    pub bounce_buffers: usize,
    /// Bytes of these buffers.
    pub bounce_bytes: usize,
}

impl ShmInfo {
    /// Returns the bytes of all mappings.
    #[must_use]
    pub fn total_bytes(&self) -> usize {
        self.segment_bytes + self.region_bytes + self.loan_bytes + self.bounce_bytes
    }
}
