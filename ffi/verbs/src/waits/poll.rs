//! `poll(2)` and its variants.

use std::ffi::c_int;
use std::time::Duration;
use std::{ptr, slice};

use libc::{nfds_t, pollfd, sigset_t, size_t, timespec};

use super::call::{millis, time_of, value_of, wait, wait_in_libc};
use crate::ffi::fd_marks;
use crate::ffi::next::next;
use crate::ffi::unwritten;
use crate::ffi::waits::{SIGNALS_BYTES, Slept, Wait, cancellable_poll, readable, system_call};

next! { POLL poll: unsafe extern "C-unwind" fn(*mut pollfd, nfds_t, c_int) -> c_int }
next! { POLL_CHK __poll_chk: unsafe extern "C-unwind" fn(*mut pollfd, nfds_t, c_int, size_t) -> c_int }
next! { PPOLL ppoll:
    unsafe extern "C-unwind" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int
}
next! { PPOLL_CHK __ppoll_chk:
    unsafe extern "C-unwind" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t, size_t) -> c_int
}

/// The largest number of descriptors with which a call serves the engine.
const MOST: usize = 64;

/// The events of a readable channel.
const READABLE: i16 = libc::POLLIN | libc::POLLRDNORM;

/// A wait for descriptors of an array.
#[derive(Clone, Copy)]
struct PollWait {
    fds: *mut pollfd,
    /// At most [`MOST`].
    count: usize,
}

impl Wait for PollWait {
    fn look(&self) -> c_int {
        let now = timespec { tv_sec: 0, tv_nsec: 0 };
        let mask = ptr::null::<sigset_t>();
        system_call!(libc::SYS_ppoll, self.fds, self.count, &raw const now, mask, SIGNALS_BYTES)
    }

    fn report(&self, found: Option<c_int>) -> c_int {
        // SAFETY: the program's array has `count` elements, and the program does not change it during the
        // call.
        let fds = unsafe { slice::from_raw_parts_mut(self.fds, self.count) };
        if found.is_none() {
            fds.iter_mut().for_each(|fd| fd.revents = 0);
        }
        let mut found = found.unwrap_or(0);
        unwritten::each(|kept| {
            for fd in fds.iter_mut().filter(|fd| fd.fd == kept && fd.events & READABLE != 0) {
                found += c_int::from(fd.revents == 0);
                fd.revents |= fd.events & READABLE;
            }
            true
        });
        found
    }

    fn sleep(&self, more: Option<[c_int; 2]>, limit: Option<Duration>, mask: &sigset_t) -> Slept {
        let mut fds = [readable(-1); MOST + 2];
        // SAFETY: the program's array has `count` elements, which is no more than `MOST`.
        unsafe { ptr::copy_nonoverlapping(self.fds, fds.as_mut_ptr(), self.count) };
        for (fd, more) in fds[self.count..].iter_mut().zip(more.unwrap_or([-1; 2])) {
            *fd = readable(more);
        }
        // SAFETY: the functions that call this function own nothing.
        let result = unsafe { cancellable_poll(&mut fds[..self.count + 2], limit, mask) };
        Slept { result, is_own: fds[..self.count].iter().any(|fd| fd.revents != 0) }
    }
}

/// Waits for an array with a channel. Returns `None` if libc has to wait.
///
/// # Safety
/// The array has `count` elements.
#[inline]
unsafe fn wait_for_array(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: Option<Duration>,
    mask: Option<sigset_t>,
) -> Option<c_int> {
    // SAFETY: the caller's promise.
    if fd_marks::any() && unsafe { has_channel(fds, count) } {
        wait(PollWait { fds, count: count as usize }, timeout, mask)
    } else {
        None
    }
}

/// Whether the array is short and has a channel. Marks the channels.
///
/// # Safety
/// The array has `count` elements.
unsafe fn has_channel(fds: *mut pollfd, count: nfds_t) -> bool {
    if fds.is_null() || count as usize > MOST {
        return false;
    }
    // SAFETY: the caller's promise, and the program does not change its array during the call.
    let fds = unsafe { slice::from_raw_parts(fds, count as usize) };
    let mut found = false;
    for fd in fds.iter().map(|fd| fd.fd).filter(|fd| fd_marks::CHANNELS.has(*fd)) {
        fd_marks::WAITED.set(fd);
        found = true;
    }
    found
}

/// Implements `poll(2)`.
///
/// # Safety
/// The conditions of libc's function.
#[unsafe(export_name = "uw_poll")]
pub(crate) unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller meets the conditions of libc's function.
    match unsafe { wait_for_array(fds, count, millis(timeout), None) } {
        Some(found) => found,
        // SAFETY: as above.
        None => unsafe { wait_in_libc!(POLL(fds, count, timeout)) },
    }
}

