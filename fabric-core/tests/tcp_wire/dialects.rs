//! Which of the two dialects is spoken: questions and answers.

use fabric_core::flags::Caps;
use fabric_core::tcp::rxm::{Acceptance, Rejection, Request};
use fabric_core::tcp::{
    Agreed, Broken, Control, ControlKind, Dialect, Hello, Mark, Order, Question, Reply, Rivals,
    Takes, Verdict, arbitrate,
};

use crate::hex;

/// What libfabric's RXM has been seen to ask with.
const REQUEST: &str = "03 00 0018 00000000 0000000000000000 0000000000000000 0100000000000000 \
    01 02 04 03 31aa 02 00 00400000 00100000 000000005d400000";

fn said(kind: ControlKind, private: &[u8]) -> Control {
    Control::new(kind, private).unwrap()
}

#[test]
fn requests_read_as_libfabric_writes_them() {
    let bytes = hex(REQUEST);
    let (control, len) = Control::decode(&bytes).unwrap().unwrap();
    assert_eq!((control.kind, len), (ControlKind::Request, bytes.len()));
    let request = Request {
        port: 0xaa31,
        instance: 0x405d,
        connection: 0,
    };
    if Order::NATIVE == Order::Little {
        assert_eq!(
            Question::read(control.private()),
            Ok(Question::Rxm(request))
        );
        assert_eq!(
            said(ControlKind::Request, &request.encode()).encode(),
            bytes
        );
    }
    assert_eq!(Request::decode(&request.encode()), Some(Ok(request)));
    let accepted = Acceptance {
        instance: 7,
        connection: 9,
    };
    assert_eq!(Acceptance::decode(&accepted.encode()), Some(accepted));
    assert_eq!(Rejection::Refused.encode(), [1, 1]);
    assert_eq!(Rejection::Connected.encode(), [1, 2]);
    for rejection in [
        Rejection::Unspecified,
        Rejection::Refused,
        Rejection::Connected,
    ] {
        assert_eq!(Rejection::decode(&rejection.encode()), Some(rejection));
    }
}

/// Who asks in RXM and is not understood is told so in RXM.
#[test]
fn who_is_not_understood_is_told_in_its_dialect() {
    let good = Request {
        port: 9,
        instance: 7,
        connection: 3,
    }
    .encode();
    for (at, byte, why) in [
        (0, 2, "version"),
        (1, 3, "byte order"),
        (2, 5, "version"),
        (3, 4, "version"),
        (8, 1, "limit"),
        (11, 0xff, "limit"),
    ] {
        let mut bytes = good;
        bytes[at] = byte;
        let Broken(what) = Question::read(&bytes).unwrap_err();
        assert!(what.contains(why), "{what} for {why}");
        assert_eq!(Question::refuse_unread(&bytes), [1, 1]);
    }
    let deaf = Request {
        port: 0,
        instance: 7,
        connection: 3,
    }
    .encode();
    assert!(Question::read(&deaf).is_err());
    // Flow control, the slot and the number of receives are the peer's own business.
    for at in [6, 7, 12, 15] {
        let mut bytes = good;
        bytes[at] ^= 0xff;
        assert!(Question::read(&bytes).is_ok(), "byte {at}");
    }
    for len in [0, 7, 9, 16, 23, 25, 256] {
        let bytes = vec![1; len];
        assert!(Question::read(&bytes).is_err(), "{len}");
        assert_eq!(Question::refuse_unread(&bytes), bytes);
    }
}

