// A gRPC service, written as tonic-prost-build generates it from
//
//     service Echo {
//       rpc Unary(Message) returns (Message);
//       rpc Download(DownloadRequest) returns (stream Message);
//       rpc Measure(Message) returns (Length);
//     }

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};
use http::uri::PathAndQuery;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};

const UNARY: &str = "/echo.Echo/Unary";
const DOWNLOAD: &str = "/echo.Echo/Download";
const MEASURE: &str = "/echo.Echo/Measure";

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Message {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) payload: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DownloadRequest {
    #[prost(uint32, tag = "1")]
    pub(crate) messages: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) len: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Length {
    #[prost(uint64, tag = "1")]
    pub(crate) len: u64,
}

async fn measure(request: Request<Message>) -> Result<Response<Length>, Status> {
    let len = request.into_inner().payload.len() as u64;
    Ok(Response::new(Length { len }))
}

async fn unary(request: Request<Message>) -> Result<Response<Message>, Status> {
    Ok(Response::new(request.into_inner()))
}

async fn download(
    request: Request<DownloadRequest>,
) -> Result<Response<BoxStream<'static, Result<Message, Status>>>, Status> {
    let DownloadRequest { messages, len } = request.into_inner();
    let payload = Bytes::from(vec![7; len as usize]);
    let messages = (0..messages).map(move |_| {
        let payload = payload.clone();
        Ok(Message { payload })
    });
    Ok(Response::new(stream::iter(messages).boxed()))
}

#[derive(Clone)]
pub(crate) struct EchoServer;

impl NamedService for EchoServer {
    const NAME: &'static str = "echo.Echo";
}

impl Service<http::Request<Body>> for EchoServer {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            Ok(match request.uri().path() {
                UNARY => {
                    let mut grpc = tonic::server::Grpc::new(ProstCodec::default());
                    grpc.unary(service_fn(unary), request).await
                }
                MEASURE => {
                    let mut grpc = tonic::server::Grpc::new(ProstCodec::default());
                    grpc.unary(service_fn(measure), request).await
                }
                DOWNLOAD => {
                    let mut grpc = tonic::server::Grpc::new(ProstCodec::default());
                    grpc.server_streaming(service_fn(download), request).await
                }
                _ => Status::unimplemented("no such method").into_http(),
            })
        })
    }
}

#[derive(Clone)]
pub(crate) struct EchoClient(tonic::client::Grpc<Channel>);

impl EchoClient {
    pub(crate) fn new(channel: Channel) -> Self {
        Self(tonic::client::Grpc::new(channel))
    }

    #[allow(dead_code)] // not every example calls every method
    pub(crate) async fn unary(&mut self, message: Message) -> Result<Response<Message>, Status> {
        self.ready().await?;
        let path = PathAndQuery::from_static(UNARY);
        self.0
            .unary(Request::new(message), path, ProstCodec::default())
            .await
    }

    #[allow(dead_code)] // not every example calls every method
    pub(crate) async fn measure(&mut self, message: Message) -> Result<Response<Length>, Status> {
        self.ready().await?;
        let path = PathAndQuery::from_static(MEASURE);
        self.0
            .unary(Request::new(message), path, ProstCodec::default())
            .await
    }

    #[allow(dead_code)] // not every example calls every method
    pub(crate) async fn download(
        &mut self,
        request: DownloadRequest,
    ) -> Result<Response<Streaming<Message>>, Status> {
        self.ready().await?;
        let path = PathAndQuery::from_static(DOWNLOAD);
        self.0
            .server_streaming(Request::new(request), path, ProstCodec::default())
            .await
    }

    async fn ready(&mut self) -> Result<(), Status> {
        let ready = self.0.ready().await;
        ready.map_err(|error| Status::unknown(format!("service was not ready: {error}")))
    }
}
