//! Whole messages between two endpoints of one thread, over shared memory.

use std::hint::black_box;
use std::iter::repeat_n;

use fabric_async::{Endpoint, FiAddr, Result, WaitPolicy};
use tokio::runtime::Runtime;

use crate::work::Work;

/// Messages of one repetition.
const COUNT: usize = 64;

pub(crate) fn all() -> Vec<Work> {
    vec![
        ("64 messages/sent and received in turn", in_turn()),
        (
            "64 messages/injected in a batch",
            stream(Injected, COUNT, COUNT),
        ),
        (
            "64 messages/injected in batches of 1",
            stream(Injected, 1, COUNT),
        ),
        (
            "64 messages/injected one by one",
            stream(Injected, 0, COUNT),
        ),
        (
            "64 messages/posted in a batch",
            stream(Posted, COUNT, COUNT),
        ),
        (
            "64 messages/posted in batches of 1",
            stream(Posted, 1, COUNT),
        ),
        ("64 messages/posted one by one", stream(Posted, 0, COUNT)),
        (
            "64 messages/receives posted one by one",
            stream(Injected, COUNT, 0),
        ),
    ]
}

/// How messages are sent.
#[derive(Clone, Copy)]
enum Sending {
    Injected,
    /// With completions, which are taken out afterwards.
    Posted,
}

use Sending::{Injected, Posted};

/// Two endpoints that know each other.
struct Ends {
    from: Endpoint,
    to: Endpoint,
    peer: FiAddr,
}

impl Ends {
    async fn open() -> Result<Self> {
        let options = Endpoint::options().wait_policy(WaitPolicy::Spin);
        let (from, to) = (
            options.clone().bind("shm://").await?,
            options.bind("shm://").await?,
        );
        let peer = from.lookup(to.name()).await?;
        Ok(Self { from, to, peer })
    }

    /// Sends them in batches of so many, or one by one.
    fn send(&self, how: Sending, batch: usize) -> usize {
        let bytes = black_box(&[7u8; 8]);
        let request = |_| self.from.send(self.peer, bytes);
        match (how, batch) {
            (Injected, 0) => (0..COUNT)
                .filter(|_| self.from.inject(self.peer, bytes).is_ok())
                .count(),
            (Posted, 0) => (0..COUNT).filter(|at| request(*at).post().is_ok()).count(),
            (Injected, _) => {
                let batches = (0..COUNT / batch).map(|_| repeat_n(&bytes[..], batch));
                batches
                    .map(|batch| self.from.inject_all(self.peer, batch).0)
                    .sum()
            }
            (Posted, _) => {
                let batches = (0..COUNT / batch).map(|_| (0..batch).map(request));
                batches
                    .map(|batch| self.from.post_all(batch).unwrap_or(0))
                    .sum()
            }
        }
    }

    /// Posts receives, together or one by one.
    fn receive(&self, rooms: &mut Vec<Vec<u8>>, batch: usize) -> usize {
        let requests = rooms.drain(..).map(|room| self.to.recv_into(room));
        match batch {
            0 => requests.filter_map(|request| request.post().ok()).count(),
            _ => self.to.post_all(requests).unwrap_or(0),
        }
    }
}

fn opened() -> (Runtime, Ends) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let ends = runtime.block_on(Ends::open()).expect("shared memory");
    (runtime, ends)
}

fn in_turn() -> Box<dyn FnMut() -> usize> {
    let (runtime, ends) = opened();
    let (mut buf, mut room) = (vec![7u8; 8], vec![0u8; 8]);
    Box::new(move || {
        let trips = async {
            for _ in 0..COUNT {
                let sent = ends.from.send(ends.peer, std::mem::take(&mut buf)).await?;
                let got = ends.to.recv_into(std::mem::take(&mut room)).await?;
                (buf, room) = (sent.into_buf(), got.into_buf());
            }
            Ok::<_, fabric_async::Error>(buf.len())
        };
        runtime.block_on(trips).unwrap_or(0)
    })
}

/// Receives are posted, messages come, and completions of both sides are taken out. Batches are of
/// so many, or none.
fn stream(how: Sending, batch: usize, receives: usize) -> Box<dyn FnMut() -> usize> {
    let (runtime, ends) = opened();
    let queue = |ep: &Endpoint| {
        ep.completions()
            .expect("the endpoint has a queue of its own")
    };
    let (mut sent, mut received) = (queue(&ends.from), queue(&ends.to));
    let mut out = Vec::new();
    let mut rooms = vec![vec![0u8; 8]; COUNT];
    Box::new(move || {
        let _keeps_tasks_alive = &runtime;
        assert_eq!(
            ends.receive(&mut rooms, receives),
            COUNT,
            "there is room for so few"
        );
        assert_eq!(ends.send(how, batch), COUNT, "there is room for so few");
        sent.try_batch(&mut out, COUNT);
        out.clear();
        while rooms.len() < COUNT {
            received.try_batch(&mut out, COUNT);
            rooms.extend(
                out.drain(..)
                    .filter_map(|entry| Some(entry.into_result::<Vec<u8>>().ok()?.into_buf())),
            );
        }
        rooms.len()
    })
}
