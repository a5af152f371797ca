//! The honest clients: requests at a steady rate, whose replies are checked and timed.

use std::time::{Duration, Instant};

use fabric_async::{Endpoint, FiAddr};
use hdrhistogram::Histogram;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::message::{REQUEST_TAG, RequestKind, decode_request, encode_request, reply_tag};
use super::provider::SiegeProvider;
use super::retransmission::RetransmissionTimer;
use super::server::ServerStats;
use crate::stop::Stop;
use crate::{Error, Result};

/// Time between two requests of a client.
const REQUEST_INTERVAL: Duration = Duration::from_millis(1);
/// Length of most requests, in bytes.
const SHORT_REQUEST_LEN: usize = 64;
/// Every such request is long.
const LONG_REQUEST_PERIOD: u64 = 16;
/// Every such request has no tag.
const UNTAGGED_REQUEST_PERIOD: u64 = 8;
/// A request without a reply after so long is lost.
const DEADLINE: Duration = Duration::from_secs(10);
/// The deadline over `udp`, in which the client sends again.
const UDP_DEADLINE: Duration = Duration::from_secs(5);
/// Longest time in the histogram, in nanoseconds.
const MAX_NS: u64 = 60_000_000_000;

/// What clients have lost and measured.
#[derive(Clone, Debug)]
pub(super) struct ClientReport {
    /// Times of round trips in nanoseconds.
    times: Histogram<u64>,
    /// Requests that were sent.
    pub(super) requests: u64,
    /// Requests that failed, or whose reply was missing or damaged.
    pub(super) lost: u64,
    /// Datagrams that were sent again.
    pub(super) retries: u64,
    /// What happened to the first lost request.
    pub(super) first_loss: Option<String>,
}

impl ClientReport {
    /// Creates an empty report.
    pub(super) fn new() -> Self {
        let times = Histogram::new_with_bounds(1, MAX_NS, 3)
            .unwrap_or_else(|_| unreachable!("a minute in nanoseconds, to 3 digits, is allowed"));
        Self {
            times,
            requests: 0,
            lost: 0,
            retries: 0,
            first_loss: None,
        }
    }

    /// Records one request: its time, or why it was lost.
    fn record(&mut self, outcome: Result<Duration, String>) {
        self.requests += 1;
        match outcome {
            Ok(time) => {
                let ns = (time.as_nanos() as u64).min(MAX_NS);
                // While a request waits, the client sends none: counts those as late, too.
                let recorded = self
                    .times
                    .record_correct(ns, REQUEST_INTERVAL.as_nanos() as u64);
                debug_assert!(recorded.is_ok(), "within the bounds");
            }
            Err(why) => {
                self.lost += 1;
                self.first_loss.get_or_insert(why);
            }
        }
    }

    /// Adds another report.
    pub(super) fn merge(&mut self, other: Self) {
        self.times += &other.times;
        self.requests += other.requests;
        self.lost += other.lost;
        self.retries += other.retries;
        self.first_loss = self.first_loss.take().or(other.first_loss);
    }

    /// Returns the 99th percentile in nanoseconds; `None` without a round trip.
    pub(super) fn p99_ns(&self) -> Option<f64> {
        (!self.times.is_empty()).then(|| self.times.value_at_quantile(0.99) as f64)
    }

    /// Returns the longest round trip in nanoseconds; `None` without a round trip.
    pub(super) fn max_ns(&self) -> Option<f64> {
        (!self.times.is_empty()).then(|| self.times.max() as f64)
    }
}

/// A client with an endpoint of its own.
#[derive(Debug)]
pub(super) struct HonestClient {
    ep: Endpoint,
    server: FiAddr,
    provider: SiegeProvider,
    next_number: u64,
    /// When a datagram is sent again.
    retransmission: RetransmissionTimer,
}

impl HonestClient {
    /// Binds an endpoint, and makes the first request.
    ///
    /// # Errors
    /// The server does not answer.
    pub(super) async fn connect(provider: SiegeProvider, address: &str) -> Result<Self> {
        let ep = Endpoint::bind(provider.bind_address()).await?;
        let server = ep.add_peer(address).await?;
        let mut client = Self {
            ep,
            server,
            provider,
            next_number: 0,
            retransmission: RetransmissionTimer::new(),
        };
        client.server_stats(RequestKind::Stats).await?;
        Ok(client)
    }

    /// Returns the name of the client's endpoint.
    pub(super) fn name(&self) -> String {
        self.ep.name().to_string()
    }

