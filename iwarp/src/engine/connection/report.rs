//! The reports to a connection's user.

use std::sync::Arc;
use std::time::Duration;

use crate::mpa::Negotiated;
use crate::mpa::startup::Enhanced;
use crate::stream::ib_profile::agreement::Agreement;
use crate::verbs::{CmEventKind, CmShared, ConnectionError, TerminateReport};

/// The state of a connection's user, which says whether the user still receives events.
pub(super) enum User {
    /// A listener has accepted the connection, but the user does not know of it yet.
    Unaware,
    /// The user has this identifier for the connection.
    Known(Arc<CmShared>),
    /// The user receives no more events.
    Done,
}

impl User {
    /// Returns the identifier if the user still receives events.
    #[inline]
    pub(super) fn id(&self) -> Option<&Arc<CmShared>> {
        match self {
            User::Known(id) => Some(id),
            User::Unaware | User::Done => None,
        }
    }

    /// Ends the reports to the user. Returns the previous state.
    pub(super) fn take(&mut self) -> Self {
        std::mem::replace(self, User::Done)
    }
}

/// What was reported to the user, and what will be reported when the connection ends.
#[derive(Default)]
pub(super) struct Report {
    pub(super) announced: Announced,
    /// The first error.
    error: Option<ConnectionError>,
    /// The Terminate that was sent or received.
    pub(super) terminate: Option<Arc<TerminateReport>>,
    /// The enhanced data of the peer's startup frame.
    pub(super) peer: Option<Enhanced>,
}

/// The state of the connection that was last announced to the user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Announced {
    #[default]
    Nothing,
    Streaming,
    Established,
}

/// The contents of the `Established` event.
pub(super) struct Announcement {
    pub(super) negotiated: Negotiated,
    pub(super) agreement: Agreement,
    pub(super) idle_timeout: Option<Duration>,
    /// Whether the user may send at once.
    pub(super) ready: bool,
}

impl Report {
    /// Adds an error. Only the first error is kept and reported to the user, because the first error is the
    /// cause of the end.
    pub(super) fn add(&mut self, error: ConnectionError) {
        self.error.get_or_insert(error);
    }

    /// Returns the first error.
    pub(super) fn error(&self) -> Option<ConnectionError> {
        self.error
    }

    /// Returns the last event of the connection. If nothing was announced before, a graceful end is reported
    /// as an error.
    pub(super) fn last_event(&mut self) -> CmEventKind {
        if self.announced == Announced::Nothing {
            let error = *self.error.get_or_insert(ConnectionError::PeerClosed);
            CmEventKind::ConnectError { error, peer: self.peer }
        } else {
            CmEventKind::Disconnected { error: self.error, terminate: self.terminate.take() }
        }
    }
}
