//! Message contents, message sizes and number formatting.

use crate::Result;

const ALPHABET: &[u8; 62] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
/// Rotation of the alphabet from one message to the next, in letters.
const PATTERN_SHIFT: usize = 7;

/// Sizes without `-S`.
pub(crate) const DEFAULT_SIZES: [usize; 6] = [64, 256, 1 << 10, 4 << 10, 64 << 10, 1 << 20];
/// The longest message of `-S all`.
const MAX_SIZE: usize = 6 << 20;

/// The bytes of all messages in one direction: the alphabet repeated, rotated further in each
/// message.
#[derive(Debug, Default)]
pub(crate) struct Pattern {
    messages: usize,
}

impl Pattern {
    /// Returns the alphabet as rotated for the next message.
    fn next_pattern(&mut self) -> [u8; 62] {
        let mut rotated = *ALPHABET;
        rotated.rotate_left(self.messages * PATTERN_SHIFT % ALPHABET.len());
        self.messages += 1;
        rotated
    }

    pub(crate) fn fill(&mut self, buf: &mut [u8]) {
        let rotated = self.next_pattern();
        buf.chunks_mut(rotated.len())
            .for_each(|piece| piece.copy_from_slice(&rotated[..piece.len()]));
    }

    pub(crate) fn check(&mut self, message: &[u8]) -> Result<()> {
        let (number, rotated) = (self.messages, self.next_pattern());
        let mut pieces = message.chunks(rotated.len());
        match pieces.position(|piece| *piece != rotated[..piece.len()]) {
            None => Ok(()),
            Some(at) => {
                let (len, from) = (message.len(), at * rotated.len());
                Err(format!("message {number}, of {len} bytes, differs after byte {from}").into())
            }
        }
    }
}

/// The sizes of `-S all`: 0, the powers of two, and the middles between them.
pub(crate) fn all_sizes() -> Vec<usize> {
    let powers = (0..).map(|power| 1usize << power);
    let sizes = powers
        .flat_map(|size| [Some(size), (size > 1).then_some(size + size / 2)])
        .flatten();
    std::iter::once(0)
        .chain(sizes.take_while(|size| *size <= MAX_SIZE))
        .collect()
}

/// Formats a number with a unit, as `fi_pingpong` does.
pub(crate) fn format_short(number: usize) -> String {
    let (unit, power) = match number {
        _ if number >= 1 << 30 => ("g", 30),
        _ if number >= 1 << 20 => ("m", 20),
        _ if number >= 1 << 10 => ("k", 10),
        _ => return number.to_string(),
    };
    let (whole, rest) = (number >> power, number & ((1 << power) - 1));
    match (rest * 10) >> power {
        0 if rest == 0 => format!("{whole}{unit}"),
        tenths => format!("{whole}.{tenths}{unit}"),
    }
}
