//! The messages, server and client of gRPC's interoperability tests (`grpc.testing.TestService`),
//! as tonic-prost-build generates them, and a probe that steps through calls.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use fabric_rpc::FabricConnectInfo;
use futures_util::stream::{self, BoxStream, Stream, StreamExt};
use http::uri::PathAndQuery;
use tonic::body::Body;
use tonic::metadata::MetadataMap;
use tonic::server::NamedService;
use tonic::transport::Channel;
use tonic::{Code, IntoStreamingRequest, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};

use crate::common::Probe;

pub(crate) const ECHO_INITIAL: &str = "x-grpc-test-echo-initial";
pub(crate) const ECHO_TRAILING: &str = "x-grpc-test-echo-trailing-bin";

/// The longest message of both sides.
const MAX_MESSAGE: usize = 65 << 20;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Empty {}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Payload {
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) body: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct EchoStatus {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SimpleRequest {
    #[prost(int32, tag = "2")]
    pub(crate) response_size: i32,
    #[prost(message, optional, tag = "3")]
    pub(crate) payload: Option<Payload>,
    #[prost(message, optional, tag = "7")]
    pub(crate) response_status: Option<EchoStatus>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SimpleResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) payload: Option<Payload>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StreamingInputCallRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) payload: Option<Payload>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StreamingInputCallResponse {
    #[prost(int32, tag = "1")]
    pub(crate) aggregated_payload_size: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ResponseParameters {
    #[prost(int32, tag = "1")]
    pub(crate) size: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StreamingOutputCallRequest {
    #[prost(message, repeated, tag = "2")]
    pub(crate) response_parameters: Vec<ResponseParameters>,
    #[prost(message, optional, tag = "3")]
    pub(crate) payload: Option<Payload>,
    #[prost(message, optional, tag = "7")]
    pub(crate) response_status: Option<EchoStatus>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StreamingOutputCallResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) payload: Option<Payload>,
}

pub(crate) fn payload(len: usize) -> Option<Payload> {
    let body = (0..len).map(|index| index as u8).collect();
    Some(Payload { body })
}

pub(crate) fn output_request(sizes: &[i32]) -> StreamingOutputCallRequest {
    let parameters = sizes.iter().map(|size| ResponseParameters { size: *size });
    StreamingOutputCallRequest {
        response_parameters: parameters.collect(),
        payload: payload(3),
        response_status: None,
    }
}

fn payload_len(payload: &Option<Payload>) -> usize {
    payload.as_ref().map_or(0, |payload| payload.body.len())
}

fn status(echo: Option<EchoStatus>) -> Result<(), Status> {
    match echo {
        Some(echo) => Err(Status::new(Code::from(echo.code), echo.message)),
        None => Ok(()),
    }
}

/// The service. Calls of `wait` wait for the probe, those of `peer` return the peer in metadata.
#[derive(Clone)]
pub(crate) struct TestService(pub(crate) Arc<Probe>);

type Responses<T> = BoxStream<'static, Result<T, Status>>;

async fn empty_call(_: Request<Empty>) -> Result<Response<Empty>, Status> {
    Ok(Response::new(Empty {}))
}

async fn unary_call(request: Request<SimpleRequest>) -> Result<Response<SimpleResponse>, Status> {
    let initial = request.metadata().get(ECHO_INITIAL).cloned();
    let trailing = request.metadata().get_bin(ECHO_TRAILING).cloned();
    let request = request.into_inner();
    if let Err(mut error) = status(request.response_status) {
        if let Some(value) = trailing {
            error.metadata_mut().insert_bin(ECHO_TRAILING, value);
        }
        return Err(error);
    }
    let mut response = Response::new(SimpleResponse {
        payload: payload(request.response_size as usize),
    });
    if let Some(value) = initial {
        response.metadata_mut().insert(ECHO_INITIAL, value);
    }
    Ok(response)
}

async fn peer(request: Request<Empty>) -> Result<Response<Empty>, Status> {
    let info = request.extensions().get::<FabricConnectInfo>();
    let info = info.ok_or_else(|| Status::internal("no FabricConnectInfo"))?;
    let mut metadata = MetadataMap::new();
    let mut insert = |key, value: String| metadata.insert(key, value.parse().expect("a value"));
    insert("local", info.local_addr().to_string());
    insert("peer", info.peer_addr().to_string());
    if let Some(peer) = info.peer_credentials() {
        insert("uid", peer.uid.to_string());
        insert("pid", peer.pid.expect("a process id").to_string());
    }
    Ok(Response::from_parts(metadata, Empty {}, Default::default()))
}

async fn wait(probe: Arc<Probe>) -> Result<Response<Empty>, Status> {
    probe.wait().await;
    Ok(Response::new(Empty {}))
}

async fn streaming_input_call(
    request: Request<Streaming<StreamingInputCallRequest>>,
) -> Result<Response<StreamingInputCallResponse>, Status> {
    let mut requests = request.into_inner();
    let mut total = 0;
    while let Some(request) = requests.message().await? {
        total += payload_len(&request.payload) as i32;
    }
    Ok(Response::new(StreamingInputCallResponse {
        aggregated_payload_size: total,
    }))
}

fn responses(
    request: StreamingOutputCallRequest,
) -> impl Stream<Item = Result<StreamingOutputCallResponse, Status>> {
    let sizes = request.response_parameters.into_iter();
    let responses = sizes.map(|parameters| {
        let payload = payload(parameters.size as usize);
        Ok(StreamingOutputCallResponse { payload })
    });
    let error = status(request.response_status).err();
    stream::iter(responses.chain(error.map(Err)))
}

async fn streaming_output_call(
    request: Request<StreamingOutputCallRequest>,
) -> Result<Response<Responses<StreamingOutputCallResponse>>, Status> {
    Ok(Response::new(responses(request.into_inner()).boxed()))
}

/// Returns one response, and then waits for the probe.
async fn respond_and_wait(
    probe: Arc<Probe>,
) -> Result<Response<Responses<StreamingOutputCallResponse>>, Status> {
    let first = StreamingOutputCallResponse {
        payload: payload(1),
    };
    let rest = stream::once(async move {
        probe.wait().await;
        Err(Status::aborted("the end"))
    });
    Ok(Response::new(stream::iter([Ok(first)]).chain(rest).boxed()))
}

async fn full_duplex_call(
    request: Request<Streaming<StreamingOutputCallRequest>>,
) -> Result<Response<Responses<StreamingOutputCallResponse>>, Status> {
    let initial = request.metadata().get(ECHO_INITIAL).cloned();
    let responses = request.into_inner().flat_map(|request| match request {
        Ok(request) => responses(request).left_stream(),
        Err(error) => stream::iter([Err(error)]).right_stream(),
    });
    let mut response = Response::new(responses.boxed());
    if let Some(value) = initial {
        response.metadata_mut().insert(ECHO_INITIAL, value);
    }
    Ok(response)
}

impl NamedService for TestService {
    const NAME: &'static str = "grpc.testing.TestService";
}

/// Returns the server side of a call.
fn grpc<Req, Res>() -> tonic::server::Grpc<ProstCodec<Res, Req>>
where
    Req: prost::Message + Default + 'static,
    Res: prost::Message + 'static,
{
    tonic::server::Grpc::new(ProstCodec::default()).max_decoding_message_size(MAX_MESSAGE)
}

impl Service<http::Request<Body>> for TestService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let probe = self.0.clone();
        Box::pin(async move {
            let method = request.uri().path().rsplit('/').next();
            Ok(match method.unwrap_or_default() {
                "EmptyCall" => grpc().unary(service_fn(empty_call), request).await,
                "UnaryCall" => grpc().unary(service_fn(unary_call), request).await,
                "Peer" => grpc().unary(service_fn(peer), request).await,
                "Wait" => {
                    let service = service_fn(|_: Request<Empty>| wait(probe.clone()));
                    grpc().unary(service, request).await
                }
                "StreamingInputCall" => {
                    let service = service_fn(streaming_input_call);
                    grpc().client_streaming(service, request).await
                }
                "StreamingOutputCall" => {
                    let service = service_fn(streaming_output_call);
                    grpc().server_streaming(service, request).await
                }
                "RespondAndWait" => {
                    let service = service_fn(|_: Request<Empty>| respond_and_wait(probe.clone()));
                    grpc().server_streaming(service, request).await
                }
                "FullDuplexCall" => {
                    grpc()
                        .streaming(service_fn(full_duplex_call), request)
                        .await
                }
                _ => Status::unimplemented("unknown method").into_http(),
            })
        })
    }
}

