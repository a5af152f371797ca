//! The server: one endpoint that answers requests, as a service does.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fabric_async::{Address, DownReason, Endpoint, EventKind, EventQueue, FiAddr};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::message::{REQUEST_TAG, RequestKind, decode_request, reply_tag};
use super::provider::SiegeProvider;
use crate::options::RuntimeKind;
use crate::{Error, Result};

/// The progress timeout of the server. The default is 30 seconds; a message that does not go on
/// keeps a receive from other peers for an eighth of it.
pub(super) const PROGRESS_TIMEOUT: Duration = Duration::from_secs(1);
/// The memory of the server's loans, in bytes.
pub(super) const LOAN_LIMIT: usize = 4 << 20;
/// Replies of this length or more are sent as loans over shared memory.
const MIN_LOAN_LEN: usize = 16 << 10;
/// Receives for tagged requests, each in a buffer for the longest request.
const TAGGED_RECEIVES: usize = 8;
/// Receives for untagged messages of any length.
const UNTAGGED_RECEIVES: usize = 8;
/// How long the server waits for a peer to take a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// The server has taken all messages if none arrives for so long.
const TAKE_TIMEOUT: Duration = Duration::from_millis(100);
/// How long the server takes messages before it disconnects their senders.
const TAKE_TIME: Duration = Duration::from_secs(2);

/// What the server has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ServerStats {
    /// Bytes of unexpected messages.
    pub(super) unexpected_bytes: u64,
    /// Messages discarded of peers that had left.
    pub(super) discarded: u64,
    /// Datagrams dropped beyond the budget.
    pub(super) dropped: u64,
    /// Connections refused.
    pub(super) refused: u64,
    /// Connections ended because a message did not go on.
    pub(super) stalled: u64,
    /// Connections ended because the peer violated the protocol.
    pub(super) violations: u64,
}

impl ServerStats {
    /// Returns what was counted after `before`. Bytes of unexpected messages are those at the end.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            unexpected_bytes: self.unexpected_bytes,
            discarded: self.discarded - before.discarded,
            dropped: self.dropped - before.dropped,
            refused: self.refused - before.refused,
            stalled: self.stalled - before.stalled,
            violations: self.violations - before.violations,
        }
    }

    /// Returns the counts that are not 0, as text for the user.
    pub(super) fn describe(self) -> String {
        let counts = [
            (self.unexpected_bytes >> 10, "KiB unexpected"),
            (self.discarded, "discarded"),
            (self.dropped, "dropped"),
            (self.refused, "refused"),
            (self.stalled, "stalled"),
            (self.violations, "violations"),
        ];
        let counted = counts.into_iter().filter(|(count, _)| *count > 0);
        let texts: Vec<_> = counted
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        texts.join(", ")
    }
}

/// Serves requests at this address, which is printed on stdout, until this process is ended.
///
/// # Errors
/// The address is bad or in use.
pub fn serve_siege(address: &str) -> Result<()> {
    let address = address.to_owned();
    RuntimeKind::Current.run(async move {
        let provider = SiegeProvider::of_address(&address).ok_or_else(|| {
            Error::InvalidRequest(format!("{address:?} is no address of shm, tcp or udp"))
        })?;
        let options = Endpoint::options()
            .progress_timeout(Some(PROGRESS_TIMEOUT))
            .loan_limit(LOAN_LIMIT);
        let ep = options.bind(&address[..]).await?;
        println!("listening on {}", ep.name());
        // No operation is posted to the queue, but writes with data of peers would fill it.
        drop(ep.take_completions());
        let events = ep.take_events();
        let server = Arc::new(SiegeServer {
            ep,
            provider,
            connected: Mutex::default(),
            stalled: AtomicU64::new(0),
            violations: AtomicU64::new(0),
        });
        if provider.has_tags() {
            for _ in 0..TAGGED_RECEIVES {
                tokio::spawn(server.clone().serve_tagged());
            }
        }
        for _ in 0..UNTAGGED_RECEIVES {
            tokio::spawn(server.clone().serve_untagged());
        }
        if let Some(events) = events {
            server.count_events(events).await;
        }
        std::future::pending().await
    })
}

struct SiegeServer {
    ep: Endpoint,
    provider: SiegeProvider,
    /// The peers that have connected and sent no request. Messages of those that have left may
    /// wait.
    connected: Mutex<HashSet<Address>>,
    stalled: AtomicU64,
    violations: AtomicU64,
}

