//! Atomic operations on a peer's memory: which there are, on which types, and what they compute.
//!
//! Values travel as bit patterns in a `u64`, narrow ones in its low bits, so that one function serves all types.

mod code;

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::error::{Error, Result};

/// The longest row of values of one atomic operation, in bytes.
pub const MAX_ATOMIC: usize = 4096;

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

/// What is computed from the value in memory and the operand (`fi_op`). What it computes becomes the value in memory.
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

impl AtomicOp {
    /// Whether this operation exists for the type in this call (`fi_atomicvalid`, `fi_fetch_atomicvalid`,
    /// `fi_compare_atomicvalid`).
    #[doc(alias = "fi_atomicvalid")]
    #[must_use]
    pub fn is_valid(self, datatype: Datatype, call: AtomicCall) -> bool {
        let bits = matches!(self, Self::Bor | Self::Band | Self::Bxor | Self::Mswap);
        if bits && datatype.is_float() {
            return false;
        }
        match call {
            AtomicCall::Base => !self.compares() && self != Self::Read,
            AtomicCall::Fetch => !self.compares(),
            AtomicCall::Compare => self.compares(),
        }
    }

    /// Whether it has a comparand.
    #[must_use]
    pub fn compares(self) -> bool {
        use AtomicOp::{Cswap, CswapGe, CswapGt, CswapLe, CswapLt, CswapNe, Mswap};
        matches!(self, Cswap | CswapNe | CswapLe | CswapLt | CswapGe | CswapGt | Mswap)
    }

    /// What becomes of `value`: bit patterns in, bit pattern out.
    #[must_use]
    pub fn compute(self, datatype: Datatype, value: u64, operand: u64, comparand: u64) -> u64 {
        macro_rules! of {
            ($($variant:ident => $type:ty),*) => {
                match datatype {
                    $(Datatype::$variant => {
                        let [value, operand, comparand] = [value, operand, comparand].map(<$type as AtomicType>::from_bits);
                        AtomicType::bits(<$type as Value>::compute(self, value, operand, comparand))
                    })*
                }
            };
        }
        of!(I8 => i8, U8 => u8, I16 => i16, U16 => u16, I32 => i32, U32 => u32, I64 => i64, U64 => u64, F32 => f32, F64 => f64)
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
            AtomicCall::Fetch => "this fetching atomic operation on this type (fi_fetch_atomicvalid says no)",
            AtomicCall::Compare => {
                "this comparing atomic operation on this type (fi_compare_atomicvalid says no)"
            }
        }))
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A type that atomic operations work on.
pub trait AtomicType:
    sealed::Sealed + Copy + PartialEq + std::fmt::Debug + Send + Sync + Unpin + 'static
{
    /// Its name.
    const DATATYPE: Datatype;
    /// Its bit pattern.
    fn bits(self) -> u64;
    /// The value of a bit pattern; the high bits are ignored.
    fn from_bits(bits: u64) -> Self;
}

/// How operations compute on a type.
trait Value: AtomicType + PartialOrd {
    const ZERO: Self;
    const ONE: Self;
    fn sum(self, other: Self) -> Self;
    fn prod(self, other: Self) -> Self;

    fn truth(self) -> bool {
        self != Self::ZERO
    }

    fn compute(op: AtomicOp, value: Self, operand: Self, comparand: Self) -> Self {
        let logical = |truth| if truth { Self::ONE } else { Self::ZERO };
        let swap = |yes| if yes { operand } else { value };
        let bits = <Self as AtomicType>::from_bits;
        match op {
            AtomicOp::Min => swap(operand < value),
            AtomicOp::Max => swap(operand > value),
            AtomicOp::Sum => value.sum(operand),
            AtomicOp::Prod => value.prod(operand),
            AtomicOp::Lor => logical(value.truth() || operand.truth()),
            AtomicOp::Land => logical(value.truth() && operand.truth()),
            AtomicOp::Lxor => logical(value.truth() != operand.truth()),
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
            AtomicOp::Mswap => bits(operand.bits() & comparand.bits() | value.bits() & !comparand.bits()),
        }
    }
}

