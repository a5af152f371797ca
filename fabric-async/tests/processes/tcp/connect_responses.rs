//! Outcomes of a connect, by the response of the peer.

use std::net::SocketAddr;
use std::time::Duration;

use fabric_async::{Endpoint, Error};
use fabric_core::tcp::{CmKind, CmMessage, RdmCmData};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::{assert_still_works, bind_with_events};
use crate::run;

/// Returns a plain TCP listener and its name.
async fn raw_listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let name = format!("tcp://{}", listener.local_addr().unwrap());
    (listener, name)
}

/// Returns the error of a send to a peer that reads the connection request and then calls
/// `respond`.
async fn send_error_when_peer<F: Future<Output = ()>>(
    ep: &Endpoint,
    respond: impl FnOnce(TcpStream) -> F,
) -> Error {
    let (listener, name) = raw_listener().await;
    let peer = ep.address_vector().insert(&name[..]).unwrap();
    let responding = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request = [0; 40];
        socket.read_exact(&mut request).await.unwrap();
        let (control, _) = CmMessage::decode(&request).unwrap().unwrap();
        assert_eq!(control.kind, CmKind::Request);
        respond(socket).await;
    };
    let (sent, ()) = tokio::join!(ep.send(peer, vec![1; 100]), responding);
    sent.unwrap_err().error
}

#[test]
fn closed_port_fails_at_once() {
    run(async {
        let (ep, _events) = bind_with_events().await;
        let (closed, name) = raw_listener().await;
        drop(closed);
        let error = ep.add_peer(&name[..]).await.unwrap_err();
        assert!(matches!(error, Error::NoSuchPeer(_)), "{error}");
        let peer = ep.address_vector().insert(&name[..]).unwrap();
        let failed = ep.send(peer, vec![1; 100]).await.unwrap_err();
        assert!(
            matches!(failed.error, Error::NoSuchPeer(_)),
            "{}",
            failed.error
        );
        assert_eq!(failed.buf, [1; 100]);
        assert_still_works(&ep).await;
    });
}

#[test]
fn invalid_connect_responses_are_errors() {
    run(async {
        let (ep, _events) = bind_with_events().await;
        let error = send_error_when_peer(&ep, |socket| async move { drop(socket) }).await;
        assert!(matches!(error, Error::PeerGone(_)), "{error}");
        let error = send_error_when_peer(&ep, |mut socket| async move {
            socket
                .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                .await
                .unwrap();
            let _ = socket.read(&mut [0]).await;
        })
        .await;
        assert!(
            matches!(&error, Error::Protocol { what, .. } if what.contains("version")),
            "{error}"
        );
        let error = send_error_when_peer(&ep, |mut socket| async move {
            let reject = CmMessage::new(CmKind::Reject, b"no").unwrap().encode();
            socket.write_all(&reject).await.unwrap();
        })
        .await;
        assert!(matches!(error, Error::ConnectionRefused { .. }), "{error}");
        let error = send_error_when_peer(&ep, |mut socket| async move {
            let request = CmMessage::new(CmKind::Request, &[0; 8]).unwrap().encode();
            socket.write_all(&request).await.unwrap();
            let _ = socket.read(&mut [0]).await;
        })
        .await;
        assert!(
            matches!(&error, Error::Protocol { what, .. } if what.contains("instead of a reply")),
            "{error}"
        );
        assert_still_works(&ep).await;
    });
}

/// A connect to a silent peer fails after its timeout, and so does a connect to a peer that rejects
/// as in a simultaneous connect, and never connects.
#[test]
fn silent_or_refusing_peer_fails_connect() {
    run(async {
        let (ep, _events) = bind_with_events().await;
        let silent = send_error_when_peer(&ep, |mut socket| async move {
            let _ = socket.read(&mut [0]).await;
        });
        let error = silent.await;
        assert!(matches!(error, Error::TimedOut(_)), "{error}");
        let (rejecter, name) = raw_listener().await;
        let rejecting = tokio::spawn(async move {
            while let Ok((mut socket, _)) = rejecter.accept().await {
                let mut request = [0; 40];
                socket.read_exact(&mut request).await.unwrap();
                request[1] = 6;
                request[24..32].fill(0);
                socket.write_all(&request).await.unwrap();
            }
        });
        let error = ep.add_peer(&name[..]).await.unwrap_err();
        assert!(matches!(error, Error::ConnectionRefused { .. }), "{error}");
        rejecting.abort();
        assert_still_works(&ep).await;
    });
}

/// In a simultaneous connect the peer's connection wins, but the peer resets it before it is
/// accepted. The pending send connects again.
#[test]
fn reset_inbound_connection_is_replaced_by_outbound() {
    run(async {
        let (ep, _events) = bind_with_events().await;
        // The greater address wins a simultaneous connect.
        let at = SocketAddr::from(([127, 0, 0, 2], 0));
        let listener = TcpListener::bind(at).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let peer = ep
            .address_vector()
            .insert(&format!("tcp://127.0.0.2:{port}")[..])
            .unwrap();
        let sent = ep.send(peer, "hello").start().unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(at).unwrap();
        let mut socket = socket
            .connect(ep.name().socket_addr().unwrap())
            .await
            .unwrap();
        let request = CmMessage::new(CmKind::Request, &RdmCmData::new(port, 7).encode()).unwrap();
        socket.write_all(&request.encode()).await.unwrap();
        rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
        drop(socket);
        let responding = async {
            loop {
                let (mut socket, _) = listener.accept().await.unwrap();
                let mut request = [0; 40];
                if socket.read_exact(&mut request).await.is_err() {
                    // The outbound connection that lost.
                    continue;
                }
                let accept =
                    CmMessage::new(CmKind::Accept, &RdmCmData::new(9, 7).encode()).unwrap();
                socket.write_all(&accept.encode()).await.unwrap();
                let mut message = [0; 16 + 5];
                if socket.read_exact(&mut message).await.is_ok() {
                    return message;
                }
            }
        };
        let (sent, message) = tokio::join!(sent, responding);
        sent.unwrap();
        assert_eq!(&message[16..], b"hello");
        assert_still_works(&ep).await;
    });
}
