//! Access to the sending half for tests of whole connections.

use super::SendHalf;
use super::loss::Phase;
use super::queue::Positions;
use crate::tcp::congestion::Congestion;
use crate::tcp::ctx::Ctx;
use crate::{Duration, Instant};

impl SendHalf {
    pub(in crate::tcp) fn positions(&self) -> &Positions {
        self.queue.positions()
    }

    pub(in crate::tcp) fn lost_bytes(&self) -> u64 {
        self.queue.lost_bytes()
    }

    pub(in crate::tcp) fn bytes_in_pipe(&self) -> u64 {
        self.pipe()
    }

    pub(in crate::tcp) fn window(&self) -> u64 {
        self.send_limit()
    }

    pub(in crate::tcp) fn phase(&self) -> Phase {
        self.loss.phase()
    }

    pub(in crate::tcp) fn set_phase(&mut self, phase: Phase) {
        self.loss.set_phase(phase);
    }

    /// The position up to which the last recovery lasts (RFC 6582, `recover`).
    pub(in crate::tcp) fn recovery_point(&self) -> u64 {
        self.loss.recovery_point()
    }

    pub(in crate::tcp) fn congestion(&self) -> &Congestion {
        self.rate.congestion()
    }

    pub(in crate::tcp) fn pace_opens_at(&self) -> Option<Instant> {
        self.rate.pace_opens_at()
    }

    pub(in crate::tcp) fn congestion_mut(&mut self) -> &mut Congestion {
        self.rate.congestion_mut()
    }

    pub(in crate::tcp) fn srtt_us(&self) -> u32 {
        self.rate.srtt_us()
    }

    pub(in crate::tcp) fn back_off(&mut self) {
        self.rate.back_off_rto();
    }

    pub(in crate::tcp) fn emss(&self) -> u32 {
        self.path.emss()
    }

    /// The time at which the search for a larger EMSS continues; `None` if no timer of the search runs.
    pub(in crate::tcp) fn search_due(&self) -> Option<Instant> {
        self.path.due()
    }

    pub(in crate::tcp) fn has_path_probe(&self) -> bool {
        self.path.has_probe()
    }

    /// Updates pacing as if a segment of `len` bytes had been sent.
    pub(in crate::tcp) fn pace(&mut self, ctx: &Ctx<'_>, len: u32) {
        self.rate.on_sent(ctx.now, ctx.config, self.path.emss(), len);
    }

    pub(in crate::tcp) fn is_pace_open(&self) -> bool {
        self.rate.is_pace_open()
    }

    pub(in crate::tcp) fn reordering_window_for_test(&self) -> Duration {
        self.loss.reordering_window(&self.queue, &self.rate)
    }

    pub(in crate::tcp) fn retransmits(&self) -> u64 {
        self.retransmits
    }

    /// Acts as if an idle connection had sent `bytes` more bytes, and all of them had been acknowledged.
    pub(in crate::tcp) fn skip(&mut self, bytes: u64) {
        self.queue.skip(bytes);
    }
}
