//! Atomic operations as numbers, for what peers of this library say to each other.

use super::{AtomicCall, AtomicOp, AtomicSpec, Datatype};

const OPS: [AtomicOp; 19] = [
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
const TYPES: [Datatype; 10] = [
    Datatype::I8,
    Datatype::U8,
    Datatype::I16,
    Datatype::U16,
    Datatype::I32,
    Datatype::U32,
    Datatype::I64,
    Datatype::U64,
    Datatype::F32,
    Datatype::F64,
];
const CALLS: [AtomicCall; 3] = [AtomicCall::Base, AtomicCall::Fetch, AtomicCall::Compare];

impl AtomicSpec {
    /// Its number, of 24 bits.
    #[must_use]
    pub fn to_code(self) -> u32 {
        let of = |found: Option<usize>| found.map_or(0xff, |at| at as u32);
        of(OPS.iter().position(|op| *op == self.op))
            | of(TYPES.iter().position(|datatype| *datatype == self.datatype)) << 8
            | of(CALLS.iter().position(|call| *call == self.call)) << 16
    }

    /// The operation of this number; `None` when there is none.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        let index = |at: u32| (code >> (8 * at)) as usize & 0xff;
        let (op, datatype, call) = (*OPS.get(index(0))?, *TYPES.get(index(1))?, *CALLS.get(index(2))?);
        let spec = Self { op, datatype, call };
        (code >> 24 == 0 && spec.check().is_ok()).then_some(spec)
    }
}
