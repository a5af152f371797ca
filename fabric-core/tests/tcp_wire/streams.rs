//! Whole streams, split anywhere, hostile ones among them.

use fabric_core::buf::Payload;
use fabric_core::tcp::{Broken, Frame, MAX_MESSAGE, Order, Outbox, Patience};
use fabric_core::{Error, completion::Transfer};
use proptest::prelude::*;

use crate::host::{ANY_TAG, Receiver, UNTAGGED};
use crate::{hex, largest_allocation, tag};

const BUDGET: usize = 1 << 20;

/// The header of a message that claims this many bytes.
fn claim(len: u64) -> Vec<u8> {
    let mut bytes = hex("03 00 0000 00 00 10 00 0000000000000000");
    bytes[8..16].copy_from_slice(&(len + 16).to_le_bytes());
    bytes
}

#[derive(Clone, Debug)]
struct Message {
    tag: Option<u64>,
    data: Option<u64>,
    len: usize,
    /// Its bytes follow from where they lie.
    is_open: bool,
    /// The sender owes an acknowledgement before it, or while it is open.
    answers: bool,
}

fn contents(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + number) as u8).collect()
}

prop_compose! {
    fn messages()(list in prop::collection::vec(
        (any::<Option<u64>>(), any::<Option<u64>>(), prop_oneof![0..4usize, 0..200usize, 1000..9000usize], any::<bool>(), any::<bool>()),
        1..12,
    )) -> Vec<Message> {
        list.into_iter().map(|(tag, data, len, is_open, answers)| Message { tag, data, len, is_open, answers }).collect()
    }
}

/// Something that owes an acknowledgement.
fn owed() -> fabric_core::tcp::Owed {
    let mut receiver = Receiver::new(Order::Little, BUDGET);
    let mut taken = receiver.take(&hex(crate::frames::FIN)).unwrap();
    assert_eq!((taken.bytes, taken.owed.len()), (20, 1));
    taken.owed.pop().unwrap()
}

/// The stream of these messages, without acknowledgements, which only come to those who have asked.
fn stream(order: Order, messages: &[Message]) -> Vec<u8> {
    let (mut outbox, mut bytes) = (Outbox::new(order), Vec::new());
    let flush = |outbox: &mut Outbox, bytes: &mut Vec<u8>, most: usize| {
        let count = outbox.pending().len().min(most);
        bytes.extend_from_slice(&outbox.pending()[..count]);
        outbox.left(count);
    };
    for (number, message) in messages.iter().enumerate() {
        let payload = contents(number, message.len);
        if message.is_open {
            assert!(outbox.open(
                &Frame::message(tag(message.tag), message.data, message.len),
                &[]
            ));
            flush(&mut outbox, &mut bytes, usize::MAX);
            bytes.extend_from_slice(&payload);
            outbox.close();
        } else {
            assert!(outbox.push(tag(message.tag), message.data, Payload::Whole(&payload)));
            flush(&mut outbox, &mut bytes, 5);
        }
        assert!(!outbox.is_open());
        if !message.answers {
            flush(&mut outbox, &mut bytes, usize::MAX);
        }
        if message.is_open {
            // Pending bytes leave before the bytes of an open message.
            flush(&mut outbox, &mut bytes, usize::MAX);
        }
        if messages.get(number + 1).is_some_and(|next| next.is_open) {
            flush(&mut outbox, &mut bytes, usize::MAX);
        }
    }
    flush(&mut outbox, &mut bytes, usize::MAX);
    assert!(outbox.pending().is_empty());
    bytes
}

