//! Loans that are relayed from process to process: pipelines, and stages that are killed or
//! stopped.

use fabric_async::{Endpoint, FiAddr, LoanedBuf};
use rustix::net::RecvFlags;

use crate::health::assert_still_works;
use crate::hostile::{send_with_fds, try_send_with_fds};
use crate::leak_check::run_in_own_process;
use crate::rma::{RawShmListener, encode_control, recv_control_with_fds};
use crate::run;
use crate::test_peer::TestPeer;

const LEN: usize = 300_000;
/// The number of loans that the source can allocate: each takes a power of two.
const LOANS: usize = 4;
const LIMIT: usize = LOANS << 19;
/// Tags of messages to the source.
const READY: u64 = 1;
const SEEN: u64 = 2;
const COPIED: u64 = 3;

/// A pipeline of three processes: this one, a relay, and a sink.
struct Pipeline {
    ep: Endpoint,
    relay: TestPeer,
    sink: TestPeer,
    to_relay: FiAddr,
    to_sink: FiAddr,
}

impl Pipeline {
    /// Starts the stages. The sink holds the last `held` loans.
    async fn start(held: usize) -> Self {
        let options = Endpoint::options().loan_limit(LIMIT);
        let ep = options.bind("shm://").await.unwrap();
        let source = ep.name().to_string();
        let sink = TestPeer::start("loan_sink", &format!("{source} {held}"));
        let ready = ep.recv().tag(READY).await.unwrap();
        let (to_sink, sink_name) = (ready.source().unwrap(), text(&ready));
        let relay = TestPeer::start("loan_relay", &format!("{source} {sink_name}"));
        let ready = ep.recv().tag(READY).await.unwrap();
        let to_relay = ready.source().unwrap();
        Self {
            ep,
            relay,
            sink,
            to_relay,
            to_sink,
        }
    }

    /// Waits for memory, and sends a loan to the relay.
    async fn lend(&self, number: u8) -> fabric_async::Result<()> {
        let mut frame = self.ep.domain().loan(LEN).await?;
        frame.fill(number);
        self.ep.send(self.to_relay, frame).await?;
        Ok(())
    }

    /// Waits until the sink has received this message, in place and whole.
    async fn wait_seen(&self, number: u8) {
        let seen = self.ep.recv().tag(SEEN).await.unwrap();
        assert_eq!(seen[..], [number]);
    }

    /// Waits until all memory of the source can be allocated.
    async fn wait_all_returned(&self) {
        self.ep.domain().loan(LIMIT).await.unwrap();
    }
}

fn text(message: &[u8]) -> String {
    String::from_utf8(message.to_vec()).unwrap()
}

fn is_uniform(frame: &LoanedBuf, number: u8) -> bool {
    frame.len() == LEN && frame.to_vec().iter().all(|byte| *byte == number)
}

/// Relays the source's loans to the sink; an empty loan requests a report of the copied bytes.
pub(crate) async fn relay(names: &str) {
    let (source, sink) = names.split_once(' ').expect("two names");
    let ep = Endpoint::bind("shm://").await.expect("bind");
    let to_sink = ep.add_peer(sink).await.expect("add_peer");
    let to_source = ep.add_peer(source).await.expect("add_peer");
    ep.send(to_source, "relay").tag(READY).await.expect("send");
    while let Ok(frame) = ep.recv_loan().from(to_source).await {
        assert!(frame.is_in_place());
        if frame.is_empty() {
            report_copied(&ep, to_source).await;
            continue;
        }
        if ep.send(to_sink, frame.into_buf()).await.is_err() {
            // The sink has ended: its loans are lost.
            ep.send(to_source, "sink has ended")
                .tag(COPIED)
                .await
                .expect("send");
        }
    }
}

/// Receives loans in place, reports each to the source, and holds the last `held` loans.
pub(crate) async fn sink(name_and_held: &str) {
    let (source, held) = name_and_held.split_once(' ').expect("a name and a number");
    let held_count: usize = held.parse().expect("a number");
    let ep = Endpoint::bind("shm://").await.expect("bind");
    let to_source = ep.add_peer(source).await.expect("add_peer");
    ep.send(to_source, ep.name().to_string())
        .tag(READY)
        .await
        .expect("send");
    let mut held = std::collections::VecDeque::new();
    loop {
        let Ok(frame) = ep.recv_loan().await else {
            return;
        };
        if frame.is_empty() {
            report_copied(&ep, to_source).await;
            continue;
        }
        let mut number = [0];
        frame.read_at(0, &mut number);
        assert!(frame.is_in_place() && is_uniform(&frame, number[0]));
        held.push_back(frame);
        if held.len() > held_count {
            held.pop_front();
        }
        // Held loans stay as they are when any of the processes has died.
        for frame in &held {
            frame.read_at(0, &mut number);
            assert!(is_uniform(frame, number[0]));
        }
        if ep.send(to_source, number).tag(SEEN).await.is_err() {
            return;
        }
    }
}

