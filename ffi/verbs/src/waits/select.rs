//! `select(2)` and its variant.

use std::ffi::c_int;
use std::ptr;
use std::time::{Duration, Instant};

use libc::{fd_set, sigset_t, timespec, timeval};

use super::call::{time_of, value_of, wait, wait_in_libc};
use crate::ffi::fd_marks;
use crate::ffi::next::next;
use crate::ffi::unwritten;
use crate::ffi::waits::{SIGNALS_BYTES, Slept, Wait, cancellable, system_call, timespec_of};

next! { SELECT select:
    unsafe extern "C-unwind" fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int
}
next! { PSELECT pselect:
    unsafe extern "C-unwind" fn(
        c_int, *mut fd_set, *mut fd_set, *mut fd_set, *const timespec, *const sigset_t,
    ) -> c_int
}

const WORDS: usize = size_of::<fd_set>() / 8;
type Words = [u64; WORDS];

/// A wait for descriptors of three sets.
#[derive(Clone, Copy)]
struct SelectWait {
    /// At most the number of descriptors that a set has room for.
    count: c_int,
    /// The program's sets, which get the results. A pointer may be NULL.
    sets: [*mut fd_set; 3],
    /// Copies of the sets as the program passed them.
    wanted: [Words; 3],
}

/// The sixth argument of `pselect6(2)`.
#[repr(C)]
struct Mask {
    set: *const sigset_t,
    bytes: usize,
}

fn pselect(count: c_int, sets: [*mut fd_set; 3], limit: Option<Duration>, mask: *const sigset_t) -> c_int {
    let mut limit = limit.map(timespec_of);
    let limit = limit.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    let mask = Mask { set: mask, bytes: SIGNALS_BYTES };
    let [read, write, except] = sets;
    system_call!(libc::SYS_pselect6, count, read, write, except, limit, &raw const mask)
}

/// The number of words of a set that the kernel reads and writes.
fn words(count: c_int) -> usize {
    (count as usize).div_ceil(64)
}

/// Copies the program's sets. A set that is NULL is empty.
///
/// # Safety
/// Each of the sets is NULL or has room for `count` descriptors, which are no more than a set has.
unsafe fn copy_of(count: c_int, sets: [*mut fd_set; 3]) -> [Words; 3] {
    let mut copies = [[0; WORDS]; 3];
    for (copy, set) in copies.iter_mut().zip(sets).filter(|(_, set)| !set.is_null()) {
        // SAFETY: the caller's promise.
        unsafe { ptr::copy_nonoverlapping(set.cast(), copy.as_mut_ptr(), words(count)) };
    }
    copies
}

impl SelectWait {
    /// # Safety
    /// Each of the sets is NULL or has room for `count` descriptors, which are no more than a set has.
    unsafe fn new(count: c_int, sets: [*mut fd_set; 3]) -> Self {
        // SAFETY: the caller's promise.
        Self { count, sets, wanted: unsafe { copy_of(count, sets) } }
    }

    /// Writes the program's sets.
    fn write_results(&self, from: &[Words; 3]) {
        for (from, set) in from.iter().zip(self.sets).filter(|(_, set)| !set.is_null()) {
            // SAFETY: the program's sets have room for `count` descriptors.
            unsafe { ptr::copy_nonoverlapping(from.as_ptr(), set.cast(), words(self.count)) };
        }
    }

    /// Whether the first set has a channel. Marks the channels.
    fn has_channel(&self) -> bool {
        let mut found = false;
        for (at, wanted) in self.wanted[0].iter().enumerate().take(words(self.count)) {
            let mut channels = wanted & fd_marks::CHANNELS.word(at);
            while channels != 0 {
                let fd = at as c_int * 64 + channels.trailing_zeros() as c_int;
                channels &= channels - 1;
                if fd < self.count {
                    fd_marks::WAITED.set(fd);
                    found = true;
                }
            }
        }
        found
    }
}

impl Wait for SelectWait {
    fn look(&self) -> c_int {
        let mut words_of = self.wanted;
        let mut sets = [ptr::null_mut(); 3];
        for (set, (words, place)) in sets.iter_mut().zip(words_of.iter_mut().zip(self.sets)) {
            if !place.is_null() {
                *set = words.as_mut_ptr().cast();
            }
        }
        let found = pselect(self.count, sets, Some(Duration::ZERO), ptr::null());
        if found >= 0 {
            self.write_results(&words_of);
        }
        found
    }

    fn report(&self, found: Option<c_int>) -> c_int {
        let mut sets = match found {
            // SAFETY: the program's sets have room for `count` descriptors.
            Some(_) => unsafe { copy_of(self.count, self.sets) },
            None => [[0; WORDS]; 3],
        };
        let mut found = found.unwrap_or(0);
        unwritten::each(|fd| {
            let (at, bit) = (fd as usize / 64, 1 << (fd % 64));
            if fd < self.count && self.wanted[0][at] & bit != 0 {
                found += c_int::from(sets[0][at] & bit == 0);
                sets[0][at] |= bit;
            }
            true
        });
        self.write_results(&sets);
        found
    }

    fn sleep(&self, more: Option<[c_int; 2]>, limit: Option<Duration>, mask: &sigset_t) -> Slept {
        let mut words_of = self.wanted;
        let mut count = self.count;
        for fd in more.into_iter().flatten() {
            let Some(word) = words_of[0].get_mut(fd as usize / 64) else {
                // The engine's descriptors do not fit into a set, so the call looks again soon.
                let limit = Some(limit.map_or(NAP, |limit| limit.min(NAP)));
                return self.sleep(None, limit, mask);
            };
            *word |= 1 << (fd % 64);
            count = count.max(fd + 1);
        }
        let sets = words_of.each_mut().map(|words| words.as_mut_ptr().cast());
        // SAFETY: the functions that call this function own nothing.
        let result = unsafe { cancellable(|| pselect(count, sets, limit, mask)) };
        for fd in more.into_iter().flatten() {
            words_of[0][fd as usize / 64] &= !(1 << (fd % 64));
        }
        Slept { result, is_own: words_of.as_flattened().iter().any(|word| *word != 0) }
    }
}

