//! The messages on the wire in one case, as bytes and in words.

use std::cell::RefCell;
use std::rc::Rc;

/// The direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The probe sent the message.
    Sent,
    /// The endpoint sent the message.
    Received,
}

/// A message on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// The direction in which the message was sent.
    pub direction: Direction,
    /// The bytes on the wire. For a received FPDU, the ULPDU without MPA's framing.
    pub bytes: Vec<u8>,
    /// The message in words.
    pub text: String,
}

/// The log that all connections of a case share.
#[derive(Clone, Debug, Default)]
pub struct Log(Rc<RefCell<Vec<Passed>>>);

impl Log {
    /// Adds a message.
    pub fn note(&self, direction: Direction, bytes: &[u8], text: impl Into<String>) {
        self.0.borrow_mut().push(Passed { direction, bytes: bytes.to_vec(), text: text.into() });
    }

    /// Removes all messages from the log and returns them.
    pub fn take(&self) -> Vec<Passed> {
        self.0.take()
    }
}
