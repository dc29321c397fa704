//! The rules that a stream follows: iWARP's, or InfiniBand's if both ends have agreed on them.
//!
//! For every difference between the two, this file has a method that a caller asks. Callers do not look at
//! the agreement itself.

use super::{IbProfile, News};
use crate::memory::{Accessor, EpochGuard, Fault, Stag, Word};
use crate::queues::SendOp;
use crate::rdmap::Terminate;
use crate::stream::sent_to::SentTo;

/// The rules of one stream, with the state that InfiniBand's need.
pub(in crate::stream) struct Rules(Option<Box<IbProfile>>);

impl Rules {
    /// InfiniBand's, if both ends have agreed on them, or iWARP's.
    pub(in crate::stream) fn new(ib_semantics: bool) -> Self {
        Self(ib_semantics.then(|| Box::new(IbProfile::new())))
    }

    /// The state of InfiniBand's rules.
    #[inline]
    pub(in crate::stream) fn profile(&self) -> Option<&IbProfile> {
        self.0.as_deref()
    }

    /// As [`profile`](Self::profile).
    #[inline]
    pub(in crate::stream) fn profile_mut(&mut self) -> Option<&mut IbProfile> {
        self.0.as_deref_mut()
    }

    // ---- requests of this end ----

    /// Whether a request completes when the peer has taken its message. Otherwise it completes when TCP has
    /// its last segment (RFC 5040 section 5.5).
    #[inline]
    pub(in crate::stream) fn complete_by_acknowledgement(&self) -> bool {
        self.0.is_some()
    }

    /// The stream offset below which requests are taken, when TCP's peer has acknowledged the bytes below
    /// `acknowledged`.
    #[inline]
    pub(in crate::stream) fn taken(&self, acknowledged: u64) -> u64 {
        self.profile().map_or(acknowledged, |ib| ib.taken(acknowledged))
    }

    /// Whether the peer has a receive request for the message of a request, if the message needs one.
    #[inline]
    pub(in crate::stream) fn have_recv(&self, sent_to: &SentTo) -> bool {
        self.profile().is_none_or(|ib| sent_to.last_send().is_none_or(|msn| ib.is_promised(msn)))
    }

    /// The peer has taken a request that it did not take before.
    pub(in crate::stream) fn note_progress(&mut self) {
        if let Some(ib) = self.profile_mut() {
            ib.note_progress();
        }
    }

    /// Whether the peer takes requests.
    #[inline]
    pub(in crate::stream) fn let_send(&self) -> bool {
        self.profile().is_none_or(IbProfile::lets_send)
    }

    /// Whether the peer may still take requests.
    pub(in crate::stream) fn is_peer_there(&self) -> bool {
        self.profile().is_none_or(IbProfile::is_peer_there)
    }

    /// Whether requests wait until the peer has a receive request.
    pub(in crate::stream) fn await_peer(&self) -> bool {
        self.profile().is_some_and(IbProfile::awaits_peer)
    }

    /// The peer has sent FIN: it takes no more requests.
    pub(in crate::stream) fn on_peer_closed(&mut self) {
        if let Some(ib) = self.profile_mut() {
            ib.on_peer_closed();
        }
    }

    /// Whether a request may be posted. The encodings of Immediate Data differ.
    pub(in crate::stream) fn allow(&self, op: &SendOp) -> bool {
        op.is_allowed(self.0.is_some())
    }

    /// Whether a request whose own memory is wrong fails only when its response has come. On InfiniBand the
    /// response of a Read or atomic meets the buffer after the peer has carried the request out.
    pub(in crate::stream) fn meet_buffer_late(&self, op: &SendOp) -> bool {
        self.0.is_some() && matches!(op, SendOp::Read { .. } | SendOp::Atomic { .. })
    }

    /// Whether a request that is wrong in itself completes with a status of its own
    /// (`IBV_WC_REM_INV_REQ_ERR`).
    pub(in crate::stream) fn have_invalid_requests(&self) -> bool {
        self.0.is_some()
    }

