//! Loans, messages that the peer reads in place instead of a copy: [`Loan`] for the sender,
//! [`LoanedBuf`] for the receiver.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::{BufferPool, CopySource, PooledBuf};
use crate::error::{Error, Result};

/// Memory that is written in place and lent to a peer, which reads it where it is.
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

/// `ENOMEM`, the error number.
const ENOMEM: i32 = 12;

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
        let has_memory = Vec::<u8>::new().try_reserve_exact(len).is_ok();
        if !has_memory {
            return Err(Error::Os {
                call: "allocation of loan memory",
                errno: ENOMEM,
            });
        }
        Ok(Self::new(Box::new(vec![0; len])))
    }

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

/// A received message. A loaned message is read in its sender's memory, which is returned when this
/// is dropped; a message that was sent otherwise is in memory of the domain's pool.
pub struct LoanedBuf(LoanedStorage);

/// Where the message is. No larger than any other variant of `AnyBuf`, which is moved with every
/// message.
enum LoanedStorage {
    Copied {
        buf: PooledBuf,
        /// Whether the next message may be taken in place: the caller of `empty` has promised that
        /// its bytes do not change.
        accepts_loan: bool,
    },
    InPlace {
        memory: Arc<dyn PeerMemory>,
        len: usize,
        /// The pool for the buffer of a message that is not loaned.
        pool: Option<Arc<BufferPool>>,
    },
}

/// Memory of a peer that stays valid until its last owner drops it.
pub trait PeerMemory: CopySource + Send + Sync + 'static {
    /// Returns the bytes, if they are mapped here. The receiver of a [`LoanedBuf`] has promised
    /// that the bytes do not change.
    fn bytes(&self) -> &[u8];

    /// Returns whether the memory is mapped here: mapped memory stays valid and can be read in
    /// place. Other memory can only be copied, and disappears with its owner.
    fn is_mapped(&self) -> bool {
        true
    }

    /// Checks that all bytes copied so far are the message. Call it after each copy from memory
    /// that is not mapped, before the bytes are used.
    ///
    /// # Errors
    /// The reason why the message is lost.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

impl LoanedBuf {
    /// Creates a buffer that takes the next message in place, and later messages as copies.
    ///
    /// # Safety
    /// The sender of the message that is received into this buffer does not change the memory it is
    /// in.
    #[doc(hidden)]
    #[must_use]
    #[allow(unsafe_code)] // only declares a contract
    pub unsafe fn empty(pool: &Arc<BufferPool>) -> Self {
        Self(LoanedStorage::Copied {
            buf: PooledBuf::empty(pool),
            accepts_loan: true,
        })
    }

    /// Returns whether a message may be taken in place.
    #[doc(hidden)]
    #[must_use]
    pub fn accepts_loan(&self) -> bool {
        matches!(
            self.0,
            LoanedStorage::Copied {
                accepts_loan: true,
                ..
            }
        )
    }

    /// Returns whether the bytes are in the sender's memory.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        matches!(self.0, LoanedStorage::InPlace { .. })
    }

    /// Takes a whole message in place, if its memory is loaned. Returns true at most once.
    pub(super) fn take_in_place(&mut self, source: &dyn CopySource) -> bool {
        let LoanedStorage::Copied { buf, accepts_loan } = &mut self.0 else {
            return false;
        };
        if !std::mem::take(accepts_loan) {
            return false;
        }
        let Some(memory) = source.peer_memory().filter(|memory| memory.is_mapped()) else {
            return false;
        };
        let pool = buf.pool().cloned();
        self.0 = LoanedStorage::InPlace {
            memory,
            len: source.len(),
            pool,
        };
        true
    }

    /// Returns the pooled buffer for a message that is not loaned; a loan is returned first.
    #[doc(hidden)]
    pub fn pooled_mut(&mut self) -> &mut PooledBuf {
        if let LoanedStorage::InPlace { pool, .. } = &self.0 {
            self.0 = LoanedStorage::Copied {
                buf: PooledBuf::in_pool(pool.clone()),
                accepts_loan: false,
            };
        }
        match &mut self.0 {
            LoanedStorage::Copied { buf, .. } => buf,
            LoanedStorage::InPlace { .. } => unreachable!("the loan was returned above"),
        }
    }

    pub(super) fn finish(&mut self, filled: usize) {
        match &mut self.0 {
            LoanedStorage::Copied { buf, .. } => buf.truncate(filled),
            LoanedStorage::InPlace { len, .. } => *len = filled.min(*len),
        }
    }
}

impl Deref for LoanedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            LoanedStorage::Copied { buf, .. } => buf,
            LoanedStorage::InPlace { memory, len, .. } => &memory.bytes()[..*len],
        }
    }
}

impl fmt::Debug for LoanedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let location = if self.is_in_place() {
            "in the sender's memory"
        } else {
            "copied"
        };
        write!(f, "LoanedBuf({} bytes, {location})", self.len())
    }
}
