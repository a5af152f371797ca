//! The arithmetic of atomic operations on each type.
//!
//! Values are bit patterns in a `u128`, narrow ones in its low bits, so that one function serves
//! all types.

use std::cmp::Ordering;

use half::{bf16, f16};
use num_complex::{Complex32, Complex64};

use super::{AtomicOp, Datatype};

impl AtomicOp {
    /// Computes the new value from bit patterns of the old value, the operand and the comparand.
    #[must_use]
    pub fn compute(self, datatype: Datatype, value: u128, operand: u128, comparand: u128) -> u128 {
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
                    // No operation is valid for these.
                    Datatype::LongDouble | Datatype::ComplexLongDouble => value,
                }
            };
        }
        dispatch!(
            I8 => i8, U8 => u8, I16 => i16, U16 => u16, I32 => i32, U32 => u32, I64 => i64,
            U64 => u64, F32 => f32, F64 => f64, ComplexF32 => Complex32, ComplexF64 => Complex64,
            I128 => i128, U128 => u128, F16 => f16, BF16 => bf16
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
    fn bits(self) -> u128;
    /// Returns the value of a bit pattern; bits above the type's width are ignored.
    fn from_bits(bits: u128) -> Self;
}

/// The arithmetic of one type.
trait AtomicArithmetic: AtomicType {
    const ZERO: Self;
    const ONE: Self;
    fn sum(self, other: Self) -> Self;
    fn prod(self, other: Self) -> Self;
    /// Compares two values; `None` if neither is equal, less or greater.
    fn compare(self, other: Self) -> Option<Ordering>;

    fn is_nonzero(self) -> bool {
        self != Self::ZERO
    }

    fn compute(op: AtomicOp, value: Self, operand: Self, comparand: Self) -> Self {
        let logical = |is_true| if is_true { Self::ONE } else { Self::ZERO };
        let swap = |condition| if condition { operand } else { value };
        let bits = <Self as AtomicType>::from_bits;
        let is_less = |a: Self, b: Self| a.compare(b) == Some(Ordering::Less);
        match op {
            AtomicOp::Min => swap(is_less(operand, value)),
            AtomicOp::Max => swap(is_less(value, operand)),
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
            AtomicOp::CswapLe => swap(comparand == value || is_less(comparand, value)),
            AtomicOp::CswapLt => swap(is_less(comparand, value)),
            AtomicOp::CswapGe => swap(comparand == value || is_less(value, comparand)),
            AtomicOp::CswapGt => swap(is_less(value, comparand)),
            AtomicOp::Mswap => {
                bits(operand.bits() & comparand.bits() | value.bits() & !comparand.bits())
            }
        }
    }
}

macro_rules! impl_atomic_types {
    ($(
        $type:ident $variant:ident $bits:ty, $zero:expr, $one:expr,
        |$a:ident, $b:ident| $sum:expr, $prod:expr, $compare:expr,
        |$value:ident| $to_bits:expr, |$bits_in:ident| $from_bits:expr;
    )*) => {$(
        impl sealed::Sealed for $type {}
        impl AtomicType for $type {
            const DATATYPE: Datatype = Datatype::$variant;
            fn bits(self) -> u128 {
                let $value = self;
                u128::from($to_bits)
            }
            fn from_bits(bits: u128) -> Self {
                let $bits_in = bits as $bits;
                $from_bits
            }
        }
        impl AtomicArithmetic for $type {
            const ZERO: Self = $zero;
            const ONE: Self = $one;
            fn sum(self, $b: Self) -> Self {
                let $a = self;
                $sum
            }
            fn prod(self, $b: Self) -> Self {
                let $a = self;
                $prod
            }
            fn compare(self, $b: Self) -> Option<Ordering> {
                let $a = self;
                $compare
            }
        }
    )*};
}

macro_rules! impl_integers {
    ($($type:ident $variant:ident $bits:ident;)*) => {
        impl_atomic_types! {$(
            $type $variant $bits, 0, 1,
            |a, b| a.wrapping_add(b), a.wrapping_mul(b), Some(a.cmp(&b)),
            |value| value as $bits, |bits| bits as $type;
        )*}
    };
}

