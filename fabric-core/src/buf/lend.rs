//! Memory that changes hands instead of being copied: [`Loan`], as its writer has it, and [`Lent`],
//! as its reader has it.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::{Pool, PooledBuf, Source};
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
const OUT_OF_MEMORY: i32 = 12;

impl Loan {
    /// The longest.
    #[doc(hidden)]
    pub const LIMIT: usize = 1 << 32;

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
    pub fn copied(len: usize) -> Result<Self> {
        if len > Self::LIMIT {
            return Err(Error::TooLong {
                what: "loan",
                len,
                limit: Self::LIMIT,
            });
        }
        // Asked for before it is taken, because taking it ends the process where there is none. It
        // is zeroed when it is touched, not now.
        let has_memory = Vec::<u8>::new().try_reserve_exact(len).is_ok();
        if !has_memory {
            return Err(Error::Os {
                call: "allocating memory to lend",
                errno: OUT_OF_MEMORY,
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
pub struct Lent(Place);

/// Where the message is. No larger than any other buffer: an operation's is moved about with every
/// message.
enum Place {
    Own {
        buf: PooledBuf,
        /// Somebody has promised that what the next message is in does not change.
        promised: bool,
    },
    Shared {
        memory: Arc<dyn LentMemory>,
        len: usize,
        /// Of the buffer that it has when a message comes otherwise.
        pool: Option<Arc<Pool>>,
    },
}

/// Memory of a peer, held until the last owner drops it.
pub trait LentMemory: Source + Send + Sync + 'static {
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

impl Lent {
    /// Takes the next message where it lies, and those after it as copies.
    ///
    /// # Safety
    /// Whoever sends the message that is received into this does not change the memory it is in.
    #[doc(hidden)]
    #[must_use]
    #[allow(unsafe_code)] // only declares the duty
    pub unsafe fn empty(pool: &Arc<Pool>) -> Self {
        Self(Place::Own {
            buf: PooledBuf::empty(pool),
            promised: true,
        })
    }

    /// Whether a message may be taken where it lies.
    #[doc(hidden)]
    #[must_use]
    pub fn shares(&self) -> bool {
        matches!(self.0, Place::Own { promised: true, .. })
    }

    /// Whether the bytes lie in the sender's memory.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        matches!(self.0, Place::Shared { .. })
    }

    /// Takes a whole message where it lies, if its memory is lent. True once only.
    pub(super) fn take(&mut self, source: &dyn Source) -> bool {
        let Place::Own { buf, promised } = &mut self.0 else {
            return false;
        };
        if !std::mem::take(promised) {
            return false;
        }
        let Some(memory) = source.lent().filter(|memory| memory.is_mapped()) else {
            return false;
        };
        let pool = buf.pool().cloned();
        self.0 = Place::Shared {
            memory,
            len: source.len(),
            pool,
        };
        true
    }

    /// Takes a message that is not lent.
    #[doc(hidden)]
    pub fn own(&mut self) -> &mut PooledBuf {
        if let Place::Shared { pool, .. } = &self.0 {
            self.0 = Place::Own {
                buf: PooledBuf::of(pool.clone()),
                promised: false,
            };
        }
        match &mut self.0 {
            Place::Own { buf, .. } => buf,
            Place::Shared { .. } => unreachable!("it was let go of"),
        }
    }

    pub(super) fn finish(&mut self, filled: usize) {
        match &mut self.0 {
            Place::Own { buf, .. } => buf.truncate(filled),
            Place::Shared { len, .. } => *len = filled.min(*len),
        }
    }
}

impl Deref for Lent {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Place::Own { buf, .. } => buf,
            Place::Shared { memory, len, .. } => &memory.bytes()[..*len],
        }
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = if self.is_shared() {
            "the sender's"
        } else {
            "own"
        };
        write!(f, "Lent({} bytes, {whose})", self.len())
    }
}
