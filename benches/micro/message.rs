//! Whole messages between two endpoints of one thread, over shared memory.

use std::hint::black_box;

use fabric_async::{Endpoint, FiAddr, Message, Result, WaitPolicy};
use tokio::runtime::Runtime;

use crate::work::Work;

/// Messages of one repetition.
const COUNT: usize = 64;

pub(crate) fn all() -> Vec<Work> {
    vec![("64 messages/sent and received in turn", in_turn()), ("64 messages/injected in a row", in_a_row())]
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

fn in_a_row() -> Box<dyn FnMut() -> usize> {
    let (runtime, ends) = opened();
    Box::new(move || {
        for _ in 0..COUNT {
            if ends.from.inject(ends.peer, black_box(&[7; 8])).is_err() {
                return 0;
            }
        }
        runtime.block_on(ends.received()).unwrap_or(0)
    })
}
