//! The events that tell the user that the send buffer has space again (`Event::Writable`), or that segments
//! are acknowledged (`Event::Acknowledged`). A connection has at most one event of each kind in the event
//! queue.

use bitflags::bitflags;

use crate::Event;

bitflags! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Flags: u8 {
        /// A segment was refused, so `Event::Writable` has to be raised when there is space.
        const WRITABLE_WANTED = 1;
        /// `Event::Writable` is queued, and covers all refusals until the user takes the event.
        const WRITABLE_QUEUED = 2;
        /// `Event::Acknowledged` is queued, and covers all acknowledgements until the user takes the event.
        const ACKNOWLEDGED_QUEUED = 4;
        const REPORTS_ACKS = 8;
    }
}

/// The user's requests for events, and the queued events that the user has not taken.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::tcp) struct UserEvents {
    flags: Flags,
}

impl UserEvents {
    /// Called when a segment was refused, because the send buffer is full: the user will receive an event
    /// when the send buffer has space again.
    pub(super) fn on_refused(&mut self) {
        if !self.flags.contains(Flags::WRITABLE_QUEUED) {
            self.flags |= Flags::WRITABLE_WANTED;
        }
    }

    /// Whether the user waits for space.
    #[inline]
    pub(super) fn wants_writable(&self) -> bool {
        self.flags.contains(Flags::WRITABLE_WANTED)
    }

    /// Called when there is space and the user [waits for it](Self::wants_writable). Returns whether
    /// `Event::Writable` has to be queued. If the user has closed the connection, the event is not queued.
    pub(super) fn on_space(&mut self, may_push: bool) -> bool {
        self.flags.remove(Flags::WRITABLE_WANTED);
        self.flags.set(Flags::WRITABLE_QUEUED, may_push);
        may_push
    }

    /// Called when segments are acknowledged. `external` is true if some of these segments have external
    /// memory. Returns whether `Event::Acknowledged` has to be queued, because the user wants this event and
    /// no such event is queued.
    #[inline]
    pub(super) fn on_acknowledged(&mut self, external: bool) -> bool {
        (external || self.flags.contains(Flags::REPORTS_ACKS)) && self.on_reported()
    }

    #[cold]
    fn on_reported(&mut self) -> bool {
        let queued = self.flags.contains(Flags::ACKNOWLEDGED_QUEUED);
        self.flags |= Flags::ACKNOWLEDGED_QUEUED;
        !queued
    }

    /// Called when the user has taken this event from the event queue.
    #[inline]
    pub(in crate::tcp) fn on_taken(&mut self, event: &Event) {
        match event {
            Event::Writable { .. } => self.flags.remove(Flags::WRITABLE_WANTED | Flags::WRITABLE_QUEUED),
            Event::Acknowledged { .. } => self.flags.remove(Flags::ACKNOWLEDGED_QUEUED),
            _ => {}
        }
    }

    pub(in crate::tcp) fn report_acknowledgements(&mut self, on: bool) {
        self.flags.set(Flags::REPORTS_ACKS, on);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::ConnId;

    const CONN: ConnId = ConnId { slot: 0, generation: 0 };
    const WRITABLE: Event = Event::Writable { conn: CONN };
    const ACKNOWLEDGED: Event = Event::Acknowledged { conn: CONN };

    #[test]
    fn space_is_reported_once_for_all_refusals_until_the_event_is_taken() {
        let mut events = UserEvents::default();
        assert!(!events.wants_writable());
        events.on_refused();
        events.on_refused();
        assert!(events.wants_writable());
        assert!(events.on_space(true));
        events.on_refused();
        assert!(!events.wants_writable(), "the queued event covers it");
        events.on_taken(&ACKNOWLEDGED);
        events.on_refused();
        assert!(!events.wants_writable(), "another event");
        events.on_taken(&WRITABLE);
        events.on_refused();
        assert!(events.wants_writable());
        events.on_taken(&WRITABLE);
        assert!(!events.wants_writable(), "the user looks again anyway");
    }

    #[test]
    fn a_user_that_has_closed_gets_no_event_for_space() {
        let mut events = UserEvents::default();
        events.on_refused();
        assert!(!events.on_space(false));
        assert!(!events.wants_writable(), "nor later");
        events.on_refused();
        assert!(events.wants_writable(), "none is queued");
    }

    #[test]
    fn acknowledgements_are_reported_if_asked_for_or_of_external_memory() {
        let mut events = UserEvents::default();
        assert!(!events.on_acknowledged(false));
        assert!(events.on_acknowledged(true));
        assert!(!events.on_acknowledged(true), "one waits already");
        events.on_taken(&WRITABLE);
        assert!(!events.on_acknowledged(true));
        events.on_taken(&ACKNOWLEDGED);
        events.report_acknowledgements(true);
        assert!(events.on_acknowledged(false));
        events.on_taken(&ACKNOWLEDGED);
        events.report_acknowledgements(false);
        assert!(!events.on_acknowledged(false));
    }
}
