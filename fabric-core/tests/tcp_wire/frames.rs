//! The headers of what follows the beginning of a connection.

use fabric_core::tcp::{Frame, FrameKind, LONGEST_HEADER, Order};

use crate::{hex, tag};

/// What libfabric's provider has been seen to send.
pub(crate) const MESSAGE: &str = "03 00 0000 00 00 10 00 d800000000000000";
pub(crate) const FIN: &str = "03 00 0400 00 00 10 00 1400000000000000 66696e00";
pub(crate) const ACK: &str = "03 00 0000 02 00 10 00 1000000000000000";

fn encoded(frame: &Frame, order: Order, number: u8) -> Vec<u8> {
    let mut header = [0; LONGEST_HEADER];
    let len = frame.encode(&[], order, number, &mut header);
    header[..len].to_vec()
}

fn whole(bytes: &[u8], order: Order) -> Frame {
    let (frame, len) = Frame::decode(bytes, order)
        .unwrap()
        .expect("all of it is there");
    assert_eq!(len, usize::from(bytes[6]));
    frame
}

#[test]
fn headers_read_as_libfabric_writes_them() {
    let message = Frame::message(None, None, 200);
    assert_eq!(whole(&hex(MESSAGE), Order::Little), message);
    assert_eq!(encoded(&message, Order::Little, 0), hex(MESSAGE));
    let fin = whole(&hex(FIN), Order::Little);
    assert_eq!(
        (fin.kind.clone(), fin.data, fin.payload),
        (FrameKind::Message, None, 4)
    );
    let ack = Frame::ack(fin.owes().expect("it asks for one"));
    assert_eq!(encoded(&ack, Order::Little, 0), hex(ACK));
    assert_eq!(whole(&hex(ACK), Order::Little), ack);
    assert!(message.owes().is_none() && ack.owes().is_none());
}

/// The data come before the tag.
#[test]
fn tags_and_data_have_their_places() {
    let frame = Frame::message(tag(Some(0x4d2)), Some(0x11), 3);
    assert_eq!(
        encoded(&frame, Order::Little, 9),
        hex("03 01 0100 00 00 20 09 2300000000000000 1100000000000000 d204000000000000")
    );
    assert_eq!(
        encoded(&frame, Order::Big, 255),
        hex("03 01 0001 00 00 20 ff 0000000000000023 0000000000000011 00000000000004d2")
    );
}

#[test]
fn frames_come_back_and_may_be_split_anywhere() {
    for order in [Order::Little, Order::Big] {
        for tag in [None, Some(0), Some(u64::MAX - 1)].map(tag) {
            for data in [None, Some(0), Some(0x0102_0304_0506_0708)] {
                for payload in [0, 1, 0x1234_5678] {
                    let frame = Frame::message(tag, data, payload);
                    let bytes = encoded(&frame, order, 1);
                    for cut in 0..bytes.len() {
                        assert_eq!(
                            Frame::decode(&bytes[..cut], order),
                            Ok(None),
                            "{frame:?} cut at {cut}"
                        );
                    }
                    assert_eq!(whole(&bytes, order), frame);
                }
            }
        }
    }
}

/// A header with everything at will.
fn header(code: u8, flags: u16, op: u8, rows: u8, len: u8, total: u64) -> Vec<u8> {
    let mut bytes = vec![3, code, 0, 0, op, rows, len, 0];
    bytes[2..4].copy_from_slice(&flags.to_le_bytes());
    bytes.extend_from_slice(&total.to_le_bytes());
    bytes.resize(LONGEST_HEADER, 0);
    bytes
}

/// Whether a peer may send this header, said once more and in another way.
fn is_allowed(code: u8, flags: u16, op: u8, rows: u8, len: u8) -> bool {
    let data = 8 * u8::from(flags & 1 != 0);
    match code {
        0 if op == 2 => len == 16,
        0 => len == 16 + data,
        1 => len == 24 + data,
        2 => rows <= 4 && len == 16 + 24 * rows,
        3 => len == 16,
        4 => rows <= 4 && len == 16 + 24 * rows + data,
        // Numbers of an operation and of a right that there are.
        0xf1 => len == 48,
        0xf3 => len == 16,
        _ => false,
    }
}

#[test]
fn every_header_is_allowed_or_refused_as_a_whole() {
    for code in (0..=8).chain([127, 200, 0xf1, 0xf2, 0xf3, 255]) {
        for flags in [0, 1, 4, 5, 0xffff] {
            for op in [0, 1, 2, 255] {
                for rows in [0, 1, 4, 5, 255] {
                    for len in 0..=255u8 {
                        let total = u64::from(len)
                            + if code == 2 || code == 0 && op == 2 {
                                0
                            } else {
                                5
                            };
                        let bytes = header(code, flags, op, rows, len, total);
                        let read = Frame::decode(&bytes, Order::Little);
                        let allowed = is_allowed(code, flags, op, rows, len);
                        assert_eq!(
                            read.is_ok(),
                            allowed,
                            "{code} {flags:#x} {op} {rows} {len}: {read:?}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_frame_is_not_shorter_than_its_header() {
    for total in 0..16 {
        assert!(
            Frame::decode(&header(0, 0, 0, 0, 16, total), Order::Little).is_err(),
            "{total}"
        );
    }
    assert!(
        Frame::decode(&header(0, 0, 2, 0, 16, 17), Order::Little).is_err(),
        "an acknowledgement with a payload"
    );
    let frame = whole(&header(0, 0, 0, 0, 16, u64::MAX), Order::Little);
    assert_eq!(frame.payload, u64::MAX - 16);
}

/// Released peers write anything there.
#[test]
fn version_and_number_and_idle_rows_mean_nothing() {
    let mut bytes = hex(MESSAGE);
    for byte in 0..=255 {
        (bytes[0], bytes[7], bytes[5]) = (byte, byte, byte);
        assert_eq!(
            whole(&bytes, Order::Little),
            Frame::message(None, None, 200)
        );
    }
}

#[test]
fn both_wishes_for_an_answer_get_one() {
    for (flags, owes) in [
        (0, false),
        (2, false),
        (4, true),
        (8, true),
        (12, true),
        (0x80, false),
    ] {
        let frame = whole(&header(0, flags, 0, 0, 16, 20), Order::Little);
        assert_eq!(frame.owes().is_some(), owes, "{flags:#x}");
    }
}
