//! Attacks that use the library as a peer. Over shared memory these are processes of the same user,
//! which alone can connect.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fabric_async::{Endpoint, FiAddr};
use tokio::time::{sleep, timeout};

use super::actions::{ActionCounter, NumberSequence, repeat_rounds};
use super::{Attack, BEGUN_LINE, start_attacker};
use crate::options::RuntimeKind;
use crate::peer_process::current_program;
use crate::siege::message::{ATTACK_TAG, REQUEST_TAG, RequestKind, encode_request, reply_tag};
use crate::siege::provider::SiegeProvider;
use crate::{Error, Result};

/// Endpoints of most attacks.
const ENDPOINTS: usize = 4;
/// Messages of the attack with empty ones.
const EMPTY_MESSAGES: usize = 130_000;
/// How long an attacker waits for the server to take a message before it leaves.
const PATIENCE: Duration = Duration::from_millis(20);
/// Length of a message whose sender is killed, in bytes.
const KILLED_LEN: usize = 64 << 20;
/// Requests whose replies are loans that the attacker keeps.
const KEPT_LOANS: u64 = 512;
/// How long the attacker keeps them.
const KEEP_TIME: Duration = Duration::from_millis(200);
/// How long the attacker waits for a reply that it keeps.
const REPLY_TIMEOUT: Duration = Duration::from_millis(500);

/// Runs an attack of this file forever.
///
/// # Errors
/// The attack cannot begin.
pub(super) async fn attack(
    attack: Attack,
    provider: SiegeProvider,
    target: &str,
    actions: &ActionCounter,
) -> Result<()> {
    let bind_address = match provider {
        SiegeProvider::Tcp => format!("tcp://{}:0", attack.source()),
        _ => provider.bind_address().to_owned(),
    };
    let peer = Arc::new(LibraryPeer {
        bind_address,
        target: target.to_owned(),
        rounds: AtomicU64::new(0),
        actions: actions.clone(),
    });
    match attack {
        Attack::UnexpectedMessages => {
            let round = move |_| send_unexpected(peer.clone());
            repeat_rounds(ENDPOINTS, actions, round).await
        }
        Attack::ConnectAndLeave => {
            let round = move |_| connect_and_leave(peer.clone());
            repeat_rounds(ENDPOINTS, actions, round).await
        }
        Attack::EmptyMessages => {
            let round = move |_| send_empty(peer.clone());
            repeat_rounds(2, actions, round).await
        }
        Attack::KilledSenders => kill_senders(&peer).await,
        Attack::LoansKept => {
            let round = move |_| keep_loans(peer.clone());
            repeat_rounds(ENDPOINTS, actions, round).await
        }
        other => Err(Error::InvalidRequest(format!(
            "the attack {} is not for peers with the library",
            other.name()
        ))),
    }
}

/// A peer with the library.
#[derive(Debug)]
struct LibraryPeer {
    bind_address: String,
    target: String,
    rounds: AtomicU64,
    actions: ActionCounter,
}

impl LibraryPeer {
    async fn connect(&self) -> Result<(Endpoint, FiAddr)> {
        let ep = Endpoint::bind(&self.bind_address[..]).await?;
        let server = ep.add_peer(&self.target[..]).await?;
        Ok((ep, server))
    }
}

/// Sends messages from one endpoint forever. A send that the server does not take waits.
async fn send_unexpected(peer: Arc<LibraryPeer>) -> Result<()> {
    let (ep, server) = peer.connect().await?;
    for len in [64 << 10, 100].into_iter().cycle() {
        ep.send(server, vec![7; len]).tag(ATTACK_TAG).await?;
        peer.actions.add_one();
    }
    Ok(())
}

/// Leaves messages behind: long ones in every eighth round, short ones in the others.
async fn connect_and_leave(peer: Arc<LibraryPeer>) -> Result<()> {
    let (ep, server) = peer.connect().await?;
    let lens = if peer
        .rounds
        .fetch_add(1, Ordering::Relaxed)
        .is_multiple_of(8)
    {
        vec![1 << 20; 3]
    } else {
        vec![300; 4]
    };
    for len in lens {
        let send = ep.send(server, vec![7; len]).tag(ATTACK_TAG).start()?;
        // While the budget has no room, the message stays behind unsent.
        let _ = timeout(PATIENCE, send).await;
    }
    peer.actions.add_one();
    Ok(())
}

/// Sends many empty messages, and leaves.
async fn send_empty(peer: Arc<LibraryPeer>) -> Result<()> {
    let (ep, server) = peer.connect().await?;
    for _ in 0..EMPTY_MESSAGES {
        let send = ep.send(server, Vec::new()).tag(ATTACK_TAG);
        match timeout(PATIENCE, send).await {
            Ok(sent) => sent?,
            Err(_) => return Ok(()),
        };
        peer.actions.add_one();
    }
    Ok(())
}

/// Starts processes that begin long messages, and kills each soon after.
async fn kill_senders(peer: &LibraryPeer) -> Result<()> {
    let mut numbers = NumberSequence::new(1);
    loop {
        let mut command = current_program()?;
        command.args(["siege-sender", "--target", &peer.target]);
        let mut sender = start_attacker("the sender", command)?;
        sleep(Duration::from_micros(numbers.next() % 3000)).await;
        sender.kill();
        peer.actions.add_one();
    }
}

/// Begins long messages to the endpoint `target`, some of which receives take, until this process
/// is killed.
///
/// # Errors
/// No process listens at the address.
pub fn begin_long_messages(target: &str) -> Result<()> {
    let target = target.to_owned();
    RuntimeKind::Current.run(async move {
        let ep = Endpoint::bind(SiegeProvider::Shm.bind_address()).await?;
        let server = ep.add_peer(&target[..]).await?;
        let taken = ep.send(server, vec![7; KILLED_LEN]).tag(REQUEST_TAG);
        let unexpected = ep.send(server, vec![7; KILLED_LEN]).tag(ATTACK_TAG);
        let (taken, unexpected) = (taken.start()?, unexpected.start()?);
        println!("{BEGUN_LINE}");
        taken.await?;
        unexpected.await?;
        std::future::pending().await
    })
}

/// Keeps the loans that the server sends as replies, for a while.
async fn keep_loans(peer: Arc<LibraryPeer>) -> Result<()> {
    let (ep, server) = peer.connect().await?;
    let mut kept = Vec::new();
    let len = SiegeProvider::Shm.long_request_len();
    for number in 0..KEPT_LOANS {
        let request = encode_request(RequestKind::Echo, number, len);
        ep.send(server, request).tag(REQUEST_TAG).await?;
        let reply = ep.recv_loan().tag(reply_tag(number)).from(server);
        let Ok(reply) = timeout(REPLY_TIMEOUT, reply).await else {
            break;
        };
        kept.push(reply?);
        peer.actions.add_one();
    }
    sleep(KEEP_TIME).await;
    Ok(())
}
