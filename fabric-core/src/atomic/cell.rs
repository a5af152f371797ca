//! Execution of atomic operations on memory that several processors change at the same time.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use portable_atomic::AtomicU128;

use super::{AtomicOp, Datatype};

/// A value in memory that several processors change at the same time.
#[derive(Clone, Copy, Debug)]
pub enum AtomicCell<'a> {
    /// A value of one byte.
    U8(&'a AtomicU8),
    /// A value of two bytes.
    U16(&'a AtomicU16),
    /// A value of four bytes.
    U32(&'a AtomicU32),
    /// A value of eight bytes.
    U64(&'a AtomicU64),
    /// A value of sixteen bytes, on a processor that changes such values atomically.
    U128(&'a AtomicU128),
}

impl AtomicCell<'_> {
    /// Executes an operation and returns the old value. Sequentially consistent.
    ///
    /// # Panics
    /// In debug builds, when the size of the type is not that of the cell.
    #[must_use]
    pub fn execute(self, op: AtomicOp, datatype: Datatype, operand: u128, comparand: u128) -> u128 {
        debug_assert_eq!(self.size(), datatype.size());
        macro_rules! execute_on {
            ($cell:ident, $int:ty) => {{
                // Operations that processors have an instruction for; their result does not depend
                // on the type's sign.
                let bits = operand as $int;
                match op {
                    AtomicOp::Read => return u128::from($cell.load(Ordering::SeqCst)),
                    AtomicOp::Write => return u128::from($cell.swap(bits, Ordering::SeqCst)),
                    AtomicOp::Sum if !datatype.is_float() => {
                        return u128::from($cell.fetch_add(bits, Ordering::SeqCst));
                    }
                    AtomicOp::Bor => return u128::from($cell.fetch_or(bits, Ordering::SeqCst)),
                    AtomicOp::Band => return u128::from($cell.fetch_and(bits, Ordering::SeqCst)),
                    AtomicOp::Bxor => return u128::from($cell.fetch_xor(bits, Ordering::SeqCst)),
                    _ => {}
                }
                let mut value = $cell.load(Ordering::SeqCst);
                loop {
                    let new = op.compute(datatype, u128::from(value), operand, comparand) as $int;
                    match $cell.compare_exchange_weak(
                        value,
                        new,
                        Ordering::SeqCst,
                        Ordering::SeqCst,
                    ) {
                        Ok(old) => return u128::from(old),
                        Err(changed) => value = changed,
                    }
                }
            }};
        }
        match self {
            Self::U8(cell) => execute_on!(cell, u8),
            Self::U16(cell) => execute_on!(cell, u16),
            Self::U32(cell) => execute_on!(cell, u32),
            Self::U64(cell) => execute_on!(cell, u64),
            Self::U128(cell) => execute_on!(cell, u128),
        }
    }

    fn size(self) -> usize {
        match self {
            Self::U8(_) => 1,
            Self::U16(_) => 2,
            Self::U32(_) => 4,
            Self::U64(_) => 8,
            Self::U128(_) => 16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atomic::AtomicCall;

    /// Every operation on a cell stores what `compute` returns, and returns the old value, on the
    /// paths that bypass `compute` too.
    #[test]
    fn atomic_cells_agree_with_compute() {
        let values = [
            0u128,
            1,
            2,
            0x7f,
            0x80,
            0xff,
            0x7fff,
            0x8000,
            u64::MAX.into(),
            1 << 63,
            0x3ff0_0000_0000_0000,
            u128::MAX,
            1 << 127,
            0x3ff0_0000_0000_0000 << 64,
        ];
        for &datatype in Datatype::ALL {
            if datatype.is_long_double() {
                continue;
            }
            let mask = u128::MAX >> (128 - 8 * datatype.size());
            for &op in AtomicOp::ALL {
                for &call in AtomicCall::ALL {
                    if !op.is_valid(datatype, call) {
                        continue;
                    }
                    for (value, operand) in values
                        .iter()
                        .flat_map(|value| values.iter().map(move |operand| (*value, *operand)))
                    {
                        let (value, operand) = (value & mask, operand & mask);
                        let (one, two) = (AtomicU8::new(value as u8), AtomicU16::new(value as u16));
                        let (four, eight) =
                            (AtomicU32::new(value as u32), AtomicU64::new(value as u64));
                        let sixteen = AtomicU128::new(value);
                        let cell = match datatype.size() {
                            1 => AtomicCell::U8(&one),
                            2 => AtomicCell::U16(&two),
                            4 => AtomicCell::U32(&four),
                            8 => AtomicCell::U64(&eight),
                            _ => AtomicCell::U128(&sixteen),
                        };
                        assert_eq!(
                            cell.execute(op, datatype, operand, 1),
                            value,
                            "{op:?} {datatype:?}"
                        );
                        let stored = cell.execute(AtomicOp::Read, datatype, 0, 0);
                        assert_eq!(
                            stored,
                            op.compute(datatype, value, operand, 1) & mask,
                            "{op:?} {datatype:?}"
                        );
                    }
                }
            }
        }
    }
}
