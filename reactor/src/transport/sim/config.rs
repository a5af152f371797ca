//! Traffic parameters in the name of an endpoint, and the generator of random numbers.

use fabric_core::{Address, Error, Result, Scheme};

/// Traffic parameters of the streams to an endpoint, encoded in the endpoint's name as
/// [`SimTransport`](super::SimTransport) describes. The last `@` separates label and parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SimConfig {
    /// Seed of the delays.
    pub(super) seed: u64,
    /// Maximum delay of a read, in progress passes of the receiver; 0 reads in the next pass.
    pub(super) max_delay: u32,
    /// Capacity of a stream in units of 16 KiB; at least 1.
    pub(super) channel_capacity: usize,
}

impl Default for SimConfig {
    /// Returns seed 0, at most 3 passes of delay, streams of 256 KiB.
    fn default() -> Self {
        Self {
            seed: 0,
            max_delay: 3,
            channel_capacity: 16,
        }
    }
}

impl SimConfig {
    /// Parses the parameters in the name of this address.
    ///
    /// # Errors
    /// [`Error::WrongScheme`] for another provider's address; [`Error::BadAddress`] unless one to
    /// three valid numbers follow the `@`.
    pub(super) fn from_address(address: &Address) -> Result<Self> {
        address.check_scheme(Scheme::Sim)?;
        let mut config = Self::default();
        let Some((_, numbers)) = split_name(address.name()) else {
            return Ok(config);
        };
        let bad = |why| Error::BadAddress {
            text: address.to_string(),
            why,
        };
        let mut numbers = numbers.split('+');
        if let Some(seed) = numbers.next() {
            config.seed = seed
                .parse()
                .map_err(|_| bad("the seed behind @ must be a 64-bit number"))?;
        }
        if let Some(delay) = numbers.next() {
            config.max_delay = delay
                .parse()
                .map_err(|_| bad("the maximum delay must be a 32-bit number"))?;
        }
        if let Some(capacity) = numbers.next() {
            let capacity = capacity.parse().ok().filter(|&units| units > 0);
            config.channel_capacity =
                capacity.ok_or_else(|| bad("the capacity of a stream must be a number >= 1"))?;
        }
        match numbers.next() {
            Some(_) => Err(bad(
                "at most three numbers may follow @: SEED+DELAY+CAPACITY",
            )),
            None => Ok(config),
        }
    }
}

/// Splits a name into its label and its parameters, if it has any.
pub(super) fn split_name(name: &str) -> Option<(&str, &str)> {
    name.rsplit_once('@')
}

/// Generator of random numbers (splitmix64).
#[derive(Clone, Debug)]
pub(super) struct SimRng(u64);

impl SimRng {
    /// Returns the generator for the stream from this sender, under this seed.
    pub(super) fn new(seed: u64, sender: &Address) -> Self {
        // FNV-1a: unlike the standard hasher, it returns the same hash in every version.
        let name = sender
            .name()
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
            });
        // The seed is mixed as well, so that adjacent seeds and similar names give unrelated
        // sequences.
        let mut seed = Self(seed);
        Self(seed.next() ^ name)
    }

    /// Returns the next number, from 0 to `max`.
    pub(super) fn next_up_to(&mut self, max: u32) -> u64 {
        self.next() % (u64::from(max) + 1)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
