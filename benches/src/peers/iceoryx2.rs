//! iceoryx2: two services that publish byte slices, one each way; both sides spin.
//!
//! Its way is to write messages in place. Here each side copies its message in and out, as all
//! others do.

use std::fmt::Debug;
use std::hint::spin_loop;
use std::time::{Duration, Instant};

use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::{LogLevel, NodeBuilder, SignalHandlingMode, ipc, set_log_level};

use super::{Case, Peer};
use crate::choice::{Bench, Op};
use crate::measure::Budget;
use crate::measure::rounds::{Rounds, describe};
use crate::pair::{Child, program};
use crate::record::Record;
use crate::samples::Stamps;
use crate::stop::Stop;
use crate::{Error, Result, pin};

/// The first byte of the messages that find the other side, of those that are measured, and of the
/// last one. All but that are sent back.
const FIND: u8 = 1;
const PING: u8 = 2;
const END: u8 = 0;
/// How long to wait for the other side to be found, and between two tries.
const FOUND: Duration = Duration::from_secs(10);
const TRY: Duration = Duration::from_millis(1);
/// How often to look for an answer before looking whether anybody is there to give it.
const LOOKS: u64 = 1 << 16;

/// iceoryx2.
#[derive(Debug)]
pub struct Iceoryx2;

impl Peer for Iceoryx2 {
    fn name(&self) -> &str {
        "iceoryx2"
    }

    fn missing(&self) -> Option<String> {
        None
    }

    /// A message of no bytes has no first one, which says what it is for: its latency is not
    /// measured.
    fn measures(&self, case: &Case) -> bool {
        (case.bench, case.op) == (Bench::Lat, Op::Send) && case.size > 0
    }

    fn measure(&self, case: &Case, stop: &Stop) -> Result<Record> {
        let name = format!("fabric-bench-{}", std::process::id());
        let mut command = program()?;
        command.args(["echo-iceoryx2", &name, &case.size.to_string()]);
        let (mut child, _) = pin::on(case.cores.1, || Child::start(self.name(), command))?;
        let measured = pin::on(case.cores.0, || near(&name, case, &mut child, stop));
        let rounds = measured.map_err(|error| child.explain(error))?;
        let mut record = Record {
            op: "copy".into(),
            wait: "spin".into(),
            progress: "manual".into(),
            timer_ns: Some(case.timer_ns()),
            ..case.record(self)
        };
        describe(&[rounds.outcome()], &mut record);
        Ok(record)
    }
}

/// One side: what it publishes, and what it receives.
struct Ends {
    out: Publisher<ipc::Service, [u8], ()>,
    back: Subscriber<ipc::Service, [u8], ()>,
}

impl Ends {
    fn open(out: &str, back: &str, size: usize) -> Result<Self> {
        // It warns that there is no configuration file; the defaults are what is measured.
        set_log_level(LogLevel::Error);
        let node = NodeBuilder::new()
            .signal_handling_mode(SignalHandlingMode::Disabled)
            .create::<ipc::Service>()
            .map_err(failed)?;
        let service = |name: &str| {
            let builder = node.service_builder(&name.try_into().map_err(failed)?);
            builder
                .publish_subscribe::<[u8]>()
                .open_or_create()
                .map_err(failed)
        };
        let service_out = service(out)?;
        let publisher = service_out.publisher_builder().initial_max_slice_len(size);
        Ok(Self {
            out: publisher.create().map_err(failed)?,
            back: service(back)?
                .subscriber_builder()
                .create()
                .map_err(failed)?,
        })
    }

    fn send(&self, bytes: &[u8]) -> Result<()> {
        let loan = self.out.loan_slice_uninit(bytes.len()).map_err(failed)?;
        loan.write_from_slice(bytes).send().map_err(failed)?;
        Ok(())
    }

    /// Looks for a message, copies it out, and says whether there was one.
    fn receive(&self, buf: &mut Vec<u8>) -> Result<bool> {
        let sample = self.back.receive().map_err(failed)?;
        Ok(sample.is_some_and(|sample| {
            buf.clear();
            buf.extend_from_slice(&sample);
            true
        }))
    }
}

fn near(name: &str, case: &Case, child: &mut Child, stop: &Stop) -> Result<Rounds> {
    let ends = Ends::open(&format!("{name}/ping"), &format!("{name}/pong"), case.size)?;
    let (find, ping) = (vec![FIND; case.size], vec![PING; case.size]);
    let mut pong = Vec::with_capacity(case.size);
    let began = Instant::now();
    loop {
        ends.send(&find)?;
        std::thread::sleep(TRY);
        if ends.receive(&mut pong)? {
            break;
        }
        stop.check()?;
        if child.has_ended() || began.elapsed() > FOUND {
            return Err(failed("nobody answers"));
        }
    }
    let (mut rounds, mut stamps) = (
        Rounds::new(
            case.bench,
            Budget::Seconds(case.time.as_secs_f64()),
            case.size,
        ),
        Stamps::new(0),
    );
    while let Some(count) = rounds.next(1, stop) {
        stamps.reserve(count as usize);
        stamps.begin();
        for _ in 0..count {
            ends.send(&ping)?;
            let mut looks = 0;
            // What comes back late from finding each other is no answer.
            while !(ends.receive(&mut pong)? && pong.first() == ping.first()) {
                spin_loop();
                looks += 1;
                if looks % LOOKS == 0 {
                    stop.check()?;
                    if child.has_ended() {
                        return Err(failed("nobody answers any more"));
                    }
                }
            }
            stamps.stamp();
        }
        rounds.ended(count, stamps.elapsed(), &stamps);
    }
    ends.send(&[END])?;
    Ok(rounds)
}

/// The other side: answers what comes with as much, until the end is sent.
///
/// # Errors
/// The services cannot be opened.
pub fn echo_iceoryx2(name: &str, size: usize) -> Result<()> {
    let ends = Ends::open(&format!("{name}/pong"), &format!("{name}/ping"), size)?;
    println!("listening on {name}");
    let (mut ping, pong) = (Vec::with_capacity(size), vec![7; size]);
    loop {
        while !ends.receive(&mut ping)? {
            spin_loop();
        }
        if ping.first() == Some(&END) {
            return Ok(());
        }
        ends.send(&pong)?;
    }
}

fn failed(error: impl Debug) -> Error {
    Error::Io {
        what: "iceoryx2".into(),
        error: std::io::Error::other(format!("{error:?}")),
    }
}