async fn report_copied(ep: &Endpoint, to_source: FiAddr) {
    let stats = ep.stats();
    let copies = [stats.segmented, stats.single_copy_tx, stats.single_copy_rx];
    let copied: u64 = copies.iter().map(|copies| copies.bytes).sum();
    let report = format!("{copied} {}", stats.loaned);
    ep.send(to_source, report).tag(COPIED).await.expect("send");
}

/// No process of the pipeline copies a message, and the memory returns through the relay: the
/// source sends more messages than its memory holds at a time.
#[test]
fn three_stage_pipeline_copies_nothing() {
    run(async {
        const MESSAGES: usize = 300;
        let pipeline = Pipeline::start(1).await;
        let (ep, window) = (&pipeline.ep, LOANS - 1);
        for number in 0..MESSAGES {
            pipeline.lend(number as u8).await.unwrap();
            if number >= window {
                pipeline.wait_seen((number - window) as u8).await;
            }
        }
        for number in MESSAGES - window..MESSAGES {
            pipeline.wait_seen(number as u8).await;
        }
        for (to, loaned) in [(pipeline.to_relay, MESSAGES), (pipeline.to_sink, 0)] {
            ep.send(to, ep.domain().loan(0).await.unwrap())
                .await
                .unwrap();
            let report = ep.recv().tag(COPIED).from(to).await.unwrap();
            assert_eq!(text(&report), format!("0 {loaned}"), "bytes copied, loans");
        }
        let stats = ep.stats();
        assert_eq!(stats.segmented.bytes + stats.single_copy_tx.bytes, 0);
        assert_still_works(ep).await;
    });
}

/// When the sink is killed, the source does not reuse the memory of the sink's loans, and can
/// allocate new memory; the relay still works.
#[test]
fn source_can_lend_again_when_the_sink_of_a_pipeline_is_killed() {
    run(async {
        let mut pipeline = Pipeline::start(LOANS).await;
        for number in 0..LOANS as u8 {
            pipeline.lend(number).await.unwrap();
            pipeline.wait_seen(number).await;
        }
        assert!(
            pipeline.ep.domain().try_loan(1).is_err(),
            "the sink holds all loans"
        );
        pipeline.sink.0.kill().unwrap();
        pipeline.wait_all_returned().await;
        // The relay still receives.
        pipeline.lend(9).await.unwrap();
        let report = pipeline.ep.recv().tag(COPIED).await.unwrap();
        assert_eq!(text(&report), "sink has ended");
        pipeline.wait_all_returned().await;
        assert_still_works(&pipeline.ep).await;
    });
}

/// When the relay is killed, the source does not reuse the memory of its loans, and the sink still
/// reads them.
#[test]
fn sink_reads_on_when_the_relay_of_a_pipeline_is_killed() {
    run(async {
        let mut pipeline = Pipeline::start(LOANS).await;
        for number in 0..LOANS as u8 {
            pipeline.lend(number).await.unwrap();
            pipeline.wait_seen(number).await;
        }
        pipeline.relay.0.kill().unwrap();
        pipeline.wait_all_returned().await;
        // The source sends new loans to the sink, which compares the bytes of the loans it holds.
        for number in 10..13 {
            let mut frame = pipeline.ep.domain().loan(LEN).await.unwrap();
            frame.fill(number);
            pipeline.ep.send(pipeline.to_sink, frame).await.unwrap();
            pipeline.wait_seen(number).await;
        }
        assert_still_works(&pipeline.ep).await;
    });
}

/// Relay and sink keep their loans when the source is killed. The test runs in a process of its
/// own, because the descriptors that a process keeps for relays are limited.
#[test]
fn relayed_loans_stay_readable_when_their_source_is_killed() {
    run_in_own_process(
        "loan_relays::relayed_loans_stay_readable_when_their_source_is_killed",
        || {
            run(async {
                for _ in 0..10 {
                    relay_until_the_source_is_killed().await;
                }
            })
        },
    );
}

