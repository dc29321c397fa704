//! Starts the threads of this library and of the libraries above it.
//!
//! Some libraries that programs use, such as libfabric and UCX, rewrite the first instructions of `munmap`,
//! `madvise` and `brk` in libc while the program runs. A thread that is in such a function at this moment
//! returns into the middle of another instruction. A program can keep only its own threads out of these
//! functions. A new thread calls `munmap` when it first allocates or frees memory. So [`start`] waits until
//! the new thread has its memory.

use std::hint::black_box;
use std::io;
use std::sync::{Arc, Barrier};
use std::thread::{Builder, JoinHandle};

/// Number of bytes of the stack and of the heap that a thread uses before [`start`] returns.
const FIRST_BYTES: usize = 32 << 10;

/// Starts a thread with this name, and returns when the thread has its memory and is about to call `work`.
///
/// # Errors
/// Fails if the system refuses the thread.
pub fn start<T: Send + 'static>(
    name: String,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let has_memory = Arc::new(Barrier::new(2));
    let of_thread = Arc::clone(&has_memory);
    let thread = Builder::new().name(name).spawn(move || {
        take_memory();
        of_thread.wait();
        work()
    })?;
    has_memory.wait();
    Ok(thread)
}

/// Uses the heap and the stack of the calling thread for the first time. The allocator then makes a heap for
/// the thread, and keeps the heap when the block is freed.
#[inline(never)]
fn take_memory() {
    drop(black_box(vec![1_u8; FIRST_BYTES]));
    black_box([1_u8; FIRST_BYTES]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_returns_the_result_of_its_work() {
        let name = || std::thread::current().name().map(str::to_owned);
        let thread = start("of-the-test".to_owned(), name).unwrap();
        assert_eq!(thread.join().unwrap().as_deref(), Some("of-the-test"));
    }

    /// Returns the number of bytes of physical memory in the mapping that contains `address`.
    #[cfg(target_os = "linux")]
    fn resident(address: usize) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let contains = |line: &&str| {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let number = |text| usize::from_str_radix(text, 16).ok();
            range.is_some_and(|(begin, end)| {
                number(begin).zip(number(end)).is_some_and(|(begin, end)| (begin..end).contains(&address))
            })
        };
        let mut lines = maps.lines().skip_while(|line| !contains(line));
        let kib = lines
            .find_map(|line| line.strip_prefix("Rss:")?.trim().strip_suffix(" kB")?.parse::<usize>().ok());
        kib.unwrap() << 10
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_thread_has_used_its_stack_before_its_work() {
        let (work, end) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = start("of-the-test".to_owned(), move || {
            let on_stack = 0_u8;
            tell.send((&raw const on_stack).addr()).unwrap();
            assert!(end.recv().is_err());
        });
        let used = resident(told.recv().unwrap());
        assert!(used >= FIRST_BYTES, "{used}");
        drop(work);
        thread.unwrap().join().unwrap();
    }
}
