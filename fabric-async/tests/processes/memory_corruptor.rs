//! A peer that writes over all memory it shares with other processes while it communicates. It
//! connects to its victim and posts ordinary operations. Meanwhile a thread writes through
//! `/proc/self/mem` over every writable mapping of the fabric: the rings of both directions,
//! control words, regions of both sides, loans. The library must survive that in the corruptor too.
//! The corruptor may crash when a write hits other memory that was mapped at the same address after
//! the mappings were read; then the test starts it again.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fabric_async::atomic::AtomicOp;
use fabric_async::{Access, Endpoint, Error, FiAddr, RemoteRegion};

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
/// Bytes of the region that each side grants to the other.
pub(crate) const REGION_LEN: usize = 8192;
/// How long an endpoint lives, because operations on corrupted memory may never complete.
const ENDPOINT_LIFETIME: Duration = Duration::from_millis(40);
/// Where the control words end and the lines begin, in a segment and in a region.
const CONTROL_LEN: u64 = 4096;

/// A random number generator (xorshift) with a seed.
#[derive(Clone)]
pub(crate) struct XorshiftRng(u64);

impl XorshiftRng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next_u64() % end.max(1)
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next_u64() as u8).collect()
    }
}

/// Counts the endpoints opened and closed so far: odd while one is open, so that there is memory to
/// corrupt.
static ENDPOINT_GENERATION: AtomicU64 = AtomicU64::new(0);

/// Plays the corruptor; `argument` has the victim's name and a seed.
pub(crate) async fn run_peer(argument: &str) {
    let (name, seed) = argument.split_once(' ').expect("a name and a seed");
    let seed: u64 = seed.parse().expect("a number");
    std::thread::spawn(move || corrupt_forever(seed));
    let mut random = XorshiftRng::new(seed);
    loop {
        // Errors and timeouts end the endpoint, not the process.
        let _ = tokio::time::timeout(ENDPOINT_LIFETIME, run_endpoint(name, &mut random)).await;
        ENDPOINT_GENERATION.fetch_and(!1, Ordering::Relaxed);
        ENDPOINT_GENERATION.fetch_add(2, Ordering::Relaxed);
    }
}

/// Exchanges regions with the victim, then posts random operations.
async fn run_endpoint(name: &str, random: &mut XorshiftRng) -> Result<(), Error> {
    let ep = Endpoint::bind("shm://").await?;
    let region = ep.domain().alloc(REGION_LEN, READ_WRITE)?;
    let peer = ep.add_peer(name).await?;
    ep.send(peer, region.remote().to_bytes().to_vec())
        .tag(1)
        .await
        .map_err(|failed| failed.error)?;
    let place = ep
        .recv()
        .tag(2)
        .from(peer)
        .await
        .map_err(|failed| failed.error)?;
    let theirs = RemoteRegion::from_bytes(&place)?;
    ep.write(peer, theirs.at(0), "mapped")
        .await
        .map_err(|failed| failed.error)?;
    ENDPOINT_GENERATION.fetch_or(1, Ordering::Relaxed);
    loop {
        random_op(&ep, peer, theirs, random).await;
        tokio::task::yield_now().await;
    }
}

/// Posts a random operation, which may fail or never complete.
async fn random_op(ep: &Endpoint, peer: FiAddr, theirs: RemoteRegion, random: &mut XorshiftRng) {
    let len = [8, 60, 500, 5000, 70_000][random.below(5) as usize];
    match random.below(7) {
        0 => drop(ep.send(peer, random.bytes(len)).await),
        1 => drop(
            ep.send(peer, random.bytes(len))
                .tag(random.next_u64())
                .await,
        ),
        2 => {
            if let Ok(mut loan) = ep.domain().try_loan(len) {
                loan.fill(7);
                drop(ep.send(peer, loan).await);
            }
        }
        3 => drop(
            ep.write(peer, theirs.at(0), random.bytes(len.min(REGION_LEN)))
                .await,
        ),
        4 => drop(ep.send(peer, random.bytes(len)).delivery_complete().await),
        5 => drop(ep.atomic(peer, theirs.at(8), AtomicOp::Sum, 1u64).await),
        _ => drop(ep.recv().from(peer).await),
    }
}

/// Writes over all shared mappings, forever.
fn corrupt_forever(seed: u64) {
    let mut random = XorshiftRng::new(!seed);
    let memory = File::options()
        .write(true)
        .open("/proc/self/mem")
        .expect("read /proc");
    loop {
        let generation = ENDPOINT_GENERATION.load(Ordering::Relaxed);
        if generation & 1 == 0 {
            std::thread::sleep(Duration::from_micros(200));
            continue;
        }
        let mappings = shared_mappings();
        // Each endpoint has its own style of corruption: some leave a ring valid for long.
        let (style, pause) = (random.below(5), random.below(300));
        while ENDPOINT_GENERATION.load(Ordering::Relaxed) == generation && !mappings.is_empty() {
            let (start, len) = mappings[random.below(mappings.len() as u64) as usize];
            let (at, mut bytes) = random_write(&mut random, style, len);
            bytes.truncate((len - at) as usize);
            // Something else, such as the heap, may have been mapped there since.
            if shared_mappings().contains(&(start, len)) {
                let _ = memory.write_all_at(&bytes, start + at);
            }
            std::thread::sleep(Duration::from_micros(pause));
        }
    }
}

/// Chooses an offset in a mapping of this length, and the bytes to write there.
fn random_write(random: &mut XorshiftRng, style: u64, len: u64) -> (u64, Vec<u8>) {
    match style {
        // One byte anywhere.
        0 => (random.below(len), random.bytes(1)),
        // A control word.
        1 => {
            let word =
                [random.next_u64(), random.below(4), u64::MAX, 1 << 32][random.below(4) as usize];
            (
                random.below(CONTROL_LEN / 8) * 8,
                word.to_le_bytes().to_vec(),
            )
        }
        // A plausible record header at the beginning of a line.
        2 => {
            let kind = if random.below(8) == 0 {
                0xff
            } else {
                random.below(7)
            };
            let long = [0, 7, 8, 24, 64, 600, 16_384, 16_385, 0xff_ffff][random.below(9) as usize];
            let header = kind | random.below(16) << 8 | long << 16 | (1 + random.below(3)) << 40;
            let line = random.below((len.saturating_sub(CONTROL_LEN) / 64).clamp(1, 64));
            let words = [
                header,
                random.below(1 << 20),
                random.below(70),
                random.below(300),
            ];
            (
                CONTROL_LEN + line * 64,
                words.into_iter().flat_map(u64::to_le_bytes).collect(),
            )
        }
        // A range.
        3 => {
            let count = 1 + random.below(4096) as usize;
            (random.below(len), random.bytes(count))
        }
        // The whole mapping.
        _ => (0, random.bytes(len as usize)),
    }
}

/// Returns address and length of the writable mappings of the fabric.
fn shared_mappings() -> Vec<(u64, u64)> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("read /proc");
    let ours = maps
        .lines()
        .filter(|line| line.contains(" rw-s ") && line.contains("memfd:fabric"));
    let ends = ours.filter_map(|line| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        let (start, end) = (
            u64::from_str_radix(start, 16).ok()?,
            u64::from_str_radix(end, 16).ok()?,
        );
        Some((start, end - start))
    });
    ends.collect()
}
