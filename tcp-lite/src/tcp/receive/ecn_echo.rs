//! Marks that routers made are echoed to the sender (RFC 3168 section 6.1.3, RFC 8257 section 3.2).
//! What the sender does then is in `send/slow_down.rs`.

use std::num::NonZeroU64;

use crate::tcp::header::{Flags, TcpHeader};
use crate::{CongestionAlgorithm, TcpConfig};

/// What the receiver tells the sender.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Echo {
    /// Acknowledgements carry ECE.
    on: bool,
    /// With DCTCP: up to where is acknowledged ahead of the rest, since that was marked otherwise
    /// (RFC 8257 section 3.2); positions begin at 1. And whether with ECE.
    earlier: Option<NonZeroU64>,
    earlier_on: bool,
}

/// An acknowledgement of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) struct Earlier {
    /// Up to this position.
    pub(in crate::tcp) ack: u64,
    /// With ECE.
    pub(in crate::tcp) on: bool,
}

impl Echo {
    /// Nothing will be acknowledged any more.
    pub(super) fn stop(&mut self) {
        self.earlier = None;
    }

    /// A data segment arrived when all up to `frontier` had; `waiting`: something of what came
    /// before it is still to be acknowledged, in order or ahead of a hole. Returns whether the
    /// sender should know at once.
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
            // Each acknowledgement tells of its own segments: RFC 8257 section 3.2.
            self.on = marked;
            if was != marked && waiting {
                // Of several changes between two turns the marks are kept.
                self.earlier_on = was || self.earlier.is_some() && self.earlier_on;
                self.earlier = NonZeroU64::new(frontier);
            }
            return was != marked;
        }
        // Until the sender says that it has heard, in this order: RFC 3168 section 6.1.3.
        self.on = (was && !flags.contains(Flags::CWR)) || marked;
        false
    }

    /// Whether acknowledgements carry ECE.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.on
    }

    /// What is to be acknowledged ahead of the rest.
    #[inline]
    pub(super) fn earlier(&self) -> Option<Earlier> {
        self.earlier.map(|ack| Earlier { ack: ack.get(), on: self.earlier_on })
    }

    /// That was done: takes its position.
    pub(super) fn take_earlier(&mut self) -> Option<u64> {
        self.earlier.take().map(NonZeroU64::get)
    }
}

/// Whether a SYN or SYN-ACK sets up ECN (RFC 3168 section 6.1.1).
pub(in crate::tcp) fn is_ecn_setup(syn: &TcpHeader) -> bool {
    let setup = if syn.ack.is_some() { Flags::ECE } else { Flags::ECE | Flags::CWR };
    syn.flags & (Flags::ECE | Flags::CWR) == setup
}
