//! Atomic operations on a peer's memory: operations, data types, validity rules and arithmetic.
//!
//! | file | subject |
//! |---|---|
//! | `compute` | the arithmetic of each operation on each type |
//! | `cell` | a value in memory on which an operation is executed atomically |
//! | `values` | the values of one operation |
//! | `code` | the encoding of operations on the wire |

mod cell;
mod code;
mod compute;
mod values;

use portable_atomic::AtomicU128;

use crate::error::{Error, Result};

pub use half::{bf16, f16};
pub use num_complex::Complex;

pub use cell::AtomicCell;
pub use compute::AtomicType;
pub use values::{AtomicValues, bits_at};

/// The largest total size of the values of one atomic operation, in bytes.
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
    /// `FI_FLOAT_COMPLEX`.
    ComplexF32,
    /// `FI_DOUBLE_COMPLEX`.
    ComplexF64,
    /// `FI_LONG_DOUBLE`, which no operation is valid for: Rust has no such type.
    LongDouble,
    /// `FI_LONG_DOUBLE_COMPLEX`, which no operation is valid for.
    ComplexLongDouble,
    /// `FI_INT128`.
    I128,
    /// `FI_UINT128`.
    U128,
    /// `FI_FLOAT16` (IEEE 754 binary16).
    F16,
    /// `FI_BFLOAT16`.
    BF16,
}

impl Datatype {
    /// All data types, in libfabric's order. The wire encoding is the index in this list.
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
        Self::ComplexF32,
        Self::ComplexF64,
        Self::LongDouble,
        Self::ComplexLongDouble,
        Self::I128,
        Self::U128,
        Self::F16,
        Self::BF16,
    ];

    /// Returns the size of a value in bytes, which is also its alignment.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 | Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 | Self::ComplexF32 => 8,
            Self::ComplexF64 | Self::LongDouble | Self::I128 | Self::U128 => 16,
            Self::ComplexLongDouble => 32,
        }
    }

    /// Returns whether the type is a floating-point type, or a complex one.
    #[must_use]
    pub fn is_float(self) -> bool {
        self.is_complex()
            || matches!(
                self,
                Self::F32 | Self::F64 | Self::LongDouble | Self::F16 | Self::BF16
            )
    }

    /// Returns whether the type is a complex one, whose values have no order.
    #[must_use]
    pub fn is_complex(self) -> bool {
        matches!(
            self,
            Self::ComplexF32 | Self::ComplexF64 | Self::ComplexLongDouble
        )
    }

    /// Returns whether the type is an extended floating-point type of C.
    fn is_long_double(self) -> bool {
        matches!(self, Self::LongDouble | Self::ComplexLongDouble)
    }

    /// Returns whether this processor changes values of the size of the type atomically.
    fn is_supported_here(self) -> bool {
        self.size() <= 8 || AtomicU128::is_lock_free()
    }
}

/// The function of an atomic operation: computes the new value in memory from the old value and the
/// operand (`fi_op`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[doc(alias = "fi_op")]
pub enum AtomicOp {
    /// The smaller value (`FI_MIN`).
    Min,
    /// The larger value (`FI_MAX`).
    Max,
    /// The sum; integers wrap (`FI_SUM`).
    Sum,
    /// The product; integers wrap (`FI_PROD`).
    Prod,
    /// 1 if either is not 0, else 0 (`FI_LOR`).
    Lor,
    /// 1 if both are not 0, else 0 (`FI_LAND`).
    Land,
    /// Bitwise or (`FI_BOR`).
    Bor,
    /// Bitwise and (`FI_BAND`).
    Band,
    /// 1 if exactly one is not 0, else 0 (`FI_LXOR`).
    Lxor,
    /// Bitwise exclusive or (`FI_BXOR`).
    Bxor,
    /// The old value; valid only in fetching calls (`FI_ATOMIC_READ`).
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

/// The calls that an operation can be used in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicCall {
    /// Changes the value and returns nothing (`fi_atomic`).
    Base,
    /// Returns the old value (`fi_fetch_atomic`).
    Fetch,
    /// Takes a comparand and returns the old value (`fi_compare_atomic`).
    Compare,
}

impl AtomicCall {
    /// All calls. The wire encoding is the index in this list.
    pub const ALL: &[Self] = &[Self::Base, Self::Fetch, Self::Compare];
}

impl AtomicOp {
    /// All operations, in libfabric's order. The wire encoding is the index in this list.
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

