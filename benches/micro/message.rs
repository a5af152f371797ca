//! Whole messages between two endpoints of one thread, over shared memory.

use std::hint::black_box;

use fabric_async::{Endpoint, FiAddr, Message, Result, WaitPolicy};
use tokio::runtime::Runtime;

use crate::work::Work;

/// Messages of one repetition.
const COUNT: usize = 64;

pub(crate) fn all() -> Vec<Work> {
    vec![
        ("64 messages/sent and received in turn", in_turn()),
        ("64 messages/injected, each by a call", injected(None)),
        ("64 messages/injected, batches of 1", injected(Some(1))),
        ("64 messages/injected, a batch of 64", injected(Some(COUNT))),
        ("64 messages/posted, each by a call", posted(None)),
        ("64 messages/posted, batches of 1", posted(Some(1))),
        ("64 messages/posted, a batch of 64", posted(Some(COUNT))),
    ]
}

/// Two endpoints that know each other.
struct Ends {
    from: Endpoint,
    to: Endpoint,
    peer: FiAddr,
}

impl Ends {
    async fn open() -> Result<Self> {
        let options = Endpoint::options().wait_policy(WaitPolicy::Spin);
        let (from, to) = (options.clone().bind("shm://").await?, options.bind("shm://").await?);
        let peer = from.lookup(to.name()).await?;
        Ok(Self { from, to, peer })
    }

    async fn received(&self) -> Result<usize> {
        let mut bytes = 0;
        for _ in 0..COUNT {
            let message: Message = self.to.recv().await?;
            bytes += message.len();
        }
        Ok(bytes)
    }
}

fn opened() -> (Runtime, Ends) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
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

/// One by one, or in batches of so many.
fn injected(batch: Option<usize>) -> Box<dyn FnMut() -> usize> {
    let (runtime, ends) = opened();
    let messages = [[7u8; 8]; COUNT];
    Box::new(move || {
        let inject = |message: &[u8]| usize::from(ends.from.inject(ends.peer, black_box(message)).is_ok());
        let sent: usize = match batch {
            None => messages.iter().map(|message| inject(message)).sum(),
            Some(batch) => {
                let together = |batch: &[[u8; 8]]| {
                    ends.from.inject_all(ends.peer, batch.iter().map(|message| black_box(&message[..]))).0
                };
                messages.chunks(batch).map(together).sum()
            }
        };
        assert_eq!(sent, COUNT, "the ring has room for so few");
        runtime.block_on(ends.received()).unwrap_or(0)
    })
}

/// Likewise, with completions, which are taken out afterwards.
fn posted(batch: Option<usize>) -> Box<dyn FnMut() -> usize> {
    let (runtime, ends) = opened();
    let mut queue = ends.from.completions().expect("the endpoint has a queue of its own");
    let mut out = Vec::new();
    Box::new(move || {
        let request = |_| ends.from.send(ends.peer, black_box(&[7u8; 8]));
        let sent: usize = match batch {
            None => (0..COUNT).map(|at| usize::from(request(at).post().is_ok())).sum(),
            Some(batch) => {
                (0..COUNT / batch).map(|_| ends.from.post_all((0..batch).map(request)).unwrap_or(0)).sum()
            }
        };
        out.clear();
        assert_eq!((sent, queue.try_batch(&mut out, COUNT)), (COUNT, COUNT), "there is room for so few");
        runtime.block_on(ends.received()).unwrap_or(0)
    })
}
