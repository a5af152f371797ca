//! The completion queue as a stream: many pending operations, one consumer.
//!
//! `cargo run --release --example cq_stream`
//!
//! One task posts sends as fast as credits allow and takes their completions from its queue in
//! batches. Another one takes completions of receives one by one. A failed operation is an entry
//! like any other.

use fabric_async::{Endpoint, Error, OpKind, Result};
use futures_util::StreamExt;

const MESSAGES: u64 = 100_000;
const RECEIVES: u64 = 64;

#[tokio::main]
async fn main() -> Result<()> {
    let (tx, rx) = (
        Endpoint::bind("shm://").await?,
        Endpoint::bind("shm://").await?,
    );
    let peer = tx.add_peer(rx.name()).await?;

    // The receiver keeps some receives posted and posts each buffer again.
    let mut received = rx
        .take_completions()
        .ok_or(Error::Unbound(fabric_async::Class::CompletionQueue))?;
    let receiver = tokio::spawn(async move {
        for context in 0..RECEIVES {
            rx.recv_into(vec![0u8; 64]).context(context).post()?;
        }
        let (mut count, mut sum) = (0, 0u64);
        while let Some(done) = received.next().await {
            let (context, message) = (done.context, done.into_result::<Vec<u8>>()?);
            sum += message.data().unwrap_or(0);
            count += 1;
            if count == MESSAGES {
                break;
            }
            let mut buf = message.into_buf();
            buf.resize(64, 0);
            rx.recv_into(buf).context(context).post()?;
        }
        Ok::<_, Error>((count, sum))
    });

    // The sender posts until it gets `WouldBlock`, then takes a batch of completions.
    let mut sent = tx
        .take_completions()
        .ok_or(Error::Unbound(fabric_async::Class::CompletionQueue))?;
    let (mut posted, mut completed, mut refused) = (0, 0, 0u64);
    let mut batch = Vec::with_capacity(256);
    while completed < MESSAGES {
        while posted < MESSAGES {
            let request = tx.send(peer, b"some payload").data(posted).context(posted);
            match request.post() {
                Ok(()) => posted += 1,
                Err(failed) if matches!(failed.error, Error::WouldBlock(_)) => {
                    refused += 1;
                    break;
                }
                Err(failed) => return Err(failed.into()),
            }
        }
        sent.read_batch(&mut batch, 256).await;
        for done in batch.drain(..) {
            assert_eq!(done.kind, OpKind::Send);
            if let Some(error) = done.error {
                return Err(*error);
            }
            completed += 1;
        }
    }
    let (count, sum) = receiver.await.map_err(|_| Error::Canceled)??;
    println!(
        "{completed} sends completed, {refused} posts without credit; {count} received, sum {sum}"
    );
    assert_eq!(sum, (0..MESSAGES).sum());
    Ok(())
}
