//! The encoding of atomic operations between endpoints of this implementation: the index of each
//! part in its list.

use super::{AtomicCall, AtomicOp, AtomicSpec, Datatype};

impl AtomicSpec {
    /// Returns the code, of 24 bits: the operation in the lowest byte, then the data type, then the
    /// call.
    #[must_use]
    pub fn to_code(self) -> u32 {
        // The lists are in the order of declaration, so a discriminant is an index.
        self.op as u32 | (self.datatype as u32) << 8 | (self.call as u32) << 16
    }

    /// Returns the operation of a code; `None` when no valid operation has the code.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        let index = |byte: u32| (code >> (8 * byte)) as usize & 0xff;
        let (op, datatype, call) = (
            *AtomicOp::ALL.get(index(0))?,
            *Datatype::ALL.get(index(1))?,
            *AtomicCall::ALL.get(index(2))?,
        );
        let spec = Self { op, datatype, call };
        (code >> 24 == 0 && spec.check().is_ok()).then_some(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_valid_operation_round_trips_through_its_code() {
        for (op_index, &op) in AtomicOp::ALL.iter().enumerate() {
            for (type_index, &datatype) in Datatype::ALL.iter().enumerate() {
                for (call_index, &call) in AtomicCall::ALL.iter().enumerate() {
                    let spec = AtomicSpec { op, datatype, call };
                    let code = op_index | type_index << 8 | call_index << 16;
                    assert_eq!(spec.to_code() as usize, code, "{spec:?}");
                    let valid = op.is_valid(datatype, call);
                    assert_eq!(AtomicSpec::from_code(code as u32), valid.then_some(spec));
                }
            }
        }
        assert_eq!(AtomicSpec::from_code(1 << 24), None);
        assert_eq!(AtomicSpec::from_code(0xff), None);
    }
}
