//! What passed on the wire in one case, as bytes and in words.

use std::cell::RefCell;
use std::rc::Rc;

/// Which way something went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From us.
    Sent,
    /// From the endpoint.
    Received,
}

/// Something that passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// Which way.
    pub direction: Direction,
    /// As it was on the wire; for FPDUs that were received, without MPA's framing.
    pub bytes: Vec<u8>,
    /// In words.
    pub text: String,
}

/// Shared by all connections of a case.
#[derive(Clone, Debug, Default)]
pub struct Log(Rc<RefCell<Vec<Passed>>>);

impl Log {
    /// Notes something.
    pub fn note(&self, direction: Direction, bytes: &[u8], text: impl Into<String>) {
        self.0.borrow_mut().push(Passed { direction, bytes: bytes.to_vec(), text: text.into() });
    }

    /// All of it, leaving nothing.
    pub fn take(&self) -> Vec<Passed> {
        self.0.take()
    }
}
