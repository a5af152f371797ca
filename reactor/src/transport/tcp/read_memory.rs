//! The memory into which an endpoint reads from its sockets.

/// Bytes that all connections of an endpoint may keep before reads become short.
const MAX_KEPT: usize = 4 << 20;
/// The most bytes of a short read: more than a message needs to begin.
const SHORT_READ: usize = 8 << 10;

/// Memory for one read, which all connections of an endpoint share, and the number of bytes that
/// the connections keep because they were read and not consumed.
///
/// A connection whose message is held keeps what was read behind it. Many such connections
/// would keep much memory, so reads are then short.
#[derive(Debug, Default)]
pub(crate) struct ReadMemory {
    scratch: Box<[u8]>,
    kept: usize,
}

impl ReadMemory {
    /// Returns memory for reads of up to `len` bytes.
    pub(crate) fn new(len: usize) -> Self {
        Self {
            scratch: vec![0; len].into(),
            kept: 0,
        }
    }

    /// Returns the memory, and the most bytes that may be read into it now.
    pub(crate) fn for_read(&mut self) -> (&mut [u8], usize) {
        let max_read = if self.kept > MAX_KEPT {
            SHORT_READ
        } else {
            self.scratch.len()
        };
        (&mut self.scratch, max_read)
    }

    /// Notes that a connection keeps `after` bytes, and has kept `before`.
    pub(crate) fn set_kept(&mut self, before: usize, after: usize) {
        self.kept = (self.kept + after).saturating_sub(before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_short_while_much_is_kept() {
        let mut memory = ReadMemory::new(64 << 10);
        assert_eq!(memory.for_read().1, 64 << 10);
        for _ in 0..200 {
            memory.set_kept(100, 60_000);
        }
        let (scratch, max_read) = memory.for_read();
        assert_eq!((scratch.len(), max_read), (64 << 10, SHORT_READ));
        for _ in 0..200 {
            memory.set_kept(60_000, 0);
        }
        assert_eq!(memory.for_read().1, 64 << 10);
    }
}
