//! Which messages have come: each once, and with the bytes it was sent with.

use std::collections::BTreeSet;

/// Bytes in front of a message: its number.
pub(super) const HEAD: usize = 8;

/// The messages that have come.
#[derive(Debug, Default)]
pub(super) struct Book {
    /// All below have come.
    next: u64,
    /// So have these.
    ahead: BTreeSet<u64>,
    pub(super) received: u64,
    pub(super) twice: u64,
    pub(super) damaged: u64,
}

impl Book {
    /// Enters a message, and looks at its bytes.
    pub(super) fn enter(&mut self, message: &[u8]) {
        let Some((number, rest)) = message.split_first_chunk::<HEAD>() else {
            self.damaged += 1;
            return;
        };
        let number = u64::from_le_bytes(*number);
        let whole = rest
            .iter()
            .enumerate()
            .all(|(at, byte)| *byte == content(number, at));
        self.damaged += u64::from(!whole);
        self.number(number);
    }

    /// Enters a number.
    pub(super) fn number(&mut self, number: u64) {
        if number < self.next || !self.ahead.insert(number) {
            self.twice += 1;
            return;
        }
        self.received += 1;
        while self.ahead.remove(&self.next) {
            self.next += 1;
        }
    }
}

fn content(number: u64, at: usize) -> u8 {
    (number as u8)
        .wrapping_mul(31)
        .wrapping_add(at as u8)
        .wrapping_add((at >> 8) as u8)
}

/// Writes a message of this number over a buffer, of any length from [`HEAD`] on.
pub(super) fn write(number: u64, buf: &mut [u8]) {
    let Some((head, rest)) = buf.split_first_chunk_mut::<HEAD>() else {
        return;
    };
    *head = number.to_le_bytes();
    rest.iter_mut()
        .enumerate()
        .for_each(|(at, byte)| *byte = content(number, at));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_counts_once() {
        let mut book = Book::default();
        let mut buf = vec![0; 1000];
        for number in [0, 2, 1, 5, 3] {
            write(number, &mut buf);
            book.enter(&buf);
        }
        assert_eq!(
            (book.received, book.twice, book.damaged, book.next),
            (5, 0, 0, 4)
        );
        book.enter(&buf);
        book.number(0);
        assert_eq!((book.received, book.twice, book.damaged), (5, 2, 0));
        buf[999] ^= 1;
        buf[0] = 4;
        book.enter(&buf);
        book.enter(&buf[..3]);
        assert_eq!((book.received, book.damaged, book.next), (6, 2, 6));
    }
}
