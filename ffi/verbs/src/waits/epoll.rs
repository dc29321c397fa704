//! `epoll_wait(2)` and its variants, and the calls that make and change epoll instances.

use std::ffi::c_int;
use std::ptr;
use std::time::Duration;

use libc::{epoll_event, sigset_t, timespec};

use super::call::{millis, pass_on, time_of, value_of, wait, wait_in_libc};
use crate::ffi::fd_marks;
use crate::ffi::next::next;
use crate::ffi::registrations::REGISTRATIONS;
use crate::ffi::unwritten;
use crate::ffi::waits::{SIGNALS_BYTES, Slept, Wait, cancellable_poll, readable, system_call};

next! { EPOLL_CREATE epoll_create: unsafe extern "C" fn(c_int) -> c_int }
next! { EPOLL_CREATE1 epoll_create1: unsafe extern "C" fn(c_int) -> c_int }
next! { EPOLL_CTL epoll_ctl: unsafe extern "C" fn(c_int, c_int, c_int, *mut epoll_event) -> c_int }
next! { EPOLL_WAIT epoll_wait: unsafe extern "C-unwind" fn(c_int, *mut epoll_event, c_int, c_int) -> c_int }
next! { EPOLL_PWAIT epoll_pwait:
    unsafe extern "C-unwind" fn(c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int
}
next! { EPOLL_PWAIT2 epoll_pwait2:
    unsafe extern "C-unwind" fn(c_int, *mut epoll_event, c_int, *const timespec, *const sigset_t) -> c_int
}

/// A wait for an epoll instance.
#[derive(Clone, Copy)]
struct EpollWait {
    epfd: c_int,
    events: *mut epoll_event,
    most: c_int,
}

impl Wait for EpollWait {
    fn look(&self) -> c_int {
        let mask = ptr::null::<sigset_t>();
        system_call!(libc::SYS_epoll_pwait, self.epfd, self.events, self.most, 0, mask, SIGNALS_BYTES)
    }

    fn report(&self, found: Option<c_int>) -> c_int {
        let mut found = found.unwrap_or(0);
        unwritten::each(|fd| {
            if let Some(event) = REGISTRATIONS.event(self.epfd, fd)
                && found < self.most
            {
                let at = self.events.wrapping_add(found as usize);
                // SAFETY: the program's array has `most` elements, and `found` is less than `most`.
                unsafe { at.write_unaligned(event) };
                found += 1;
            }
            found < self.most
        });
        found
    }

    fn sleep(&self, more: Option<[c_int; 2]>, limit: Option<Duration>, mask: &sigset_t) -> Slept {
        let [first, second] = more.unwrap_or([-1; 2]);
        let mut fds = [self.epfd, first, second].map(readable);
        // SAFETY: the functions that call this function own nothing.
        let result = unsafe { cancellable_poll(&mut fds, limit, mask) };
        Slept { result, is_own: fds[0].revents != 0 }
    }
}

/// Waits for an epoll instance that has a channel. Returns `None` if libc has to wait.
#[inline]
fn wait_for_set(
    epfd: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: Option<Duration>,
    mask: Option<sigset_t>,
) -> Option<c_int> {
    if fd_marks::any() && fd_marks::SETS.has(epfd) {
        wait(EpollWait { epfd, events, most }, timeout, mask)
    } else {
        None
    }
}

/// Implements `epoll_wait(2)`.
///
/// # Safety
/// The conditions of libc's function.
#[unsafe(export_name = "uw_epoll_wait")]
pub(crate) unsafe extern "C-unwind" fn epoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    match wait_for_set(epfd, events, most, millis(timeout), None) {
        Some(found) => found,
        // SAFETY: the caller meets the conditions of libc's function.
        None => unsafe { wait_in_libc!(EPOLL_WAIT(epfd, events, most, timeout)) },
    }
}

