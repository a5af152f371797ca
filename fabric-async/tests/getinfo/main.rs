//! Discovery here against `fi_getinfo(3)` of Debian's libfabric 1.17, for `shm`, `tcp` and `udp`:
//! 2,000 random sets of hints are accepted or refused by both, apart from the listed deviations. So
//! are sets with one attribute, for each value of it.
//!
//! The random sets come in pairs that differ in one attribute only, once with a value that
//! libfabric accepts if it stands alone, and once with a value that libfabric refuses. Numbers are
//! relative to the limits of the offers, since the limits themselves differ. `tcp` is compared with
//! libfabric's provider `net`, which has the same protocol and both types of endpoints.
//!
//! | module | subject |
//! |---|---|
//! | `attributes` | the attributes and their values |
//! | `deviations` | where both differ, and why |
//! | `libfabric` | libfabric's answers |

mod attributes;
mod deviations;
mod libfabric;
#[allow(dead_code, reason = "other test programs use more of it")]
#[path = "../common/skip.rs"]
mod skip;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use fabric_async::{Error, Hints, Info, discover};

use attributes::{Attribute, context_of};
use deviations::{DEVIATIONS, NEVER_REFUSED};
use libfabric::LibfabricDiscovery;
use skip::{Facility, skip};

/// The number of sets.
const SETS: usize = 2000;
/// Outcomes that each attribute decides at least, each way.
const DECIDED: usize = 20;
/// The most further attributes of a set.
const MAX_FURTHER: u64 = 3;
/// The version of libfabric that the deviations are listed for.
const VERSION: &str = "1.17";

/// The providers: the name here, and libfabric's.
const PROVIDERS: [(&str, &str); 3] = [("shm", "shm"), ("tcp", "net"), ("udp", "udp")];

/// A value of an attribute.
type Item = (&'static str, &'static str);

/// A set of hints.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct HintSet {
    /// The index of the provider.
    provider: usize,
    items: Vec<Item>,
}

impl HintSet {
    /// Returns the set without some of its items.
    fn without(&self, removed: &[Item]) -> Self {
        let items = self.items.iter().copied();
        Self {
            provider: self.provider,
            items: items.filter(|item| !removed.contains(item)).collect(),
        }
    }

    /// Returns the set as `interop/getinfo.c` reads it.
    fn to_line(&self) -> String {
        let mut line = format!("provider={}", PROVIDERS[self.provider].1);
        for (name, value) in &self.items {
            write!(line, " {name}={value}").expect("memory");
        }
        line
    }
}

/// Discovery here, and libfabric's, with the answers so far.
struct Oracle {
    attributes: Vec<&'static Attribute>,
    libfabric: LibfabricDiscovery,
    answers: HashMap<HintSet, bool>,
    offers: HashMap<(usize, Option<&'static str>), Vec<Info>>,
}

impl Oracle {
    /// Asks libfabric about these sets.
    fn ask(&mut self, sets: &[HintSet]) {
        let lines: Vec<_> = sets.iter().map(HintSet::to_line).collect();
        let answers = self.libfabric.accepts(&lines);
        self.answers.extend(sets.iter().cloned().zip(answers));
    }

    /// Returns whether libfabric accepts a set.
    fn libfabric_accepts(&mut self, set: &HintSet) -> bool {
        if !self.answers.contains_key(set) {
            self.ask(std::slice::from_ref(set));
        }
        self.answers[set]
    }

