//! Batches of datagrams: memory for their bytes and addresses, sent with one `sendmmsg` or received
//! with one `recvmmsg`.
//!
//! # Safety
//!
//! The kernel gets pointers to the parts of an [`MmsgBuffers`], which is allocated once, never
//! moves, and is accessed through one pointer only. [`DatagramBatch::new`] sets the pointers.
//! Afterwards only lengths change, and never exceed the memory. The kernel writes during a call
//! that has exclusive access to the batch (`&mut self`), and keeps no pointer afterwards. The
//! kernel writes bytes, lengths and addresses; for all of these types every bit pattern is valid.
#![allow(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use fabric_core::buf::Payload;
use rustix::io::Errno;

use super::os_error::last_errno;

/// Maximum number of datagrams of one `sendmmsg` or `recvmmsg`.
pub(crate) const BATCH_LEN: usize = 32;

/// Maximum length of a message, in bytes, as in libfabric: the UDP payload of one Ethernet frame
/// over IPv4 (MTU 1500).
pub(crate) const MAX_MESSAGE: usize = 1472;

const SOCKADDR_LEN: u32 = size_of::<libc::sockaddr_storage>() as u32;

/// The memory that the kernel reads and writes. Every bit pattern is valid, zeros included.
#[repr(C)]
struct MmsgBuffers {
    headers: [libc::mmsghdr; BATCH_LEN],
    iovecs: [libc::iovec; BATCH_LEN],
    addresses: [libc::sockaddr_storage; BATCH_LEN],
    bytes: [[u8; MAX_MESSAGE]; BATCH_LEN],
}

/// Memory for [`BATCH_LEN`] datagrams, used either for sending or for receiving.
pub(crate) struct DatagramBatch {
    buffers: NonNull<MmsgBuffers>,
    /// Number of datagrams of the last receive.
    received: usize,
}

/// A received datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram<'a> {
    pub(crate) from: SocketAddr,
    /// Length of the datagram, in bytes; longer than `bytes` if the datagram was truncated.
    pub(crate) len: usize,
    /// The first [`MAX_MESSAGE`] bytes of the datagram.
    pub(crate) bytes: &'a [u8],
}

// SAFETY: the batch owns the buffers, as a `Box` would; nothing in them belongs to a thread.
unsafe impl Send for DatagramBatch {}

impl DatagramBatch {
    /// Allocates the memory of a batch.
    pub(crate) fn new() -> Self {
        // SAFETY: zeros are a valid value.
        let buffers = unsafe { Box::<MmsgBuffers>::new_zeroed().assume_init() };
        let buffers = NonNull::from(Box::leak(buffers));
        for index in 0..BATCH_LEN {
            let buffers = buffers.as_ptr();
            // SAFETY: all pointers are to memory within the buffers, to which no other pointer
            // exists yet. No reference is made.
            unsafe {
                let iovec = &raw mut (*buffers).iovecs[index];
                (*iovec).iov_base = (&raw mut (*buffers).bytes[index]).cast();
                (*iovec).iov_len = MAX_MESSAGE;
                let header = &raw mut (*buffers).headers[index].msg_hdr;
                (*header).msg_name = (&raw mut (*buffers).addresses[index]).cast();
                (*header).msg_namelen = SOCKADDR_LEN;
                (*header).msg_iov = iovec;
                (*header).msg_iovlen = 1;
            }
        }
        Self {
            buffers,
            received: 0,
        }
    }

    /// Receives up to [`BATCH_LEN`] queued datagrams; returns how many. Returns 0 also if the call
    /// failed.
    pub(crate) fn recv(&mut self, socket: BorrowedFd<'_>) -> usize {
        for index in 0..std::mem::take(&mut self.received) {
            // SAFETY: within the buffers; the length is that of the address storage.
            unsafe { (*self.buffers.as_ptr()).headers[index].msg_hdr.msg_namelen = SOCKADDR_LEN };
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        loop {
            // SAFETY: there are `BATCH_LEN` headers, and the pointers of each are to as much memory
            // as the header states.
            let count = unsafe {
                let headers = (&raw mut (*self.buffers.as_ptr()).headers).cast();
                libc::recvmmsg(
                    socket.as_raw_fd(),
                    headers,
                    BATCH_LEN as u32,
                    flags,
                    std::ptr::null_mut(),
                )
            };
            match usize::try_from(count) {
                Ok(count) => {
                    self.received = count.min(BATCH_LEN);
                    return self.received;
                }
                Err(_) if last_errno() == Errno::INTR => {}
                // No datagram is queued, or the call failed; the next pass repeats the call.
                Err(_) => return 0,
            }
        }
    }

    /// Returns a datagram of the last receive; `None` if its sender has no IPv4 or IPv6 address.
    ///
    /// # Panics
    /// If `index` is not below the count of the last receive.
    pub(crate) fn get(&self, index: usize) -> Option<Datagram<'_>> {
        assert!(
            index < self.received,
            "datagram index beyond the last receive"
        );
        let buffers = self.buffers.as_ptr();
        // SAFETY: within the buffers, which are not written while the batch is borrowed.
        let (len, bytes) = unsafe {
            (
                (*buffers).headers[index].msg_len as usize,
                &(*buffers).bytes[index],
            )
        };
        Some(Datagram {
            from: self.source_addr(index)?,
            len,
            bytes: &bytes[..len.min(MAX_MESSAGE)],
        })
    }