macro_rules! impl_floats {
    ($($type:ident $variant:ident $bits:ident $zero:expr, $one:expr;)*) => {
        impl_atomic_types! {$(
            $type $variant $bits, $zero, $one,
            |a, b| a + b, a * b, a.partial_cmp(&b),
            |value| value.to_bits(), |bits| $type::from_bits(bits);
        )*}
    };
}

// The real part is in the lower half, as in C. Complex values have no order.
macro_rules! impl_complex {
    ($($type:ident $variant:ident $bits:ident of $part:ident $part_bits:ident;)*) => {
        impl_atomic_types! {$(
            $type $variant $bits, $type::new(0.0, 0.0), $type::new(1.0, 0.0),
            |a, b| a + b, a * b, (a == b).then_some(Ordering::Equal),
            |value| {
                let [real, imaginary] = [value.re, value.im].map($part::to_bits);
                $bits::from(real) | $bits::from(imaginary) << $part_bits::BITS
            },
            |bits| $type::new(
                $part::from_bits(bits as $part_bits),
                $part::from_bits((bits >> $part_bits::BITS) as $part_bits),
            );
        )*}
    };
}

impl_integers! {
    i8 I8 u8;
    u8 U8 u8;
    i16 I16 u16;
    u16 U16 u16;
    i32 I32 u32;
    u32 U32 u32;
    i64 I64 u64;
    u64 U64 u64;
    i128 I128 u128;
    u128 U128 u128;
}

impl_floats! {
    f16 F16 u16 f16::ZERO, f16::ONE;
    bf16 BF16 u16 bf16::ZERO, bf16::ONE;
    f32 F32 u32 0.0, 1.0;
    f64 F64 u64 0.0, 1.0;
}

impl_complex! {
    Complex32 ComplexF32 u64 of f32 u32;
    Complex64 ComplexF64 u128 of f64 u64;
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
        assert_eq!(compute_typed(AtomicOp::Sum, i128::MAX, 1, 0), i128::MIN);
        assert_eq!(compute_typed(AtomicOp::Min, -1i128, 1 << 100, 0), -1);
        assert_eq!(compute_typed(AtomicOp::Max, u128::MAX, 1, 0), u128::MAX);
        let half = |value| f16::from_f32(value);
        assert_eq!(
            compute_typed(AtomicOp::Sum, half(0.5), half(0.25), half(0.0)),
            half(0.75)
        );
        assert_eq!(
            compute_typed(
                AtomicOp::Max,
                bf16::from_f32(-0.5),
                bf16::NEG_ONE,
                bf16::ZERO
            ),
            bf16::from_f32(-0.5)
        );
    }

    #[test]
    fn complex_values_are_added_multiplied_and_compared_for_equality() {
        let (a, b) = (Complex32::new(1.0, 2.0), Complex32::new(3.0, -1.0));
        assert_eq!(a.bits(), 0x4000_0000_3f80_0000, "the real part comes first");
        let zero = Complex32::new(0.0, 0.0);
        let compute = |op| compute_typed(op, a, b, zero);
        assert_eq!(compute(AtomicOp::Sum), Complex32::new(4.0, 1.0));
        assert_eq!(compute(AtomicOp::Prod), Complex32::new(5.0, 5.0));
        assert_eq!(compute(AtomicOp::Land), Complex32::new(1.0, 0.0));
        assert_eq!(compute(AtomicOp::Cswap), a);
        assert_eq!(compute(AtomicOp::CswapNe), b);
        let (a, b) = (Complex64::new(0.0, 1.0), Complex64::new(0.0, 1.0));
        let product = compute_typed(AtomicOp::Prod, a, b, a);
        assert_eq!(product, Complex64::new(-1.0, 0.0));
        assert_eq!(compute_typed(AtomicOp::Cswap, a, product, b), product);
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
