//! What the tests of all thread models do.

use fabric_async::info::Threading;
use fabric_async::thread_model::ThreadModel;
use fabric_async::{
    Address, ConnectedEndpoint, CqBind, Domain, EpType, Fabric, Hints, Result, discover,
};
use tokio::runtime::{Builder, Runtime};

type ConnectResult<M> = Result<ConnectedEndpoint<M>>;

pub(crate) const PROVIDERS: [&str; 3] = ["shm", "tcp", "udp"];

/// Returns a current-thread runtime.
pub(crate) fn runtime() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}

/// Connects an endpoint by `connect` to one that a domain of this model accepts, and sends a
/// message. Returns the domain.
#[allow(dead_code)] // not all tests connect endpoints
pub(crate) async fn connect_and_accept<M: ThreadModel, C: IntoFuture<Output = ConnectResult<M>>>(
    provider: &str,
    connect: impl FnOnce(&Address) -> C,
) -> Domain<M> {
    let hints = Hints::new().provider(provider).ep_type(EpType::Msg);
    let hints = hints.threading(Threading::Domain);
    let info = discover(&hints).unwrap().swap_remove(0);
    let fabric = Fabric::open(&info).unwrap();
    let mut listener = fabric.passive_endpoint(&info).unwrap().listen().unwrap();
    let domain = fabric.domain_builder(&info).thread_model::<M>();
    let domain = domain.open().unwrap();
    let cq = domain.completion_queue(16).unwrap();
    let connect = connect(listener.name()).into_future();
    let accept = async {
        let request = listener.accept().await?;
        let ep = domain.endpoint(request.info())?;
        let ep = ep.bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV)?;
        ep.accept(request, b"welcome")
    };
    let (client, server) = tokio::try_join!(connect, accept).unwrap();
    assert_eq!(client.private_data(), b"welcome");
    server.send("hello").await.unwrap();
    assert_eq!(&client.recv().await.unwrap()[..], b"hello");
    domain
}
