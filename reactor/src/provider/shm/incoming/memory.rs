//! Memory beside the ring: what the peer lends, what lies in its own, and what it asks to see of
//! ours.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use fabric_core::buf::LentMemory;
use fabric_core::event::DownReason;
use fabric_core::flags::Access;
use fabric_core::matching::Envelope;
use fabric_core::provider::Host;
use fabric_core::rx::RxContext;
use fabric_core::stats::Moved;
use rustix::io::Errno;

use super::super::area::{Area, OwnArea};
use super::super::desk::{self, Request};
use super::super::fetch::Fetch;
use super::super::handshake::{self, Grant, Word};
use super::super::loans::{self, Borrow, Foreign, Keep};
use super::super::ring::Broken;
use super::super::socket;
use super::Incoming;

/// How often the socket is read for memory that a record speaks of: more words than it has room
/// for.
const LOOKS_FOR_MEMORY: usize = 32;

/// Offers a message that lies with its sender; false when nobody wants it now.
fn offer<M: Keep + LentMemory>(
    rx: &mut RxContext,
    host: &mut dyn Host,
    envelope: Envelope,
    message: M,
) -> bool {
    let message = Arc::new(message);
    let taken = rx.lend(host, envelope, &(message.clone() as Arc<dyn LentMemory>));
    if !taken {
        // It stays where it is: the record is looked at again.
        Arc::into_inner(message).into_iter().for_each(Keep::keep);
    }
    taken
}

impl Incoming {
    /// The peer has sent memory that it is going to lend, or a desk.
    pub(super) fn granted(&mut self, grant: Grant<OwnedFd>) -> Result<(), &'static str> {
        if grant.access.contains(Access::REMOTE_WRITE) {
            let area = Area::adopt(&grant.memory, grant.len, true);
            socket::discard(vec![grant.memory]);
            let is_desk = grant.len == desk::DESK && self.desk.is_none() && self.here.is_target;
            self.desk = Some(
                is_desk
                    .then_some(area?)
                    .ok_or("a desk of another size, or a second one")?,
            );
            return Ok(());
        }
        let area = if grant.len > loans::MOST_BYTES {
            Err("more memory than anybody lends")
        } else {
            Area::adopt(&grant.memory, grant.len, false)
        };
        socket::discard(vec![grant.memory]);
        if self.lent.len() >= loans::MOST_LENT {
            return Err("too much memory to lend");
        }
        let area = self
            .here
            .adopted
            .adopt(area?)
            .ok_or("too much memory to lend")?;
        match self.lent.binary_search_by_key(&grant.key, |(key, _)| *key) {
            Ok(_) => return Err("the same memory twice"),
            Err(at) => self.lent.insert(at, (grant.key, area)),
        }
        Ok(())
    }

    /// Reads the socket until this is there: what a record speaks of was sent before it, behind
    /// other words. That the peer has hung up is found again.
    fn read_until(
        &mut self,
        host: &dyn Host,
        is_there: impl Fn(&Self) -> bool,
    ) -> Result<(), Broken> {
        for _ in 0..LOOKS_FOR_MEMORY {
            if is_there(self) {
                break;
            }
            match self.readable(host) {
                Some(DownReason::Protocol(what)) => return Err(Broken(what)),
                Some(_) => break,
                None => {}
            }
        }
        Ok(())
    }

    /// Takes a message that lies in memory which the peer has lent; false when it has to stay.
    pub(super) fn borrow(
        &mut self,
        envelope: Envelope,
        (key, slot): (u64, usize),
        rx: &mut RxContext,
        host: &mut dyn Host,
    ) -> Result<bool, Broken> {
        let find = |lent: &[(u64, Arc<Foreign>)]| {
            lent.binary_search_by_key(&key, |(key, _)| *key)
                .ok()
                .map(|at| lent[at].1.clone())
        };
        self.read_until(host, |peer| find(&peer.lent).is_some())?;
        let area = find(&self.lent).ok_or(Broken("a loan of unknown memory"))?;
        let segment = self.ring.memory().clone();
        let borrow =
            Borrow::new(area, envelope.len, segment, slot).ok_or(Broken("a loan out of bounds"))?;
        Ok(offer(rx, host, envelope, borrow))
    }

    /// Takes a message that lies in the peer's own memory; false when it has to stay.
    pub(super) fn fetch(
        &mut self,
        envelope: Envelope,
        (at, slot): (u64, usize),
        rx: &mut RxContext,
        host: &mut dyn Host,
    ) -> Result<bool, Broken> {
        let reach = self
            .reach
            .clone()
            .ok_or(Broken("a message in memory that cannot be read"))?;
        if self.down.is_some() {
            // It went with its sender, who was not told that it arrived.
            return Ok(true);
        }
        let fetch =
            Fetch::new(reach, at, envelope.len, slot).ok_or(Broken("a message out of bounds"))?;
        Ok(offer(rx, host, envelope, fetch))
    }

    /// Does what the peer asks for, and answers; false when it has to wait.
    pub(super) fn serve(&mut self, request: &Request, host: &dyn Host) -> Result<bool, Broken> {
        self.read_until(host, |peer| peer.desk.is_some())?;
        let desk = self
            .desk
            .as_ref()
            .ok_or(Broken("a request without a desk"))?;
        let served = request.serve(desk, host);
        if served && self.ring.starves() {
            self.ring_peer();
        }
        Ok(served)
    }

    /// Says what a key stands for to peers of this endpoint; false when the peer leaves no room for
    /// answers.
    pub(super) fn answer(&self, host: &dyn Host, key: u64) -> bool {
        let denied = || handshake::try_say(&self.socket, Word::Denied(key));
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let known = host
            .region(key)
            .filter(|region| region.access.intersects(remote));
        let Some(region) = known.filter(|_| self.here.is_target) else {
            return denied();
        };
        if region.memory.is_served() {
            return handshake::try_say(
                &self.socket,
                Word::Served(key, self.here.heeds || region.heeds),
            );
        }
        let memory: &dyn Any = &*region.memory;
        let Some(lent) = memory.downcast_ref::<OwnArea>() else {
            return denied();
        };
        let (len, access, heeds) = (
            region.memory.len(),
            region.access,
            self.here.heeds || region.heeds,
        );
        let grant = Grant {
            key,
            len,
            access,
            base: region.base,
            heeds,
            memory: lent.fd(),
        };
        match handshake::send_grant(&self.socket, &grant) {
            Ok(()) => true,
            Err(Errno::AGAIN) => false,
            // Too many descriptors are on their way, or the peer has ended.
            Err(_) => denied(),
        }
    }

    /// Tells the peer of the messages that were fetched, if it waits for that.
    ///
    /// # Errors
    /// How the peer ended, if it has.
    pub(crate) fn acknowledge(&mut self) -> Result<(), DownReason> {
        let Some(reach) = &self.reach else {
            return Ok(());
        };
        if reach.has_given()? && self.ring.starves() {
            self.ring_peer();
        }
        Ok(())
    }

    /// Tells the peer what it waits to hear of the message with this receipt.
    pub(crate) fn confirm(&mut self, receipt: u32) {
        self.ring.memory().confirm(receipt as usize);
        if self.ring.starves() {
            self.ring_peer();
        }
    }

    /// What was fetched from there; nothing when that cannot be done.
    pub(crate) fn fetched(&self) -> Option<Moved> {
        self.reach.as_ref().map(|reach| reach.fetched())
    }

    /// Nothing is fetched any more, and what was not has not arrived.
    pub(crate) fn stop_fetching(&self) {
        if let Some(reach) = &self.reach {
            reach.end();
        }
    }
}
