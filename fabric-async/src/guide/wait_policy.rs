//! Waiting: spin or sleep, and what does each cost?
//!
//! A message between two threads that both look for it takes a small fraction of a microsecond to
//! be noticed. Waking a thread that sleeps in the kernel takes tens to hundreds of times as long,
//! most on a virtual machine. So the way of waiting *is* most of the latency of a small message. It
//! is chosen per domain: [`WaitPolicy`].
//!
//! | policy | while waiting | a message to a waiting task costs | when idle |
//! |---|---|---|---|
//! | [`Spin`](crate::WaitPolicy::Spin) | the task stays runnable and looks at every poll | no kernel call | a busy core |
//! | [`Adaptive`](crate::WaitPolicy::Adaptive) (the default) | looks for a while, then sleeps | nothing extra while it looks, a wake-up afterwards | asleep |
//! | [`Park`](crate::WaitPolicy::Park) | sleeps at once | a wake-up, nearly always | asleep |
//!
//! The policy says how to wait, not who drives: it goes together with either mode of
//! [`progress`](super::progress).
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Endpoint, WaitPolicy};
//! for policy in [WaitPolicy::Spin, WaitPolicy::Adaptive, WaitPolicy::Park] {
//!     let ep = Endpoint::options().wait_policy(policy).bind("shm://").await?;
//!     let me = ep.lookup(ep.name()).await?;
//!     ep.send(me, "the policy changes when, never what").await?;
//!     assert_eq!(ep.recv().await?.len(), 35);
//! }
//! # Ok(()) }
//! ```
//!
//! Step by step it is [`DomainBuilder::wait_policy`](crate::DomainBuilder::wait_policy).
//!
//! # Spin
//!
//! A pending operation, queue or counter looks about a hundred times within one poll, which is a
//! few microseconds over shared memory; over sockets each look at a busy connection is a system
//! call. Then it wakes its own task and returns, so that other tasks of the runtime get their turn.
//! The worker that runs the task never goes to sleep while the task waits.
//!
//! Spinning is harmful when
//!
//! * **there are fewer cores than spinners.** Each spinner takes time from the one it waits for.
//!   Two processes that spin on one core wait out each other's time slices, which is far slower
//!   than sleeping.
//! * **the same runtime has other work.** Timers and sockets are still served, but between looks.
//! * **the wait is long.** A server that waits minutes for a request burns the minutes.
//!
//! On a machine with one core nobody looks more than once per poll, whatever the policy.
//!
//! A send that was started and is not polled goes on by itself under this policy too: the driver
//! sees to it.
//!
//! # Adaptive
//!
//! There are two places to look in, each with its own limit.
//!
//! *Inside a poll.* As with spin, about a hundred looks. After four polls in a row that looked in
//! vain, a poll looks only twice, except for every sixteenth, which tries again. One success
//! restores the full number.
//!
//! *In the driver*, the task or thread that drives when nobody polls. It looks for a *window* of
//! 100 microseconds at most, then asks the peers to ring, and sleeps. A window that brought no news
//! halves the next one, down to 5 microseconds; one that did doubles it again. So a steady stream
//! of messages finds the driver awake, and rare messages do not pay for much looking.
//!
//! At most as many drivers of a process look at the same time as there are cores. The others go to
//! sleep directly. Under manual progress the driver is a task among yours: it gives way after every
//! turn.
//!
//! # Park
//!
//! A poll looks once and goes to sleep. The least CPU time, and the highest latency. It suits
//! control traffic, machines with few cores, and processes that share their cores with something
//! more important.
//!
//! # Doorbells
//!
//! A peer that sleeps is woken by a message on the socket, its doorbell. Ringing costs the sender a
//! system call, so it is done only when needed: before it sleeps, a receiver raises a flag in the
//! ring and looks once more. A sender publishes its message and looks at the flag. Either the
//! receiver sees the message, or the sender sees the flag. The sender that rings takes the flag
//! down, so one sleep costs one ring, however many messages follow.
//!
//! The same holds the other way round: a sender that waits for room in a full ring sleeps, and the
//! receiver rings when it has made room.
//!
//! A stream of messages to a receiver that keeps up with it therefore rings no doorbell at all.
//! [`Endpoint::stats`](crate::Endpoint::stats) counts those that were rung,
//! [`Domain::stats`](crate::Domain::stats) how often looking paid off, and how often the driver
//! went to sleep.
//!
//! # Fairness to other tasks
//!
//! Operations, completion queues, event queues and counters honour the cooperative budget of Tokio.
//! A loop over a queue that is never empty returns to the runtime from time to time, like a loop
//! over a Tokio channel.
//!
//! [`WaitPolicy`]: crate::WaitPolicy