impl SiegeServer {
    /// Receives tagged requests in a bounded buffer. A longer message is truncated and dropped.
    async fn serve_tagged(self: Arc<Self>) {
        loop {
            let buf = Vec::with_capacity(self.provider.long_request_len());
            match self.ep.recv_into(buf).tag(REQUEST_TAG).await {
                Ok(message) => {
                    if let Ok(peer) = message.source() {
                        self.answer(peer, message.into_buf()).await;
                    }
                }
                Err(_) => tokio::task::yield_now().await,
            }
        }
    }

    /// Receives untagged messages in buffers of the domain.
    async fn serve_untagged(self: Arc<Self>) {
        loop {
            match self.ep.recv().await {
                Ok(message) => {
                    if let Ok(peer) = message.source() {
                        self.answer(peer, message.to_vec()).await;
                    }
                }
                Err(_) => tokio::task::yield_now().await,
            }
        }
    }

    /// Answers a request; drops other messages.
    async fn answer(&self, peer: FiAddr, bytes: Vec<u8>) {
        let Some((kind, number)) = decode_request(&bytes) else {
            return;
        };
        if let Ok(name) = self.ep.address_vector().lookup(peer) {
            self.change_connected(|connected| connected.remove(&name));
        }
        let loan = match self.provider {
            SiegeProvider::Shm if bytes.len() >= MIN_LOAN_LEN => {
                self.ep.domain().try_loan(bytes.len()).ok()
            }
            _ => None,
        };
        match (kind, loan) {
            (RequestKind::Echo, Some(mut loan)) => {
                loan.copy_from_slice(&bytes);
                let send = self.ep.send(peer, loan).tag(reply_tag(number));
                let _ = timeout(REPLY_TIMEOUT, send.cancel_on_drop()).await;
            }
            (RequestKind::Echo, None) => self.reply(peer, number, bytes).await,
            (RequestKind::Stats | RequestKind::TakeAll, _) => {
                if kind == RequestKind::TakeAll {
                    self.take_all().await;
                }
                let text = serde_json::to_vec(&self.stats()).unwrap_or_default();
                self.reply(peer, number, text).await;
            }
        }
    }

    /// Receives and drops messages of any tag for a while, and disconnects the peers that have sent
    /// no request, as a service does that does not keep what it cannot use. The clients send
    /// nothing meanwhile.
    async fn take_all(&self) {
        let take = async {
            while self.provider.has_tags() {
                let receive = self.ep.recv().tag_ignoring(0, u64::MAX);
                if timeout(TAKE_TIMEOUT, receive).await.is_err() {
                    break;
                }
            }
        };
        // Of what the attackers have left in their sockets, the rest is discarded.
        let _ = timeout(TAKE_TIME, take).await;
        for name in self.change_connected(std::mem::take) {
            let _ = self.ep.disconnect(&name);
        }
    }

    fn change_connected<T>(&self, change: impl FnOnce(&mut HashSet<Address>) -> T) -> T {
        let connected = self.connected.lock();
        change(&mut connected.unwrap_or_else(PoisonError::into_inner))
    }

    /// Sends a reply. A peer that does not take it does not get it.
    async fn reply(&self, peer: FiAddr, number: u64, bytes: Vec<u8>) {
        let send = self.ep.send(peer, bytes);
        let send = if self.provider.has_tags() {
            send.tag(reply_tag(number))
        } else {
            send
        };
        let _ = timeout(REPLY_TIMEOUT, send.cancel_on_drop()).await;
    }

    fn stats(&self) -> ServerStats {
        let stats = self.ep.stats();
        ServerStats {
            unexpected_bytes: stats.unexpected_bytes as u64,
            discarded: stats.discarded,
            dropped: stats.dropped,
            refused: stats.inbound_refused,
            stalled: self.stalled.load(Ordering::Relaxed),
            violations: self.violations.load(Ordering::Relaxed),
        }
    }

    /// Reads the event queue, as a program does that logs events.
    async fn count_events(&self, mut events: EventQueue) {
        loop {
            let reason = match events.read().await.kind {
                EventKind::PeerConnected { peer, .. } => {
                    self.change_connected(|connected| connected.insert(peer));
                    continue;
                }
                EventKind::PeerDown { reason, .. } => reason,
                _ => continue,
            };
            let counter = match reason {
                DownReason::Stalled => &self.stalled,
                DownReason::Protocol(_) => &self.violations,
                _ => continue,
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_the_slice() {
        let before = ServerStats {
            unexpected_bytes: 9000,
            refused: 3,
            stalled: 5,
            ..ServerStats::default()
        };
        let now = ServerStats {
            refused: 10,
            discarded: 2,
            ..before
        };
        assert_eq!(
            now.since(before).describe(),
            "8 KiB unexpected, 2 discarded, 7 refused"
        );
        assert_eq!(ServerStats::default().describe(), "");
    }
}
