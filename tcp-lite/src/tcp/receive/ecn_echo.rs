//! Echoes routers' marks to the sender (RFC 3168 section 6.1.3, RFC 8257 section 3.2). The sender's
//! reaction is in `send/rate/mod.rs`.

use std::num::NonZeroU64;

use crate::tcp::header::{Flags, TcpHeader};
use crate::{CongestionAlgorithm, TcpConfig};

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Echo {
    /// True if acknowledgements carry ECE.
    on: bool,
    /// With DCTCP: the position of a separate acknowledgement, and whether this acknowledgement carries ECE.
    /// A separate acknowledgement is needed if the bytes before the position and the bytes after it have
    /// different marks (RFC 8257 section 3.2). Positions begin at 1.
    separate: Option<NonZeroU64>,
    separate_on: bool,
}

/// A separate acknowledgement of bytes, because later bytes have another mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) struct SeparateAck {
    /// The position up to which bytes are acknowledged.
    pub(in crate::tcp) ack: u64,
    /// True if the acknowledgement carries ECE.
    pub(in crate::tcp) on: bool,
}

impl Echo {
    /// Called when no more bytes will be acknowledged: drops the separate acknowledgement.
    pub(super) fn stop(&mut self) {
        self.separate = None;
    }

    /// Called when a data segment arrived. `frontier` is the position of the next expected byte before this
    /// segment. `waiting` is true if earlier segments, in order or beyond a hole, are not acknowledged yet.
    /// Returns whether an acknowledgement is due at once.
    pub(super) fn on_data(
        &mut self,
        config: &TcpConfig,
        marked: bool,
        flags: Flags,
        frontier: u64,
        waiting: bool,
    ) -> bool {
        let was = self.on;
        if config.congestion == CongestionAlgorithm::Dctcp {
            // Each acknowledgement reports the marks of its own segments (RFC 8257 section 3.2).
            self.on = marked;
            if was != marked && waiting {
                // If the mark changes several times before the separate acknowledgement is sent, the separate
                // acknowledgement has ECE if any of its bytes were marked.
                self.separate_on = was || self.separate.is_some() && self.separate_on;
                self.separate = NonZeroU64::new(frontier);
            }
            return was != marked;
        }
        // ECE stays on until the sender's CWR arrives. If the segment with CWR is marked as well, ECE is set
        // again (RFC 3168 section 6.1.3).
        self.on = (was && !flags.contains(Flags::CWR)) || marked;
        false
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.on
    }

    /// The separate acknowledgement, which has to be sent before anything else; `None` if no separate
    /// acknowledgement is needed.
    #[inline]
    pub(super) fn separate(&self) -> Option<SeparateAck> {
        self.separate.map(|ack| SeparateAck { ack: ack.get(), on: self.separate_on })
    }

    /// Called when the separate acknowledgement was sent: removes this acknowledgement and returns its
    /// position.
    pub(super) fn take_separate(&mut self) -> Option<u64> {
        self.separate.take().map(NonZeroU64::get)
    }
}

/// Whether a SYN or SYN-ACK sets up ECN (RFC 3168 section 6.1.1).
pub(in crate::tcp) fn is_ecn_setup(syn: &TcpHeader) -> bool {
    let setup = if syn.ack.is_some() { Flags::ECE } else { Flags::ECE | Flags::CWR };
    syn.flags & (Flags::ECE | Flags::CWR) == setup
}
