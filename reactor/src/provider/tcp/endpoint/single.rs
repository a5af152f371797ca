//! Endpoints that are connected with one peer, for as long as their connection lasts.

use std::any::Any;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use fabric_core::flags::Caps;
use fabric_core::provider::{EpId, Host, Joined, Meeting, WaitSet, Way};
use fabric_core::rx::Receiving;
use fabric_core::tcp::{Agreed, Dialect, Mark, Order, Takes};
use fabric_core::tree::Class;
use fabric_core::{Address, Error, Result, Scheme};

use super::super::greeting::{Answer, Asks, Greeting};
use super::super::socket::Socket;
use super::passive::Called;
use super::{Endpoint, Peer, Role, Stage};
use crate::provider::net::Tuning;
use crate::uring::SharedRing;

/// What one look reads at most: there may be many such endpoints, and each has memory for that.
const SCRATCH: usize = 64 << 10;

/// The one peer.
pub(super) struct Single {
    /// Position in the list of peers.
    peer: usize,
    /// The endpoint takes tags itself; the program has said that the peer does.
    takes_tags: bool,
    peer_takes_tags: bool,
    /// Why there is no connection any more.
    over: Option<Error>,
}

/// A connection that both sides have agreed on.
pub(super) struct Joining {
    pub(super) socket: Socket,
    pub(super) order: Order,
    /// What the endpoint of the peer says of itself.
    pub(super) mark: Option<Mark>,
    /// What came behind what it has said.
    pub(super) rest: Vec<u8>,
}