    /// Returns whether `discover` accepts a set.
    fn accepts(&mut self, set: &HintSet) -> bool {
        let hints = Hints::new().provider(PROVIDERS[set.provider].0);
        let mut ep_types = set.items.iter().filter(|(name, _)| *name == "ep_type");
        let ep_type = ep_types.next().map(|(_, value)| *value);
        let attributes = &self.attributes;
        let apply = |hints, (name, value): &Item, offers: &[Info]| {
            let mut named = attributes.iter().filter(|other| other.name == *name);
            let attribute = named.next().expect("an attribute");
            (attribute.set)(hints, value, offers)
        };
        let offers = self
            .offers
            .entry((set.provider, ep_type))
            .or_insert_with(|| {
                let of_type = ep_type.map(|value| apply(hints.clone(), &("ep_type", value), &[]));
                let of_type = of_type.and_then(|hints| discover(&hints).ok());
                of_type.unwrap_or_else(|| discover(&hints).expect("offers of the provider"))
            });
        let items = set.items.iter();
        let hints = items.fold(hints, |hints, item| apply(hints, item, offers));
        match discover(&hints) {
            Ok(_) => true,
            Err(Error::NoMatch(_)) => false,
            Err(error) => panic!("{set:?}: {error}"),
        }
    }
}

/// A generator of random numbers (splitmix64).
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// Returns the items of a set with one attribute.
fn single(name: &'static str, value: &'static str) -> Vec<Item> {
    let mut items = context_of(name).to_vec();
    items.push((name, value));
    items
}

/// The values of each attribute that libfabric accepts or refuses, if the attribute is the only
/// one.
struct Singles {
    sets: Vec<HintSet>,
    accepted: HashMap<(usize, &'static str), Vec<&'static str>>,
    refused: HashMap<(usize, &'static str), Vec<&'static str>>,
}

impl Singles {
    fn ask(oracle: &mut Oracle) -> Self {
        let mut sets = Vec::new();
        for provider in 0..PROVIDERS.len() {
            for attribute in &oracle.attributes {
                sets.extend(attribute.values.iter().map(|value| HintSet {
                    provider,
                    items: single(attribute.name, value),
                }));
            }
        }
        oracle.ask(&sets);
        let (mut accepted, mut refused) = (HashMap::new(), HashMap::new());
        for set in &sets {
            let Some(&(name, value)) = set.items.last() else {
                continue;
            };
            let list: &mut HashMap<_, Vec<_>> = match oracle.answers[set] {
                true => &mut accepted,
                false => &mut refused,
            };
            list.entry((set.provider, name)).or_default().push(value);
        }
        Self {
            sets,
            accepted,
            refused,
        }
    }

    /// Returns the providers where an attribute can decide.
    fn deciding(&self, name: &'static str) -> Vec<usize> {
        let decides = |provider: &usize| {
            let key = (*provider, name);
            self.accepted.contains_key(&key) && self.refused.contains_key(&key)
        };
        (0..PROVIDERS.len()).filter(decides).collect()
    }

    /// Returns pairs of sets: with an accepted, and with a refused value of the named attribute.
    fn pairs(&self, oracle: &Oracle, count: usize) -> Vec<(&'static str, HintSet, HintSet)> {
        let mut rng = Rng(20);
        let names: Vec<_> = oracle.attributes.iter().map(|other| other.name).collect();
        let deciding = names.iter().filter(|name| !self.deciding(name).is_empty());
        let mut pairs = Vec::new();
        for name in deciding.copied().cycle().take(count) {
            let provider = rng.choose(&self.deciding(name));
            let mut further = context_of(name).to_vec();
            for _ in 0..rng.below(MAX_FURTHER + 1) {
                let other = rng.choose(&names);
                let values = self.accepted.get(&(provider, other));
                if other != name
                    && context_of(other)
                        .iter()
                        .all(|(context, _)| *context != name)
                    && further.iter().all(|(known, _)| *known != other)
                    && let Some(values) = values
                {
                    let mut items = single(other, rng.choose(values));
                    items.retain(|(other, _)| further.iter().all(|(known, _)| known != other));
                    further.extend(items);
                }
            }
            let mut with = |values: &HashMap<_, Vec<_>>| {
                let mut items = further.clone();
                items.push((name, rng.choose(&values[&(provider, name)])));
                HintSet { provider, items }
            };
            pairs.push((name, with(&self.accepted), with(&self.refused)));
        }
        pairs
    }
}

#[test]
fn discovery_agrees_with_libfabric() {
    let mut libfabric = match LibfabricDiscovery::start() {
        Ok(libfabric) => libfabric,
        Err(reason) => return skip(Facility::Interop, reason),
    };
    let version = libfabric.version();
    if version != VERSION {
        let reason = format!("the deviations are those of libfabric {VERSION}, not {version}");
        return skip(Facility::Capability, reason);
    }
    let mut oracle = Oracle {
        attributes: attributes::all(),
        libfabric,
        answers: HashMap::new(),
        offers: HashMap::new(),
    };
    let singles = Singles::ask(&mut oracle);
    let pairs = singles.pairs(&oracle, SETS / 2);
    let sets: Vec<_> = pairs
        .iter()
        .flat_map(|(_, one, other)| [one.clone(), other.clone()])
        .collect();
    assert_eq!(sets.len(), SETS);
    oracle.ask(&sets);

    let accepted = sets.iter().filter(|set| oracle.answers[set]).count();
    println!("libfabric accepts {accepted} of {SETS} sets");
    assert!(
        (SETS * 3 / 10..=SETS * 7 / 10).contains(&accepted),
        "{accepted} accepted"
    );
    check_decided(&oracle, &singles, &pairs);
    check_outcomes(&mut oracle, &[singles.sets, sets].concat());
}

/// Checks that each attribute decides outcomes in both directions, apart from those that cannot.
fn check_decided(oracle: &Oracle, singles: &Singles, pairs: &[(&'static str, HintSet, HintSet)]) {
    let mut decided: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, with_accepted, with_refused) in pairs {
        let decides = oracle.answers[with_accepted] && !oracle.answers[with_refused];
        *decided.entry(name).or_default() += usize::from(decides);
    }
    for (name, count) in &decided {
        assert!(
            *count >= DECIDED,
            "{name} decides {count} outcomes each way"
        );
    }
    let names = oracle.attributes.iter().map(|attribute| attribute.name);
    let never: Vec<_> = names
        .filter(|name| singles.deciding(name).is_empty())
        .collect();
    assert_eq!(
        never, NEVER_REFUSED,
        "attributes that libfabric refuses never or always"
    );
}

/// Checks that both agree about each set, or that the listed deviations explain the difference:
/// without the values of these both agree.
fn check_outcomes(oracle: &mut Oracle, sets: &[HintSet]) {
    let mut counts = vec![0; DEVIATIONS.len()];
    let mut unlisted = Vec::new();
    for set in sets {
        let (ours, theirs) = (oracle.accepts(set), oracle.libfabric_accepts(set));
        if ours == theirs {
            continue;
        }
        let provider = PROVIDERS[set.provider].0;
        let listed = DEVIATIONS.iter().enumerate();
        let listed: Vec<_> = listed
            .filter_map(|(index, deviation)| {
                let item = deviation.item_of(provider, &set.items, ours)?;
                Some((index, item))
            })
            .collect();
        let deviating: Vec<_> = listed.iter().map(|(_, item)| *item).collect();
        let rest = set.without(&deviating);
        if listed.is_empty() || oracle.accepts(&rest) != oracle.libfabric_accepts(&rest) {
            unlisted.push((set.clone(), ours));
            continue;
        }
        for (index, _) in listed {
            counts[index] += 1;
        }
    }
    for (set, ours) in &unlisted {
        println!(
            "accepted here {ours}, by libfabric {}: {}",
            !ours,
            set.to_line()
        );
    }
    assert!(
        unlisted.is_empty(),
        "{} unlisted differences",
        unlisted.len()
    );
    for (deviation, count) in DEVIATIONS.iter().zip(&counts) {
        assert_eq!(
            deviation.count, *count,
            "sets that differ because of {deviation:?}"
        );
    }
}
