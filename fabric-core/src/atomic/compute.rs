//! The arithmetic of atomic operations on each type.
//!
//! Values are bit patterns in a `u64`, narrow ones in its low bits, so that one function serves all
//! types.

use super::{AtomicOp, Datatype};

impl AtomicOp {
    /// Computes the new value from bit patterns of the old value, the operand and the comparand.
    #[must_use]
    pub fn compute(self, datatype: Datatype, value: u64, operand: u64, comparand: u64) -> u64 {
        macro_rules! dispatch {
            ($($variant:ident => $type:ty),*) => {
                match datatype {
                    $(Datatype::$variant => {
                        let [value, operand, comparand] =
                            [value, operand, comparand].map(<$type as AtomicType>::from_bits);
                        AtomicType::bits(<$type as AtomicArithmetic>::compute(
                            self, value, operand, comparand,
                        ))
                    })*
                }
            };
        }
        dispatch!(
            I8 => i8, U8 => u8, I16 => i16, U16 => u16, I32 => i32, U32 => u32, I64 => i64,
            U64 => u64, F32 => f32, F64 => f64
        )
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A type that atomic operations are defined on.
pub trait AtomicType:
    sealed::Sealed + Copy + PartialEq + std::fmt::Debug + Send + Sync + Unpin + 'static
{
    /// The data type's identifier.
    const DATATYPE: Datatype;
    /// Returns the bit pattern.
    fn bits(self) -> u64;
    /// Returns the value of a bit pattern; bits above the type's width are ignored.
    fn from_bits(bits: u64) -> Self;
}

/// The arithmetic of one type.
trait AtomicArithmetic: AtomicType + PartialOrd {
    const ZERO: Self;
    const ONE: Self;
    fn sum(self, other: Self) -> Self;
    fn prod(self, other: Self) -> Self;

    fn is_nonzero(self) -> bool {
        self != Self::ZERO
    }

    fn compute(op: AtomicOp, value: Self, operand: Self, comparand: Self) -> Self {
        let logical = |is_true| if is_true { Self::ONE } else { Self::ZERO };
        let swap = |condition| if condition { operand } else { value };
        let bits = <Self as AtomicType>::from_bits;
        match op {
            AtomicOp::Min => swap(operand < value),
            AtomicOp::Max => swap(operand > value),
            AtomicOp::Sum => value.sum(operand),
            AtomicOp::Prod => value.prod(operand),
            AtomicOp::Lor => logical(value.is_nonzero() || operand.is_nonzero()),
            AtomicOp::Land => logical(value.is_nonzero() && operand.is_nonzero()),
            AtomicOp::Lxor => logical(value.is_nonzero() != operand.is_nonzero()),
            AtomicOp::Bor => bits(value.bits() | operand.bits()),
            AtomicOp::Band => bits(value.bits() & operand.bits()),
            AtomicOp::Bxor => bits(value.bits() ^ operand.bits()),
            AtomicOp::Read => value,
            AtomicOp::Write => operand,
            AtomicOp::Cswap => swap(comparand == value),
            AtomicOp::CswapNe => swap(comparand != value),
            AtomicOp::CswapLe => swap(comparand <= value),
            AtomicOp::CswapLt => swap(comparand < value),
            AtomicOp::CswapGe => swap(comparand >= value),
            AtomicOp::CswapGt => swap(comparand > value),
            AtomicOp::Mswap => {
                bits(operand.bits() & comparand.bits() | value.bits() & !comparand.bits())
            }
        }
    }
}

macro_rules! impl_atomic_types {
    ($(
        $type:ident $variant:ident $bits:ty,
        |$a:ident, $b:ident| $sum:expr, $prod:expr,
        |$value:ident| $to_bits:expr, |$bits_in:ident| $from_bits:expr;
    )*) => {$(
        impl sealed::Sealed for $type {}
        impl AtomicType for $type {
            const DATATYPE: Datatype = Datatype::$variant;
            fn bits(self) -> u64 {
                let $value = self;
                u64::from($to_bits)
            }
            fn from_bits(bits: u64) -> Self {
                let $bits_in = bits as $bits;
                $from_bits
            }
        }
        impl AtomicArithmetic for $type {
            const ZERO: Self = 0 as $type;
            const ONE: Self = 1 as $type;
            fn sum(self, $b: Self) -> Self {
                let $a = self;
                $sum
            }
            fn prod(self, $b: Self) -> Self {
                let $a = self;
                $prod
            }
        }
    )*};
}

impl_atomic_types! {
    i8 I8 u8, |a, b| a.wrapping_add(b), a.wrapping_mul(b),
        |v| v.cast_unsigned(), |bits| bits.cast_signed();
    u8 U8 u8, |a, b| a.wrapping_add(b), a.wrapping_mul(b), |v| v, |bits| bits;
    i16 I16 u16, |a, b| a.wrapping_add(b), a.wrapping_mul(b),
        |v| v.cast_unsigned(), |bits| bits.cast_signed();
    u16 U16 u16, |a, b| a.wrapping_add(b), a.wrapping_mul(b), |v| v, |bits| bits;
    i32 I32 u32, |a, b| a.wrapping_add(b), a.wrapping_mul(b),
        |v| v.cast_unsigned(), |bits| bits.cast_signed();
    u32 U32 u32, |a, b| a.wrapping_add(b), a.wrapping_mul(b), |v| v, |bits| bits;
    i64 I64 u64, |a, b| a.wrapping_add(b), a.wrapping_mul(b),
        |v| v.cast_unsigned(), |bits| bits.cast_signed();
    u64 U64 u64, |a, b| a.wrapping_add(b), a.wrapping_mul(b), |v| v, |bits| bits;
    f32 F32 u32, |a, b| a + b, a * b, |v| v.to_bits(), |bits| f32::from_bits(bits);
    f64 F64 u64, |a, b| a + b, a * b, |v| v.to_bits(), |bits| f64::from_bits(bits);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compute_typed<T: AtomicType>(op: AtomicOp, value: T, operand: T, comparand: T) -> T {
        T::from_bits(op.compute(T::DATATYPE, value.bits(), operand.bits(), comparand.bits()))
    }

    #[test]
    fn compute_uses_sign_and_width_of_the_type() {
        assert_eq!(compute_typed(AtomicOp::Min, -1i8, 1, 0), -1);
        assert_eq!(compute_typed(AtomicOp::Min, 0xffu8, 1, 0), 1);
        assert_eq!(compute_typed(AtomicOp::Max, -1i32, 1, 0), 1);
        assert_eq!(compute_typed(AtomicOp::Sum, u16::MAX, 2, 0), 1);
        assert_eq!(compute_typed(AtomicOp::Sum, i64::MAX, 1, 0), i64::MIN);
        assert_eq!(compute_typed(AtomicOp::Prod, 200u8, 2, 0), 144);
        assert_eq!(compute_typed(AtomicOp::Sum, 0.5f32, 0.25, 0.0), 0.75);
        assert_eq!(compute_typed(AtomicOp::Max, -0.5f64, -1.5, 0.0), -0.5);
        assert_eq!(compute_typed(AtomicOp::Prod, 3.0f64, -2.0, 0.0), -6.0);
        assert_eq!(
            compute_typed(AtomicOp::Lor, 0.0f32, -0.0, 0.0),
            0.0,
            "a negative zero is false"
        );
        assert_eq!(compute_typed(AtomicOp::Land, 7i16, -3, 0), 1);
        assert_eq!(compute_typed(AtomicOp::Lxor, 7u32, 9, 0), 0);
        assert_eq!(compute_typed(AtomicOp::Bxor, 0b1100u8, 0b1010, 0), 0b0110);
    }

    /// The comparand is the left side: `FI_CSWAP_LT` swaps when the comparand is less than the
    /// value.
    #[test]
    fn conditional_swaps_compare_comparand_with_target() {
        for (op, below, equal, above) in [
            (AtomicOp::Cswap, false, true, false),
            (AtomicOp::CswapNe, true, false, true),
            (AtomicOp::CswapLt, true, false, false),
            (AtomicOp::CswapLe, true, true, false),
            (AtomicOp::CswapGt, false, false, true),
            (AtomicOp::CswapGe, false, true, true),
        ] {
            for (comparand, swapped) in [(-2, below), (-1, equal), (0, above)] {
                assert_eq!(
                    compute_typed(op, -1i64, 9, comparand) == 9,
                    swapped,
                    "{op:?} with {comparand}"
                );
            }
        }
        assert_eq!(compute_typed(AtomicOp::Mswap, 0xf0u8, 0x0f, 0x3c), 0xcc);
    }
}
