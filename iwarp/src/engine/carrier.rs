//! The port's link: looked at now and then in turns that happen anyway, and more often while there is none.

use dp::{LinkState, Port};
use tcp_lite::{Duration, Instant};

/// How often a turn asks the port while there is a link. No turn is asked for that: a link that goes while nothing is
/// sent harms nobody.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// How often while there is none; turns are asked for. What waits is sent so much later at most.
const LOOK_INTERVAL_DOWN: Duration = Duration::from_millis(20);

/// What is known of the link.
#[derive(Debug)]
pub(super) struct Carrier {
    state: LinkState,
    /// When the port is asked next.
    look_at: Instant,
}

impl Carrier {
    /// Taken to be there until the port says otherwise in the first turn.
    pub(super) fn new() -> Self {
        Self { state: LinkState::Up, look_at: Instant::ZERO }
    }

    /// Asks the port, if it is time to. Returns the new state if it has changed.
    pub(super) fn look(&mut self, now: Instant, port: &mut dyn Port) -> Option<LinkState> {
        if now < self.look_at {
            return None;
        }
        let state = port.link_state();
        self.look_at = now
            + match state {
                LinkState::Up => LOOK_INTERVAL,
                LinkState::Down => LOOK_INTERVAL_DOWN,
            };
        (std::mem::replace(&mut self.state, state) != state).then_some(state)
    }

    /// When a turn is wanted for the next look.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        (self.state == LinkState::Down).then_some(self.look_at)
    }
}
