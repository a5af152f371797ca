//! Traffic parameters in the name of an endpoint, and the generator of delays.

use crate::address::{Address, Scheme};
use crate::error::{Error, Result};

/// Traffic parameters of the channels to an endpoint, encoded in the endpoint's name.
///
/// A name reads `LABEL`, `LABEL@SEED`, `LABEL@SEED+DELAY` or `LABEL@SEED+DELAY+CAPACITY`, in
/// decimal numbers; omitted parameters are those of [`SimConfig::default`]. The last `@` separates
/// label and parameters. The parameters are part of the name, so peers must write them too. An
/// endpoint that is opened with an empty label gets a generated one, with the same parameters.
///
/// ```
/// use fabric_core::sim::SimConfig;
/// let config = SimConfig::from_address(&"sim://echo@7+20".parse()?)?;
/// assert_eq!((config.seed, config.max_delay, config.channel_capacity), (7, 20, 16));
/// assert_eq!(SimConfig::from_address(&"sim://echo".parse()?)?, SimConfig::default());
/// # Ok::<(), fabric_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SimConfig {
    /// Seed of the sequence of delays.
    pub seed: u64,
    /// Maximum delay of a packet, in progress passes of the receiver; 0 delivers in the next pass.
    pub max_delay: u32,
    /// Maximum number of packets in flight from one sender; at least 1.
    pub channel_capacity: usize,
}

impl Default for SimConfig {
    /// Returns seed 0, at most 3 passes of delay, 16 packets per channel.
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
    pub fn from_address(address: &Address) -> Result<Self> {
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
            let capacity = capacity.parse().ok().filter(|&packets| packets > 0);
            config.channel_capacity =
                capacity.ok_or_else(|| bad("the capacity of a channel must be a number >= 1"))?;
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

/// Generator of delays (splitmix64).
#[derive(Clone, Debug)]
pub(super) struct DelayRng(u64);

impl DelayRng {
    /// Returns the generator for packets of this sender, under this seed.
    pub(super) fn new(seed: u64, sender: &Address) -> Self {
        // FNV-1a: unlike the standard hasher, it returns the same hash in every run.
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

    /// Returns the next delay, from 0 to `max`.
    pub(super) fn next_delay(&mut self, max: u32) -> u64 {
        self.next() % (u64::from(max) + 1)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
