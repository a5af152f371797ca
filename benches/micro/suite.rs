//! The microbenchmarks, of which time and instructions are measured.

use std::hint::black_box;
use std::sync::Arc;

use fabric_core::Address;
use fabric_core::buf::PooledBuf;
use fabric_core::flags::Access;
use fabric_core::matching::{Envelope, Matcher, PeerKey, RecvPostResult, RecvSpec, TagMatch};
use fabric_core::mr::{LocalMemory, RegionTable, check_access, check_range};
use fabric_reactor::microbench::Microbench as NamedWork;
pub(crate) use fabric_reactor::microbench::Work;

/// A microbenchmark.
pub(crate) struct Microbench {
    pub(crate) name: &'static str,
    /// The operations of one repetition: instructions are those of one operation.
    pub(crate) operations: u64,
    /// A pattern of the functions whose instructions are counted, with all that they call; the
    /// whole repetition is counted without a pattern.
    pub(crate) counted: Option<&'static str>,
    /// Whether only the path from the header that is seen to the header that is published is
    /// counted, within these functions.
    pub(crate) is_header_to_header: bool,
    /// Prepares the work.
    pub(crate) prepare: Box<dyn Fn() -> Work + Sync>,
}

impl Microbench {
    /// Creates a microbenchmark of one operation.
    pub(crate) fn new(name: &'static str, prepare: impl Fn() -> Work + Sync + 'static) -> Self {
        Self {
            name,
            operations: 1,
            counted: None,
            is_header_to_header: false,
            prepare: Box::new(prepare),
        }
    }

    /// Sets the operations of one repetition.
    pub(crate) fn operations(mut self, operations: usize) -> Self {
        self.operations = operations as u64;
        self
    }

    /// Limits counting to functions that match this pattern, and what they call.
    pub(crate) fn counted(mut self, functions: &'static str) -> Self {
        self.counted = Some(functions);
        self
    }

    /// Limits counting to the path from header to header, within functions that match this pattern.
    pub(crate) fn header_to_header(mut self, functions: &'static str) -> Self {
        self.is_header_to_header = true;
        self.counted(functions)
    }
}

/// Returns all microbenchmarks.
pub(crate) fn all() -> Vec<Microbench> {
    let parts = fabric_reactor::microbench::all()
        .into_iter()
        .chain(pure_benchmarks());
    let mut benches: Vec<_> = parts
        .map(|(name, prepare)| Microbench::new(name, prepare))
        .collect();
    benches.extend(crate::messages::all());
    benches.extend(crate::loop_alone::all());
    benches.extend(crate::many_endpoints::all());
    benches.extend(crate::idle_peers::all());
    benches
}

fn pure_benchmarks() -> Vec<NamedWork> {
    vec![
        ("matching/posted", || posted(0)),
        ("matching/posted behind 1000 others", || posted(1000)),
        ("matching/posted in front of 1000 others", || {
            posted_in_front(1000)
        }),
        ("matching/posted among 1000 others", || posted_among(1000)),
        ("matching/behind 130000 messages", || {
            behind_messages(130_000)
        }),
        ("matching/unexpected", unexpected),
        ("memory keys/check, 1000 regions", key_check),
        ("memory keys/insert and remove", key_insert),
        ("address/parse and print", address),
        ("pool/take and give 4 KiB", pool),
    ]
}

fn tagged(tag: u64) -> RecvSpec {
    RecvSpec {
        from: None,
        tag: Some(TagMatch { tag, ignore: 0 }),
    }
}

fn envelope(matcher: &mut Matcher<u32, u32>, tag: u64) -> Envelope {
    let arrival = matcher.next_arrival();
    Envelope {
        peer: PeerKey(0),
        source: None,
        tag: Some(tag),
        len: 8,
        data: None,
        arrival,
        ack: None,
    }
}

/// A receive is posted and its message arrives, behind so many receives that do not match.
fn posted(others: u64) -> Work {
    let mut matcher = Matcher::new();
    for tag in 0..others {
        assert!(
            matches!(matcher.post(tagged(tag), 0), RecvPostResult::Queued(_)),
            "nothing has arrived yet"
        );
    }
    Box::new(move || {
        let queued = matches!(matcher.post(tagged(1 << 40), 1), RecvPostResult::Queued(_));
        let message = envelope(&mut matcher, 1 << 40);
        let receive = matcher
            .posted
            .take_match(black_box(&message))
            .filter(|_| queued);
        receive.map_or(0, |receive| receive as usize)
    })
}

