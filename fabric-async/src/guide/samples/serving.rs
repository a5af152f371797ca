use fabric_async::{Endpoint, Error, FiAddr, Message, Result};

async fn serve(ep: Endpoint) -> Result<()> {
    loop {
        let any_tag = ep.recv().tag_ignoring(0, !0); // all 64 bits of the tag are ignored
        let request = any_tag.await?;
        let (Ok(client), Some(number)) = (request.source(), request.tag()) else {
            continue;
        };
        let reply = ep.send(client, request.into_bytes()).tag(number).start();
        match reply.map_err(|failed| failed.error) {
            Ok(reply) => drop(reply),                       // the send goes on by itself
            Err(Error::WouldBlock(_)) => {}                 // the client does not take its replies
            Err(error) if error.is_peer_unavailable() => {} // the client has left
            Err(error) => return Err(error),
        }
    }
}

async fn request(
    ep: &Endpoint,
    server: FiAddr,
    number: u64,
    text: &'static str,
) -> Result<Message> {
    let reply = ep.recv().tag(number).from(server).start()?; // first the receive,
    ep.send(server, text).tag(number).await?; // then the request
    Ok(reply.await?)
}