    /// Returns the source address of a datagram; `None` if it is neither IPv4 nor IPv6. Flow label
    /// and scope id are left out, as in an `Address`: the senders are looked up by the socket
    /// addresses of the address vector.
    fn source_addr(&self, index: usize) -> Option<SocketAddr> {
        let buffers = self.buffers.as_ptr();
        // SAFETY: within the buffers; the storage is large and aligned enough for an address of any
        // family. If the length is sufficient, the storage holds an address of the named family.
        unsafe {
            let (name, len) = (
                &raw const (*buffers).addresses[index],
                (*buffers).headers[index].msg_hdr.msg_namelen as usize,
            );
            match i32::from((*name).ss_family) {
                libc::AF_INET if len >= size_of::<libc::sockaddr_in>() => {
                    let name = name.cast::<libc::sockaddr_in>().read();
                    let ip = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
                    Some((ip, u16::from_be(name.sin_port)).into())
                }
                libc::AF_INET6 if len >= size_of::<libc::sockaddr_in6>() => {
                    let name = name.cast::<libc::sockaddr_in6>().read();
                    Some(
                        (
                            Ipv6Addr::from(name.sin6_addr.s6_addr),
                            u16::from_be(name.sin6_port),
                        )
                            .into(),
                    )
                }
                _ => None,
            }
        }
    }

    /// Copies a message of at most [`MAX_MESSAGE`] bytes to this index, with the destination
    /// `to`.
    ///
    /// # Panics
    /// If the message is longer, or `index` is not below [`BATCH_LEN`].
    pub(crate) fn write(&mut self, index: usize, to: SocketAddr, payload: Payload<'_>) {
        self.set_destination(index, to);
        let buffers = self.buffers.as_ptr();
        // SAFETY: within the buffers, to which this call has exclusive access.
        let bytes = unsafe { &mut (*buffers).bytes[index] };
        // The pieces of a custom buffer may be shorter than the payload's length has promised.
        let mut len = 0;
        payload.for_each(|from, piece| {
            bytes[from..from + piece.len()].copy_from_slice(piece);
            len = len.max(from + piece.len());
        });
        // SAFETY: within the buffers. The length does not exceed the memory of the message, or a
        // copy would have panicked.
        unsafe { (*buffers).iovecs[index].iov_len = len };
    }

    /// Sets the destination address of the message at this index. `to` is the socket address of an
    /// `Address`, so its flow label and scope id are 0.
    fn set_destination(&mut self, index: usize, to: SocketAddr) {
        let buffers = self.buffers.as_ptr();
        // SAFETY: within the buffers; the storage is large and aligned enough for either family.
        unsafe {
            let name = &raw mut (*buffers).addresses[index];
            let len = match to.ip() {
                IpAddr::V4(ip) => {
                    let mut sockaddr: libc::sockaddr_in = std::mem::zeroed();
                    sockaddr.sin_family = libc::AF_INET as libc::sa_family_t;
                    sockaddr.sin_port = to.port().to_be();
                    sockaddr.sin_addr.s_addr = u32::from(ip).to_be();
                    name.cast::<libc::sockaddr_in>().write(sockaddr);
                    size_of::<libc::sockaddr_in>()
                }
                IpAddr::V6(ip) => {
                    let mut sockaddr: libc::sockaddr_in6 = std::mem::zeroed();
                    sockaddr.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                    sockaddr.sin6_port = to.port().to_be();
                    sockaddr.sin6_addr.s6_addr = ip.octets();
                    name.cast::<libc::sockaddr_in6>().write(sockaddr);
                    size_of::<libc::sockaddr_in6>()
                }
            };
            (*buffers).headers[index].msg_hdr.msg_namelen = len as u32;
        }
    }

