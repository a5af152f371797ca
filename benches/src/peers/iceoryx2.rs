//! iceoryx2: two services that publish byte slices, one each way; both sides spin.
//!
//! Its way is to write messages in place. Here each side copies its message in and publisher, as all
//! others do.

use std::fmt::Debug;
use std::hint::spin_loop;
use std::time::{Duration, Instant};

use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::{LogLevel, NodeBuilder, SignalHandlingMode, ipc, set_log_level};

use super::{BenchCase, BenchPeer};
use crate::measure::Budget;
use crate::measure::rounds::{RoundScheduler, fill_record};
use crate::options::{Bench, BenchOp};
use crate::peer_process::{ChildProcess, current_program};
use crate::record::Record;
use crate::samples::TimeStamps;
use crate::stop::Stop;
use crate::{Error, Result, pin};

/// The first byte of the messages that find the other side, of those that are measured, and of the
/// last one. All but that are sent back.
const MSG_PROBE: u8 = 1;
const MSG_PING: u8 = 2;
const MSG_END: u8 = 0;
/// How long to wait for the other side to be found, and between two tries.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(10);
const DISCOVERY_INTERVAL: Duration = Duration::from_millis(1);
/// How often to look for an answer before looking whether anybody is there to give it.
const POLLS_PER_CHECK: u64 = 1 << 16;

/// iceoryx2.
#[derive(Debug)]
pub struct Iceoryx2;

impl BenchPeer for Iceoryx2 {
    fn name(&self) -> &str {
        "iceoryx2"
    }

    fn unavailable(&self) -> Option<String> {
        None
    }

    /// A message of no bytes has no first one, which says what it is for: its latency is not
    /// measured.
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

/// One side: what it publishes, and what it receives.
struct PubSub {
    publisher: Publisher<ipc::Service, [u8], ()>,
    subscriber: Subscriber<ipc::Service, [u8], ()>,
}

impl PubSub {
    fn open(out: &str, back: &str, size: usize) -> Result<Self> {
        // It warns that there is no configuration file; the defaults are what is measured.
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
        let service_out = service(out)?;
        let publisher = service_out.publisher_builder().initial_max_slice_len(size);
        Ok(Self {
            publisher: publisher.create().map_err(iceoryx2_error)?,
            subscriber: service(back)?
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

    /// Looks for a message, copies it publisher, and says whether there was one.
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
    let ends = PubSub::open(&format!("{name}/ping"), &format!("{name}/pong"), case.size)?;
    let (find, ping) = (vec![MSG_PROBE; case.size], vec![MSG_PING; case.size]);
    let mut pong = Vec::with_capacity(case.size);
    let began = Instant::now();
    loop {
        ends.send(&find)?;
        std::thread::sleep(DISCOVERY_INTERVAL);
        if ends.try_receive(&mut pong)? {
            break;
        }
        stop.check()?;
        if child.has_ended() || began.elapsed() > DISCOVERY_TIMEOUT {
            return Err(iceoryx2_error("nobody answers"));
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
            ends.send(&ping)?;
            let mut looks = 0;
            // What comes back late from finding each other is no answer.
            while !(ends.try_receive(&mut pong)? && pong.first() == ping.first()) {
                spin_loop();
                looks += 1;
                if looks % POLLS_PER_CHECK == 0 {
                    stop.check()?;
                    if child.has_ended() {
                        return Err(iceoryx2_error("nobody answers any more"));
                    }
                }
            }
            stamps.stamp();
        }
        rounds.record_round(count, stamps.elapsed(), &stamps);
    }
    ends.send(&[MSG_END])?;
    Ok(rounds)
}

/// The other side: answers what comes with as much, until the end is sent.
///
/// # Errors
/// The services cannot be opened.
pub fn echo_iceoryx2(name: &str, size: usize) -> Result<()> {
    let ends = PubSub::open(&format!("{name}/pong"), &format!("{name}/ping"), size)?;
    println!("listening on {name}");
    let (mut ping, pong) = (Vec::with_capacity(size), vec![7; size]);
    loop {
        while !ends.try_receive(&mut ping)? {
            spin_loop();
        }
        if ping.first() == Some(&MSG_END) {
            return Ok(());
        }
        ends.send(&pong)?;
    }
}

fn iceoryx2_error(error: impl Debug) -> Error {
    Error::Io {
        what: "iceoryx2".into(),
        error: std::io::Error::other(format!("{error:?}")),
    }
}
