//! The work of the second process: starts its workers, and answers requests until shutdown.

use std::io::Read;
use std::thread;

use fabric_async::Endpoint;
use tokio::sync::mpsc;

use super::control::{recv_control, send_control};
use super::{ControlRequest, EndpointNames};
use crate::cpu::CpuTime;
use crate::measure::responder;
use crate::options::RuntimeKind;
use crate::{Error, Result};

/// Serves one measurement at this address, which is printed on stdout.
///
/// # Errors
/// The address is bad or in use; the initiator is gone; a worker failed.
pub fn serve(address: &str) -> Result<()> {
    let runtime = RuntimeKind::Current
        .build()
        .map_err(Error::io("starting a runtime"))?;
    runtime.block_on(async {
        let ep = Endpoint::bind(address).await?;
        println!("listening on {}", ep.name());
        let (failures, mut failed) = mpsc::unbounded_channel();
        let mut initiator = None;
        loop {
            let (peer, request) = tokio::select! {
                // The initiator sends `Shutdown` before its workers close.
                biased;
                received = recv_control(&ep, initiator) => received?,
                Some(error) = failed.recv() => return Err(error),
            };
            initiator = Some(peer);
            match request {
                ControlRequest::StartWorkers(plan) => {
                    let mut names = EndpointNames::new();
                    for worker in 0..plan.threads {
                        names.push(responder::start_worker(&plan, worker, failures.clone()).await?);
                    }
                    send_control(&ep, peer, &names).await?;
                }
                ControlRequest::CpuTime => send_control(&ep, peer, &CpuTime::now()).await?,
                ControlRequest::Shutdown => return Ok(()),
            }
        }
    })
}

/// Ends this process when its stdin ends, that is, when its parent has ended in whatever way.
///
/// # Errors
/// [`Error::Io`] if the system has no thread left.
pub fn exit_on_stdin_eof() -> Result<()> {
    let watch = || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(1);
    };
    thread::Builder::new()
        .name("stdin".into())
        .spawn(watch)
        .map_err(Error::io("starting a thread"))?;
    Ok(())
}