#[test]
fn each_dialect_is_answered_in_itself() {
    let native = Question::new(Dialect::Native, 9, 7, 3);
    let rxm = Question::new(Dialect::Rxm, 9, 7, 3);
    for question in [native, rxm] {
        assert_eq!(Question::read(&question.private()), Ok(question));
        assert_eq!((question.port(), question.instance()), (9, 7));
        for own in [None, Some(Mark::of(Caps::MSG))] {
            let mark = own.and_then(|own| question.mark(own));
            let (private, there) = question.accept(8, 4, mark);
            let reply = question.answered(&said(ControlKind::Accept, &private).marked(mark));
            let here = match there {
                Agreed::Native { takes } => Agreed::Native { takes },
                Agreed::Rxm {
                    takes,
                    ours,
                    theirs,
                } => {
                    assert_eq!(
                        takes.is_kin(),
                        own.is_some(),
                        "who marks what it says is kin"
                    );
                    Agreed::Rxm {
                        takes,
                        ours: theirs,
                        theirs: ours,
                    }
                }
            };
            assert_eq!(reply, Ok(Reply::Accepted(here, Some(8))));
        }
        let reply = question.answered(&said(ControlKind::Refuse, &question.refuse()));
        assert_eq!(reply, Ok(Reply::Rival));
    }
    let takes = Takes::of_many(false);
    assert_eq!(
        rxm.accept(8, 4, None).1,
        Agreed::Rxm {
            takes,
            ours: 4,
            theirs: 3
        }
    );
}

#[test]
fn an_answer_may_be_that_of_the_other_dialect() {
    let native = Question::new(Dialect::Native, 9, 7, 3);
    let rxm = Question::new(Dialect::Rxm, 9, 7, 3);
    let hello = Hello::new(9, 8).encode();
    let cases = [
        (
            native,
            ControlKind::Refuse,
            vec![1, 1],
            Ok(Reply::Ask(Dialect::Rxm)),
        ),
        (
            native,
            ControlKind::Refuse,
            vec![1, 0],
            Ok(Reply::Ask(Dialect::Rxm)),
        ),
        (native, ControlKind::Refuse, vec![2, 1], Ok(Reply::Refused)),
        (native, ControlKind::Refuse, vec![], Ok(Reply::Refused)),
        (
            native,
            ControlKind::Refuse,
            hello.to_vec(),
            Ok(Reply::Refused),
        ),
        (
            native,
            ControlKind::Accept,
            vec![],
            Ok(Reply::Accepted(
                Agreed::Native {
                    takes: Takes::of_many(false),
                },
                None,
            )),
        ),
        (rxm, ControlKind::Refuse, vec![1, 1], Ok(Reply::Refused)),
        (rxm, ControlKind::Refuse, vec![1, 2], Ok(Reply::Rival)),
        (
            rxm,
            ControlKind::Refuse,
            rxm.private(),
            Ok(Reply::Ask(Dialect::Native)),
        ),
        (
            rxm,
            ControlKind::Accept,
            hello.to_vec(),
            Ok(Reply::Ask(Dialect::Native)),
        ),
        (
            rxm,
            ControlKind::Accept,
            vec![],
            Err(Broken("an acceptance of another kind of endpoint")),
        ),
        (
            rxm,
            ControlKind::Request,
            vec![],
            Err(Broken("a question instead of an answer")),
        ),
    ];
    for (question, kind, private, reply) in cases {
        assert_eq!(
            question.answered(&said(kind, &private)),
            reply,
            "{question:?}, {kind:?}, {private:?}"
        );
    }
}

/// Both ask at once, each in its dialect: the question in RXM stays, whoever has the greater
/// address.
#[test]
fn of_two_dialects_at_once_rxm_stays() {
    let addresses = [("10.0.0.1:5", "10.0.0.2:5"), ("10.0.0.2:5", "10.0.0.1:5")];
    for (a, b) in addresses {
        let (a, b) = (a.parse().unwrap(), b.parse().unwrap());
        let of = |dialect, asked| {
            arbitrate(
                a,
                b,
                &Question::new(dialect, 1, 1, 1),
                Rivals::Asking(asked),
            )
        };
        assert_eq!(of(Dialect::Rxm, Dialect::Native), Verdict::Replace);
        assert_eq!(of(Dialect::Native, Dialect::Rxm), Verdict::Refuse);
        assert_eq!(
            of(Dialect::Rxm, Dialect::Rxm),
            of(Dialect::Native, Dialect::Native)
        );
    }
}
