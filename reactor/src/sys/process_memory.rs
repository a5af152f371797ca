//! Copies from the memory of another process (`process_vm_readv`).
#![allow(unsafe_code)] // the call, and slices of the bytes that it has filled

use std::mem::MaybeUninit;

use rustix::io::Errno;

use super::os_error::last_errno;

/// Memory to copy into, initialised or not. Bytes in it are initialised and never uninitialised
/// again.
pub(crate) struct ReadTarget<'d>(&'d mut [MaybeUninit<u8>]);

impl<'d> From<&'d mut [MaybeUninit<u8>]> for ReadTarget<'d> {
    fn from(bytes: &'d mut [MaybeUninit<u8>]) -> Self {
        Self(bytes)
    }
}

impl<'d> From<&'d mut [u8]> for ReadTarget<'d> {
    fn from(bytes: &'d mut [u8]) -> Self {
        // SAFETY: initialised bytes are valid as possibly uninitialised ones, and nothing in this
        // module makes a byte of a target uninitialised.
        Self(unsafe { &mut *(std::ptr::from_mut(bytes) as *mut [MaybeUninit<u8>]) })
    }
}

impl<'d> ReadTarget<'d> {
    /// Returns the number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Fills the memory with zeros.
    pub(crate) fn fill_with_zeros(self) -> &'d mut [u8] {
        self.fill_rest_with_zeros(0)
    }

    /// Fills the memory behind the first `filled` bytes, which are initialised, with zeros.
    fn fill_rest_with_zeros(self, filled: usize) -> &'d mut [u8] {
        self.0[filled..].fill(MaybeUninit::new(0));
        // SAFETY: all bytes are initialised: the first ones before this call, the others by it.
        unsafe { self.0.assume_init_mut() }
    }
}

/// An address of the kernel, which no process has mapped.
const KERNEL_ADDRESS: u64 = 0xffff_8000_0000_0000;

/// Returns whether the kernel lets this process read the memory of the process `pid`. Accesses no
/// memory of that process, which might respond slowly: the address is in no process.
pub(crate) fn is_read_permitted(pid: i32) -> bool {
    let mut byte = [MaybeUninit::uninit()];
    // The kernel checks the permission before the address.
    read_once(pid, (KERNEL_ADDRESS, 0), &mut byte, &mut []) == Err(Errno::FAULT)
}

/// Returns whether all pages of this range of this process can be accessed. Also true if the kernel
/// denies the call that finds it out.
pub(crate) fn is_accessible(address: u64, len: usize) -> bool {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let mut byte = [MaybeUninit::uninit()];
    let mut is_readable = |address| {
        let read = read_once(pid, (address, 0), &mut byte, &mut []);
        read != Err(Errno::FAULT)
    };
    let page_size = rustix::param::page_size();
    let first_of_pages = (0..len).step_by(page_size);
    first_of_pages
        .chain(len.checked_sub(1))
        .all(|at| is_readable(address + at as u64))
}

/// Fills `into` from this address of the process `pid`, and then `last` from the address
/// `last_address`. Makes as many calls as needed; the last call reads the end of `into` together
/// with `last`. Returns the bytes of `into`; those that were not read are zeros.
///
/// # Errors
/// Errors of `process_vm_readv`; `EFAULT` if an address is not readable.
pub(crate) fn read<'d>(
    pid: i32,
    address: u64,
    into: ReadTarget<'d>,
    last_address: u64,
    last: &mut [u8],
) -> (&'d mut [u8], Result<(), Errno>) {
    let len = into.len();
    let (mut done, mut result) = (0, Ok(()));
    while done < len + last.len() {
        // Bytes of `into` and of `last` that earlier calls have read.
        let (filled, last_filled) = (done.min(len), done.saturating_sub(len));
        let from = (
            address.wrapping_add(filled as u64),
            last_address.wrapping_add(last_filled as u64),
        );
        match read_once(pid, from, &mut into.0[filled..], &mut last[last_filled..]) {
            Ok(0) => result = Err(Errno::FAULT),
            Ok(count) => {
                done += count;
                continue;
            }
            Err(errno) => result = Err(errno),
        }
        break;
    }
    (into.fill_rest_with_zeros(done.min(len)), result)
}

/// Calls `process_vm_readv` once: fills `into` from the first remote address, then `last` from the
/// second. Returns how many bytes were read.
fn read_once(
    pid: i32,
    from: (u64, u64),
    into: &mut [MaybeUninit<u8>],
    last: &mut [u8],
) -> Result<usize, Errno> {
    let iovec = |base: *mut libc::c_void, iov_len| libc::iovec {
        iov_base: base,
        iov_len,
    };
    let local = [
        iovec(into.as_mut_ptr().cast(), into.len()),
        iovec(last.as_mut_ptr().cast(), last.len()),
    ];
    let remote_base = |address: u64| std::ptr::without_provenance_mut(address as usize);
    let remote = [
        iovec(remote_base(from.0), into.len()),
        iovec(remote_base(from.1), last.len()),
    ];
    // SAFETY: the kernel writes to the two slices, within their lengths; the other addresses are
    // only read, in the other process.
    let count = unsafe { libc::process_vm_readv(pid, local.as_ptr(), 2, remote.as_ptr(), 2, 0) };
    usize::try_from(count).map_err(|_| last_errno())
}
