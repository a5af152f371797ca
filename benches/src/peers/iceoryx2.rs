//! iceoryx2: two services that publish byte slices, one for each direction; both sides spin.
//!
//! iceoryx2 is designed for messages written in place. Here each side copies its message in and
//! out, as all other peers do.

use std::fmt::Debug;
use std::hint::spin_loop;
use std::time::{Duration, Instant};

use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::{LogLevel, NodeBuilder, SignalHandlingMode, ipc, set_log_level};

use super::{BenchCase, MeasuredLibrary};
use crate::measure::Budget;
use crate::measure::rounds::{RoundScheduler, fill_record};
use crate::options::{Bench, BenchOp};
use crate::peer_process::{ChildProcess, current_program};
use crate::record::Record;
use crate::samples::TimeStamps;
use crate::stop::Stop;
use crate::{Error, Result, pin};

/// The first byte of discovery messages, of measured messages, and of the last message. All but the
/// last are answered.
const MSG_PROBE: u8 = 1;
const MSG_PING: u8 = 2;
const MSG_END: u8 = 0;
/// How long to wait for the discovery of the responder, and between two attempts.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(10);
const DISCOVERY_INTERVAL: Duration = Duration::from_millis(1);
/// Polls for a reply between two checks that the responder is alive.
const POLLS_PER_CHECK: u64 = 1 << 16;

/// iceoryx2.
#[derive(Debug)]
pub struct Iceoryx2;

impl MeasuredLibrary for Iceoryx2 {
    fn name(&self) -> &str {
        "iceoryx2"
    }

    fn unavailable(&self) -> Option<String> {
        None
    }

    /// The first byte of a message is its kind, so empty messages are not measured.
    fn supports(&self, case: &BenchCase) -> bool {
        (case.bench, case.op) == (Bench::Lat, BenchOp::Send) && case.size > 0
    }

    fn measure(&self, case: &BenchCase, stop: &Stop) -> Result<Record> {
        let name = format!("fabric-bench-{}", std::process::id());
        let mut command = current_program()?;
        command.args(["echo-iceoryx2", &name, &case.size.to_string()]);
        let (mut child, _) =
            pin::run_on_core(case.cores.1, || ChildProcess::start(self.name(), command))?;
        let measured = pin::run_on_core(case.cores.0, || {
            run_initiator(&name, case, &mut child, stop)
        });
        let rounds = measured.map_err(|error| child.or_death_error(error))?;
        let mut record = Record {
            op: "copy".into(),
            wait: "spin".into(),
            progress: "manual".into(),
            timer_ns: Some(case.timer_ns()),
            ..case.empty_record(self)
        };
        fill_record(&[rounds.into_outcome()], &mut record);
        Ok(record)
    }
}

/// One side: a publisher and a subscriber.
struct PubSub {
    publisher: Publisher<ipc::Service, [u8], ()>,
    subscriber: Subscriber<ipc::Service, [u8], ()>,
}

impl PubSub {
    fn open(tx_service: &str, rx_service: &str, size: usize) -> Result<Self> {
        // iceoryx2 warns about a missing configuration file; the defaults are intended.
        set_log_level(LogLevel::Error);
        let node = NodeBuilder::new()
            .signal_handling_mode(SignalHandlingMode::Disabled)
            .create::<ipc::Service>()
            .map_err(iceoryx2_error)?;
        let service = |name: &str| {
            let builder = node.service_builder(&name.try_into().map_err(iceoryx2_error)?);
            builder
                .publish_subscribe::<[u8]>()
                .open_or_create()
                .map_err(iceoryx2_error)
        };
        let service_out = service(tx_service)?;
        let publisher = service_out.publisher_builder().initial_max_slice_len(size);
        Ok(Self {
            publisher: publisher.create().map_err(iceoryx2_error)?,
            subscriber: service(rx_service)?
                .subscriber_builder()
                .create()
                .map_err(iceoryx2_error)?,
        })
    }

    fn send(&self, bytes: &[u8]) -> Result<()> {
        let loan = self
            .publisher
            .loan_slice_uninit(bytes.len())
            .map_err(iceoryx2_error)?;
        loan.write_from_slice(bytes)
            .send()
            .map_err(iceoryx2_error)?;
        Ok(())
    }

    /// Polls for a message and copies it out; returns whether there was one.
    fn try_receive(&self, buf: &mut Vec<u8>) -> Result<bool> {
        let sample = self.subscriber.receive().map_err(iceoryx2_error)?;
        Ok(sample.is_some_and(|sample| {
            buf.clear();
            buf.extend_from_slice(&sample);
            true
        }))
    }
}

fn run_initiator(
    name: &str,
    case: &BenchCase,
    child: &mut ChildProcess,
    stop: &Stop,
) -> Result<RoundScheduler> {
    let pubsub = PubSub::open(&format!("{name}/ping"), &format!("{name}/pong"), case.size)?;
    let (probe, ping) = (vec![MSG_PROBE; case.size], vec![MSG_PING; case.size]);
    let mut pong = Vec::with_capacity(case.size);
    let began = Instant::now();
    loop {
        pubsub.send(&probe)?;
        std::thread::sleep(DISCOVERY_INTERVAL);
        if pubsub.try_receive(&mut pong)? {
            break;
        }
        stop.check()?;
        if child.has_ended() || began.elapsed() > DISCOVERY_TIMEOUT {
            return Err(iceoryx2_error("the responder does not reply"));
        }
    }
    let (mut rounds, mut stamps) = (
        RoundScheduler::new(
            case.bench,
            Budget::Seconds(case.time.as_secs_f64()),
            case.size,
        ),
        TimeStamps::new(0),
    );
    while let Some(count) = rounds.next_round(1, stop) {
        stamps.reserve(count as usize);
        stamps.begin();
        for _ in 0..count {
            pubsub.send(&ping)?;
            let mut polls = 0;
            // A late reply to a discovery message is ignored.
            while !(pubsub.try_receive(&mut pong)? && pong.first() == ping.first()) {
                spin_loop();
                polls += 1;
                if polls % POLLS_PER_CHECK == 0 {
                    stop.check()?;
                    if child.has_ended() {
                        return Err(iceoryx2_error("the responder has ended"));
                    }
                }
            }
            stamps.stamp();
        }
        rounds.record_round(count, stamps.elapsed(), &stamps);
    }
    pubsub.send(&[MSG_END])?;
    Ok(rounds)
}

/// Runs the responder: answers every message with one of the same size, until the last one.
///
/// # Errors
/// The services cannot be opened.
pub fn echo_iceoryx2(name: &str, size: usize) -> Result<()> {
    let pubsub = PubSub::open(&format!("{name}/pong"), &format!("{name}/ping"), size)?;
    println!("listening on {name}");
    let (mut ping, pong) = (Vec::with_capacity(size), vec![7; size]);
    loop {
        while !pubsub.try_receive(&mut ping)? {
            spin_loop();
        }
        if ping.first() == Some(&MSG_END) {
            return Ok(());
        }
        pubsub.send(&pong)?;
    }
}

fn iceoryx2_error(error: impl Debug) -> Error {
    Error::Io {
        what: "iceoryx2".into(),
        error: std::io::Error::other(format!("{error:?}")),
    }
}