    /// Sends a range of written messages; returns how many were sent.
    ///
    /// # Errors
    /// The error of the first message of the range.
    ///
    /// # Panics
    /// If the range exceeds the batch.
    pub(crate) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        range: std::ops::Range<usize>,
    ) -> Result<usize, Errno> {
        assert!(range.end <= BATCH_LEN, "range exceeds the batch");
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        loop {
            // SAFETY: the headers lie within the buffers; the kernel reads the messages they point
            // to, and writes lengths.
            let count = unsafe {
                let headers = (&raw mut (*self.buffers.as_ptr()).headers).cast::<libc::mmsghdr>();
                libc::sendmmsg(
                    socket.as_raw_fd(),
                    headers.add(range.start),
                    range.len() as u32,
                    flags,
                )
            };
            match usize::try_from(count) {
                Ok(count) => return Ok(count),
                Err(_) if last_errno() == Errno::INTR => {}
                Err(_) => return Err(last_errno()),
            }
        }
    }
}

impl Drop for DatagramBatch {
    fn drop(&mut self) {
        // SAFETY: `new` leaked the box, and no other pointer to it exists.
        drop(unsafe { Box::from_raw(self.buffers.as_ptr()) });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn batch_keeps_lengths_and_addresses() {
        for bind_addr in ["127.0.0.1:0", "[::1]:0"] {
            let bind = || UdpSocket::bind(bind_addr).expect("a loopback socket");
            let (sender, receiver) = (bind(), bind());
            let (mut sent, mut received) = (DatagramBatch::new(), DatagramBatch::new());
            let (from, to) = (sender.local_addr().unwrap(), receiver.local_addr().unwrap());
            let lengths: Vec<usize> = (0..BATCH_LEN - 2)
                .chain([MAX_MESSAGE - 1, MAX_MESSAGE])
                .collect();
            for round in 0..3u8 {
                for (index, len) in lengths.iter().enumerate() {
                    sent.write(
                        index,
                        to,
                        Payload::Contiguous(&vec![index as u8 + round; *len]),
                    );
                }
                assert_eq!(sent.send(sender.as_fd(), 0..5), Ok(5));
                assert_eq!(sent.send(sender.as_fd(), 5..BATCH_LEN), Ok(BATCH_LEN - 5));
                assert_eq!(received.recv(receiver.as_fd()), BATCH_LEN);
                for (index, len) in lengths.iter().enumerate() {
                    let datagram = received.get(index).unwrap();
                    assert_eq!(
                        (datagram.from, datagram.len, datagram.bytes),
                        (from, *len, &vec![index as u8 + round; *len][..])
                    );
                }
                assert_eq!(received.recv(receiver.as_fd()), 0);
            }
            sender.send_to(&[7; 5000], to).unwrap();
            assert_eq!(received.recv(receiver.as_fd()), 1);
            let datagram = received.get(0).unwrap();
            assert_eq!(
                (datagram.len, datagram.bytes),
                (5000, &[7; MAX_MESSAGE][..]),
                "truncated, with its full length"
            );
            sent.write(
                0,
                "127.0.0.1:0".parse().unwrap(),
                Payload::Contiguous(b"port 0"),
            );
            assert!(sent.send(sender.as_fd(), 0..1).is_err());
        }
    }
    /// Bytes at a constant address, which are fewer after the first call.
    struct Shrinking(Box<[u8]>, std::sync::atomic::AtomicUsize);

    // SAFETY: the bytes are boxed, so their address stays the same.
    unsafe impl fabric_core::buf::CustomBuf for Shrinking {
        fn bytes(&self) -> &[u8] {
            match self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
                0 => &self.0,
                _ => &self.0[..10],
            }
        }

        fn writable(&mut self) -> Option<&mut [u8]> {
            None
        }

        fn set_filled(&mut self, _: usize) {}
    }

    #[test]
    fn datagram_has_only_the_bytes_that_were_copied() {
        use fabric_core::buf::{CustomBuf, Gather, IoBuf};
        let bind = || UdpSocket::bind("127.0.0.1:0").expect("a loopback socket");
        let (sender, receiver) = (bind(), bind());
        let mut batch = DatagramBatch::new();
        let buf = Shrinking(vec![b'a'; 20_000].into(), Default::default());
        let gather = Gather::new().with(Box::new(buf) as Box<dyn CustomBuf>);
        batch.write(0, receiver.local_addr().unwrap(), gather.payload());
        assert_eq!(batch.send(sender.as_fd(), 0..1), Ok(1));
        let mut received = vec![0; 70_000];
        assert_eq!(receiver.recv(&mut received).unwrap(), 10);
    }
}
