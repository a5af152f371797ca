//! The bytes and tags of requests and replies.

/// The tag of the tagged requests.
pub(super) const REQUEST_TAG: u64 = 0x51e6e;
/// The tag of messages that no receive of the server takes.
pub(super) const ATTACK_TAG: u64 = 666;
/// Tags of replies: this, and the number of the request in the low half.
const REPLY_TAG: u64 = 0x51e_6e00_0000_0000;
/// Bytes in front of a request: the mark, the kind and the number.
pub(super) const HEADER_LEN: usize = 16;
/// The first bytes of a request. The server drops other messages.
const MARK: &[u8; 7] = b"siege-1";

/// What the server does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    /// It answers with the bytes of the request.
    Echo,
    /// It answers with its counters.
    Stats,
    /// It receives what has been left, and then answers with its counters.
    TakeAll,
}

/// Returns the tag of the reply to the request with this number.
pub(super) fn reply_tag(number: u64) -> u64 {
    REPLY_TAG | u64::from(number as u32)
}

/// Returns a request of at least [`HEADER_LEN`] bytes.
pub(super) fn encode_request(kind: RequestKind, number: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len.max(HEADER_LEN));
    bytes.extend_from_slice(MARK);
    bytes.push(kind as u8);
    bytes.extend_from_slice(&number.to_le_bytes());
    // Differs between neighbouring bytes and between neighbouring numbers.
    bytes.extend((HEADER_LEN..len).map(|at| (number as u8).wrapping_mul(31) ^ at as u8));
    bytes
}

/// Returns kind and number of a request; `None` for other messages.
pub(super) fn decode_request(bytes: &[u8]) -> Option<(RequestKind, u64)> {
    let (mark, rest) = bytes.split_first_chunk::<7>()?;
    let (kind, rest) = rest.split_first()?;
    let number = u64::from_le_bytes(*rest.first_chunk()?);
    let kinds = [RequestKind::Echo, RequestKind::Stats, RequestKind::TakeAll];
    let kind = kinds.into_iter().find(|known| *known as u8 == *kind)?;
    (mark == MARK).then_some((kind, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_decoded_and_other_messages_are_not() {
        let request = encode_request(RequestKind::Stats, 1 << 40, 64);
        assert_eq!(request.len(), 64);
        assert_eq!(
            decode_request(&request),
            Some((RequestKind::Stats, 1 << 40))
        );
        assert_ne!(
            request,
            encode_request(RequestKind::Stats, 1 + (1 << 40), 64)
        );
        assert_eq!(decode_request(&request[..HEADER_LEN - 1]), None);
        for at in 0..8 {
            let mut damaged = request.clone();
            damaged[at] ^= 0x80;
            assert_eq!(decode_request(&damaged), None, "byte {at}");
        }
        assert_ne!(reply_tag(1), reply_tag(2));
    }
}
