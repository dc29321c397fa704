//! The invariants of a connection: the invariants of its two halves hold, and both halves agree with the
//! connection's state.

use super::{Reported, Tcb};
use crate::OutOfOrder;
use crate::id::ConnId;
use crate::invariant::{Check, ensure};
use crate::tcp::State;
use crate::tcp::slabs::{OutOfOrderSlab, PageKey, SearchSlab, SegmentSlab};

/// What a connection holds in the slabs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holdings {
    pub(crate) segments: usize,
    pub(crate) open_page: Option<PageKey>,
    pub(crate) has_hole: bool,
    pub(crate) searches: bool,
    pub(crate) out_of_order: OutOfOrder,
}

impl Tcb {
    /// Checks the control block. Returns what the connection holds in the slabs.
    pub(crate) fn check(
        &self,
        conn: ConnId,
        (segments, ranges, searches): (&SegmentSlab, &OutOfOrderSlab, &SearchSlab),
    ) -> Check<Holdings> {
        let sending = self.send.check(segments, searches)?;
        let has_hole = self.receive.check(ranges, conn)?;
        let out_of_order = self.receive.held();
        let agreed = (self.send.agreed(), self.receive.agreed());
        ensure!(agreed.0 == agreed.1, "the halves know different agreements: {agreed:?}");
        let over = matches!(self.state, State::TimeWait | State::Closed);
        let holds = sending.segments > 0 || sending.open_page.is_some() || sending.searches || has_hole;
        ensure!(!over || !holds, "{:?}, and it holds {sending:?}, a hole: {has_hole}", self.state);
        ensure!(
            over == (self.reported == Reported::Closed),
            "{:?}, and its user knows {:?}",
            self.state,
            self.reported
        );
        ensure!(!self.rst_due || self.state == State::Closed, "a RST in {:?}", self.state);
        if self.state != State::Closed {
            self.check_state()?;
        }
        if !over {
            self.receive.check_acks()?;
        }
        Ok(Holdings {
            segments: sending.segments,
            open_page: sending.open_page,
            has_hole,
            searches: sending.searches,
            out_of_order,
        })
    }

    /// Checks that a timer runs while anything is in flight. The caller has set the connection's timer before
    /// this call.
    pub(crate) fn check_timer(&self) -> Check {
        if self.state == State::Closed { Ok(()) } else { self.send.check_timer() }
    }

    /// Checks that both halves agree with the state (RFC 9293 section 3.3.2).
    fn check_state(&self) -> Check {
        use State::*;
        let opening = matches!(self.state, SynSent | SynReceived);
        ensure!(opening != self.send.is_syn_acked(), "our SYN is acknowledged in {:?}", self.state);
        let peer_closed = matches!(self.state, CloseWait | LastAck | Closing | TimeWait);
        ensure!(peer_closed == self.receive.is_stream_complete(), "the peer's FIN in {:?}", self.state);
        match self.state {
            // The user may have closed the connection before it was established.
            SynReceived => Ok(()),
            state => self.send.check_fin(
                matches!(state, SynSent | Established | CloseWait),
                matches!(state, FinWait2 | TimeWait),
            ),
        }
        .map_err(|what| format!("{:?}: {what}", self.state))
    }
}