/// Implements `poll(2)` for programs that are compiled with `_FORTIFY_SOURCE`.
///
/// # Safety
/// The conditions of libc's function.
#[unsafe(export_name = "uw___poll_chk")]
pub(crate) unsafe extern "C-unwind" fn poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    bytes: size_t,
) -> c_int {
    let fits = bytes / size_of::<pollfd>() >= count as usize;
    // SAFETY: the caller meets the conditions of libc's function. libc ends a process whose array is short.
    match fits.then(|| unsafe { wait_for_array(fds, count, millis(timeout), None) }).flatten() {
        Some(found) => found,
        // SAFETY: as above.
        None => unsafe { wait_in_libc!(POLL_CHK(fds, count, timeout, bytes)) },
    }
}

/// The arguments of `ppoll(2)` as a wait. Returns `None` if libc has to wait.
///
/// # Safety
/// The conditions of libc's function.
#[inline]
unsafe fn wait_until(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> Option<c_int> {
    // SAFETY: the caller passes NULL or a time.
    let limit = unsafe { value_of(timeout) }.map(time_of).transpose().ok()?;
    // SAFETY: the caller passes NULL or a set of signals.
    let mask = unsafe { value_of(mask) };
    // SAFETY: the caller passes an array of `count` elements.
    unsafe { wait_for_array(fds, count, limit, mask) }
}

/// Implements `ppoll(2)`.
///
/// # Safety
/// The conditions of libc's function.
#[unsafe(export_name = "uw_ppoll")]
pub(crate) unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller meets the conditions of libc's function.
    match unsafe { wait_until(fds, count, timeout, mask) } {
        Some(found) => found,
        // SAFETY: as above.
        None => unsafe { wait_in_libc!(PPOLL(fds, count, timeout, mask)) },
    }
}

/// Implements `ppoll(2)` for programs that are compiled with `_FORTIFY_SOURCE`.
///
/// # Safety
/// The conditions of libc's function.
#[unsafe(export_name = "uw___ppoll_chk")]
pub(crate) unsafe extern "C-unwind" fn ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    bytes: size_t,
) -> c_int {
    let fits = bytes / size_of::<pollfd>() >= count as usize;
    // SAFETY: the caller meets the conditions of libc's function. libc ends a process whose array is short.
    match fits.then(|| unsafe { wait_until(fds, count, timeout, mask) }).flatten() {
        Some(found) => found,
        // SAFETY: as above.
        None => unsafe { wait_in_libc!(PPOLL_CHK(fds, count, timeout, mask, bytes)) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::unwritten::tests::{Channel, alone};

    #[test]
    fn kept_events_are_added_to_those_of_the_kernel() {
        let _one = alone();
        let channel = Channel::new();
        let fd = channel.fd();
        unwritten::enter(None);
        assert!(unwritten::keep(fd, 0, 0));
        let entry = |fd, events, revents| pollfd { fd, events, revents };
        let fds = |revents| {
            [
                entry(fd, libc::POLLIN, revents),
                entry(fd, libc::POLLOUT, revents),
                entry(fd, libc::POLLOUT | libc::POLLIN, revents),
                entry(-1, libc::POLLIN, revents),
            ]
        };
        let report = |mut fds: [pollfd; 4], found| {
            let call = PollWait { fds: fds.as_mut_ptr(), count: fds.len() };
            (call.report(found), fds.map(|fd| fd.revents))
        };
        let (of_in, of_out) = (libc::POLLIN, libc::POLLOUT);
        // Without a look, the program's array has old results.
        assert_eq!(report(fds(99), None), (2, [of_in, 0, of_in, 0]));
        // The kernel has found the second and the third entry.
        let mut found = fds(0);
        (found[1].revents, found[2].revents) = (of_out, of_out);
        assert_eq!(report(found, Some(2)), (3, [of_in, of_out, of_in | of_out, 0]));
    }

    #[test]
    fn an_array_with_a_channel_marks_the_channel() {
        let _one = alone();
        let channel = Channel::new();
        fd_marks::WAITED.clear(channel.fd());
        let mut fds = [readable(-1), readable(channel.fd())];
        // SAFETY: the array has one element and more.
        assert!(!unsafe { has_channel(fds.as_mut_ptr(), 1) } && !fd_marks::WAITED.has(channel.fd()));
        // SAFETY: the array has two elements.
        assert!(unsafe { has_channel(fds.as_mut_ptr(), 2) } && fd_marks::WAITED.has(channel.fd()));
    }
}