    /// Whether no request succeeds behind a failed request: a request that the peer has taken while an older
    /// Read or atomic waited for its response is flushed.
    pub(in crate::stream) fn flush_behind_failure(&self) -> bool {
        self.0.is_some()
    }

    /// Whether the oldest request runs out of tries when the peer vanishes (`IBV_WC_RETRY_EXC_ERR`).
    pub(in crate::stream) fn fail_when_peer_vanishes(&self) -> bool {
        self.0.is_some()
    }

    // ---- requests of the peer ----

    /// Whether a message that finds no receive request is dropped, and comes again. Otherwise it is an error
    /// (RFC 5041 section 7.1).
    #[inline]
    pub(in crate::stream) fn refuse_without_recv(&self) -> bool {
        self.0.is_some()
    }

    /// The message of the peer with this MSN on queue 0 finds no receive request.
    pub(in crate::stream) fn refuse(&mut self, msn: u32, terminate: Terminate) {
        if let Some(ib) = self.profile_mut() {
            ib.refuse(msn, terminate);
        }
    }

    /// Whether Immediate Data stays out of the buffer, and four bytes of Immediate Data in front of a Send
    /// belong to that.
    #[inline]
    pub(in crate::stream) fn keep_immediate_apart(&self) -> bool {
        self.0.is_some()
    }

    /// Whether receive requests may be bound to messages that have not begun. Immediate Data that belongs to
    /// a Send takes none.
    pub(in crate::stream) fn bind_ahead(&self) -> bool {
        self.0.is_none()
    }

    /// Whether the address of an atomic is checked before the rights of the peer.
    pub(in crate::stream) fn check_alignment_first(&self) -> bool {
        self.0.is_some()
    }

    /// The word that an atomic of the peer names.
    pub(in crate::stream) fn check_atomic<'g>(
        &self,
        guard: &'g EpochGuard<'_>,
        (stag, to): (Stag, u64),
        by: Accessor,
    ) -> Result<Word<'g>, Fault> {
        match self.0.is_some() {
            true => guard.check_ib_atomic(stag, to, by),
            false => guard.check_atomic(stag, to, by),
        }
    }

    // ---- messages of queue 4 ----

    /// Whether there is a queue 4, and limits in Sends.
    #[inline]
    pub(in crate::stream) fn have_queue_4(&self) -> bool {
        self.0.is_some()
    }

    /// Whether a message of queue 4 waits to be sent.
    #[inline(always)]
    pub(in crate::stream) fn have_messages(&self) -> bool {
        self.profile().is_some_and(IbProfile::has_messages)
    }

    /// The field of a Send that tells the limit, which the peer knows then. Without a limit the field is 0
    /// (RFC 5040 section 4.2).
    #[inline]
    pub(in crate::stream) fn told_limit(&mut self) -> u32 {
        self.profile_mut().map_or(0, IbProfile::told_limit)
    }

    /// As [`told_limit`](Self::told_limit), but the peer does not know the limit yet.
    #[inline]
    pub(in crate::stream) fn limit(&self) -> u32 {
        self.profile().map_or(0, IbProfile::limit)
    }

    /// Whether the peer waits for another limit.
    #[inline]
    pub(in crate::stream) fn owe_limit(&self) -> bool {
        self.profile().is_some_and(IbProfile::owes_limit)
    }

    /// This end has written FPDUs up to this stream offset.
    #[inline]
    pub(in crate::stream) fn set_written(&mut self, end: u64) {
        if let Some(ib) = self.profile_mut() {
            ib.set_written(end);
        }
    }

    /// Takes the changes since the last call that the connection has to act on.
    #[inline]
    pub(in crate::stream) fn take_news(&mut self) -> Option<News> {
        self.profile_mut()?.take_news()
    }

    // ---- the end of the stream ----

    /// Whether a failing stream reports to the peer up to where its messages are taken.
    pub(in crate::stream) fn tell_end(&self) -> bool {
        self.0.is_some()
    }
}
