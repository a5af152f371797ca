//! The sending end of a connected endpoint (`FI_EP_MSG`) before it is established: connection
//! request and accept take the place of the hello.

use std::os::fd::OwnedFd;

use fabric_core::Result;
use fabric_core::flags::Caps;

use super::super::cm::{self, CmAnswer, CmOffer};
use super::super::control::ControlRead;
use super::super::socket::{PeerCredentials, ShmSocket, SocketConnect};
use super::{LocalEnd, TxConnection, TxConnectionState};

impl TxConnection {
    /// Connects the socket, bound to the local name, to a passive endpoint. Returns false if the
    /// backlog of the passive endpoint is full.
    ///
    /// # Errors
    /// Those of [`ShmSocket::connect_from`], and of the operating system.
    pub(crate) fn connect_from(&mut self, local: LocalEnd<'_>) -> Result<bool> {
        match ShmSocket::connect_from(local.name, &self.peer_address)? {
            SocketConnect::Connected(socket, peer) => {
                self.open_channel((socket, peer), local)?;
                Ok(true)
            }
            SocketConnect::BacklogFull => Ok(false),
        }
    }

    /// Receives a message of the passive endpoint: its nonce, or the answer to the connection
    /// request. Returns the message and the credentials of the passive endpoint's process.
    pub(crate) fn recv_answer(&self) -> (ControlRead<CmAnswer>, Option<PeerCredentials>) {
        match &self.state {
            TxConnectionState::Connecting(channel) => (
                cm::recv_answer(&channel.socket),
                channel.socket.credentials().ok(),
            ),
            TxConnectionState::Retrying(_)
            | TxConnectionState::Established(_)
            | TxConnectionState::Closed => (Ok(None), None),
        }
    }

    /// Returns whether the connection is being established and its connection request or accept,
    /// which holds the segment, was sent.
    pub(crate) fn is_segment_sent(&self) -> bool {
        matches!(&self.state, TxConnectionState::Connecting(channel) if channel.hello_sent())
    }

    /// Sends the connection request or accept, which takes the place of the hello: calls `send`
    /// with the socket of the connection. Does nothing if it was sent before.
    pub(crate) fn send_offer(
        &mut self,
        caps: Caps,
        private_data: &[u8],
        send: impl FnOnce(&ShmSocket, &CmOffer<OwnedFd>) -> rustix::io::Result<()>,
    ) -> rustix::io::Result<()> {
        let TxConnectionState::Connecting(channel) = &mut self.state else {
            return Ok(());
        };
        let offer = channel.take_offer(caps, private_data);
        offer.map_or(Ok(()), |offer| send(&channel.socket, &offer))
    }

    /// Makes a connecting connection established: the peer has accepted, and has this incarnation.
    pub(crate) fn establish(&mut self, incarnation: u64) {
        self.state = match std::mem::replace(&mut self.state, TxConnectionState::Closed) {
            TxConnectionState::Connecting(mut channel) => {
                channel.on_accept(incarnation, self.settings.single_copy);
                TxConnectionState::Established(channel)
            }
            other => other,
        };
    }
}
