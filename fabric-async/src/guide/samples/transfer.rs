use std::collections::VecDeque;
use std::io;

use bytes::Bytes;
use fabric_async::{Completion, CompletionQueue, Endpoint, FiAddr, OpKind, RemoteRegion, Result};
use futures_util::StreamExt;

const CHUNK_LEN: usize = 1 << 20;
const PENDING_WRITES: usize = 8;
const FAILED: u64 = 1; // the tag of the notice that a transfer has failed

/// Writes the content to the region of the peer. The last write carries the whole length as data.
async fn push(ep: &Endpoint, peer: FiAddr, region: RemoteRegion, content: Bytes) -> Result<()> {
    let written = write_chunks(ep, peer, region, content).await;
    if let Err(error) = &written {
        ep.send(peer, error.to_string()).tag(FAILED).await?;
    }
    written
}

async fn write_chunks(
    ep: &Endpoint,
    peer: FiAddr,
    region: RemoteRegion,
    content: Bytes,
) -> Result<()> {
    let (mut pending, mut start) = (VecDeque::new(), 0);
    while content.len() - start > CHUNK_LEN {
        if pending.len() == PENDING_WRITES {
            pending.pop_front().expect("not empty").await?;
        }
        let chunk = content.slice(start..start + CHUNK_LEN);
        pending.push_back(ep.write(peer, region.at(start as u64), chunk).start()?);
        start += CHUNK_LEN;
    }
    for write in pending {
        write.await?; // a failure here is reported before the last write
    }
    let last = ep.write(peer, region.at(start as u64), content.slice(start..));
    last.data(content.len() as u64).await?;
    Ok(())
}

/// Waits until the sender has written its content, and returns the length, or why there is none.
async fn pushed(ep: &Endpoint, queue: &mut CompletionQueue, sender: FiAddr) -> io::Result<u64> {
    let whole_len = |entry: Completion| match entry.kind {
        OpKind::RemoteWrite if entry.transfer.source == Some(sender) => entry.transfer.data,
        _ => None,
    };
    let mut notice = ep.recv().tag(FAILED).from(sender).start()?;
    loop {
        tokio::select! {
            entry = queue.next() => {
                if let Some(len) = whole_len(entry.expect("the queue is open")) {
                    return Ok(len);
                }
            }
            notice = &mut notice => {
                let gone = match notice {
                    Ok(text) => return Err(io::Error::other(String::from_utf8_lossy(&text))),
                    Err(failed) => failed.error,
                };
                // The sender has left. All that it had sent was received before this error, so the
                // entry of its last write, if there was one, is in the queue.
                let mut entries = Vec::new();
                while queue.try_read_batch(&mut entries, 64) > 0 {}
                return entries.into_iter().find_map(whole_len).ok_or(gone.into());
            }
        }
    }
}