/// The longest sleep if the engine's descriptors do not fit into a set.
const NAP: Duration = Duration::from_micros(200);

/// Waits for sets with a channel. Returns `None` if libc has to wait.
///
/// # Safety
/// The conditions of libc's function.
#[inline]
unsafe fn wait_for_sets(
    count: c_int,
    sets: [*mut fd_set; 3],
    timeout: Option<Duration>,
    mask: Option<sigset_t>,
) -> Option<c_int> {
    if !fd_marks::any() || !(1..=libc::FD_SETSIZE as c_int).contains(&count) || sets[0].is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let call = unsafe { SelectWait::new(count, sets) };
    if call.has_channel() { wait(call, timeout, mask) } else { None }
}

/// Implements `select(2)`. As Linux does, the call writes the time that is left.
///
/// # Safety
/// The conditions of libc's function.
#[unsafe(export_name = "uw_select")]
pub(crate) unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the caller passes NULL or a time.
    let time = unsafe { value_of(timeout) };
    let limit = time.map(|time| {
        let micros = Duration::from_micros(u64::try_from(time.tv_usec).map_err(|_| ())?);
        Ok::<_, ()>(Duration::from_secs(u64::try_from(time.tv_sec).map_err(|_| ())?).saturating_add(micros))
    });
    let begun = Instant::now();
    let found = match limit.transpose() {
        // SAFETY: the caller meets the conditions of libc's function.
        Ok(limit) => unsafe { wait_for_sets(count, [read, write, except], limit, None) }.inspect(|_| {
            if let Some(limit) = limit {
                let left = limit.saturating_sub(begun.elapsed());
                let tv_sec = left.as_secs() as libc::time_t;
                let left = timeval { tv_sec, tv_usec: libc::suseconds_t::from(left.subsec_micros() as i32) };
                // SAFETY: the caller passes a pointer to a time, which libc's function also writes.
                unsafe { timeout.write_unaligned(left) };
            }
        }),
        Err(()) => None,
    };
    match found {
        Some(found) => found,
        // SAFETY: as above.
        None => unsafe { wait_in_libc!(SELECT(count, read, write, except, timeout)) },
    }
}

/// Implements `pselect(2)`.
///
/// # Safety
/// The conditions of libc's function.
#[unsafe(export_name = "uw_pselect")]
pub(crate) unsafe extern "C-unwind" fn pselect_(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller passes NULL or a set of signals.
    let mask_of = unsafe { value_of(mask) };
    // SAFETY: the caller passes NULL or a time.
    let found = match unsafe { value_of(timeout) }.map(time_of).transpose() {
        // SAFETY: the caller meets the conditions of libc's function.
        Ok(limit) => unsafe { wait_for_sets(count, [read, write, except], limit, mask_of) },
        Err(()) => None,
    };
    match found {
        Some(found) => found,
        // SAFETY: as above.
        None => unsafe { wait_in_libc!(PSELECT(count, read, write, except, timeout, mask)) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::unwritten::tests::{Channel, alone};

    /// The sets for reading and writing.
    type Pair = [Words; 2];

    fn call(count: c_int, sets: &mut Pair) -> SelectWait {
        let [read, write] = sets.each_mut().map(|words| words.as_mut_ptr().cast());
        // SAFETY: the sets have the size of a set, which is the largest count.
        unsafe { SelectWait::new(count, [read, write, ptr::null_mut()]) }
    }

    #[test]
    fn kept_events_are_added_to_those_of_the_kernel() {
        let _one = alone();
        let [first, second] = [Channel::new(), Channel::new()];
        unwritten::enter(None);
        assert!(unwritten::keep(first.fd(), 0, 0) && unwritten::keep(second.fd(), 0, 0));
        let (at, bit) = (first.fd() as usize / 64, 1 << (first.fd() % 64));
        // The program waits until the first channel is readable or writable.
        let mut sets: Pair = [[0; WORDS]; 2];
        (sets[0][at], sets[1][at]) = (bit, bit);
        let wait = call(libc::FD_SETSIZE as c_int, &mut sets);
        let of_first = [sets[0], [0; WORDS]];
        assert_eq!((wait.report(None), sets), (1, of_first));
        // The kernel has found the channel writable, or readable.
        sets = [[0; WORDS], of_first[0]];
        assert_eq!((wait.report(Some(1)), sets), (2, [of_first[0]; 2]));
        sets = of_first;
        assert_eq!((wait.report(Some(1)), sets), (1, of_first));
        // The program has asked for descriptors below the first channel.
        let wait = call(first.fd(), &mut sets);
        assert_eq!(wait.report(None), 0);
    }

    #[test]
    fn sets_with_a_channel_mark_the_channel() {
        let _one = alone();
        let channel = Channel::new();
        fd_marks::WAITED.clear(channel.fd());
        let mut sets: Pair = [[0; WORDS]; 2];
        sets[0][channel.fd() as usize / 64] = 1 << (channel.fd() % 64);
        assert!(!call(channel.fd(), &mut sets).has_channel() && !fd_marks::WAITED.has(channel.fd()));
        assert!(call(channel.fd() + 1, &mut sets).has_channel() && fd_marks::WAITED.has(channel.fd()));
    }
}
