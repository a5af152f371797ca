//! Control messages between the two processes: JSON in messages on the measured endpoint,
//! with a tag of their own.

use fabric_async::{Endpoint, FiAddr};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, Result};

/// The tag of control messages; measured messages have another, or none.
const CONTROL_TAG: u64 = 0xc0;

/// Sends a control message.
///
/// # Errors
/// The peer is gone.
pub(crate) async fn send_control(
    ep: &Endpoint,
    peer: FiAddr,
    message: &impl Serialize,
) -> Result<()> {
    let text = serde_json::to_vec(message).map_err(|error| Error::Malformed {
        origin: "serde_json".into(),
        text: error.to_string(),
    })?;
    ep.send(peer, text).tag(CONTROL_TAG).await?;
    Ok(())
}

/// Waits for a control message of this peer, or of any peer.
///
/// # Errors
/// The peer is gone; [`Error::Malformed`].
///
/// # Cancel safety
/// Safe: dropping the future loses no message.
pub(crate) async fn recv_control<T: DeserializeOwned>(
    ep: &Endpoint,
    peer: Option<FiAddr>,
) -> Result<(FiAddr, T)> {
    let receive = ep.recv().tag(CONTROL_TAG);
    let message = match peer {
        Some(peer) => receive.from(peer).await?,
        None => receive.await?,
    };
    let content = serde_json::from_slice(&message).map_err(|_| Error::Malformed {
        origin: "the peer process".into(),
        text: String::from_utf8_lossy(&message).into_owned(),
    })?;
    Ok((message.source()?, content))
}
