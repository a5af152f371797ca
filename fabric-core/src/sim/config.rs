//! What the name of an endpoint says about the traffic to it, and the generator of delays.

use crate::address::{Address, Scheme};
use crate::error::{Error, Result};

/// How the network treats packets on their way to an endpoint; written into the endpoint's name.
///
/// A name reads `LABEL`, or `LABEL@SEED`, `LABEL@SEED+DELAY`, `LABEL@SEED+DELAY+CAPACITY`, in
/// decimal numbers; what is left out is as in [`SimConfig::default`]. What counts is the last `@`.
/// The numbers are part of the name: peers write them too. With an empty label the endpoint gets a
/// fresh one and keeps its numbers.
///
/// ```
/// use fabric_core::sim::SimConfig;
/// let config = SimConfig::of(&"sim://echo@7+20".parse()?)?;
/// assert_eq!((config.seed, config.max_delay, config.pair_capacity), (7, 20, 16));
/// assert_eq!(SimConfig::of(&"sim://echo".parse()?)?, SimConfig::default());
/// # Ok::<(), fabric_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SimConfig {
    /// Which sequence of delays is drawn.
    pub seed: u64,
    /// The longest delay of a packet, in progress passes of the receiver; 0 delivers in the next
    /// pass.
    pub max_delay: u32,
    /// How many packets of one sender may be on their way; at least 1.
    pub pair_capacity: usize,
}

impl Default for SimConfig {
    /// Seed 0, up to 3 passes of delay, 16 packets per pair.
    fn default() -> Self {
        Self {
            seed: 0,
            max_delay: 3,
            pair_capacity: 16,
        }
    }
}

impl SimConfig {
    /// What the name in this address says.
    ///
    /// # Errors
    /// [`Error::WrongScheme`] for another provider's address; [`Error::BadAddress`] when there is
    /// an `@` in the name and something else than one to three numbers behind it.
    pub fn from_address(address: &Address) -> Result<Self> {
        check_scheme(address)?;
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
                .map_err(|_| bad("behind @ stands the seed, a number of 64 bits"))?;
        }
        if let Some(delay) = numbers.next() {
            config.max_delay = delay
                .parse()
                .map_err(|_| bad("the longest delay is a number of 32 bits"))?;
        }
        if let Some(capacity) = numbers.next() {
            let capacity = capacity.parse().ok().filter(|&packets| packets > 0);
            config.pair_capacity =
                capacity.ok_or_else(|| bad("the capacity of a pair is a number from 1"))?;
        }
        match numbers.next() {
            Some(_) => Err(bad(
                "behind @ stand at most three numbers: SEED+DELAY+CAPACITY",
            )),
            None => Ok(config),
        }
    }
}

/// Refuses addresses of other providers.
pub(super) fn check_scheme(address: &Address) -> Result<()> {
    if address.scheme() == Scheme::Sim {
        return Ok(());
    }
    Err(Error::WrongScheme {
        provider: super::NAME,
        address: address.clone(),
    })
}

/// The label of a name, and its numbers if it has some.
pub(super) fn split_name(name: &str) -> Option<(&str, &str)> {
    name.rsplit_once('@')
}

/// Draws delays: splitmix64, small and good enough.
#[derive(Clone, Debug)]
pub(super) struct DelayRng(u64);

impl DelayRng {
    /// The sequence of packets from this sender, under this seed.
    pub(super) fn new(seed: u64, sender: &Address) -> Self {
        // FNV-1a: unlike the standard hasher it is the same in every run.
        let name = sender
            .name()
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
            });
        // Both are mixed, so that neighbouring seeds and similar names have nothing in common.
        let mut seed = Self(seed);
        Self(seed.next() ^ name)
    }

    /// The next delay, from 0 to `longest`.
    pub(super) fn next_delay(&mut self, longest: u32) -> u64 {
        self.next() % (u64::from(longest) + 1)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