/// The client. Methods are named by the last part of their path.
#[derive(Clone)]
pub(crate) struct TestClient(tonic::client::Grpc<Channel>);

impl TestClient {
    pub(crate) fn new(channel: Channel) -> Self {
        let grpc = tonic::client::Grpc::new(channel);
        Self(grpc.max_decoding_message_size(MAX_MESSAGE))
    }

    async fn begin(&mut self, method: &str) -> Result<PathAndQuery, Status> {
        let ready = self.0.ready().await;
        ready.map_err(|error| Status::from_error(error.into()))?;
        let path = format!("/{}/{method}", TestService::NAME);
        Ok(path.parse().expect("a path"))
    }

    pub(crate) async fn empty_call(&mut self) -> Result<(), Status> {
        self.unary::<_, Empty>("EmptyCall", Empty {})
            .await
            .map(drop)
    }

    pub(crate) async fn unary<Req, Res>(
        &mut self,
        method: &str,
        message: Req,
    ) -> Result<Response<Res>, Status>
    where
        Req: prost::Message + 'static,
        Res: prost::Message + Default + 'static,
    {
        self.unary_request(method, Request::new(message)).await
    }

    pub(crate) async fn unary_request<Req, Res>(
        &mut self,
        method: &str,
        request: Request<Req>,
    ) -> Result<Response<Res>, Status>
    where
        Req: prost::Message + 'static,
        Res: prost::Message + Default + 'static,
    {
        let path = self.begin(method).await?;
        let codec = ProstCodec::default();
        self.0.unary(request, path, codec).await
    }

    pub(crate) async fn input(
        &mut self,
        requests: impl IntoStreamingRequest<Message = StreamingInputCallRequest>,
    ) -> Result<StreamingInputCallResponse, Status> {
        let path = self.begin("StreamingInputCall").await?;
        let (requests, codec) = (requests.into_streaming_request(), ProstCodec::default());
        let response = self.0.client_streaming(requests, path, codec).await;
        response.map(Response::into_inner)
    }

    pub(crate) async fn output<Req: prost::Message + 'static>(
        &mut self,
        method: &str,
        request: Req,
    ) -> Result<Streaming<StreamingOutputCallResponse>, Status> {
        let path = self.begin(method).await?;
        let (request, codec) = (Request::new(request), ProstCodec::default());
        let response = self.0.server_streaming(request, path, codec).await;
        response.map(Response::into_inner)
    }

    pub(crate) async fn duplex(
        &mut self,
        requests: impl IntoStreamingRequest<Message = StreamingOutputCallRequest>,
    ) -> Result<Response<Streaming<StreamingOutputCallResponse>>, Status> {
        let path = self.begin("FullDuplexCall").await?;
        let (requests, codec) = (requests.into_streaming_request(), ProstCodec::default());
        self.0.streaming(requests, path, codec).await
    }
}
