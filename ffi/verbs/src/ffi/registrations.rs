//! In which epoll instance the descriptor of a channel is registered, and with which data. A thread that
//! waits for the instance reports events of the channel from memory (`unwritten.rs`).
//!
//! The entries are as good as the marks of `fd_marks.rs`: only calls of libc change them.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libc::epoll_event;

use crate::ffi::fd_marks::{CHANNELS, FDS};

/// The descriptor is registered in no instance.
const NONE: u32 = 0;

/// The descriptor was registered in two instances at a time, or has no entry.
const SEVERAL: u32 = u32::MAX;

/// The bit of a registration for other events than `EPOLLIN`, or with flags.
const OTHER: u32 = 1 << 31;

/// An entry for each descriptor.
pub(crate) struct Registrations {
    /// [`NONE`], [`SEVERAL`], or the number of the instance plus one, with or without the bit [`OTHER`].
    sets: [AtomicU32; FDS],
    /// The program's data.
    data: [AtomicU64; FDS],
}

pub(crate) static REGISTRATIONS: Registrations =
    Registrations { sets: [const { AtomicU32::new(NONE) }; FDS], data: [const { AtomicU64::new(0) }; FDS] };

/// The entry of a registration in this instance.
fn of(epfd: c_int) -> u32 {
    epfd as u32 + 1
}

impl Registrations {
    fn entry(&self, fd: c_int) -> Option<&AtomicU32> {
        self.sets.get(usize::try_from(fd).ok()?)
    }

    fn set_of(&self, fd: c_int) -> u32 {
        self.entry(fd).map_or(SEVERAL, |set| set.load(Ordering::Acquire))
    }

    /// Whether events of the channel may be reported from memory. If the channel is not registered, calls
    /// such as `poll(2)` report the events.
    pub(crate) fn allows(&self, fd: c_int) -> bool {
        self.set_of(fd) & OTHER == 0
    }

    /// The event that a wait for the instance reports if the channel has an event.
    pub(crate) fn event(&self, epfd: c_int, fd: c_int) -> Option<epoll_event> {
        (self.set_of(fd) == of(epfd)).then(|| {
            let data = self.data[fd as usize].load(Ordering::Relaxed);
            epoll_event { events: libc::EPOLLIN as u32, u64: data }
        })
    }

    /// Called after the program has added or changed the registration of a channel in an instance. `event` is
    /// `None` after the program has removed it. Returns whether other calls than before may find the channel
    /// ready.
    pub(crate) fn change(&self, epfd: c_int, fd: c_int, event: Option<epoll_event>) -> bool {
        let Some(set) = self.entry(fd) else { return false };
        let before = set.load(Ordering::Acquire);
        let is_known = before == NONE || before != SEVERAL && before & !OTHER == of(epfd);
        let now = match event {
            _ if !is_known => SEVERAL,
            None => NONE,
            Some(event) => {
                self.data[fd as usize].store(event.u64, Ordering::Relaxed);
                of(epfd) | if event.events == libc::EPOLLIN as u32 { 0 } else { OTHER }
            }
        };
        set.store(now, Ordering::Release);
        now != before
    }

    /// Called when a channel with this descriptor is made.
    pub(crate) fn clear(&self, fd: c_int) {
        if let Some(set) = self.entry(fd) {
            set.store(NONE, Ordering::Release);
        }
    }

    /// Called when an instance gets the number of an earlier instance with channels.
    pub(crate) fn forget_set(&self, epfd: c_int) {
        let fds = (0..FDS as c_int).filter(|fd| CHANNELS.has(*fd));
        for fd in fds.filter(|fd| self.set_of(*fd) & !OTHER == of(epfd)) {
            self.clear(fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_is_reported_with_its_data_while_one_set_waits_for_it_alone() {
        let all = Box::new(Registrations {
            sets: [const { AtomicU32::new(NONE) }; FDS],
            data: [const { AtomicU64::new(0) }; FDS],
        });
        let event = |events: c_int, data| Some(epoll_event { events: events as u32, u64: data });
        let data = |epfd, fd| all.event(epfd, fd).map(|event| (event.events, event.u64));
        let of_in = libc::EPOLLIN as u32;
        assert!(all.allows(5) && data(0, 5).is_none());
        assert!(all.change(0, 5, event(libc::EPOLLIN, 77)));
        assert_eq!((data(0, 5), data(1, 5), data(0, 6)), (Some((of_in, 77)), None, None));
        assert!(!all.change(0, 5, event(libc::EPOLLIN, 78)), "only the data are new");
        assert_eq!((data(0, 5), all.allows(5)), (Some((of_in, 78)), true));
        for other in [libc::EPOLLOUT, libc::EPOLLET, libc::EPOLLONESHOT] {
            all.change(0, 5, event(libc::EPOLLIN | other, 79));
            assert!(!all.allows(5) && data(0, 5).is_none());
            all.change(0, 5, event(libc::EPOLLIN, 80));
            assert_eq!((data(0, 5), all.allows(5)), (Some((of_in, 80)), true));
        }
        assert!(all.change(0, 5, None));
        assert!(all.allows(5) && data(0, 5).is_none());
        // A second set.
        all.change(0, 5, event(libc::EPOLLIN, 1));
        all.change(3, 5, event(libc::EPOLLIN, 2));
        assert!(!all.allows(5) && data(0, 5).is_none() && data(3, 5).is_none());
        all.change(3, 5, None);
        assert!(!all.allows(5), "the first set still has the channel");
        all.clear(5);
        assert!(all.allows(5));
        // Numbers beyond the table.
        for fd in [-1, FDS as c_int, c_int::MAX] {
            assert!(!all.change(0, fd, event(libc::EPOLLIN, 1)));
            all.clear(fd);
            assert!(!all.allows(fd) && data(0, fd).is_none());
        }
    }

    #[test]
    fn a_new_set_has_no_channels_of_the_earlier_one() {
        let fd = 60_000;
        CHANNELS.set(fd);
        let event = epoll_event { events: libc::EPOLLIN as u32, u64: 9 };
        REGISTRATIONS.change(59_000, fd, Some(event));
        REGISTRATIONS.forget_set(59_001);
        assert!(REGISTRATIONS.event(59_000, fd).is_some());
        REGISTRATIONS.forget_set(59_000);
        assert!(REGISTRATIONS.event(59_000, fd).is_none() && REGISTRATIONS.allows(fd));
        CHANNELS.clear(fd);
    }
}
