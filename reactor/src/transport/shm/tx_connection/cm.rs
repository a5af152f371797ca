//! The sending end of a connected endpoint (`FI_EP_MSG`), until it is established.

use std::os::fd::AsFd;
use std::sync::Arc;

use fabric_core::flags::Caps;
use fabric_core::transport::WaitSet;
use fabric_core::{Address, Result};

use super::super::cm::{self, CmAnswer, CmEndpoint};
use super::super::control::ControlRead;
use super::super::socket::{PeerCredentials, ShmSocket};
use super::channel::{RING_LINES, TxChannel};
use super::{TxConnection, TxConnectionState};

impl TxConnection {
    /// Connects from a name to a passive endpoint.
    ///
    /// # Errors
    /// Those of [`ShmSocket::connect_from`], and of the operating system.
    pub(crate) fn connect_from(
        &mut self,
        from: &Address,
        incarnation: u64,
        token: u64,
        wait: &Arc<dyn WaitSet>,
    ) -> Result<()> {
        let socket = ShmSocket::connect_from(from, &self.peer_address)?;
        self.open_channel(socket, (from, incarnation), token, wait)
    }

    /// Creates the ring for a socket that leads to the peer with these credentials, and watches the
    /// socket. `from` and `incarnation` are those of this endpoint.
    pub(crate) fn open_channel(
        &mut self,
        socket: (ShmSocket, PeerCredentials),
        (from, incarnation): (&Address, u64),
        token: u64,
        wait: &Arc<dyn WaitSet>,
    ) -> Result<()> {
        let mut channel = TxChannel::new(socket, from, incarnation, &self.resources)?;
        channel.socket.watch(wait, token)?;
        self.state = TxConnectionState::Connecting(channel);
        Ok(())
    }

    /// Receives a message of the passive endpoint, or its answer, with the credentials of its
    /// process.
    pub(crate) fn recv_answer(&self) -> (ControlRead<CmAnswer>, Option<PeerCredentials>) {
        match &self.state {
            TxConnectionState::Connecting(channel) => (
                cm::recv_answer(&channel.socket),
                channel.socket.credentials().ok(),
            ),
            TxConnectionState::Established(_) | TxConnectionState::Closed => {
                (ControlRead::WouldBlock, None)
            }
        }
    }

    /// Returns whether the request was sent, or the accept.
    pub(crate) fn is_segment_sent(&self) -> bool {
        matches!(&self.state, TxConnectionState::Connecting(channel) if channel.hello_sent())
    }

    /// Sends the connection request. Does nothing if it was sent before.
    pub(crate) fn send_request(
        &mut self,
        caps: Caps,
        private_data: &[u8],
    ) -> rustix::io::Result<()> {
        let TxConnectionState::Connecting(channel) = &mut self.state else {
            return Ok(());
        };
        let Some((incarnation, segment)) = channel.take_segment() else {
            return Ok(());
        };
        let client = cm_endpoint(incarnation, caps, private_data);
        cm::send_request(&channel.socket, &client, segment.as_fd())
    }

    /// Sends the accept over the socket of the request. The peer then accepts this direction as the
    /// receiver of a connectionless endpoint does.
    pub(crate) fn send_accept(
        &mut self,
        request: &ShmSocket,
        caps: Caps,
        private_data: &[u8],
    ) -> rustix::io::Result<()> {
        let TxConnectionState::Connecting(channel) = &mut self.state else {
            return Ok(());
        };
        let Some((incarnation, segment)) = channel.take_segment() else {
            return Ok(());
        };
        let server = cm_endpoint(incarnation, caps, private_data);
        cm::send_accept(request, &server, segment.as_fd())
    }

    /// Makes the connection established: the peer has accepted, and has this incarnation.
    pub(crate) fn establish(&mut self, incarnation: u64) {
        self.state = match std::mem::replace(&mut self.state, TxConnectionState::Closed) {
            TxConnectionState::Connecting(mut channel) => {
                channel.on_accept(incarnation, self.resources.single_copy);
                TxConnectionState::Established(channel)
            }
            other => other,
        };
    }
}

fn cm_endpoint(incarnation: u64, caps: Caps, private_data: &[u8]) -> CmEndpoint {
    CmEndpoint {
        lines: RING_LINES,
        incarnation,
        caps,
        private_data: private_data.to_vec(),
    }
}
