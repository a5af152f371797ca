//! The cases of gRPC's interoperability tests that apply without TLS and compression.

use std::time::Duration;

use futures_util::stream;
use tokio::sync::mpsc;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Status, Streaming};

use crate::common::take;
use crate::run;
use crate::test_service::{
    ECHO_INITIAL, ECHO_TRAILING, EchoStatus, Empty, SimpleRequest, SimpleResponse,
    StreamingInputCallRequest, StreamingOutputCallRequest, StreamingOutputCallResponse,
    output_request, payload,
};
use crate::tonic_server::TestServer;

async fn next_len(responses: &mut Streaming<StreamingOutputCallResponse>) -> Option<usize> {
    let response = responses.message().await.expect("a response")?;
    assert_eq!(
        response.payload,
        payload(response.payload.as_ref()?.body.len())
    );
    response.payload.map(|payload| payload.body.len())
}

/// Returns a stream of requests, and its sender.
fn requests<T>() -> (mpsc::UnboundedSender<T>, impl stream::Stream<Item = T>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let requests = stream::unfold(receiver, async |mut receiver| {
        receiver.recv().await.map(|request| (request, receiver))
    });
    (sender, requests)
}

#[test]
fn empty_unary() {
    run(async |address| {
        let server = TestServer::start(address).await;
        server.connect().await.empty_call().await.unwrap();
        server.stop().await;
    });
}

#[test]
fn large_unary() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let request = SimpleRequest {
            response_size: 314_159,
            payload: payload(271_828),
            response_status: None,
        };
        let response = server.connect().await.unary("UnaryCall", request).await;
        let response: SimpleResponse = response.unwrap().into_inner();
        assert_eq!(response.payload, payload(314_159));
        server.stop().await;
    });
}

#[test]
fn message_of_64_mib() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let mut client = server.connect().await;
        let request = SimpleRequest {
            response_size: 64 << 20,
            payload: payload(64 << 20),
            response_status: None,
        };
        let response = client.unary("UnaryCall", request).await;
        let response: SimpleResponse = response.unwrap().into_inner();
        assert!(response.payload == payload(64 << 20), "the payload differs");
        server.stop().await;
    });
}

#[test]
fn client_streaming() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let requests = [27_182, 8, 1_828, 45_904].map(|len| StreamingInputCallRequest {
            payload: payload(len),
        });
        let response = server.connect().await.input(stream::iter(requests)).await;
        assert_eq!(response.unwrap().aggregated_payload_size, 74_922);
        server.stop().await;
    });
}

#[test]
fn server_streaming() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let sizes = [31_415, 9, 2_653, 58_979];
        let request = output_request(&sizes);
        let mut client = server.connect().await;
        let mut responses = client.output("StreamingOutputCall", request).await.unwrap();
        for size in sizes {
            assert_eq!(next_len(&mut responses).await, Some(size as usize));
        }
        assert_eq!(next_len(&mut responses).await, None);
        server.stop().await;
    });
}

#[test]
fn ping_pong() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let (sender, requests) = requests();
        let responses = server.connect().await.duplex(requests).await;
        let mut responses = responses.unwrap().into_inner();
        for size in [31_415, 9, 2_653, 58_979] {
            sender.send(output_request(&[size])).unwrap();
            assert_eq!(next_len(&mut responses).await, Some(size as usize));
        }
        drop(sender);
        assert_eq!(next_len(&mut responses).await, None);
        server.stop().await;
    });
}

#[test]
fn empty_stream() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let responses = server.connect().await.duplex(stream::empty()).await;
        assert_eq!(next_len(&mut responses.unwrap().into_inner()).await, None);
        server.stop().await;
    });
}

#[test]
fn cancel_after_begin() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let mut client = server.connect().await;
        let call = tokio::spawn({
            let mut client = client.clone();
            async move { client.unary::<_, Empty>("Wait", Empty {}).await }
        });
        take(&server.probe.waiting).await;
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        take(&server.probe.dropped).await;
        // The connection goes on.
        client.empty_call().await.unwrap();
        server.stop().await;
    });
}

