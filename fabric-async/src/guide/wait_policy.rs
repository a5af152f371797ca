//! Wait policy: spinning, parking, and what each costs.
//!
//! After this chapter you can choose a [`WaitPolicy`] for a domain and explain the latency and the
//! CPU time that you measure.
//!
//! Two threads that both poll notice a message within a small fraction of a microsecond. Waking a
//! thread that sleeps in the kernel takes tens to hundreds of times as long, most on a virtual
//! machine. The wait policy therefore decides most of the latency of a small message. It is chosen
//! per domain ([`DomainBuilder::wait_policy`]) and combines with either [progress
//! model](super::progress).
//!
//! | policy | while waiting | a message to a waiting task costs | when idle |
//! |---|---|---|---|
//! | [`WaitPolicy::Spin`] | the task stays runnable and polls | no system call | a busy core |
//! | [`WaitPolicy::Adaptive`], the default | polls for a while, then sleeps | nothing extra while it polls, a wake-up afterwards | asleep |
//! | [`WaitPolicy::Park`] | sleeps at once | a wake-up, nearly always | asleep |
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Endpoint, WaitPolicy};
//! for policy in [WaitPolicy::Spin, WaitPolicy::Adaptive, WaitPolicy::Park] {
//!     let ep = Endpoint::options().wait_policy(policy).bind("shm://").await?;
//!     let me = ep.add_peer(ep.name()).await?;
//!     ep.send(me, "received under every policy").await?;
//!     assert_eq!(ep.recv().await?.len(), 27);
//! }
//! # Ok(()) }
//! ```
//!
//! # Spin
//!
//! A poll of a pending operation, queue or counter makes one pass and up to 96 more (10 in debug
//! builds): a few microseconds over shared memory; over sockets each pass over an active connection
//! is a system call. Tasks that wait for the same domain share the further passes: with four of
//! them, a poll makes up to 24. Then the poll wakes its own task and returns, so that other tasks
//! run. The worker of a spinning task never sleeps. Spinning is harmful when
//! * **there are fewer cores than spinners**: two processes that spin on one core wait for the end
//!   of each other's time slices;
//! * **the runtime has other work**, which runs only between polls;
//! * **the wait is long**: the core is busy for the whole wait.
//!
//! On a machine with one core, every poll makes one pass, whatever the policy.
//!
//! # Adaptive
//!
//! *A poll* makes as many passes as with `Spin`. After four polls in a row whose further passes did
//! not complete what was polled, a poll makes only two further passes, except every sixteenth,
//! which makes all. A poll that completes in a further pass restores the full number.
//!
//! *The driver*, the task or thread that makes progress between polls, spins for at most 200
//! microseconds, then arms the doorbells and sleeps. If a message wakes it within 350 microseconds,
//! its next spin takes twice as long, else half as long, down to 5 microseconds. So two peers that
//! sleep and wake each other begin to spin. After four spins of the full time in a row that found
//! nothing, the driver spins for 5 microseconds only before its next 16 sleeps; each such pause is
//! twice as long as the last one, up to 1,024 sleeps, until a spin finds a message. At most as many
//! drivers of a process spin at the same time as there are cores; the others sleep at once. Under
//! manual progress the driver is a task and yields after every step.
//!
//! # Park
//!
//! A poll makes one pass, and the task sleeps. Park takes the least CPU time and has the highest
//! latency. Park suits control traffic and machines with few cores.
//!
//! # Doorbells
//!
//! A sleeping peer is woken by a message on the Unix socket of the connection, its doorbell.
//! Ringing the doorbell is a system call, so a sender rings only if the receiver sleeps. Before it
//! sleeps, a receiver sets a flag in the ring and checks the ring once more; a sender publishes its
//! message and checks the flag. Either the receiver sees the message or the sender sees the flag.
//! The sender that rings clears the flag, so one sleep costs one doorbell, however many messages
//! follow. A sender that waits for room in a full ring is woken the same way. A stream to a
//! receiver that never sleeps rings no doorbell. [`Endpoint::stats`] counts the doorbells;
//! [`Domain::stats`] counts successful and unsuccessful spins, and sleeps of the driver.
//!
//! # Fairness to other tasks
//!
//! Operations, completion queues, event queues and counters take part in Tokio's cooperative
//! budget. A loop over a queue that is never empty therefore yields to the runtime.

#[cfg(doc)]
#[allow(unused_imports)]
use crate::{atomic::*, buf::*, info::*, ops::*, stats::*, *};