/// A message arrives for the first receive, which is posted again behind so many others.
fn posted_in_front(others: u64) -> Work {
    let mut tags = (0..=others).cycle();
    posted_again(others, 1, move || tags.next().unwrap_or(0))
}

/// A message arrives for any of so many receives, which is posted again behind the others.
fn posted_among(others: u64) -> Work {
    let mut random = 1u64;
    posted_again(others, 32, move || {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) % (others + 1)
    })
}

/// A message with the next tag arrives for one of the receives, which is posted again behind so
/// many others. So many queues take turns, of which each hashes with random factors of its own.
fn posted_again(others: u64, queues: usize, mut next_tag: impl FnMut() -> u64 + 'static) -> Work {
    let mut matchers: Vec<Matcher<u32, u32>> = (0..queues).map(|_| Matcher::new()).collect();
    for matcher in &mut matchers {
        for tag in 0..=others {
            assert!(
                matches!(matcher.post(tagged(tag), 1), RecvPostResult::Queued(_)),
                "nothing has arrived yet"
            );
        }
    }
    let mut turn = 0;
    let mut work = move || {
        turn = (turn + 1) % queues;
        let matcher = &mut matchers[turn];
        let tag = next_tag();
        let message = envelope(matcher, tag);
        let receive = matcher.posted.take_match(black_box(&message));
        let queued = matches!(matcher.post(tagged(tag), 1), RecvPostResult::Queued(_));
        receive
            .filter(|_| queued)
            .map_or(0, |receive| receive as usize)
    };
    // Matches behind many receives build the index of a queue step by step.
    for _ in 0..200 * queues {
        work();
    }
    Box::new(work)
}

/// A receive is posted and its message arrives, while so many unexpected messages wait.
fn behind_messages(others: u64) -> Work {
    let mut matcher = Matcher::new();
    for _ in 0..others {
        let message = envelope(&mut matcher, 7);
        matcher.unexpected.insert(message, 3);
    }
    Box::new(move || {
        let queued = matches!(matcher.post(tagged(1 << 40), 1), RecvPostResult::Queued(_));
        let message = envelope(&mut matcher, 1 << 40);
        let receive = matcher
            .posted
            .take_match(black_box(&message))
            .filter(|_| queued);
        receive.map_or(0, |receive| receive as usize)
    })
}

/// A message arrives before its receive.
fn unexpected() -> Work {
    let mut matcher = Matcher::new();
    Box::new(move || {
        let message = envelope(&mut matcher, 7);
        if matcher.posted.take_match(black_box(&message)).is_none() {
            matcher.unexpected.insert(message, 3);
        }
        match matcher.post(tagged(7), 1) {
            RecvPostResult::Matched(envelope, _) => envelope.len,
            RecvPostResult::Queued(_) => 0,
        }
    })
}

fn key_check() -> Work {
    let (mut table, memory) = (
        RegionTable::default(),
        Arc::new(LocalMemory::new(4096).expect("a page")),
    );
    let keys: Vec<u64> = (0..1000)
        .filter_map(|_| {
            table
                .insert(memory.clone(), 0, Access::REMOTE_WRITE, None)
                .ok()
        })
        .collect();
    let mut at = 0;
    Box::new(move || {
        at = (at + 7) % keys.len();
        let region = table.get(black_box(keys[at]));
        let at = region.and_then(|region| {
            check_access(keys[at], region.access, Access::REMOTE_WRITE).ok()?;
            check_range(region.memory.len(), 64, 128, 8).ok()
        });
        at.unwrap_or(0)
    })
}

fn key_insert() -> Work {
    let (mut table, memory) = (
        RegionTable::default(),
        Arc::new(LocalMemory::new(4096).expect("a page")),
    );
    Box::new(move || {
        let key = table.insert(black_box(memory.clone()), 0, Access::REMOTE_READ, None);
        key.ok()
            .and_then(|key| table.remove(key))
            .map_or(0, |region| region.memory.len())
    })
}

fn address() -> Work {
    Box::new(|| {
        let address = black_box("fi_shm://some-service.42").parse::<Address>();
        address.map_or(0, |address| address.to_string().len())
    })
}

fn pool() -> Work {
    Box::new(|| {
        let mut buf = PooledBuf::with_capacity(black_box(4096));
        buf.extend_from_slice(&[7; 64]);
        buf.len()
    })
}
