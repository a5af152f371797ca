//! Atomic operations on a peer's memory: which there are, on which types, and what they compute.
//!
//! | file | subject |
//! |---|---|
//! | `compute` | what operations compute, on each type |
//! | `cell` | a place in memory where that is done at once |
//! | `row` | several values in one operation |
//! | `code` | operations as numbers, for the wire |

mod cell;
mod code;
mod compute;
mod values;

use crate::error::{Error, Result};

pub use cell::AtomicCell;
pub use compute::AtomicType;
pub use values::{AtomicValues, append_value, bits_at};

/// The longest row of values of one atomic operation, in bytes.
pub const MAX_ATOMIC_BYTES: usize = 4096;

/// The type of an operand (`fi_datatype`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[doc(alias = "fi_datatype")]
pub enum Datatype {
    /// `FI_INT8`.
    I8,
    /// `FI_UINT8`.
    U8,
    /// `FI_INT16`.
    I16,
    /// `FI_UINT16`.
    U16,
    /// `FI_INT32`.
    I32,
    /// `FI_UINT32`.
    U32,
    /// `FI_INT64`.
    I64,
    /// `FI_UINT64`.
    U64,
    /// `FI_FLOAT`.
    F32,
    /// `FI_DOUBLE`.
    F64,
}

impl Datatype {
    /// All of them, in libfabric's order. On the wire each is its place here.
    pub const ALL: &[Self] = &[
        Self::I8,
        Self::U8,
        Self::I16,
        Self::U16,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::F32,
        Self::F64,
    ];

    /// Bytes of a value. It must lie at a multiple of this.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// Whether it is a floating-point type.
    #[must_use]
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }
}

/// What is computed from the value in memory and the operand (`fi_op`). What it computes becomes
/// the value in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[doc(alias = "fi_op")]
pub enum AtomicOp {
    /// The smaller (`FI_MIN`).
    Min,
    /// The larger (`FI_MAX`).
    Max,
    /// The sum; integers wrap (`FI_SUM`).
    Sum,
    /// The product; integers wrap (`FI_PROD`).
    Prod,
    /// 1 if either is not 0, else 0 (`FI_LOR`).
    Lor,
    /// 1 if both are not 0, else 0 (`FI_LAND`).
    Land,
    /// Bits of either (`FI_BOR`).
    Bor,
    /// Bits of both (`FI_BAND`).
    Band,
    /// 1 if exactly one is not 0, else 0 (`FI_LXOR`).
    Lxor,
    /// Bits of exactly one (`FI_BXOR`).
    Bxor,
    /// The value as it is; only fetching makes sense (`FI_ATOMIC_READ`).
    Read,
    /// The operand (`FI_ATOMIC_WRITE`).
    Write,
    /// The operand if the value equals the comparand (`FI_CSWAP`).
    Cswap,
    /// The operand if the comparand does not equal the value (`FI_CSWAP_NE`).
    CswapNe,
    /// The operand if the comparand is less than or equal to the value (`FI_CSWAP_LE`).
    CswapLe,
    /// The operand if the comparand is less than the value (`FI_CSWAP_LT`).
    CswapLt,
    /// The operand if the comparand is greater than or equal to the value (`FI_CSWAP_GE`).
    CswapGe,
    /// The operand if the comparand is greater than the value (`FI_CSWAP_GT`).
    CswapGt,
    /// The operand's bits where the comparand has ones, the value's elsewhere (`FI_MSWAP`).
    Mswap,
}

/// In which calls an operation can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicCall {
    /// Changes the value, returns nothing (`fi_atomic`).
    Base,
    /// Returns the value that was there (`fi_fetch_atomic`).
    Fetch,
    /// Has a comparand, returns the value that was there (`fi_compare_atomic`).
    Compare,
}

impl AtomicCall {
    /// All of them. On the wire each is its place here.
    pub const ALL: &[Self] = &[Self::Base, Self::Fetch, Self::Compare];
}

impl AtomicOp {
    /// All of them, in libfabric's order. On the wire each is its place here.
    pub const ALL: &[Self] = &[
        Self::Min,
        Self::Max,
        Self::Sum,
        Self::Prod,
        Self::Lor,
        Self::Land,
        Self::Bor,
        Self::Band,
        Self::Lxor,
        Self::Bxor,
        Self::Read,
        Self::Write,
        Self::Cswap,
        Self::CswapNe,
        Self::CswapLe,
        Self::CswapLt,
        Self::CswapGe,
        Self::CswapGt,
        Self::Mswap,
    ];

    /// Whether this operation exists for the type in this call (`fi_atomicvalid`,
    /// `fi_fetch_atomicvalid`, `fi_compare_atomicvalid`).
    #[doc(alias = "fi_atomicvalid")]
    #[must_use]
    pub fn is_valid(self, datatype: Datatype, call: AtomicCall) -> bool {
        let bits = matches!(self, Self::Bor | Self::Band | Self::Bxor | Self::Mswap);
        if bits && datatype.is_float() {
            return false;
        }
        match call {
            AtomicCall::Base => !self.has_comparand() && self != Self::Read,
            AtomicCall::Fetch => !self.has_comparand(),
            AtomicCall::Compare => self.has_comparand(),
        }
    }

    /// Whether it has a comparand.
    #[must_use]
    pub fn has_comparand(self) -> bool {
        use AtomicOp::{Cswap, CswapGe, CswapGt, CswapLe, CswapLt, CswapNe, Mswap};
        matches!(
            self,
            Cswap | CswapNe | CswapLe | CswapLt | CswapGe | CswapGt | Mswap
        )
    }
}

/// An atomic operation, apart from its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicSpec {
    /// What is computed.
    pub op: AtomicOp,
    /// On what.
    pub datatype: Datatype,
    /// How it is called.
    pub call: AtomicCall,
}

impl AtomicSpec {
    /// Checks that the operation exists for the type in this call.
    ///
    /// # Errors
    /// [`Error::NotSupported`].
    pub fn check(self) -> Result<()> {
        if self.op.is_valid(self.datatype, self.call) {
            return Ok(());
        }
        Err(Error::NotSupported(match self.call {
            AtomicCall::Base => "this atomic operation on this type (fi_atomicvalid says no)",
            AtomicCall::Fetch => {
                "this fetching atomic operation on this type (fi_fetch_atomicvalid says no)"
            }
            AtomicCall::Compare => {
                "this comparing atomic operation on this type (fi_compare_atomicvalid says no)"
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_op_type_combinations_are_refused() {
        for &op in AtomicOp::ALL {
            let valid = |datatype, call| op.is_valid(datatype, call);
            assert_eq!(
                valid(Datatype::U64, AtomicCall::Compare),
                op.has_comparand()
            );
            assert_eq!(valid(Datatype::U64, AtomicCall::Fetch), !op.has_comparand());
        }
        assert!(!AtomicOp::Read.is_valid(Datatype::U8, AtomicCall::Base));
        assert!(!AtomicOp::Bor.is_valid(Datatype::F32, AtomicCall::Fetch));
        assert!(!AtomicOp::Mswap.is_valid(Datatype::F64, AtomicCall::Compare));
        let spec = AtomicSpec {
            op: AtomicOp::Bxor,
            datatype: Datatype::F64,
            call: AtomicCall::Base,
        };
        assert!(
            matches!(spec.check(), Err(Error::NotSupported(what)) if what.contains("fi_atomicvalid"))
        );
    }
}
