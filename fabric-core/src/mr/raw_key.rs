//! Raw keys (`FI_MR_RAW`), which peers map to the keys of operations.

use std::collections::HashMap;

use crate::error::{Error, Result};

/// Length of the raw key of a region in a domain that requires `FI_MR_RAW`, in bytes: its key, and
/// a check word of the key and the base address.
pub const RAW_KEY_LEN: usize = 16;

/// Largest number of mappings of raw keys in a domain.
const MAX_MAPPINGS: usize = 1 << 16;

/// Encodes the raw key of a region with this key and base address.
#[must_use]
pub fn encode_raw_key(key: u64, base: u64) -> [u8; RAW_KEY_LEN] {
    let words = u128::from(key) | u128::from(check_word(key, base)) << 64;
    words.to_le_bytes()
}

/// Decodes a raw key to the key of the region: one of [`RAW_KEY_LEN`] bytes or, unless the domain
/// `requires_raw` keys, one of 8, which is the key itself.
///
/// # Errors
/// [`Error::Invalid`] for another length, or when the raw key is not that of a region with this
/// base address.
pub fn decode_raw_key(raw_key: &[u8], base: u64, requires_raw: bool) -> Result<u64> {
    let invalid = |why: String| Error::Invalid {
        what: "raw key (FI_MR_RAW)",
        why,
    };
    if let Ok(key) = raw_key.try_into()
        && !requires_raw
    {
        return Ok(u64::from_le_bytes(key));
    }
    let words: [u8; RAW_KEY_LEN] = raw_key.try_into().map_err(|_| {
        let len = raw_key.len();
        let or_key = if requires_raw { "" } else { "8 or " };
        invalid(format!(
            "it has {len} bytes, expected {or_key}{RAW_KEY_LEN}"
        ))
    })?;
    let key = u128::from_le_bytes(words) as u64;
    if words == encode_raw_key(key, base) {
        return Ok(key);
    }
    Err(invalid(format!(
        "it is not that of a region with base address {base:#x}"
    )))
}

fn check_word(key: u64, base: u64) -> u64 {
    let mixed = (key ^ base.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    !(mixed ^ mixed >> 32)
}

/// The keys that a domain has mapped. A key that was mapped several times is mapped until as many
/// unmappings: several peers may have a region with the same key.
#[derive(Debug, Default)]
pub(super) struct MappedKeys {
    /// The number of mappings of each key, at least 1.
    mappings: HashMap<u64, usize>,
    /// The sum of these numbers.
    total: usize,
}

impl MappedKeys {
    /// Adds a mapping of this key.
    ///
    /// # Errors
    /// [`Error::TooMany`].
    pub(super) fn map(&mut self, key: u64) -> Result<()> {
        let (count, limit) = (self.total + 1, MAX_MAPPINGS);
        if count > limit {
            return Err(Error::TooMany {
                what: "mappings of raw keys in a domain",
                count,
                limit,
            });
        }
        *self.mappings.entry(key).or_default() += 1;
        self.total = count;
        Ok(())
    }

    /// Removes a mapping of this key.
    ///
    /// # Errors
    /// [`Error::Key`] when the key is not mapped.
    pub(super) fn unmap(&mut self, key: u64) -> Result<()> {
        self.check(key)?;
        if let Some(count) = self.mappings.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.mappings.remove(&key);
            }
        }
        self.total -= 1;
        Ok(())
    }

    /// Checks that the key is mapped.
    ///
    /// # Errors
    /// [`Error::Key`].
    pub(super) fn check(&self, key: u64) -> Result<()> {
        if self.mappings.contains_key(&key) {
            return Ok(());
        }
        Err(Error::Key {
            key,
            why: "is not mapped in this domain (FI_MR_RAW); use Domain::map_raw",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_key_decodes_with_its_base_address_only() {
        for (key, base) in [(0, 0), (7, 0), (u64::MAX, 1 << 40), (1 << 63, u64::MAX)] {
            let raw_key = encode_raw_key(key, base);
            assert_eq!(decode_raw_key(&raw_key, base, true), Ok(key));
            assert_eq!(decode_raw_key(&raw_key[..8], base, false), Ok(key));
            assert!(decode_raw_key(&raw_key[..8], base, true).is_err());
            assert!(decode_raw_key(&raw_key, base ^ 1 << 12, true).is_err());
            for len in [0, 7, 9, 15] {
                assert!(
                    decode_raw_key(&raw_key[..len], base, false).is_err(),
                    "{len}"
                );
            }
            for bit in 0..128 {
                let mut changed = raw_key;
                changed[bit / 8] ^= 1 << (bit % 8);
                assert!(decode_raw_key(&changed, base, false).is_err(), "bit {bit}");
            }
        }
        assert!(decode_raw_key(&[0; RAW_KEY_LEN], 0, true).is_err());
    }

    #[test]
    fn key_is_mapped_until_every_mapping_is_removed() {
        let mut keys = MappedKeys::default();
        assert!(keys.check(5).is_err() && keys.unmap(5).is_err());
        keys.map(5).unwrap();
        keys.map(5).unwrap();
        keys.unmap(5).unwrap();
        assert!(keys.check(5).is_ok() && keys.check(6).is_err());
        keys.unmap(5).unwrap();
        assert!(keys.check(5).is_err() && keys.unmap(5).is_err());
        for key in 0..MAX_MAPPINGS as u64 {
            keys.map(key % 3).unwrap();
        }
        assert!(matches!(keys.map(9), Err(Error::TooMany { .. })));
        keys.unmap(2).unwrap();
        keys.map(9).unwrap();
    }
}
