//! What becomes of an attempt to connect.

use std::net::SocketAddr;
use std::time::Duration;

use fabric_async::{Endpoint, Error};
use fabric_core::tcp::{Control, ControlKind, Hello};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::{bound, still_works};
use crate::run;

/// Somebody who listens where a peer is looked for.
async fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let name = format!("tcp://{}", listener.local_addr().unwrap());
    (listener, name)
}

/// What a send comes to whose peer does this with the connection.
async fn sent_to<F: Future<Output = ()>>(
    ep: &Endpoint,
    answer: impl FnOnce(TcpStream) -> F,
) -> Error {
    let (listener, name) = listener().await;
    let peer = ep.address_vector().insert(&name[..]).unwrap();
    let answering = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request = [0; 40];
        socket.read_exact(&mut request).await.unwrap();
        let (control, _) = Control::decode(&request).unwrap().unwrap();
        assert_eq!(control.kind, ControlKind::Request);
        answer(socket).await;
    };
    let (sent, ()) = tokio::join!(ep.send(peer, vec![1; 100]), answering);
    sent.unwrap_err().error
}

#[test]
fn nobody_there_is_known_at_once() {
    run(async {
        let (ep, _events) = bound().await;
        let (gone, name) = listener().await;
        drop(gone);
        let error = ep.lookup(&name[..]).await.unwrap_err();
        assert!(matches!(error, Error::NoSuchPeer(_)), "{error}");
        let peer = ep.address_vector().insert(&name[..]).unwrap();
        let failed = ep.send(peer, vec![1; 100]).await.unwrap_err();
        assert!(
            matches!(failed.error, Error::NoSuchPeer(_)),
            "{}",
            failed.error
        );
        assert_eq!(failed.buf, [1; 100]);
        still_works(&ep).await;
    });
}

#[test]
fn answers_that_are_none_are_errors() {
    run(async {
        let (ep, _events) = bound().await;
        let error = sent_to(&ep, |socket| async move { drop(socket) }).await;
        assert!(matches!(error, Error::PeerGone(_)), "{error}");
        let error = sent_to(&ep, |mut socket| async move {
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
        let error = sent_to(&ep, |mut socket| async move {
            let refusal = Control::new(ControlKind::Refuse, b"no").unwrap().encode();
            socket.write_all(&refusal).await.unwrap();
        })
        .await;
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        let error = sent_to(&ep, |mut socket| async move {
            let question = Control::new(ControlKind::Request, &[0; 8])
                .unwrap()
                .encode();
            socket.write_all(&question).await.unwrap();
            let _ = socket.read(&mut [0]).await;
        })
        .await;
        assert!(
            matches!(&error, Error::Protocol { what, .. } if what.contains("question")),
            "{error}"
        );
        still_works(&ep).await;
    });
}

/// One that always refuses as if it asked itself, and never does, and one that says nothing: both
/// have their time.
#[test]
fn patience_has_an_end() {
    run(async {
        let (ep, _events) = bound().await;
        let silent = sent_to(&ep, |mut socket| async move {
            let _ = socket.read(&mut [0]).await;
        });
        let error = silent.await;
        assert!(matches!(error, Error::TimedOut(_)), "{error}");
        let (refusing, name) = listener().await;
        let refuses = tokio::spawn(async move {
            while let Ok((mut socket, _)) = refusing.accept().await {
                let mut request = [0; 40];
                socket.read_exact(&mut request).await.unwrap();
                request[1] = 6;
                request[24..32].fill(0);
                socket.write_all(&request).await.unwrap();
            }
        });
        let error = ep.lookup(&name[..]).await.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        refuses.abort();
        still_works(&ep).await;
    });
}

/// The peer asks as well, and its question goes before ours; but it resets the connection before it
/// is answered. What is to be sent asks once more.
#[test]
fn a_caller_that_has_gone_again_is_asked_again() {
    run(async {
        let (ep, _events) = bound().await;
        // The greater address.
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
        let mut socket = socket.connect(ep.name().socket().unwrap()).await.unwrap();
        let question = Control::new(ControlKind::Request, &Hello::new(port, 7).encode()).unwrap();
        socket.write_all(&question.encode()).await.unwrap();
        rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
        drop(socket);
        let answering = async {
            loop {
                let (mut socket, _) = listener.accept().await.unwrap();
                let mut request = [0; 40];
                if socket.read_exact(&mut request).await.is_err() {
                    // The question that was given up.
                    continue;
                }
                let answer = Control::new(ControlKind::Accept, &Hello::new(9, 7).encode()).unwrap();
                socket.write_all(&answer.encode()).await.unwrap();
                let mut message = [0; 16 + 5];
                if socket.read_exact(&mut message).await.is_ok() {
                    return message;
                }
            }
        };
        let (sent, message) = tokio::join!(sent, answering);
        sent.unwrap();
        assert_eq!(&message[16..], b"hello");
        still_works(&ep).await;
    });
}