impl Endpoint {
    pub(crate) fn single(
        host: &mut dyn Host,
        (id, caps, tuning): (EpId, Caps, Tuning),
        Meeting {
            number,
            peer: name,
            data,
            takes_tags: peer_takes_tags,
            way,
        }: Meeting<'_>,
        (wait, receiving, ring): (Arc<dyn WaitSet>, Receiving<'_>, Option<SharedRing>),
    ) -> Result<Self> {
        let wrong = || Error::WrongScheme {
            provider: "tcp",
            address: name.clone(),
        };
        let at = name
            .socket()
            .filter(|_| name.scheme() == Scheme::Tcp)
            .ok_or_else(wrong)?;
        let (mark, takes_tags) = (Mark::of(caps), caps.contains(Caps::TAGGED));
        let single = |peer| {
            Role::Single(Single {
                peer,
                takes_tags,
                peer_takes_tags,
                over: None,
            })
        };
        let role = single(0);
        let mut opened = Self::new(id, (any(at), tuning), role, (wait, receiving, ring))?;
        opened.serve(caps);
        let peer = Peer {
            addr: Some(number),
            ..Peer::new(name.clone(), at, Dialect::Native)
        };
        let peer = opened.peers.insert(peer);
        opened.by_address.insert(at, peer);
        opened.routes.resize(number.index() + 1, None);
        opened.routes[number.index()] = Some(peer);
        opened.role = single(peer);
        match way {
            Way::Connect { from, patience } => {
                if let Some(from) = from {
                    opened.at = source(from, at)?;
                }
                opened.open_clock()?;
                opened.ask(peer, Asks::Data(mark, data.to_vec()), patience)?;
            }
            Way::Accept(handle) => {
                let handle: Box<dyn Any> = handle;
                let Ok(called) = handle.downcast::<Called>() else {
                    let why = "it has come to an endpoint of another provider".into();
                    return Err(Error::Invalid {
                        what: "connection request",
                        why,
                    });
                };
                called.retune(&opened.tuning)?;
                let accepted = called
                    .accept(mark, data)
                    .ok_or_else(|| Error::PeerGone(name.clone()))?;
                opened.join(host, accepted, Vec::new())?;
            }
        }
        Ok(opened)
    }

    /// There is a connection.
    fn join(
        &mut self,
        host: &mut dyn Host,
        Joining {
            socket,
            order,
            mark,
            rest,
        }: Joining,
        data: Vec<u8>,
    ) -> Result<()> {
        let Role::Single(Single {
            peer,
            peer_takes_tags,
            ..
        }) = self.role
        else {
            return Ok(());
        };
        self.at = socket.name()?;
        self.name = Address::of_socket(Scheme::Tcp, self.at)?;
        self.scratch = vec![0; SCRATCH].into();
        self.close_clock();
        let takes = Takes::of_one(mark, peer_takes_tags);
        let spoken = (Agreed::Native { takes }, Order::NATIVE.with(order));
        let link = self.link_up(host, (peer, None), socket, spoken, rest);
        self.peers[peer].link = Some(link);
        host.joined(
            self.id,
            &self.peers[peer].name,
            Ok(Joined {
                name: self.name.clone(),
                data,
            }),
        );
        Ok(())
    }

    /// Something has come of the attempt to connect.
    pub(super) fn answered(&mut self, host: &mut dyn Host, at: usize, greeting: Greeting) {
        let Some(Stage::Asked(asked)) = self.stages.get(at) else {
            return;
        };
        let Peer { name, at: to, .. } = &self.peers[asked.peer];
        let error = match greeting {
            Greeting::Later => return,
            Greeting::Late => Error::TimedOut(name.clone()),
            Greeting::Failed(failure) => failure.error(self.at, (name, *to)),
            // To a question that was not asked.
            Greeting::Reply(..) => Error::PeerGone(name.clone()),
            Greeting::Answer(Answer::Refused { private }) => Error::Rejected {
                peer: name.clone(),
                data: private,
            },
            Greeting::Answer(Answer::Accepted {
                order,
                mark,
                private,
                rest,
            }) => {
                let Stage::Asked(asked) = self.stages.remove(at) else {
                    return;
                };
                let joining = Joining {
                    socket: asked.into_socket(),
                    order,
                    mark,
                    rest,
                };
                match self.join(host, joining, private) {
                    Ok(()) => return,
                    Err(error) => error,
                }
            }
        };
        self.not_joined(host, at, error);
    }

    fn not_joined(&mut self, host: &mut dyn Host, at: usize, error: Error) {
        let Role::Single(single) = &mut self.role else {
            return;
        };
        self.stages.try_remove(at);
        single.over = Some(error.clone());
        let peer = &mut self.peers[single.peer];
        peer.link = None;
        host.joined(self.id, &peer.name, Err(error));
        self.close_clock();
    }

    /// Whether messages with tags break the rules.
    pub(super) fn refuses_tags(&self) -> bool {
        matches!(
            self.role,
            Role::Single(Single {
                takes_tags: false,
                ..
            })
        )
    }

    /// Ends the connection: what was collected leaves in the background.
    pub(crate) fn shutdown(&mut self, host: &mut dyn Host) -> Result<()> {
        let Role::Single(Single { peer, .. }) = self.role else {
            return Err(Error::NotSupported(
                "ending the connection of an endpoint that has none of its own",
            ));
        };
        self.fail_sends(host, peer, &Error::Canceled);
        if !self.rx.is_shared() {
            self.rx.own.fail_posted(host, &Error::Canceled);
        }
        let link = self
            .stages
            .iter()
            .find_map(|(at, stage)| matches!(stage, Stage::Up(_)).then_some(at));
        if let Some(at) = link {
            if let Role::Single(single) = &mut self.role {
                single.over = Some(Error::Closed(Class::Endpoint));
            }
            self.end_unwritten(host, at, &Error::Canceled);
            self.link_down(host, at);
        }
        Ok(())
    }

    /// The connection has ended, and all that came over it has been taken.
    pub(super) fn is_over(&mut self, host: &mut dyn Host, why: Error) {
        if let Role::Single(single) = &mut self.role {
            single.over.get_or_insert(why);
            self.end_receives(host);
        }
    }

    /// Where nothing more comes, receives have nothing to wait for.
    pub(super) fn end_receives(&mut self, host: &mut dyn Host) {
        if let Role::Single(Single {
            over: Some(why), ..
        }) = &self.role
            && !self.rx.is_shared()
        {
            self.rx.own.fail_posted(host, why);
        }
    }

    /// Why nothing can be sent.
    pub(super) fn over(&self) -> Error {
        match &self.role {
            Role::Single(Single {
                over: Some(why), ..
            }) => why.clone(),
            Role::Single(single) => Error::PeerGone(self.peers[single.peer].name.clone()),
            _ => Error::Closed(Class::Endpoint),
        }
    }
}

/// No address in particular, of the family of this one.
fn any(like: SocketAddr) -> SocketAddr {
    let ip = if like.is_ipv4() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    SocketAddr::new(ip, 0)
}

/// The address to connect from.
fn source(from: &Address, to: SocketAddr) -> Result<SocketAddr> {
    let Some(from) = from.socket() else {
        return Ok(any(to));
    };
    if from.is_ipv4() != to.is_ipv4() {
        let why = format!("{from} is of another family than {to}");
        return Err(Error::Invalid {
            what: "address to connect from",
            why,
        });
    }
    Ok(from)
}
