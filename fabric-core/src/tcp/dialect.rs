//! Two dialects are spoken by endpoints that connect on demand, and the beginning of a connection
//! tells them apart.
//!
//! Who is asked knows by the length of the private data. Who asks does not know whom it asks: it
//! asks in the native dialect first. Who speaks only RXM refuses that in two bytes, and is asked
//! again. The other way round would not do: native endpoints take a request in RXM for one of their
//! own.

use super::rxm::{Acceptance, Rejection, Request};
use super::{Broken, Control, ControlKind, Hello, Mark, Takes};

/// What is spoken over a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// That of the provider itself: messages are frames.
    #[default]
    Native,
    /// That of `tcp;ofi_rxm`: messages are packets within frames.
    Rxm,
}

/// What an endpoint asks for a connection with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// In the native dialect.
    Native(Hello),
    /// In RXM.
    Rxm(Request),
}

/// What both sides know when a connection has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreed {
    /// Messages are frames.
    Native {
        /// What the peer takes.
        takes: Takes,
    },
    /// Messages are packets, which quote numbers.
    Rxm {
        /// What the peer takes beyond what RXM has.
        takes: Takes,
        /// What the peer quotes.
        ours: u32,
        /// What the peer wants to be quoted.
        theirs: u32,
    },
}

/// What becomes of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// There is a connection with this instance of the peer, if it has said which.
    Accepted(Agreed, Option<u32>),
    /// Another connection stands in the way.
    Rival,
    /// It is to be asked in the other dialect.
    Ask(Dialect),
    /// There is no connection, and that is all.
    Refused,
}

impl Question {
    /// A question in this dialect, of an endpoint that listens at this port.
    #[must_use]
    pub fn new(dialect: Dialect, port: u16, instance: u32, connection: u32) -> Self {
        match dialect {
            Dialect::Native => Self::Native(Hello::new(port, instance)),
            Dialect::Rxm => Self::Rxm(Request {
                port,
                instance,
                connection,
            }),
        }
    }

    /// The dialect it is in.
    #[must_use]
    pub fn dialect(&self) -> Dialect {
        match self {
            Self::Native(_) => Dialect::Native,
            Self::Rxm(_) => Dialect::Rxm,
        }
    }

    /// Where the asking side listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        match self {
            Self::Native(hello) => hello.port,
            Self::Rxm(request) => request.port,
        }
    }

    /// The instance of the asking side.
    #[must_use]
    pub fn instance(&self) -> u32 {
        match self {
            Self::Native(hello) => hello.instance,
            Self::Rxm(request) => request.instance,
        }
    }

    /// The private data of the request.
    #[must_use]
    pub fn private(&self) -> Vec<u8> {
        match self {
            Self::Native(hello) => hello.encode().to_vec(),
            Self::Rxm(request) => request.encode().to_vec(),
        }
    }

    /// The question with this private data.
    ///
    /// # Errors
    /// Why it is none that could be answered.
    pub fn read(private: &[u8]) -> Result<Self, Broken> {
        if let Some(request) = Request::decode(private) {
            return request.map(Self::Rxm);
        }
        let hello = Hello::decode(private).filter(|hello| hello.port != 0);
        hello
            .map(Self::Native)
            .ok_or(Broken("a request of another kind of endpoint"))
    }

    /// What an endpoint that says this of itself marks its side of a connection with that was asked
    /// for by this question. What is said in the native dialect says it already.
    #[must_use]
    pub fn mark(&self, own: Mark) -> Option<Mark> {
        match self {
            Self::Native(_) => None,
            Self::Rxm(_) => Some(own),
        }
    }

    /// The private data of the acceptance, of an endpoint that is this instance and wants packets
    /// to quote this, and what is agreed on with it, where the question was marked with that.
    #[must_use]
    pub fn accept(&self, instance: u32, connection: u32, mark: Option<Mark>) -> (Vec<u8>, Agreed) {
        match self {
            Self::Native(hello) => {
                let agreed = Agreed::Native {
                    takes: Takes::of_many(hello.is_kin()),
                };
                (hello.accepted_by(instance).encode().to_vec(), agreed)
            }
            Self::Rxm(request) => {
                let takes = Takes::of_many(mark.is_some());
                let agreed = Agreed::Rxm {
                    takes,
                    ours: connection,
                    theirs: request.connection,
                };
                (
                    Acceptance {
                        instance,
                        connection,
                    }
                    .encode()
                    .to_vec(),
                    agreed,
                )
            }
        }
    }

    /// The private data of the refusal when another connection stands in the way.
    #[must_use]
    pub fn refuse(&self) -> Vec<u8> {
        match self {
            Self::Native(hello) => hello.encode().to_vec(),
            Self::Rxm(_) => Rejection::Connected.encode().to_vec(),
        }
    }

    /// The private data of the refusal of a request with this private data that could not be
    /// [read](Self::read).
    #[must_use]
    pub fn refuse_unread(private: &[u8]) -> Vec<u8> {
        match Request::decode(private) {
            Some(_) => Rejection::Refused.encode().to_vec(),
            None => private.to_vec(),
        }
    }

    /// What the peer says to it.
    ///
    /// # Errors
    /// Why that is no answer.
    pub fn answered(&self, control: &Control) -> Result<Reply, Broken> {
        let said = control.private();
        match (control.kind, self) {
            (ControlKind::Request, _) => Err(Broken("a question instead of an answer")),
            (ControlKind::Accept, Self::Native(_)) => {
                let hello = Hello::decode(said);
                let takes = Takes::of_many(hello.is_some_and(Hello::answers_kin));
                Ok(Reply::Accepted(
                    Agreed::Native { takes },
                    hello.map(|hello| hello.instance),
                ))
            }
            (ControlKind::Accept, Self::Rxm(request)) => match Acceptance::decode(said) {
                Some(Acceptance {
                    instance,
                    connection,
                }) => {
                    let takes = Takes::of_many(control.mark.is_some());
                    let agreed = Agreed::Rxm {
                        takes,
                        ours: request.connection,
                        theirs: connection,
                    };
                    Ok(Reply::Accepted(agreed, Some(instance)))
                }
                // It takes what it was asked for a question of its own dialect.
                None if said.len() == Hello::BYTES => Ok(Reply::Ask(Dialect::Native)),
                None => Err(Broken("an acceptance of another kind of endpoint")),
            },
            (ControlKind::Refuse, Self::Native(hello)) if said == hello.encode() => {
                Ok(Reply::Rival)
            }
            (ControlKind::Refuse, Self::Native(_)) if Rejection::decode(said).is_some() => {
                Ok(Reply::Ask(Dialect::Rxm))
            }
            (ControlKind::Refuse, Self::Rxm(_))
                if Rejection::decode(said) == Some(Rejection::Connected) =>
            {
                Ok(Reply::Rival)
            }
            (ControlKind::Refuse, Self::Rxm(request)) if said == request.encode() => {
                Ok(Reply::Ask(Dialect::Native))
            }
            (ControlKind::Refuse, _) => Ok(Reply::Refused),
        }
    }
}
