//! What peers say over TCP, read from any bytes: for the tests that replay corpora, and for the fuzz targets.

use fabric_core::tcp::{Control, Order, Outbox};

use crate::host::{Receiver, UNTAGGED};

/// Reads how a connection begins. True when it does.
pub(crate) fn control(bytes: &[u8]) -> bool {
    let Ok(Some((control, len))) = Control::decode(bytes) else { return false };
    assert!(len <= bytes.len() && control.private().len() + 32 == len, "{bytes:?}");
    true
}

/// Reads what follows. True when it ends with a message.
pub(crate) fn stream(bytes: &[u8]) -> bool {
    follows(bytes, |budget| native(budget, false))
}

/// The same as peers of this library say it to each other.
pub(crate) fn kin(bytes: &[u8]) -> bool {
    follows(bytes, |budget| native(budget, true))
}

/// The same in the other dialect, to a connection with the number 5.
pub(crate) fn rxm(bytes: &[u8]) -> bool {
    follows(bytes, |budget| Receiver::of_rxm(budget, 5))
}

fn follows(bytes: &[u8], receiver: impl Fn(usize) -> Receiver) -> bool {
    cut_somewhere(bytes, receiver(1 << 16));
    let mut receiver = receiver(1 << 20);
    let taken = receiver.take(bytes);
    taken.is_ok_and(|taken| taken.bytes == bytes.len()) && receiver.inbox.end().is_empty()
}

fn native(budget: usize, is_kin: bool) -> Receiver {
    let mut receiver = Receiver::new(Order::Little, budget);
    if is_kin {
        receiver.inbox.kin();
    }
    // Of which one answer may come.
    receiver.asks_to_read(8);
    receiver
}

/// The same in two pieces, with a receive that is too short for most, and little room for what nobody wants.
fn cut_somewhere(bytes: &[u8], mut receiver: Receiver) {
    let _ = receiver.post(UNTAGGED, Some(16));
    // Always the same for the same bytes.
    let cut = bytes.iter().map(|byte| usize::from(*byte)).sum::<usize>() % (bytes.len() + 1);
    let Ok(taken) = receiver.take(&bytes[..cut]) else { return };
    assert!(taken.bytes <= cut);
    if !taken.held {
        let _ = receiver.take(&bytes[taken.bytes..]);
    }
    assert!(receiver.rx.unexpected().1 <= 1 << 16);
    let _ = receiver.answers(&mut Outbox::new(Order::Little), 1 << 16);
}