/// Shows a stream in these pieces, what was left over each time with the next one. Returns what was
/// left at the end.
fn show(receiver: &mut Receiver, stream: &[u8], cuts: &[usize]) -> Result<Vec<u8>, Broken> {
    let (mut rest, mut at, mut turn) = (Vec::new(), 0, 0);
    while at < stream.len() {
        let count = cuts[turn % cuts.len()].clamp(1, stream.len() - at);
        rest.extend_from_slice(&stream[at..at + count]);
        (at, turn) = (at + count, turn + 1);
        let taken = receiver.take(&rest)?;
        assert!(taken.bytes <= rest.len() && !taken.held);
        rest.drain(..taken.bytes);
    }
    Ok(rest)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 100 }))]

    /// Every message comes once, whole, in order and with all it carries, however the stream was
    /// cut, whether somebody waits or not.
    #[test]
    fn what_goes_in_comes_out(
        messages in messages(),
        cuts in prop::collection::vec(prop_oneof![1..3usize, 1..40usize, 1..20_000usize], 1..8),
        is_awaited: bool,
        is_big: bool,
    ) {
        let order = if is_big { Order::Big } else { Order::Little };
        let mut receiver = Receiver::new(order, BUDGET);
        let spec = |message: &Message| if message.tag.is_some() { ANY_TAG } else { UNTAGGED };
        let post = |receiver: &mut Receiver| {
            messages.iter().map(|message| receiver.post(spec(message), None)).collect::<Vec<_>>()
        };
        let posted = is_awaited.then(|| post(&mut receiver));
        prop_assert_eq!(show(&mut receiver, &stream(order, &messages), &cuts), Ok(Vec::new()));
        prop_assert_eq!(receiver.inbox.end(), vec![]);
        let ops = posted.unwrap_or_else(|| post(&mut receiver));
        for (number, (message, op)) in messages.iter().zip(ops).enumerate() {
            let (Transfer { len, tag, data, .. }, bytes) = receiver.got(op);
            prop_assert_eq!((len, tag, data), (message.len, message.tag, message.data));
            prop_assert_eq!(bytes, contents(number, message.len));
        }
    }

    /// Whatever a peer says is taken or refused, and what it claims costs no memory.
    #[test]
    fn garbage_ends_or_waits(bytes in prop::collection::vec(any::<u8>(), 0..400), cuts in prop::collection::vec(1..50usize, 1..5)) {
        let mut receiver = Receiver::new(Order::Little, BUDGET);
        let _ = receiver.post(UNTAGGED, None);
        let most = largest_allocation(|| {
            let (mut rest, mut at) = (Vec::new(), 0);
            for cut in cuts.iter().cycle() {
                let end = (at + cut).min(bytes.len());
                rest.extend_from_slice(&bytes[at..end]);
                let Ok(taken) = receiver.take(&rest) else { return };
                assert!(taken.bytes <= rest.len());
                rest.drain(..taken.bytes);
                if taken.held || end == bytes.len() {
                    return;
                }
                at = end;
            }
        });
        prop_assert!(most <= 256 << 10, "{most}");
    }
}

/// Acknowledgements are owed once a message is there as a whole, and each of them once.
#[test]
fn answers_are_owed_for_whole_messages() {
    let fin = hex(crate::frames::FIN);
    for cut in 1..fin.len() {
        let mut receiver = Receiver::new(Order::Little, BUDGET);
        let taken = receiver.take(&fin[..cut]).unwrap();
        assert!(taken.owed.is_empty(), "cut at {cut}");
        let rest = [&fin[taken.bytes..cut], &fin[cut..]].concat();
        let taken = receiver.take(&rest).unwrap();
        assert_eq!(
            (taken.bytes, taken.owed.len()),
            (rest.len(), 1),
            "cut at {cut}"
        );
    }
    let mut outbox = Outbox::new(Order::Little);
    let frame = Frame::message(None, None, 4);
    assert!(outbox.open(&frame, &[]));
    let header = outbox.pending().len();
    assert!(!outbox.open(&frame, &[]) && !outbox.push(None, None, Payload::Whole(&b"x"[..])));
    assert_eq!(outbox.pending().len(), header, "a message within another");
    outbox.acknowledge(owed());
    outbox.left(outbox.pending().len());
    assert!(
        outbox.pending().is_empty(),
        "nothing comes between a header and its bytes"
    );
    outbox.close();
    // It is the second header on this stream.
    assert_eq!(
        outbox.pending(),
        hex("03 00 0000 02 00 10 01 1000000000000000")
    );
    outbox.acknowledge(owed());
    assert_eq!(outbox.pending().len(), 32);
    outbox.give_up();
    assert!(outbox.pending().is_empty());
}

