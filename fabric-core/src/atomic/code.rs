//! The encoding of atomic operations between endpoints of this implementation: the index of each
//! part in its list.

use super::{AtomicCall, AtomicOp, AtomicSpec, Datatype};

impl AtomicSpec {
    /// Returns the code, of 24 bits.
    #[must_use]
    pub fn to_code(self) -> u32 {
        let code = |found: Option<usize>| found.map_or(0xff, |at| at as u32);
        code(AtomicOp::ALL.iter().position(|op| *op == self.op))
            | code(
                Datatype::ALL
                    .iter()
                    .position(|datatype| *datatype == self.datatype),
            ) << 8
            | code(AtomicCall::ALL.iter().position(|call| *call == self.call)) << 16
    }

    /// Returns the operation of a code; `None` when there is none.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        let index = |at: u32| (code >> (8 * at)) as usize & 0xff;
        let (op, datatype, call) = (
            *AtomicOp::ALL.get(index(0))?,
            *Datatype::ALL.get(index(1))?,
            *AtomicCall::ALL.get(index(2))?,
        );
        let spec = Self { op, datatype, call };
        (code >> 24 == 0 && spec.check().is_ok()).then_some(spec)
    }
}
