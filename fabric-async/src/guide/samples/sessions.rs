use std::collections::HashMap;

use fabric_async::{Endpoint, Error, EventKind, EventQueue, FiAddr, Result};

/// Counts the requests of each client. A reply has the count and the number of clients.
async fn serve_sessions(ep: Endpoint, mut events: EventQueue) -> Result<()> {
    let mut sessions = HashMap::<FiAddr, u64>::new();
    loop {
        tokio::select! {
            event = events.read() => match event.kind {
                EventKind::PeerDown { source: Some(client), .. } => {
                    sessions.remove(&client); // requests of this client may still follow
                }
                EventKind::OperationFailed { peer: Some(client), error }
                    if error.is_peer_unavailable() =>
                {
                    sessions.remove(&client); // a reply was started, and failed later
                }
                EventKind::Overrun { .. } => {
                    let peers = ep.address_vector(); // events were lost
                    sessions.retain(|client, _| peers.lookup(*client).is_ok());
                }
                _ => {}
            },
            request = ep.recv().tag_ignoring(0, !0) => {
                let request = request?;
                let (Ok(client), Some(number)) = (request.source(), request.tag()) else {
                    continue;
                };
                let count = *sessions.entry(client).and_modify(|count| *count += 1).or_insert(1);
                let reply = format!("{count} requests, {} clients", sessions.len());
                match ep.send(client, reply).tag(number).start() {
                    Ok(reply) => drop(reply), // the send goes on by itself
                    Err(failed) if failed.error.is_peer_unavailable() => {
                        sessions.remove(&client); // the client had left before its request was read
                    }
                    Err(failed) if matches!(failed.error, Error::WouldBlock(_)) => {}
                    Err(failed) => return Err(failed.error),
                }
            }
        }
    }
}