#[test]
fn what_was_taken_goes_first_when_it_comes_back() {
    let order = Order::Little;
    let push = |outbox: &mut Outbox, byte: u8| {
        assert!(outbox.push(None, None, Payload::Whole(&[byte; 10])));
    };
    let mut whole = Outbox::new(order);
    (1..=3).for_each(|byte| push(&mut whole, byte));
    let whole = whole.pending().to_vec();
    let mut outbox = Outbox::new(order);
    push(&mut outbox, 1);
    push(&mut outbox, 2);
    outbox.left(7);
    let taken = outbox.take_pending();
    assert!(taken == whole[7..taken.len() + 7] && outbox.pending().is_empty());
    let end = 7 + taken.len() as u64;
    assert_eq!(
        (outbox.written(), outbox.end()),
        (7, end),
        "what was taken has not left"
    );
    // Meanwhile something else is sent.
    push(&mut outbox, 3);
    assert_eq!(outbox.pending(), &whole[7 + taken.len()..]);
    outbox.left(0);
    outbox.put_back(&taken[3..]);
    assert_eq!(outbox.pending(), &whole[10..]);
    assert_eq!((outbox.written(), outbox.end()), (10, whole.len() as u64));
    outbox.left(5);
    outbox.put_back(b"");
    assert_eq!(outbox.pending(), &whole[15..]);
    outbox.give_up();
    assert_eq!(
        (outbox.written(), outbox.end()),
        (15, 15),
        "what was given up has not left"
    );
}

#[test]
fn a_message_without_a_place_is_held_and_waits_whole() {
    let mut receiver = Receiver::new(Order::Little, BUDGET);
    let bytes = claim(2 << 20);
    let most = largest_allocation(|| {
        let taken = receiver.take(&bytes).unwrap();
        assert!(taken.held && taken.bytes == 0);
    });
    assert!(most < 4096, "{most}");
    assert_eq!(receiver.rx.unexpected(), (0, 0));
    assert!(!receiver.wants(&bytes));
    let op = receiver.post(UNTAGGED, None);
    assert!(receiver.wants(&bytes));
    assert_eq!(receiver.take(&bytes).unwrap().bytes, 16);
    let piece = vec![5; 1 << 20];
    assert_eq!(receiver.take(&piece).unwrap().bytes, 1 << 20);
    assert!(receiver.end(op).is_none());
    assert_eq!(receiver.take(&piece).unwrap().bytes, 1 << 20);
    assert_eq!(receiver.got(op).1.len(), 2 << 20);
}

/// Nothing is allocated for a length that is a breach or that no receive waits for. A receive
/// reserves that length once.
#[test]
fn claims_cost_no_memory() {
    for (len, is_broken) in [
        (1 << 60, true),
        (u64::MAX - 16, true),
        (MAX_MESSAGE as u64 + 1, true),
        (MAX_MESSAGE as u64, false),
    ] {
        for is_awaited in [false, true] {
            let mut receiver = Receiver::new(Order::Little, BUDGET);
            if is_awaited {
                receiver.post(UNTAGGED, None);
            }
            let mut broken = false;
            let most = largest_allocation(|| broken = receiver.take(&claim(len)).is_err());
            assert_eq!(broken, is_broken, "{len}");
            let limit = if is_awaited && !is_broken {
                len as usize
            } else {
                4 << 20
            };
            assert!(most <= limit, "{most} for a claim of {len}");
        }
    }
}

#[test]
fn what_does_not_fit_is_cut_off_and_the_next_one_comes() {
    for first in [3, 10] {
        let mut receiver = Receiver::new(Order::Little, BUDGET);
        let (short, next) = (
            receiver.post(UNTAGGED, Some(4)),
            receiver.post(UNTAGGED, None),
        );
        let message = |len| Message {
            tag: None,
            data: None,
            len,
            is_open: false,
            answers: false,
        };
        let bytes = stream(Order::Little, &[message(10), message(5)]);
        assert_eq!(
            show(&mut receiver, &bytes, &[16 + first, 100]),
            Ok(Vec::new())
        );
        let cut = receiver.end(short).unwrap();
        assert!(
            matches!(
                cut.error.as_deref(),
                Some(Error::Truncated { len: 4, lost: 6 })
            ),
            "{cut:?}"
        );
        assert_eq!(receiver.got(next).1, contents(1, 5));
    }
}