macro_rules! types {
    ($($type:ident $variant:ident $bits:ty, |$a:ident, $b:ident| $sum:expr, $prod:expr, |$value:ident| $to:expr, |$from:ident| $of:expr;)*) => {$(
        impl sealed::Sealed for $type {}
        impl AtomicType for $type {
            const DATATYPE: Datatype = Datatype::$variant;
            fn bits(self) -> u64 {
                let $value = self;
                u64::from($to)
            }
            fn from_bits(bits: u64) -> Self {
                let $from = bits as $bits;
                $of
            }
        }
        impl Value for $type {
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

types! {
    i8 I8 u8, |a, b| a.wrapping_add(b), a.wrapping_mul(b), |v| v.cast_unsigned(), |bits| bits.cast_signed();
    u8 U8 u8, |a, b| a.wrapping_add(b), a.wrapping_mul(b), |v| v, |bits| bits;
    i16 I16 u16, |a, b| a.wrapping_add(b), a.wrapping_mul(b), |v| v.cast_unsigned(), |bits| bits.cast_signed();
    u16 U16 u16, |a, b| a.wrapping_add(b), a.wrapping_mul(b), |v| v, |bits| bits;
    i32 I32 u32, |a, b| a.wrapping_add(b), a.wrapping_mul(b), |v| v.cast_unsigned(), |bits| bits.cast_signed();
    u32 U32 u32, |a, b| a.wrapping_add(b), a.wrapping_mul(b), |v| v, |bits| bits;
    i64 I64 u64, |a, b| a.wrapping_add(b), a.wrapping_mul(b), |v| v.cast_unsigned(), |bits| bits.cast_signed();
    u64 U64 u64, |a, b| a.wrapping_add(b), a.wrapping_mul(b), |v| v, |bits| bits;
    f32 F32 u32, |a, b| a + b, a * b, |v| v.to_bits(), |bits| f32::from_bits(bits);
    f64 F64 u64, |a, b| a + b, a * b, |v| v.to_bits(), |bits| f64::from_bits(bits);
}

/// A place in memory that several processors change at the same time.
#[derive(Clone, Copy, Debug)]
pub enum Cell<'a> {
    /// One byte.
    One(&'a AtomicU8),
    /// Two.
    Two(&'a AtomicU16),
    /// Four.
    Four(&'a AtomicU32),
    /// Eight.
    Eight(&'a AtomicU64),
}

impl Cell<'_> {
    /// Executes an operation here; returns the value that was there before. Sequentially consistent.
    ///
    /// # Panics
    /// In debug builds, when the type has another size.
    #[must_use]
    pub fn execute(self, op: AtomicOp, datatype: Datatype, operand: u64, comparand: u64) -> u64 {
        debug_assert_eq!(self.size(), datatype.size());
        macro_rules! on {
            ($cell:ident, $int:ty) => {{
                // What the processor can do in one instruction; the type's sign does not matter for these.
                let bits = operand as $int;
                match op {
                    AtomicOp::Read => return u64::from($cell.load(Ordering::SeqCst)),
                    AtomicOp::Write => return u64::from($cell.swap(bits, Ordering::SeqCst)),
                    AtomicOp::Sum if !datatype.is_float() => {
                        return u64::from($cell.fetch_add(bits, Ordering::SeqCst));
                    }
                    AtomicOp::Bor => return u64::from($cell.fetch_or(bits, Ordering::SeqCst)),
                    AtomicOp::Band => return u64::from($cell.fetch_and(bits, Ordering::SeqCst)),
                    AtomicOp::Bxor => return u64::from($cell.fetch_xor(bits, Ordering::SeqCst)),
                    _ => {}
                }
                let mut value = $cell.load(Ordering::SeqCst);
                loop {
                    let new = op.compute(datatype, u64::from(value), operand, comparand) as $int;
                    match $cell.compare_exchange_weak(value, new, Ordering::SeqCst, Ordering::SeqCst) {
                        Ok(old) => return u64::from(old),
                        Err(changed) => value = changed,
                    }
                }
            }};
        }
        match self {
            Self::One(cell) => on!(cell, u8),
            Self::Two(cell) => on!(cell, u16),
            Self::Four(cell) => on!(cell, u32),
            Self::Eight(cell) => on!(cell, u64),
        }
    }

    fn size(self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Two(_) => 2,
            Self::Four(_) => 4,
            Self::Eight(_) => 8,
        }
    }
}

/// The operands of one atomic operation: a value, an array of values, or a vector of them. An operation on several is
/// atomic for each value, not for the row.
pub trait Row: Clone + Send + Unpin + 'static {
    /// The type of the values.
    type Element: AtomicType;
    /// The values.
    fn elements(&self) -> &[Self::Element];
    /// A row of as many values.
    #[must_use]
    fn like(&self, element: impl FnMut(usize) -> Self::Element) -> Self;
}

impl<T: AtomicType> Row for T {
    type Element = T;

    fn elements(&self) -> &[T] {
        std::slice::from_ref(self)
    }

    fn like(&self, mut element: impl FnMut(usize) -> T) -> Self {
        element(0)
    }
}

impl<T: AtomicType, const N: usize> Row for [T; N] {
    type Element = T;

    fn elements(&self) -> &[T] {
        self
    }

    fn like(&self, element: impl FnMut(usize) -> T) -> Self {
        std::array::from_fn(element)
    }
}

impl<T: AtomicType> Row for Vec<T> {
    type Element = T;

    fn elements(&self) -> &[T] {
        self
    }

    fn like(&self, element: impl FnMut(usize) -> T) -> Self {
        (0..self.len()).map(element).collect()
    }
}

/// Puts a value's bytes behind `out`.
pub fn put<T: AtomicType>(value: T, out: &mut Vec<u8>) {
    out.extend_from_slice(&value.bits().to_le_bytes()[..T::DATATYPE.size()]);
}

/// The bit pattern of value `index` in a row of values of this size. 0 beyond its end.
#[must_use]
pub fn bits_at(bytes: &[u8], index: usize, size: usize) -> u64 {
    let mut word = [0; 8];
    if let Some(value) = bytes.get(index * size..(index + 1) * size) {
        word[..size].copy_from_slice(value);
    }
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTS: [Datatype; 8] = [
        Datatype::I8,
        Datatype::U8,
        Datatype::I16,
        Datatype::U16,
        Datatype::I32,
        Datatype::U32,
        Datatype::I64,
        Datatype::U64,
    ];
    const ALL: [AtomicOp; 19] = [
        AtomicOp::Min,
        AtomicOp::Max,
        AtomicOp::Sum,
        AtomicOp::Prod,
        AtomicOp::Lor,
        AtomicOp::Land,
        AtomicOp::Bor,
        AtomicOp::Band,
        AtomicOp::Lxor,
        AtomicOp::Bxor,
        AtomicOp::Read,
        AtomicOp::Write,
        AtomicOp::Cswap,
        AtomicOp::CswapNe,
        AtomicOp::CswapLe,
        AtomicOp::CswapLt,
        AtomicOp::CswapGe,
        AtomicOp::CswapGt,
        AtomicOp::Mswap,
    ];

    fn run<T: AtomicType>(op: AtomicOp, value: T, operand: T, comparand: T) -> T {
        T::from_bits(op.compute(T::DATATYPE, value.bits(), operand.bits(), comparand.bits()))
    }

    #[test]
    fn signs_and_widths_are_those_of_the_type() {
        assert_eq!(run(AtomicOp::Min, -1i8, 1, 0), -1);
        assert_eq!(run(AtomicOp::Min, 0xffu8, 1, 0), 1);
        assert_eq!(run(AtomicOp::Max, -1i32, 1, 0), 1);
        assert_eq!(run(AtomicOp::Sum, u16::MAX, 2, 0), 1);
        assert_eq!(run(AtomicOp::Sum, i64::MAX, 1, 0), i64::MIN);
        assert_eq!(run(AtomicOp::Prod, 200u8, 2, 0), 144);
        assert_eq!(run(AtomicOp::Sum, 0.5f32, 0.25, 0.0), 0.75);
        assert_eq!(run(AtomicOp::Max, -0.5f64, -1.5, 0.0), -0.5);
        assert_eq!(run(AtomicOp::Prod, 3.0f64, -2.0, 0.0), -6.0);
        assert_eq!(run(AtomicOp::Lor, 0.0f32, -0.0, 0.0), 0.0, "a negative zero is false");
        assert_eq!(run(AtomicOp::Land, 7i16, -3, 0), 1);
        assert_eq!(run(AtomicOp::Lxor, 7u32, 9, 0), 0);
        assert_eq!(run(AtomicOp::Bxor, 0b1100u8, 0b1010, 0), 0b0110);
    }

    /// The comparand stands on the left: `FI_CSWAP_LT` swaps when it is less than the value.
    #[test]
    fn comparing_swaps_say_whose_side_they_are_on() {
        for (op, below, equal, above) in [
            (AtomicOp::Cswap, false, true, false),
            (AtomicOp::CswapNe, true, false, true),
            (AtomicOp::CswapLt, true, false, false),
            (AtomicOp::CswapLe, true, true, false),
            (AtomicOp::CswapGt, false, false, true),
            (AtomicOp::CswapGe, false, true, true),
        ] {
            for (comparand, swapped) in [(-2, below), (-1, equal), (0, above)] {
                assert_eq!(run(op, -1i64, 9, comparand) == 9, swapped, "{op:?} with {comparand}");
            }
        }
        assert_eq!(run(AtomicOp::Mswap, 0xf0u8, 0x0f, 0x3c), 0xcc);
    }

    /// Every operation in a cell leaves what `compute` says and returns what was there: the short cuts as well.
    #[test]
    fn cells_do_what_is_computed() {
        let values = [0u64, 1, 2, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, u64::MAX, 1 << 63, 0x3ff0_0000_0000_0000];
        for datatype in INTS.into_iter().chain([Datatype::F32, Datatype::F64]) {
            let mask = u64::MAX >> (64 - 8 * datatype.size());
            for op in ALL {
                for call in [AtomicCall::Base, AtomicCall::Fetch, AtomicCall::Compare] {
                    if !op.is_valid(datatype, call) {
                        continue;
                    }
                    for (value, operand) in values.iter().flat_map(|v| values.iter().map(move |o| (*v, *o))) {
                        let (value, operand) = (value & mask, operand & mask);
                        let (one, two) = (AtomicU8::new(value as u8), AtomicU16::new(value as u16));
                        let (four, eight) = (AtomicU32::new(value as u32), AtomicU64::new(value));
                        let cell = match datatype.size() {
                            1 => Cell::One(&one),
                            2 => Cell::Two(&two),
                            4 => Cell::Four(&four),
                            _ => Cell::Eight(&eight),
                        };
                        assert_eq!(cell.execute(op, datatype, operand, 1), value, "{op:?} {datatype:?}");
                        let left = cell.execute(AtomicOp::Read, datatype, 0, 0);
                        assert_eq!(
                            left,
                            op.compute(datatype, value, operand, 1) & mask,
                            "{op:?} {datatype:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for op in ALL {
            let valid = |datatype, call| op.is_valid(datatype, call);
            assert_eq!(valid(Datatype::U64, AtomicCall::Compare), op.compares());
            assert_eq!(valid(Datatype::U64, AtomicCall::Fetch), !op.compares());
        }
        assert!(!AtomicOp::Read.is_valid(Datatype::U8, AtomicCall::Base));
        assert!(!AtomicOp::Bor.is_valid(Datatype::F32, AtomicCall::Fetch));
        assert!(!AtomicOp::Mswap.is_valid(Datatype::F64, AtomicCall::Compare));
        let spec = AtomicSpec { op: AtomicOp::Bxor, datatype: Datatype::F64, call: AtomicCall::Base };
        assert!(matches!(spec.check(), Err(Error::NotSupported(what)) if what.contains("fi_atomicvalid")));
    }

    #[test]
    fn rows_of_values_are_little_endian() {
        let mut row = Vec::new();
        [1i16, -2, 3].into_iter().for_each(|value| put(value, &mut row));
        assert_eq!(row, [1, 0, 0xfe, 0xff, 3, 0]);
        assert_eq!(i16::from_bits(bits_at(&row, 1, 2)), -2);
        assert_eq!(bits_at(&row, 3, 2), 0);
    }
}
