//! A ledger of received messages: each must arrive once, with the bytes that were sent.

use std::collections::BTreeSet;

/// Bytes in front of a message: its sequence number.
pub(super) const HEADER_LEN: usize = 8;

/// The messages that have arrived.
#[derive(Debug, Default)]
pub(super) struct MessageLedger {
    /// All messages below this number have arrived.
    all_below: u64,
    /// The numbers from `all_below` on that have arrived.
    arrived_above: BTreeSet<u64>,
    pub(super) received: u64,
    pub(super) duplicates: u64,
    pub(super) corrupted: u64,
}

impl MessageLedger {
    /// Records a message, and checks its bytes.
    pub(super) fn record_message(&mut self, message: &[u8]) {
        let Some((number, rest)) = message.split_first_chunk::<HEADER_LEN>() else {
            self.corrupted += 1;
            return;
        };
        let number = u64::from_le_bytes(*number);
        let is_intact = rest
            .iter()
            .enumerate()
            .all(|(at, byte)| *byte == expected_byte(number, at));
        self.corrupted += u64::from(!is_intact);
        self.record_number(number);
    }

    /// Records a sequence number.
    pub(super) fn record_number(&mut self, number: u64) {
        if number < self.all_below || !self.arrived_above.insert(number) {
            self.duplicates += 1;
            return;
        }
        self.received += 1;
        while self.arrived_above.remove(&self.all_below) {
            self.all_below += 1;
        }
    }
}

fn expected_byte(number: u64, at: usize) -> u8 {
    (number as u8)
        .wrapping_mul(31)
        .wrapping_add(at as u8)
        .wrapping_add((at >> 8) as u8)
}

/// Writes a message of this number over a buffer of at least [`HEADER_LEN`] bytes.
pub(super) fn write_message(number: u64, buf: &mut [u8]) {
    let Some((header, rest)) = buf.split_first_chunk_mut::<HEADER_LEN>() else {
        return;
    };
    *header = number.to_le_bytes();
    rest.iter_mut()
        .enumerate()
        .for_each(|(at, byte)| *byte = expected_byte(number, at));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_and_damaged_messages_are_counted() {
        let mut ledger = MessageLedger::default();
        let mut buf = vec![0; 1000];
        for number in [0, 2, 1, 5, 3] {
            write_message(number, &mut buf);
            ledger.record_message(&buf);
        }
        assert_eq!(
            (
                ledger.received,
                ledger.duplicates,
                ledger.corrupted,
                ledger.all_below
            ),
            (5, 0, 0, 4)
        );
        ledger.record_message(&buf);
        ledger.record_number(0);
        assert_eq!(
            (ledger.received, ledger.duplicates, ledger.corrupted),
            (5, 2, 0)
        );
        buf[999] ^= 1;
        buf[0] = 4;
        ledger.record_message(&buf);
        ledger.record_message(&buf[..3]);
        assert_eq!(
            (ledger.received, ledger.corrupted, ledger.all_below),
            (6, 2, 6)
        );
    }
}
