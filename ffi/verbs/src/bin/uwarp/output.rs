//! Text on standard output. A write to a pipe without a reader is not an error, since the reader has chosen
//! to stop. Every other failed write is an error.

use std::io::{self, ErrorKind, Write};

/// Whether standard output still has a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    Reads,
    HasGone,
}

/// Prints a text, and returns whether standard output still has a reader.
///
/// # Errors
/// Returns one line that describes the error.
pub(crate) fn print(text: &str) -> Result<Reader, String> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(Reader::Reads),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::HasGone),
        Err(error) => Err(format!("standard output cannot be written: {error}")),
    }
}