#[test]
fn cancel_after_first_response() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let mut client = server.connect().await;
        let mut responses = client.output("RespondAndWait", Empty {}).await.unwrap();
        assert_eq!(next_len(&mut responses).await, Some(1));
        take(&server.probe.waiting).await;
        drop(responses);
        take(&server.probe.dropped).await;
        server.stop().await;
    });
}

#[test]
fn timeout_on_sleeping_server() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let mut client = server.connect().await;
        let mut request = Request::new(Empty {});
        request.set_timeout(Duration::from_millis(50));
        let error = client
            .unary_request::<_, Empty>("Wait", request)
            .await
            .unwrap_err();
        // Of the client's timer, or of the server's: tonic reports both as these.
        assert!(
            matches!(error.code(), Code::Cancelled | Code::DeadlineExceeded),
            "{error:?}"
        );
        // The server ends the call too.
        take(&server.probe.dropped).await;
        server.stop().await;
    });
}

#[test]
fn status_code_and_message() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let mut client = server.connect().await;
        for message in [
            "test status message",
            "\t\ntest with whitespace\r\nand Unicode ☺ 😈\t\n",
        ] {
            let echo = EchoStatus {
                code: 2,
                message: message.into(),
            };
            let request = SimpleRequest {
                response_size: 0,
                payload: None,
                response_status: Some(echo.clone()),
            };
            let error = client
                .unary::<_, SimpleResponse>("UnaryCall", request)
                .await;
            assert_status(error.unwrap_err(), Code::Unknown, message);
            let request = StreamingOutputCallRequest {
                response_status: Some(echo),
                ..output_request(&[])
            };
            let responses = client.duplex(stream::iter([request])).await;
            let error = responses.unwrap().into_inner().message().await;
            assert_status(error.unwrap_err(), Code::Unknown, message);
        }
        server.stop().await;
    });
}

fn assert_status(error: Status, code: Code, message: &str) {
    assert_eq!((error.code(), error.message()), (code, message));
}

#[test]
fn unimplemented_method() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let mut client = server.connect().await;
        let error = client
            .unary::<_, Empty>("UnimplementedCall", Empty {})
            .await;
        assert_eq!(error.unwrap_err().code(), Code::Unimplemented);
        server.stop().await;
    });
}

#[test]
fn custom_metadata() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let mut client = server.connect().await;
        let initial = MetadataValue::from_static("test_initial_metadata_value");
        let trailing = MetadataValue::from_bytes(&[0xab; 5]);
        for response_status in [
            None,
            Some(EchoStatus {
                code: 9,
                message: "".into(),
            }),
        ] {
            let fails = response_status.is_some();
            let mut request = Request::new(SimpleRequest {
                response_size: 1,
                payload: payload(1),
                response_status,
            });
            request.metadata_mut().insert(ECHO_INITIAL, initial.clone());
            let metadata = request.metadata_mut();
            metadata.insert_bin(ECHO_TRAILING, trailing.clone());
            match client
                .unary_request::<_, SimpleResponse>("UnaryCall", request)
                .await
            {
                Ok(response) => {
                    assert!(!fails);
                    assert_eq!(response.metadata().get(ECHO_INITIAL), Some(&initial));
                }
                Err(error) => {
                    assert!(fails, "{error:?}");
                    let echoed = error.metadata().get_bin(ECHO_TRAILING);
                    assert_eq!(echoed, Some(&trailing));
                }
            }
        }
        let mut request = Request::new(stream::iter([output_request(&[1])]));
        request.metadata_mut().insert(ECHO_INITIAL, initial.clone());
        let mut response = client.duplex(request).await.unwrap();
        assert_eq!(response.metadata().get(ECHO_INITIAL), Some(&initial));
        assert_eq!(next_len(response.get_mut()).await, Some(1));
        server.stop().await;
    });
}
