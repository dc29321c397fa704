//! Measures out-of-order placement: with markers, a receiver can place the payload beyond a hole in the
//! application's memory before the hole is filled (RFC 5044 section 4.3, appendix B.2). The results are the
//! share of all payload that arrives beyond a hole, the part of this payload that is placed early, and the
//! memory that is held until the hole is filled. A further result is the benefit: the time that is saved when
//! the hole is filled.
//!
//! There are two engines, of which one sends. The measurements are external: a parser of this module reads
//! the stream from the wire, and an FPDU counts as placed when its bytes are in the receiver's memory. Only
//! the number of bytes that the engine's TCP has dropped comes from a counter of the engine.
//!
//! | file | what |
//! |---|---|
//! | `hosts.rs` | two engines, and their connections |
//! | `reader.rs` | the FPDUs of a sender's stream, and the places of their payload |
//! | `follow.rs` | the bytes of one connection that have arrived, the FPDUs beyond a hole, and when each FPDU was placed |
//! | `flow.rs` | one connection's messages: when each is due, posted, placed and delivered |
//! | `run.rs`, `wire.rs` | a run in virtual time, on a wire with seeded losses |
//! | `fill.rs` | in real time: the work that is left at a receiver when a hole is filled |
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

/// The requests that the sender posts for each message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// An RDMA Write, and a Send of eight bytes that announces it.
    WriteSend,
    /// An RDMA Write with Immediate Data.
    WriteImmediate,
    /// An RDMA Write without an announcement. The Write counts as delivered when all its bytes have been
    /// received in order.
    Write,
    /// A Send.
    Send,
}

impl Traffic {
    /// Returns the name of the traffic on a command line and in a table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WriteSend => "write+send",
            Self::WriteImmediate => "write+imm",
            Self::Write => "write",
            Self::Send => "send",
        }
    }

    /// Returns the traffic of this name.
    pub fn find(name: &str) -> Option<Self> {
        [Self::WriteSend, Self::WriteImmediate, Self::Write, Self::Send]
            .into_iter()
            .find(|traffic| traffic.name() == name)
    }

    /// Whether the receiver's user gets a completion for each message.
    const fn completes(self) -> bool {
        !matches!(self, Self::Write)
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
