//! The link state of the port, and the times at which the engine queries the port for this state.

use dp::{LinkState, Port};
use tcp_lite::{Duration, Instant, Stack};

use crate::verbs::AsyncEventKind;

/// The time between two queries of the port while the link is up or the port is gone. A port that detects
/// departed neighbours is queried in every poll instead. In these two states, an engine wakes for a query
/// only on a point-to-point port: there the loss of the link is the loss of the peer, and a listening device
/// accepts its next peer during a query. On other ports, a link that fails while nothing is sent does no
/// harm. Ten queries per second cost nothing noticeable, even if a query is a system call. By default, the
/// shortest timeout that depends on a query is half a second (`POINT_TO_POINT_LINK_TIMEOUT`).
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The time between two queries of the port while the link is down. The engine wakes for each query. Data
/// that waits for the link is sent at most this much later.
const LOOK_INTERVAL_DOWN: Duration = Duration::from_millis(20);

/// The last known link state, and the time of the next query.
#[derive(Debug)]
pub(super) struct Carrier {
    state: LinkState,
    /// The time between two queries of the port while the link is up or the port is gone.
    interval: Duration,
    /// Whether the link connects to a single peer, which is lost without the link.
    point_to_point: bool,
    /// Whether the port had a link in any query so far.
    had_link: bool,
    /// The time of the next query.
    look_at: Instant,
}

impl Carrier {
    /// Creates the state. The link counts as up until the port reports its state in the first poll.
    pub(super) fn new(port: &dyn Port) -> Self {
        // A port that detects departed neighbours is queried in every poll, since queries of this port cost
        // nothing.
        let interval = if port.info().tells_departures { Duration::ZERO } else { LOOK_INTERVAL };
        Self {
            state: LinkState::Up,
            interval,
            point_to_point: port.info().point_to_point,
            had_link: false,
            look_at: Instant::ZERO,
        }
    }

    /// Whether the port is due to be queried.
    #[inline]
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.look_at
    }

    /// Queries the port if a query is due. Returns the new state if the state has changed.
    pub(super) fn look(&mut self, now: Instant, port: &mut dyn Port) -> Option<LinkState> {
        if !self.is_due(now) {
            return None;
        }
        let state = port.link_state();
        self.had_link |= state == LinkState::Up;
        self.look_at = now
            + match state {
                LinkState::Up | LinkState::Gone => self.interval,
                LinkState::Down => LOOK_INTERVAL_DOWN,
            };
        (std::mem::replace(&mut self.state, state) != state).then_some(state)
    }

    /// Passes a new state to TCP, and returns the event for users.
    ///
    /// Returns `None` if the link is down because the only peer of a port has not arrived yet. In this case
    /// nothing has failed, and a program that listens for the peer might refuse a port that reports the loss
    /// of its link.
    pub(super) fn tell(&self, state: LinkState, now: Instant, tcp: &mut Stack) -> Option<AsyncEventKind> {
        match state {
            LinkState::Up => {
                tcp.set_link(now, true);
                Some(AsyncEventKind::PortActive)
            }
            LinkState::Down => {
                tcp.set_link(now, false);
                let waits_for_peer = self.point_to_point && !self.had_link;
                (!waits_for_peer).then_some(AsyncEventKind::PortError)
            }
            LinkState::Gone => {
                tcp.end_port(now);
                Some(AsyncEventKind::PortGone)
            }
        }
    }

    /// Returns the state of the port in the last query.
    pub(super) fn state(&self) -> LinkState {
        self.state
    }

    /// Returns the time when the engine has to wake for a query; `None` if the engine need not wake.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        (self.state == LinkState::Down || self.point_to_point).then_some(self.look_at)
    }
}

#[cfg(test)]
mod tests {
    use dp::link::{LinkConfig, pair_with_control};

    use super::*;

    fn at(ms: i64) -> Instant {
        Instant::from_millis(ms)
    }

    #[test]
    fn the_port_is_asked_now_and_then_and_more_often_while_there_is_no_link() {
        let (mut port, _other, control) = pair_with_control(&LinkConfig::default());
        let mut carrier = Carrier::new(&*port);
        assert_eq!(carrier.look(at(0), &mut *port), None);
        control.set_up(false);
        let mut looks = [99, 100, 101].map(|ms| carrier.look(at(ms), &mut *port));
        assert_eq!(looks, [None, Some(LinkState::Down), None]);
        assert_eq!(carrier.next_deadline(), Some(at(120)));
        control.set_up(true);
        looks = [119, 120, 121].map(|ms| carrier.look(at(ms), &mut *port));
        assert_eq!(looks, [None, Some(LinkState::Up), None]);
        assert_eq!(carrier.next_deadline(), None);
    }

    #[test]
    fn turns_are_asked_for_where_a_peer_would_be_gone_with_the_link() {
        let config = LinkConfig { point_to_point: true, ..LinkConfig::default() };
        let (mut port, _other, _control) = pair_with_control(&config);
        let mut carrier = Carrier::new(&*port);
        assert_eq!(carrier.look(at(0), &mut *port), None);
        assert_eq!(carrier.next_deadline(), Some(at(100)));
    }

    /// A device that was removed does not return: it is queried as rarely as a device with a link.
    #[test]
    fn a_device_that_is_gone_is_asked_seldom() {
        let (mut port, _other, control) = pair_with_control(&LinkConfig::default());
        let mut carrier = Carrier::new(&*port);
        control.take_away_a();
        assert_eq!(carrier.look(at(0), &mut *port), Some(LinkState::Gone));
        assert_eq!([20, 99, 100].map(|ms| carrier.is_due(at(ms))), [false, false, true]);
        assert_eq!((carrier.state(), carrier.next_deadline()), (LinkState::Gone, None));
    }
}