async fn relay_until_the_source_is_killed() {
    let (relay, sink) = (
        Endpoint::bind("shm://").await.unwrap(),
        Endpoint::bind("shm://").await.unwrap(),
    );
    let to_sink = relay.add_peer(sink.name()).await.unwrap();
    let mut source = TestPeer::start("loan_sender", &relay.name().to_string());
    let first = relay.recv_loan().tag(1).await.unwrap();
    let from = first.source().unwrap();
    let (mut frame, mut held) = (first.into_buf(), Vec::new());
    for round in 0..20 {
        let (sent, got) = tokio::join!(relay.send(to_sink, frame), sink.recv_loan());
        assert!(sent.unwrap().is_in_place());
        held.push(got.unwrap().into_buf());
        if round == 10 {
            source.0.kill().unwrap();
        }
        match relay.recv_loan().tag(1).from(from).await {
            Ok(next) => frame = next.into_buf(),
            Err(failed) => {
                assert!(failed.error.is_peer_unavailable(), "{}", failed.error);
                break;
            }
        }
    }
    assert!(held.len() > 10);
    for (number, frame) in held.iter().enumerate() {
        assert!(frame.is_in_place() && is_uniform(frame, number as u8));
    }
    source.0.wait().unwrap();
    assert_still_works(&relay).await;
}

/// A stopped sink holds only the memory of loans that were sent to it: the source waits for memory,
/// other peers are served, and all memory returns when the sink continues.
#[test]
fn stopped_sink_of_a_pipeline_holds_only_its_loans() {
    run(async {
        let pipeline = Pipeline::start(0).await;
        pipeline.lend(7).await.unwrap();
        pipeline.wait_seen(7).await;
        pipeline.wait_all_returned().await;
        pipeline.sink.stop();
        for number in 0..LOANS as u8 {
            pipeline.lend(number).await.unwrap();
        }
        assert_still_works(&pipeline.ep).await;
        assert!(
            pipeline.ep.domain().try_loan(1).is_err(),
            "the sink holds all loans"
        );
        let all_returned = pipeline.wait_all_returned();
        let resumed = async {
            pipeline.sink.resume();
            for number in 0..LOANS as u8 {
                pipeline.wait_seen(number).await;
            }
        };
        tokio::join!(all_returned, resumed);
        assert_still_works(&pipeline.ep).await;
    });
}

/// Offsets in a segment of the bits of returned slots, and of those that are lost; 32 bytes each.
const RETURNED_AT: u64 = 512;
const LOST_AT: u64 = RETURNED_AT + 32;

/// Plays a receiver that returns all slots, whether it holds them or not, as lost or not, until its
/// peer disconnects.
fn forge_returns(listener: &RawShmListener) {
    let connection = listener.accept_ready();
    let (_hello, segment) = recv_control_with_fds(&connection);
    send_with_fds(&connection, &encode_control(0, 1), &[]);
    for round in 0u64.. {
        let lost = [0, 0xff, 0x55, 0x0f][round as usize % 4];
        rustix::io::pwrite(&segment[0], &[lost; 32], LOST_AT).unwrap();
        rustix::io::pwrite(&segment[0], &[0xff; 32], RETURNED_AT).unwrap();
        if try_send_with_fds(&connection, &encode_control(101, 0), &[]).is_err() {
            return;
        }
        let mut bytes = [0; 300];
        while let Ok((1.., _)) = rustix::net::recv(&connection, &mut bytes, RecvFlags::DONTWAIT) {}
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// A receiver that returns loans that it does not hold, returns loans twice, or reports them as
/// lost, affects only the memory of loans that it held.
#[test]
fn forged_returns_free_only_what_the_forger_held() {
    run(async {
        let name = format!("{}.forger", std::process::id());
        let listener = RawShmListener::listen(&name);
        let forger = std::thread::spawn(move || forge_returns(&listener));
        let options = Endpoint::options().loan_limit(LIMIT);
        let source = options.bind("shm://").await.unwrap();
        let relay = Endpoint::bind("shm://").await.unwrap();
        let to_relay = source.add_peer(relay.name()).await.unwrap();
        let to_forger = relay.add_peer(&format!("shm://{name}")[..]).await.unwrap();
        let mut kept = Vec::new();
        for number in 0..50 {
            let mut frame = source.domain().loan(LEN).await.unwrap();
            frame.fill(number);
            source.send(to_relay, frame).await.unwrap();
            let frame = relay.recv_loan().await.unwrap().into_buf();
            let frame = relay.send(to_forger, frame).await.unwrap().into_buf();
            // The relay's loans are not affected by forged returns.
            assert!(frame.is_in_place() && is_uniform(&frame, number));
            kept.push(frame);
            if kept.len() == LOANS {
                for (at, frame) in kept.drain(..).enumerate() {
                    assert!(is_uniform(&frame, number - (LOANS - 1 - at) as u8));
                }
            }
        }
        drop(kept);
        source.domain().loan(LIMIT).await.unwrap();
        assert_still_works(&source).await;
        assert_still_works(&relay).await;
        drop(relay);
        forger.join().unwrap();
    });
}
