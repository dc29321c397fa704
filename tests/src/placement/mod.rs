//! Placement out of order, measured: with markers the payload behind a hole is in the application's memory
//! before the hole is filled (RFC 5044 section 4.3, appendix B.2). How much of it, what is held meanwhile,
//! and what that is worth.
//!
//! Two engines, one sender. What is measured is seen from outside: the stream is read off the wire by a
//! parser of this module's own, and an FPDU counts as placed when its bytes are in the receiver's memory.
//! Counters of the engine are not asked, but for the bytes that its TCP has dropped.
//!
//! | file | what |
//! |---|---|
//! | `hosts.rs` | two engines and what they need to talk |
//! | `reader.rs` | the FPDUs of a sender's stream, and where their payload belongs |
//! | `follow.rs` | what has arrived of one connection, what lies behind a hole, when it was placed |
//! | `flow.rs` | one connection's messages, from due to delivered |
//! | `run.rs`, `wire.rs` | a run in virtual time, on a wire with seeded losses |
//! | `fill.rs` | in real time: what a receiver has left to do when a hole is filled |
//! | `tally.rs` | means and percentiles |

mod fill;
mod flow;
mod follow;
pub(crate) mod hosts;
mod reader;
mod run;
mod tally;
pub(crate) mod wire;

pub use fill::{Fill, FillSetting};
pub use run::{Outcome, Setting, measure};
pub use tally::{Level, Quantiles};
pub use wire::Loss;

/// What the sender does for each message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// An RDMA Write, and a Send of eight bytes that tells of it.
    WriteSend,
    /// An RDMA Write with Immediate Data.
    WriteImmediate,
    /// An RDMA Write that nobody is told of: delivered when the frontier has passed it.
    Write,
    /// A Send.
    Send,
}

impl Traffic {
    /// Its name on a command line and in a table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WriteSend => "write+send",
            Self::WriteImmediate => "write+imm",
            Self::Write => "write",
            Self::Send => "send",
        }
    }

    /// The kind of this name.
    pub fn find(name: &str) -> Option<Self> {
        [Self::WriteSend, Self::WriteImmediate, Self::Write, Self::Send]
            .into_iter()
            .find(|traffic| traffic.name() == name)
    }

    /// Whether the receiver's user is told by a completion.
    const fn completes(self) -> bool {
        !matches!(self, Self::Write)
    }
}

/// An error's text.
fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