    /// Sends requests until the end is requested.
    pub(super) async fn run(mut self, stop: Stop) -> (Self, ClientReport) {
        let mut report = ClientReport::new();
        let mut ticks = interval(REQUEST_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !stop.raised() {
            ticks.tick().await;
            let len = if self.next_number.is_multiple_of(LONG_REQUEST_PERIOD) {
                self.provider.long_request_len()
            } else {
                SHORT_REQUEST_LEN
            };
            let (request, number) = self.next_request(RequestKind::Echo, len);
            let began = Instant::now();
            let reply = self.exchange(&request, number, &mut report.retries).await;
            let time = began.elapsed();
            report.record(match reply {
                Ok(reply) if reply == request => Ok(time),
                Ok(_) => Err(format!("request {number}: the reply has other bytes")),
                Err(why) => Err(format!("request {number}: {why}")),
            });
        }
        (self, report)
    }

    /// Sends a request that the server answers with its counters; returns the counters.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if the server does not answer.
    pub(super) async fn server_stats(&mut self, kind: RequestKind) -> Result<ServerStats> {
        let (request, number) = self.next_request(kind, 0);
        let reply = self.exchange(&request, number, &mut 0).await;
        let reply = reply.map_err(|why| {
            Error::InvalidRequest(format!("the server does not send its counters: {why}"))
        })?;
        serde_json::from_slice(&reply).map_err(|_| Error::Malformed {
            origin: "the server".into(),
            text: String::from_utf8_lossy(&reply).into_owned(),
        })
    }

    fn next_request(&mut self, kind: RequestKind, len: usize) -> (Vec<u8>, u64) {
        let number = self.next_number;
        self.next_number += 1;
        (encode_request(kind, number, len), number)
    }

    /// Sends a request and returns the reply, or the reason why there is none.
    async fn exchange(
        &mut self,
        request: &[u8],
        number: u64,
        retries: &mut u64,
    ) -> Result<Vec<u8>, String> {
        let (deadline, reply) = match self.provider {
            SiegeProvider::Udp => (
                UDP_DEADLINE,
                timeout(
                    UDP_DEADLINE,
                    self.exchange_datagrams(request, number, retries),
                )
                .await,
            ),
            _ => (
                DEADLINE,
                timeout(DEADLINE, self.exchange_messages(request, number)).await,
            ),
        };
        match reply {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no reply within {} s", deadline.as_secs())),
        }
    }

    async fn exchange_messages(&self, request: &[u8], number: u64) -> Result<Vec<u8>> {
        let send = self.ep.send(self.server, request.to_vec());
        if number.is_multiple_of(UNTAGGED_REQUEST_PERIOD) {
            send.await?;
        } else {
            send.tag(REQUEST_TAG).await?;
        }
        let receive = self.ep.recv().tag(reply_tag(number)).from(self.server);
        Ok(receive.await?.to_vec())
    }

    /// Sends a datagram again and again until its reply arrives.
    async fn exchange_datagrams(
        &mut self,
        request: &[u8],
        number: u64,
        retries: &mut u64,
    ) -> Result<Vec<u8>> {
        let is_stats = decode_request(request).is_some_and(|(kind, _)| kind != RequestKind::Echo);
        let began = Instant::now();
        for sent_before in 0.. {
            self.ep.send(self.server, request.to_vec()).await?;
            let reply = async {
                loop {
                    let reply = self.ep.recv().await?;
                    // A late reply to an earlier request is skipped. Counters have no header.
                    let replied = decode_request(&reply).map(|(_, number)| number);
                    if replied == Some(number) || (replied.is_none() && is_stats) {
                        return Ok(reply.to_vec());
                    }
                }
            };
            match timeout(self.retransmission.timeout(sent_before), reply).await {
                Ok(reply) => {
                    // The reply to a request that was sent again may be that to the first one.
                    if sent_before == 0 {
                        self.retransmission.on_round_trip(began.elapsed());
                    }
                    return reply;
                }
                Err(_) => *retries += 1,
            }
        }
        unreachable!("the deadline ends the exchange")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_a_slow_one_delayed_are_late_too() {
        let mut report = ClientReport::new();
        for _ in 0..90 {
            report.record(Ok(Duration::from_micros(50)));
        }
        report.record(Ok(Duration::from_millis(10)));
        report.record(Err("no reply".into()));
        report.record(Err("another".into()));
        assert_eq!((report.requests, report.lost), (93, 2));
        assert_eq!(report.first_loss.as_deref(), Some("no reply"));
        // Ten of a hundred: 10, 9, ... 1 ms.
        assert!(report.times.value_at_quantile(0.92) > 1_900_000);
        assert!(report.max_ns().is_some_and(|ns| ns > 9.9e6));
        assert!(report.p99_ns().is_some_and(|ns| ns > 8.9e6));

        let mut both = ClientReport::new();
        assert_eq!((both.p99_ns(), both.max_ns()), (None, None));
        both.merge(report.clone());
        both.merge(report);
        assert_eq!((both.requests, both.lost), (186, 4));
    }
}