    /// Returns whether this operation is valid for the type in this call (`fi_atomicvalid`,
    /// `fi_fetch_atomicvalid`, `fi_compare_atomicvalid`).
    #[doc(alias = "fi_atomicvalid")]
    #[must_use]
    pub fn is_valid(self, datatype: Datatype, call: AtomicCall) -> bool {
        if datatype.is_long_double()
            || !datatype.is_supported_here()
            || self.is_bitwise() && datatype.is_float()
            || self.is_ordering() && datatype.is_complex()
        {
            return false;
        }
        match call {
            AtomicCall::Base => !self.has_comparand() && self != Self::Read,
            AtomicCall::Fetch => !self.has_comparand(),
            AtomicCall::Compare => self.has_comparand(),
        }
    }

    /// Returns whether the operation combines bits, which floating-point types do not allow.
    fn is_bitwise(self) -> bool {
        matches!(self, Self::Bor | Self::Band | Self::Bxor | Self::Mswap)
    }

    /// Returns whether the operation compares by order, which complex types do not allow.
    fn is_ordering(self) -> bool {
        use AtomicOp::{CswapGe, CswapGt, CswapLe, CswapLt, Max, Min};
        matches!(self, Min | Max | CswapLe | CswapLt | CswapGe | CswapGt)
    }

    /// Returns whether the operation takes a comparand.
    #[must_use]
    pub fn has_comparand(self) -> bool {
        use AtomicOp::{Cswap, CswapGe, CswapGt, CswapLe, CswapLt, CswapNe, Mswap};
        matches!(
            self,
            Cswap | CswapNe | CswapLe | CswapLt | CswapGe | CswapGt | Mswap
        )
    }
}

/// An atomic operation without its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicSpec {
    /// The function.
    pub op: AtomicOp,
    /// The type of the values.
    pub datatype: Datatype,
    /// The call.
    pub call: AtomicCall,
}

impl AtomicSpec {
    /// Checks that the operation is valid for the type in this call.
    ///
    /// # Errors
    /// [`Error::NotSupported`].
    pub fn check(self) -> Result<()> {
        if self.op.is_valid(self.datatype, self.call) {
            return Ok(());
        }
        Err(Error::NotSupported(if self.datatype.is_long_double() {
            "atomic operations on FI_LONG_DOUBLE and FI_LONG_DOUBLE_COMPLEX"
        } else if !self.datatype.is_supported_here() {
            "atomic operations on values of 16 bytes on this processor"
        } else if self.op.is_ordering() && self.datatype.is_complex() {
            "operations that compare by order (FI_MIN, FI_MAX, FI_CSWAP_LT and others) on \
                 complex types"
        } else if self.op.is_bitwise() && self.datatype.is_float() {
            "bitwise operations (FI_BOR, FI_BAND, FI_BXOR, FI_MSWAP) on floating-point types"
        } else if self.call == AtomicCall::Compare {
            "operations without a comparand in compare_atomic (see AtomicOp::is_valid)"
        } else if self.op.has_comparand() {
            "FI_CSWAP and FI_MSWAP operations without a comparand: call compare_atomic"
        } else {
            "FI_ATOMIC_READ in atomic, which returns no value: call fetch_atomic"
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
    }

    #[test]
    fn refusal_of_an_atomic_operation_names_the_reason() {
        for (op, datatype, call, reason) in [
            (AtomicOp::Bxor, Datatype::F64, AtomicCall::Base, "FI_BXOR"),
            (AtomicOp::Mswap, Datatype::F32, AtomicCall::Compare, "float"),
            (AtomicOp::Bor, Datatype::BF16, AtomicCall::Base, "float"),
            (
                AtomicOp::Max,
                Datatype::ComplexF64,
                AtomicCall::Fetch,
                "complex",
            ),
            (
                AtomicOp::CswapLt,
                Datatype::ComplexF32,
                AtomicCall::Compare,
                "complex",
            ),
            (
                AtomicOp::Write,
                Datatype::LongDouble,
                AtomicCall::Base,
                "FI_LONG_DOUBLE",
            ),
            (
                AtomicOp::Sum,
                Datatype::ComplexLongDouble,
                AtomicCall::Fetch,
                "FI_LONG_DOUBLE",
            ),
            (AtomicOp::Cswap, Datatype::U8, AtomicCall::Base, "FI_CSWAP"),
            (AtomicOp::Cswap, Datatype::U8, AtomicCall::Fetch, "FI_CSWAP"),
            (
                AtomicOp::Read,
                Datatype::U8,
                AtomicCall::Base,
                "FI_ATOMIC_READ",
            ),
            (
                AtomicOp::Sum,
                Datatype::U8,
                AtomicCall::Compare,
                "compare_atomic",
            ),
        ] {
            let refused = AtomicSpec { op, datatype, call }.check().unwrap_err();
            assert!(refused.to_string().contains(reason), "{refused}");
        }
    }
}
