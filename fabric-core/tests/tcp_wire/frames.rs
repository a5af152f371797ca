//! Frame headers.

use fabric_core::tcp::{ByteOrder, Frame, FrameKind, MAX_HEADER_LEN};

use crate::{hex, supported_tag};

/// Frames captured from libfabric's tcp provider.
pub(crate) const MESSAGE: &str = "03 00 0000 00 00 10 00 d800000000000000";
pub(crate) const FIN: &str = "03 00 0400 00 00 10 00 1400000000000000 66696e00";
pub(crate) const ACK: &str = "03 00 0000 02 00 10 00 1000000000000000";

fn encode(frame: &Frame, order: ByteOrder, sequence: u8) -> Vec<u8> {
    let mut header = [0; MAX_HEADER_LEN];
    let len = frame.encode(&[], order, sequence, &mut header);
    header[..len].to_vec()
}

fn decode_whole(bytes: &[u8], order: ByteOrder) -> Frame {
    let (frame, len) = Frame::decode(bytes, order)
        .unwrap()
        .expect("the header is complete");
    assert_eq!(len, usize::from(bytes[6]));
    frame
}

#[test]
fn frame_headers_match_libfabric_bytes() {
    let message = Frame::message(None, None, 200);
    assert_eq!(decode_whole(&hex(MESSAGE), ByteOrder::Little), message);
    assert_eq!(encode(&message, ByteOrder::Little, 0), hex(MESSAGE));
    let fin = decode_whole(&hex(FIN), ByteOrder::Little);
    assert_eq!(
        (fin.kind.clone(), fin.data, fin.payload_len),
        (FrameKind::Message, None, 4)
    );
    let ack = Frame::ack(fin.ack_due().expect("the frame requests an ack"));
    assert_eq!(encode(&ack, ByteOrder::Little, 0), hex(ACK));
    assert_eq!(decode_whole(&hex(ACK), ByteOrder::Little), ack);
    assert!(message.ack_due().is_none() && ack.ack_due().is_none());
}

/// CQ data precedes the tag.
#[test]
fn data_precedes_tag_in_header() {
    let frame = Frame::message(supported_tag(Some(0x4d2)), Some(0x11), 3);
    assert_eq!(
        encode(&frame, ByteOrder::Little, 9),
        hex("03 01 0100 00 00 20 09 2300000000000000 1100000000000000 d204000000000000")
    );
    assert_eq!(
        encode(&frame, ByteOrder::Big, 255),
        hex("03 01 0001 00 00 20 ff 0000000000000023 0000000000000011 00000000000004d2")
    );
}

#[test]
fn frames_round_trip_at_every_split() {
    for order in [ByteOrder::Little, ByteOrder::Big] {
        for tag in [None, Some(0), Some(u64::MAX - 1)].map(supported_tag) {
            for data in [None, Some(0), Some(0x0102_0304_0506_0708)] {
                for payload in [0, 1, 0x1234_5678] {
                    let frame = Frame::message(tag, data, payload);
                    let bytes = encode(&frame, order, 1);
                    for cut in 0..bytes.len() {
                        assert_eq!(
                            Frame::decode(&bytes[..cut], order),
                            Ok(None),
                            "{frame:?} cut at {cut}"
                        );
                    }
                    assert_eq!(decode_whole(&bytes, order), frame);
                }
            }
        }
    }
}

/// Returns a header with arbitrary fields.
fn raw_header(code: u8, flags: u16, op: u8, iov_count: u8, len: u8, total: u64) -> Vec<u8> {
    let mut bytes = vec![3, code, 0, 0, op, iov_count, len, 0];
    bytes[2..4].copy_from_slice(&flags.to_le_bytes());
    bytes.extend_from_slice(&total.to_le_bytes());
    bytes.resize(MAX_HEADER_LEN, 0);
    bytes
}

/// Returns whether a peer may send this header; an independent formulation of the rules.
fn is_valid_header(code: u8, flags: u16, op: u8, iov_count: u8, len: u8) -> bool {
    let data = 8 * u8::from(flags & 1 != 0);
    match code {
        0 if op == 2 => len == 16,
        0 => len == 16 + data,
        1 => len == 24 + data,
        2 => (1..=4).contains(&iov_count) && len == 16 + 24 * iov_count,
        3 => len == 16,
        4 => (1..=4).contains(&iov_count) && len == 16 + 24 * iov_count + data,
        // Valid codes of an operation and a data type.
        0xf1 => len == 48,
        0xf3 => len == 16,
        _ => false,
    }
}

#[test]
fn header_is_accepted_exactly_if_it_is_valid() {
    for code in (0..=8).chain([127, 200, 0xf1, 0xf2, 0xf3, 255]) {
        for flags in [0, 1, 4, 5, 0xffff] {
            for op in [0, 1, 2, 255] {
                for iov_count in [0, 1, 4, 5, 255] {
                    for len in 0..=255u8 {
                        let total = u64::from(len)
                            + if code == 2 || code == 0 && op == 2 {
                                0
                            } else {
                                5
                            };
                        let bytes = raw_header(code, flags, op, iov_count, len, total);
                        let read = Frame::decode(&bytes, ByteOrder::Little);
                        let allowed = is_valid_header(code, flags, op, iov_count, len);
                        assert_eq!(
                            read.is_ok(),
                            allowed,
                            "{code} {flags:#x} {op} {iov_count} {len}: {read:?}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn frame_shorter_than_its_header_is_rejected() {
    for total in 0..16 {
        assert!(
            Frame::decode(&raw_header(0, 0, 0, 0, 16, total), ByteOrder::Little).is_err(),
            "{total}"
        );
    }
    assert!(
        Frame::decode(&raw_header(0, 0, 2, 0, 16, 17), ByteOrder::Little).is_err(),
        "an acknowledgement with a payload"
    );
    let frame = decode_whole(&raw_header(0, 0, 0, 0, 16, u64::MAX), ByteOrder::Little);
    assert_eq!(frame.payload_len, u64::MAX - 16);
}

/// Some releases of libfabric write arbitrary values to these fields.
#[test]
fn version_sequence_and_unused_iov_count_are_ignored() {
    let mut bytes = hex(MESSAGE);
    for byte in 0..=255 {
        (bytes[0], bytes[7], bytes[5]) = (byte, byte, byte);
        assert_eq!(
            decode_whole(&bytes, ByteOrder::Little),
            Frame::message(None, None, 200)
        );
    }
}

#[test]
fn each_ack_request_flag_makes_an_ack_due() {
    for (flags, needs_ack) in [
        (0, false),
        (2, false),
        (4, true),
        (8, true),
        (12, true),
        (0x80, false),
    ] {
        let frame = decode_whole(&raw_header(0, flags, 0, 0, 16, 20), ByteOrder::Little);
        assert_eq!(frame.ack_due().is_some(), needs_ack, "{flags:#x}");
    }
}
