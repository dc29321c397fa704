//! Lines of output. If the reader of a pipe has gone, the closed pipe must not end a test or a server, but
//! `println!` and `eprintln!` would panic. Any other failure of standard output is an error at the end of a
//! run ([`check`]).

use std::fs::File;
use std::io::{self, ErrorKind, Write, stderr, stdout};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use indicatif::ProgressBar;

use crate::errors::Error;

/// The name of a file that stands for standard output.
pub const STDOUT: &str = "-";

/// True if lines go to standard error, since a document is written to standard output.
static ASIDE: AtomicBool = AtomicBool::new(false);

/// The first error of standard output.
static LOST: Mutex<Option<io::Error>> = Mutex::new(None);

/// The dashboard that is shown on the terminal.
static DASHBOARD: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Prints a line on standard output, or on standard error after [`step_aside`].
pub fn say(line: &str) {
    if ASIDE.load(Ordering::Relaxed) {
        return tell(line);
    }
    // The error is ignored here: `print` has recorded the error, and `check` returns the error.
    let _ = print(format!("{line}\n").as_bytes());
}

/// Prints a line on standard error.
pub fn tell(line: &str) {
    apart(|| {
        // The error is ignored, since no other place is left to report it.
        let _gone = stderr().lock().write_all(format!("{line}\n").as_bytes());
    });
}

/// Writes a document to the file `path`, or to standard output if `path` is `-`.
///
/// # Errors
/// Returns [`Error::System`], which names the file, if the document cannot be written.
pub fn save(path: &Path, document: &[u8]) -> Result<(), Error> {
    if path == Path::new(STDOUT) {
        return print(document);
    }
    let failed = |source| Error::System { what: format!("cannot write {}", path.display()), source };
    File::create(path).and_then(|mut file| file.write_all(document)).map_err(failed)
}

/// From now on, prints lines on standard error, so that standard output contains only the document.
pub fn step_aside() {
    ASIDE.store(true, Ordering::Relaxed);
}

/// Prints on standard output. A closed pipe is not an error.
///
/// # Errors
/// Returns [`Error::System`] if standard output cannot be written.
pub fn print(text: &[u8]) -> Result<(), Error> {
    let mut written = Ok(());
    apart(|| {
        let mut out = stdout().lock();
        written = out.write_all(text).and_then(|()| out.flush());
    });
    match written {
        Err(source) if source.kind() != ErrorKind::BrokenPipe => {
            lost().get_or_insert(copy(&source));
            Err(unwritten(source))
        }
        _ => Ok(()),
    }
}

/// Checks that all lines could be written to standard output.
///
/// # Errors
/// Returns [`Error::System`] with the first error of standard output, if there was an error.
pub fn check() -> Result<(), Error> {
    lost().as_ref().map_or(Ok(()), |source| Err(unwritten(copy(source))))
}

/// Sets a panic hook for tools that use `println!`, which panics if standard output cannot be written. If the
/// reader of a pipe has gone, the hook ends `tool` silently with status 0. After any other failure of
/// standard output, the hook ends `tool` with one line and status 1.
pub fn end_when_output_is_lost(tool: &'static str) {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // The panic message of the standard library begins with these words.
        let Some(why) =
            panic.payload_as_str().and_then(|text| text.strip_prefix("failed printing to stdout: "))
        else {
            return before(panic);
        };
        if why.contains("Broken pipe") {
            std::process::exit(0);
        }
        tell(&format!("{tool}: standard output cannot be written: {why}"));
        std::process::exit(1);
    }));
}

/// From now on, prints lines above this dashboard, or without a dashboard if `bar` is `None`.
pub(crate) fn above(bar: Option<ProgressBar>) {
    *dashboard() = bar;
}

/// Removes the dashboard, prints by `act`, and draws the dashboard again below.
fn apart(mut act: impl FnMut()) {
    match &*dashboard() {
        Some(bar) => bar.suspend(act),
        None => act(),
    }
}

fn dashboard() -> MutexGuard<'static, Option<ProgressBar>> {
    DASHBOARD.lock().expect("no holder of this lock panics")
}

fn lost() -> MutexGuard<'static, Option<io::Error>> {
    LOST.lock().expect("no holder of this lock panics")
}

fn unwritten(source: io::Error) -> Error {
    Error::System { what: "standard output cannot be written".into(), source }
}

fn copy(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
}
