//! What the two sides say to each other: JSON in tagged messages, beside what is measured.

use fabric_async::{Endpoint, FiAddr};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, Result};

/// The tag of what is said; measured messages have another, or none.
const CONTROL_TAG: u64 = 0xc0;

/// Says something.
///
/// # Errors
/// The peer is gone.
pub(crate) async fn send_control(ep: &Endpoint, peer: FiAddr, what: &impl Serialize) -> Result<()> {
    let text = serde_json::to_vec(what).map_err(|error| Error::Malformed {
        origin: "the JSON writer".into(),
        text: error.to_string(),
    })?;
    ep.send(peer, text).tag(CONTROL_TAG).await?;
    Ok(())
}

/// Waits for what this peer says, or for whoever speaks first.
///
/// # Errors
/// The peer is gone, or speaks another language.
///
/// # Cancel safety
/// Safe: what was said stays there.
pub(crate) async fn recv_control<T: DeserializeOwned>(
    ep: &Endpoint,
    peer: Option<FiAddr>,
) -> Result<(FiAddr, T)> {
    let receive = ep.recv().tag(CONTROL_TAG);
    let message = match peer {
        Some(peer) => receive.from(peer).await?,
        None => receive.await?,
    };
    let said = serde_json::from_slice(&message).map_err(|_| Error::Malformed {
        origin: "the other side".into(),
        text: String::from_utf8_lossy(&message).into_owned(),
    })?;
    Ok((message.source()?, said))
}
