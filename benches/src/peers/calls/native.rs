//! Native calls.

use bytes::Bytes;
use fabric_async::Endpoint;
use fabric_rpc::native::{Client, Code, Request, Response, Server, Status};

use super::initiator::{CallClient, FILL};
use super::{announce, service_error};
use crate::Result;
use crate::options::WaitMode;

const ECHO: u32 = 1;
const MEASURE: u32 = 2;

pub(super) async fn serve(at: &str, wait: WaitMode, core: Option<usize>) -> Result<()> {
    let options = Endpoint::options().wait_policy(wait.policy());
    let server = Server::builder().endpoint_options(options).bind(at).await?;
    announce(server.name(), core);
    let handler = tower::service_fn(|request| std::future::ready(handle(request)));
    Ok(server.serve(handler).await?)
}

fn handle(request: Request) -> Result<Response, Status> {
    match request.method {
        ECHO => Ok(Response::new(request.body)),
        MEASURE => {
            let (len, mut last) = (request.body.len(), [FILL]);
            // A long argument is read where the client wrote it.
            if let (Some(argument), 1..) = (request.body.as_loaned(), len) {
                argument.read_at(len - 1, &mut last);
            }
            if last != [FILL] {
                return Err(Status::new(Code::Internal, "the argument has other bytes"));
            }
            Ok(Response::new((len as u64).to_le_bytes().to_vec()))
        }
        _ => Err(Status::new(Code::Unimplemented, "no such method")),
    }
}

pub(super) async fn connect(address: &str, wait: WaitMode) -> Result<Client> {
    let options = Endpoint::options().wait_policy(wait.policy());
    Ok(Client::builder(address)
        .endpoint_options(options)
        .connect()
        .await?)
}

impl CallClient for Client {
    async fn echo(&self, argument: Bytes) -> Result<Bytes> {
        let response = self.call(Request::new(ECHO, argument)).await;
        Ok(response.map_err(service_error)?.body.into_bytes())
    }

    async fn measure(&self, len: usize) -> Result<u64> {
        let mut argument = self.lend(len).await.map_err(service_error)?;
        argument.fill(FILL);
        let response = self.call(Request::new(MEASURE, argument)).await;
        let answer = response.map_err(service_error)?.body.into_bytes();
        let len = answer[..].try_into();
        Ok(u64::from_le_bytes(len.map_err(service_error)?))
    }
}
