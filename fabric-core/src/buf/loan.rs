//! Loans for the sender: memory that the sender writes in place and the peer reads without a copy.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::error::{Error, Result, fi_errno};

/// Memory that is written in place and lent to a peer, which reads the memory without a copy.
///
/// When dropped without being sent, the memory is reused for the next loan. A successful send gives
/// the memory to the peer, and leaves the loan empty.
pub struct Loan {
    /// `None` after the loan was sent.
    memory: Option<Box<dyn LoanMemory>>,
}

/// Memory of a transport for loans.
pub trait LoanMemory: Send + Sync + 'static {
    /// Returns the key by which the transport identifies the memory; `None` when the bytes can only
    /// be copied.
    fn key(&self) -> Option<u64>;
    /// Returns the bytes.
    fn bytes(&self) -> &[u8];
    /// Returns the bytes for writing.
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl Loan {
    /// The largest length in bytes.
    #[doc(hidden)]
    pub const MAX_LEN: usize = 1 << 32;

    /// Creates a loan of a transport's memory.
    #[doc(hidden)]
    #[must_use]
    pub fn new(memory: Box<dyn LoanMemory>) -> Self {
        Self {
            memory: Some(memory),
        }
    }

    /// Creates a loan without memory.
    #[doc(hidden)]
    #[must_use]
    pub fn empty() -> Self {
        Self { memory: None }
    }

    /// Creates a loan in heap memory, for a transport without memory for loans: the bytes are
    /// copied when sent.
    ///
    /// # Errors
    /// [`Error::TooLong`] above [`MAX_LEN`](Self::MAX_LEN); [`Error::Os`] when the allocation
    /// fails.
    #[doc(hidden)]
    pub fn from_heap(len: usize) -> Result<Self> {
        if len > Self::MAX_LEN {
            return Err(Error::TooLong {
                what: "loan",
                len,
                limit: Self::MAX_LEN,
            });
        }
        // Probed before the allocation, because `vec!` aborts the process when the allocation
        // fails. Pages are zeroed when they are touched, not here.
        if Vec::<u8>::new().try_reserve_exact(len).is_err() {
            return Err(Error::os("allocation of loan memory", fi_errno::ENOMEM));
        }
        Ok(Self::new(Box::new(vec![0; len])))
    }

    /// Returns the [key](LoanMemory::key) of the memory; `None` for an empty loan too.
    #[doc(hidden)]
    #[must_use]
    pub fn key(&self) -> Option<u64> {
        self.memory.as_ref()?.key()
    }
}

impl LoanMemory for Vec<u8> {
    fn key(&self) -> Option<u64> {
        None
    }

    fn bytes(&self) -> &[u8] {
        self
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl Deref for Loan {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |memory| memory.bytes())
    }
}

impl DerefMut for Loan {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Some(memory) => memory.bytes_mut(),
            None => &mut [],
        }
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Loan({} bytes)", self.len())
    }
}