/// Implements `epoll_pwait(2)`.
///
/// # Safety
/// The conditions of libc's function.
#[unsafe(export_name = "uw_epoll_pwait")]
pub(crate) unsafe extern "C-unwind" fn epoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller passes NULL or a set of signals.
    match wait_for_set(epfd, events, most, millis(timeout), unsafe { value_of(mask) }) {
        Some(found) => found,
        // SAFETY: the caller meets the conditions of libc's function.
        None => unsafe { wait_in_libc!(EPOLL_PWAIT(epfd, events, most, timeout, mask)) },
    }
}

/// Implements `epoll_pwait2(2)`.
///
/// # Safety
/// The conditions of libc's function.
#[unsafe(export_name = "uw_epoll_pwait2")]
pub(crate) unsafe extern "C-unwind" fn epoll_pwait2(
    epfd: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller passes NULL or a time.
    let found = match unsafe { value_of(timeout) }.map(time_of).transpose() {
        // SAFETY: the caller passes NULL or a set of signals.
        Ok(limit) => wait_for_set(epfd, events, most, limit, unsafe { value_of(mask) }),
        Err(()) => None,
    };
    match found {
        Some(found) => found,
        // SAFETY: the caller meets the conditions of libc's function.
        None => unsafe { wait_in_libc!(EPOLL_PWAIT2(epfd, events, most, timeout, mask)) },
    }
}

/// Implements `epoll_ctl(2)`: marks an instance that gets a channel.
///
/// # Safety
/// The conditions of libc's function.
#[unsafe(export_name = "uw_epoll_ctl")]
pub(crate) unsafe extern "C" fn epoll_ctl(
    epfd: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: the caller meets the conditions of libc's function.
    let result = unsafe { pass_on!(EPOLL_CTL(epfd, operation, fd, event)) };
    if fd_marks::any() && result == 0 && fd_marks::CHANNELS.has(fd) {
        if operation == libc::EPOLL_CTL_DEL {
            unwritten::registered(epfd, fd, None);
            return result;
        }
        fd_marks::SETS.set(epfd);
        fd_marks::WAITED.set(fd);
        // SAFETY: as above. The call has succeeded, so the pointer is not NULL.
        unwritten::registered(epfd, fd, unsafe { value_of(event) });
    }
    result
}

/// Takes the mark and the registrations from the number of a new instance: an instance that was closed may
/// have had this number.
fn unmarked(epfd: c_int) -> c_int {
    if fd_marks::SETS.has(epfd) {
        REGISTRATIONS.forget_set(epfd);
        fd_marks::SETS.clear(epfd);
    }
    epfd
}

/// Implements `epoll_create(2)`.
///
/// # Safety
/// The conditions of libc's function.
#[unsafe(export_name = "uw_epoll_create")]
pub(crate) unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: the caller meets the conditions of libc's function.
    unmarked(unsafe { pass_on!(EPOLL_CREATE(size)) })
}

/// Implements `epoll_create1(2)`.
///
/// # Safety
/// The conditions of libc's function.
#[unsafe(export_name = "uw_epoll_create1")]
pub(crate) unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: the caller meets the conditions of libc's function.
    unmarked(unsafe { pass_on!(EPOLL_CREATE1(flags)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::unwritten::tests::{Channel, alone, registration};

    #[test]
    fn kept_events_are_added_to_those_of_the_kernel_while_there_is_room() {
        let _one = alone();
        let channels = [Channel::new(), Channel::new(), Channel::new()];
        unwritten::enter(None);
        for (channel, epfd) in channels.iter().zip([70, 71, 70]) {
            unwritten::registered(epfd, channel.fd(), registration(libc::EPOLLIN));
            assert!(unwritten::keep(channel.fd(), 0, 0));
        }
        for (earlier, most, expected) in [(None, 4, 2), (Some(1), 4, 3), (Some(2), 3, 3), (Some(3), 3, 3)] {
            let mut events = [epoll_event { events: 7, u64: 7 }; 4];
            let call = EpollWait { epfd: 70, events: events.as_mut_ptr(), most };
            assert_eq!(call.report(earlier), expected, "{earlier:?} of {most}");
            let earlier = earlier.unwrap_or(0);
            let of_in = |at: c_int| earlier <= at && at < expected;
            assert!((0..4).all(|at| (events[at as usize].events == libc::EPOLLIN as u32) == of_in(at)));
        }
    }
}
