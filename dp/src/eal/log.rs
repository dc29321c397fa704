//! DPDK's log. The last lines are stored, so that an error can show its cause.

use std::collections::VecDeque;
use std::ffi::{c_char, c_void};
use std::io::Write;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use dpdk_sys as sys;

/// Maximum number of stored lines. The limit bounds the memory.
const KEPT: usize = 64;
/// `RTE_LOG_WARNING`; smaller numbers are more severe.
const WARNING: i32 = 5;
/// `RTE_LOG_ERR`.
const ERROR: i32 = 4;
/// `_IOLBF`: stdio writes whole lines.
const LINE_BUFFERED: i32 = 1;

static LINES: Mutex<VecDeque<(i32, String)>> = Mutex::new(VecDeque::new());
static TO_STDERR: AtomicBool = AtomicBool::new(false);

/// Redirects DPDK's log to `write`. This function is called before `rte_eal_init`, which would otherwise open
/// standard error and syslog for the log.
pub(super) fn capture(to_stderr: bool) {
    TO_STDERR.store(to_stderr, Ordering::Relaxed);
    let functions = sys::cookie_io_functions_t { read: None, write: Some(write), seek: None, close: None };
    // SAFETY: the mode is a C string. `write` ignores the cookie, has the signature and the conditions that
    // stdio expects, and exists until the process ends.
    let stream = unsafe { sys::fopencookie(ptr::null_mut(), c"w".as_ptr(), functions) };
    if stream.is_null() {
        // There is no memory for a stream, so DPDK uses its default log.
        return;
    }
    // SAFETY: `stream` was just opened, and nothing was written to it. With a null pointer stdio makes its
    // own buffer.
    unsafe { sys::setvbuf(stream, ptr::null_mut(), LINE_BUFFERED, 4096) };
    // SAFETY: `stream` is open, and is never closed. No other thread logs yet: EAL is not started.
    unsafe { sys::rte_openlog_stream(stream) };
}

/// Discards the stored lines, so that [`trouble`] and [`errors`] return only later lines.
pub(crate) fn mark() {
    if let Ok(mut lines) = LINES.lock() {
        lines.clear();
    }
}

/// Returns the last warnings and errors since [`mark`] in one line. The text is empty if there were no
/// warnings and no errors.
pub(crate) fn trouble() -> String {
    last(WARNING)
}

/// Returns the last errors since [`mark`] in one line. The text is empty if there were no errors.
pub(crate) fn errors() -> String {
    last(ERROR)
}

/// Returns the last lines since [`mark`] with at least this severity, joined into one line: at most four
/// lines. A line that follows an equal line is left out.
fn last(level: i32) -> String {
    let Ok(lines) = LINES.lock() else { return String::new() };
    let mut told: Vec<&str> = lines.iter().filter(|(of, _)| *of <= level).map(|(_, line)| &**line).collect();
    told.dedup();
    told[told.len().saturating_sub(4)..].join("; ")
}

/// # Safety
/// `text` points to `bytes` readable bytes that nobody writes during the call.
unsafe extern "C" fn write(_cookie: *mut c_void, text: *const c_char, bytes: usize) -> i64 {
    // SAFETY: the caller, stdio, passes `bytes` bytes of stdio's buffer, which is locked during the call.
    let text = String::from_utf8_lossy(unsafe { std::slice::from_raw_parts(text.cast(), bytes) });
    // SAFETY: the function may be called at any time, and only reads a variable of this thread.
    let level = unsafe { sys::rte_log_cur_msg_loglevel() };
    if TO_STDERR.load(Ordering::Relaxed) {
        // Errors are ignored: if standard error is closed, an error cannot be reported.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
    if let Ok(mut lines) = LINES.lock() {
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if lines.len() == KEPT {
                lines.pop_front();
            }
            lines.push_back((level, line.to_owned()));
        }
    }
    bytes as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_with_warnings_and_without() {
        mark();
        let lines = [
            (WARNING, "No free hugepages of 1 GiB"),
            (ERROR, "Expecting 'PA' IOVA mode"),
            (6, "Detected 2 cores"),
        ];
        LINES.lock().unwrap().extend(lines.map(|(level, line)| (level, line.to_owned())));
        assert_eq!(trouble(), "No free hugepages of 1 GiB; Expecting 'PA' IOVA mode");
        assert_eq!(errors(), "Expecting 'PA' IOVA mode");
        mark();
        assert_eq!((errors().as_str(), trouble().as_str()), ("", ""));
    }
}
