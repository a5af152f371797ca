//! Memory that changes hands instead of being copied: [`Loan`], as its writer has it, and [`Lent`],
//! as its reader has it.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::{BufferPool, CopySource, PooledBuf};
use crate::error::{Error, Result};

/// Memory to be written in place and lent to a peer, by which it is read where it lies.
///
/// Dropped without being lent, it is used for the next loan.
pub struct Loan {
    memory: Box<dyn LoanMemory>,
}

/// What a provider lends.
pub trait LoanMemory: Send + Sync + 'static {
    /// By which name the provider finds it again; `None` when it can only be copied.
    fn key(&self) -> Option<u64>;
    /// The bytes.
    fn bytes(&self) -> &[u8];
    /// The bytes, to be written.
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// `ENOMEM`.
const ENOMEM: i32 = 12;

impl Loan {
    /// The longest.
    #[doc(hidden)]
    pub const MAX_LEN: usize = 1 << 32;

    /// A loan of a provider's memory.
    #[doc(hidden)]
    #[must_use]
    pub fn new(memory: Box<dyn LoanMemory>) -> Self {
        Self { memory }
    }

    /// A loan of a provider that has no memory to lend: it is copied.
    ///
    /// # Errors
    /// [`Error::TooLong`], as with those that lend; [`Error::Os`] without the memory.
    #[doc(hidden)]
    pub fn from_heap(len: usize) -> Result<Self> {
        if len > Self::MAX_LEN {
            return Err(Error::TooLong {
                what: "loan",
                len,
                limit: Self::MAX_LEN,
            });
        }
        // Asked for before it is taken, because taking it ends the process where there is none. It
        // is zeroed when it is touched, not now.
        let has_memory = Vec::<u8>::new().try_reserve_exact(len).is_ok();
        if !has_memory {
            return Err(Error::Os {
                call: "allocating memory to lend",
                errno: ENOMEM,
            });
        }
        Ok(Self::new(Box::new(vec![0; len])))
    }

    #[doc(hidden)]
    #[must_use]
    pub fn key(&self) -> Option<u64> {
        self.memory.key()
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
        self.memory.bytes()
    }
}

impl DerefMut for Loan {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.bytes_mut()
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Loan({} bytes)", self.len())
    }
}

/// A received message that was lent: it lies in the sender's memory, and goes back there when this
/// is dropped. A message that was sent otherwise lies in memory of the domain's pool.
pub struct LoanedBuf(LoanedStorage);

/// Where the message is. No larger than any other buffer: an operation's is moved about with every
/// message.
enum LoanedStorage {
    Copied {
        buf: PooledBuf,
        /// Somebody has promised that what the next message is in does not change.
        accepts_loan: bool,
    },
    InPlace {
        memory: Arc<dyn PeerMemory>,
        len: usize,
        /// Of the buffer that it has when a message comes otherwise.
        pool: Option<Arc<BufferPool>>,
    },
}

/// Memory of a peer, held until the last owner drops it.
pub trait PeerMemory: CopySource + Send + Sync + 'static {
    /// The bytes, if they are mapped here. Whoever receives into a [`Lent`] has promised that they
    /// do not change.
    fn bytes(&self) -> &[u8];

    /// Whether the memory is mapped here: then it stays, and can be read where it lies. Otherwise
    /// it can only be copied, and goes with its owner.
    fn is_mapped(&self) -> bool {
        true
    }

    /// Whether everything that was copied out so far is the message. To be asked after each copy of
    /// memory that is not mapped, before the bytes are used.
    ///
    /// # Errors
    /// Why the message is lost.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

impl LoanedBuf {
    /// Takes the next message where it lies, and those after it as copies.
    ///
    /// # Safety
    /// Whoever sends the message that is received into this does not change the memory it is in.
    #[doc(hidden)]
    #[must_use]
    #[allow(unsafe_code)] // only declares the duty
    pub unsafe fn empty(pool: &Arc<BufferPool>) -> Self {
        Self(LoanedStorage::Copied {
            buf: PooledBuf::empty(pool),
            accepts_loan: true,
        })
    }

    /// Whether a message may be taken where it lies.
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

    /// Whether the bytes lie in the sender's memory.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        matches!(self.0, LoanedStorage::InPlace { .. })
    }

    /// Takes a whole message where it lies, if its memory is lent. True once only.
    pub(super) fn take_in_place(&mut self, source: &dyn CopySource) -> bool {
        let LoanedStorage::Copied {
            buf,
            accepts_loan: promised,
        } = &mut self.0
        else {
            return false;
        };
        if !std::mem::take(promised) {
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

    /// Takes a message that is not lent.
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
            LoanedStorage::InPlace { .. } => unreachable!("it was let go of"),
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
        let whose = if self.is_in_place() {
            "the sender's"
        } else {
            "own"
        };
        write!(f, "Lent({} bytes, {whose})", self.len())
    }
}