#[test]
fn what_is_not_offered_ends_the_connection() {
    for (text, what) in [
        (crate::frames::ACK, "an acknowledgement of nothing"),
        (
            "03 02 0000 00 01 28 00 2800000000000000 0000000000000000 0800000000000000 0000000000000000",
            "may not reach",
        ),
        (
            "03 03 0000 00 00 10 00 1400000000000000 00000000",
            "no question",
        ),
        (
            "03 05 0000 01 00 20 00 2000000000000000 0000000000000000 0000000000000000",
            "rendezvous",
        ),
        ("03 06 0000 01 00 10 00 1000000000000000", "rendezvous"),
        ("03 c8 0000 00 00 10 00 1000000000000000", "unknown"),
    ] {
        let mut receiver = Receiver::new(Order::Little, BUDGET);
        let Broken(why) = receiver.take(&hex(text)).unwrap_err();
        assert!(why.contains(what), "{why} for {what}");
    }
}

#[test]
fn a_message_that_ends_early_is_known() {
    let mut receiver = Receiver::new(Order::Little, BUDGET);
    let op = receiver.post(UNTAGGED, None);
    let later = receiver.post(UNTAGGED, None);
    receiver
        .take(&hex("03 00 0000 00 00 10 00 1800000000000000 01020304"))
        .unwrap();
    let landing = receiver.inbox.end().pop().expect("four bytes are missing");
    receiver
        .rx
        .fail(&mut receiver.maps, landing, Error::Canceled);
    assert_eq!(receiver.inbox.end(), []);
    // The receive waits for another message, in front of those that were posted later.
    assert!(receiver.end(op).is_none());
    assert!(receiver.rx.cancel(&mut receiver.maps, op));
    assert!(receiver.rx.cancel(&mut receiver.maps, later));
    assert!(!receiver.rx.has_receives());
}

/// A message that finds no receive at all stays for one more look, and for another whenever a
/// receive has taken one: who posts between two looks gets every message without a buffer in
/// between.
#[test]
fn messages_wait_for_one_look_where_they_are() {
    let mut outbox = Outbox::new(Order::Little);
    for byte in 0..4 {
        assert!(outbox.push(None, None, Payload::Whole(&[byte; 10])));
    }
    let stream = outbox.pending();
    let one = stream.len() / 4;
    let mut receiver = Receiver::new(Order::Little, BUDGET);
    let look = |receiver: &mut Receiver, at: usize, patience| {
        receiver.inbox.be_patient(patience);
        let taken = receiver.take(&stream[at..]).unwrap();
        assert!(!taken.held);
        (taken.bytes, taken.is_put_off)
    };
    assert_eq!(look(&mut receiver, 0, Patience::Left), (0, true));
    let posted = receiver.post(UNTAGGED, None);
    assert_eq!(
        look(&mut receiver, 0, Patience::Spent),
        (one, true),
        "one is taken, the next one stays"
    );
    assert_eq!(receiver.got(posted).1, [0; 10]);
    let (first, second) = (receiver.post(ANY_TAG, None), receiver.post(UNTAGGED, None));
    // A receive that takes no such message is one all the same: the program is not about to post
    // its first.
    assert_eq!(look(&mut receiver, one, Patience::Spent), (3 * one, false));
    assert_eq!(receiver.got(second).1, [1; 10]);
    let _ = first;
    for byte in 2..4 {
        let late = receiver.post(UNTAGGED, None);
        assert_eq!(receiver.got(late).1, [byte; 10]);
    }
    let mut other = Receiver::new(Order::Little, BUDGET);
    assert_eq!(
        look(&mut other, 0, Patience::Spent),
        (4 * one, false),
        "nobody posts: they are buffered"
    );
    assert_eq!(
        look(&mut other, 3 * one, Patience::None),
        (one, false),
        "nor does anybody wait at the end"
    );
}
