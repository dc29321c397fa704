//! Address conflict detection: probes, announces and defends our addresses (RFC 5227; RFC 4862 section
//! 5.4, RFC 4861 section 7.2.6).
//!
//! With [`AddressProbing::Announce`] and [`AddressProbing::Probe`], the stack announces its addresses when it
//! starts to use them and when the link comes up again. So switches learn our port, and neighbours learn our
//! Ethernet address. If another host uses one of our addresses, the stack reports the conflict to the user.
//! If the address is still being probed, the stack gives up the address. Otherwise the stack keeps the
//! address, since connections depend on it, and sends an announcement (RFC 5227 section 2.4 (c)). For each
//! address in use, the stack sends such announcements and reports at most once in ten seconds. If a host has
//! several stacks, the leader of the stacks detects the conflicts, and the other stacks take over the states
//! that the leader publishes. [`discovery`](crate::discovery) has the packet formats.

use arrayvec::ArrayVec;

use crate::AddressProbing;
use crate::discovery::{Assertion, Queried};
use crate::facade::{Duration, EthernetAddress, Instant, IpAddress};

/// The number of probes of an address, the time between two probes, and the time after the last probe (RFC
/// 5227 section 1.1: `PROBE_NUM`, `PROBE_MIN`, `ANNOUNCE_WAIT`). RFC 4862 asks for only one probe. With three
/// probes, a conflict is found even if one of the probes is lost.
const PROBES: u8 = 3;
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
const PROBE_SILENCE: Duration = Duration::from_secs(2);
/// Number of announcements of an address, and the time between two announcements (`ANNOUNCE_NUM`,
/// `ANNOUNCE_INTERVAL`).
const ANNOUNCEMENTS: u8 = 2;
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);
/// The minimum time between two defences of an address (`DEFEND_INTERVAL`), and between two reports of its
/// conflicts to the user.
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of addresses of a stack, as in `StackConfig::addresses`.
pub(crate) const ADDRESSES: usize = 8;
/// Maximum number of probes, announcements and answers that wait to be sent: a few for each address, and some
/// answers to bursts of probes from other hosts.
const QUEUE: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressState {
    /// The address is being probed, with `probes` probes left. A tentative address is neither announced nor
    /// used.
    Tentative { probes: u8 },
    /// The address is in use, with `announcements` announcements left.
    Ours { announcements: u8 },
    /// Another host uses the address, so we do not use it.
    Duplicate,
}

impl AddressState {
    /// The state in two bits, without `probes` and `announcements`.
    fn bits(self) -> u32 {
        match self {
            Self::Tentative { .. } => 0,
            Self::Ours { .. } => 1,
            Self::Duplicate => 2,
        }
    }

    /// The state that `bits` encodes. A tentative address has all its probes left, and an address in use has
    /// no announcements left.
    fn of_bits(bits: u32) -> Self {
        match bits {
            0 => Self::Tentative { probes: PROBES },
            1 => Self::Ours { announcements: 0 },
            _ => Self::Duplicate,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct OwnAddress {
    address: IpAddress,
    state: AddressState,
    /// The time at which the next probe or announcement is sent, or at which the wait after the last probe
    /// ends; `None` if the address waits for nothing.
    due: Option<Instant>,
    /// The time of the last defence of the address; `None` if the address was never defended.
    defended: Option<Instant>,
}

/// A conflict: another host uses one of our addresses, or probes an address that we probe as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    pub(crate) address: IpAddress,
    /// The Ethernet address of the other host.
    pub(crate) mac: EthernetAddress,
    /// True if we do not use the address, because the conflict was found while we probed the address.
    pub(crate) lost: bool,
}

pub(crate) struct ConflictDetection {
    addresses: ArrayVec<OwnAddress, ADDRESSES>,
    announces: bool,
    /// True if another stack of the host probes, announces and defends the addresses, and publishes their
    /// states for this stack.
    follows: bool,
    /// True at first, and if an address has changed its state since the last call of
    /// [`note_news`](Self::note_news).
    has_news: bool,
    /// True if at least one address may not be used, or may not be used yet, so that
    /// [`is_usable`](Self::is_usable) has to check all addresses.
    any_unusable: bool,
    /// No probe, announcement or end of a wait is due before this time; `None` if nothing is due.
    next_due: Option<Instant>,
    queue: ArrayVec<Assertion, QUEUE>,
}

impl ConflictDetection {
    /// Conflict detection for a stack with these addresses. The first probe is sent after `wait`, which
    /// is at most a second and differs between hosts (`PROBE_WAIT`).
    pub(crate) fn new(
        policy: AddressProbing,
        addresses: impl Iterator<Item = IpAddress>,
        wait: Duration,
    ) -> Self {
        let own = |address| match policy {
            AddressProbing::Off => OwnAddress {
                address,
                state: AddressState::Ours { announcements: 0 },
                due: None,
                defended: None,
            },
            AddressProbing::Announce => OwnAddress {
                address,
                state: AddressState::Ours { announcements: ANNOUNCEMENTS },
                due: Some(Instant::ZERO),
                defended: None,
            },
            AddressProbing::Probe => OwnAddress {
                address,
                state: AddressState::Tentative { probes: PROBES },
                due: Some(Instant::ZERO + wait),
                defended: None,
            },
        };
        let addresses: ArrayVec<OwnAddress, ADDRESSES> = addresses.map(own).take(ADDRESSES).collect();
        Self {
            next_due: first_due(&addresses),
            addresses,
            announces: policy != AddressProbing::Off,
            follows: false,
            has_news: true,
            any_unusable: policy == AddressProbing::Probe,
            queue: ArrayVec::new(),
        }
    }

    /// Whether packets from this address may be sent, and packets to this address are accepted. The result is
    /// also `true` for an address that is not ours.
    pub(crate) fn is_usable(&self, address: &IpAddress) -> bool {
        let usable = |own: &OwnAddress| matches!(own.state, AddressState::Ours { .. });
        !self.any_unusable || self.addresses.iter().find(|own| own.address == *address).is_none_or(usable)
    }

    /// Whether we gave up the address, because another host uses it.
    pub(crate) fn is_lost(&self, address: &IpAddress) -> bool {
        let lost = |own: &OwnAddress| own.address == *address && own.state == AddressState::Duplicate;
        self.any_unusable && self.addresses.iter().any(lost)
    }

    /// Queues the messages that are due. Returns whether an address became usable.
    pub(crate) fn poll(&mut self, now: Instant) -> bool {
        if self.next_due.is_none_or(|due| now < due) {
            return false;
        }
        let Self { addresses, queue, .. } = self;
        let mut changed = false;
        for own in addresses {
            if own.due.is_none_or(|due| now < due) {
                continue;
            }
            own.due = None;
            match &mut own.state {
                AddressState::Tentative { probes: 0 } => {
                    own.state = AddressState::Ours { announcements: ANNOUNCEMENTS };
                    own.due = Some(now);
                    changed = true;
                }
                AddressState::Tentative { probes } => {
                    *probes -= 1;
                    own.due = Some(now + if *probes == 0 { PROBE_SILENCE } else { PROBE_INTERVAL });
                    enqueue(queue, Assertion::Probe(own.address));
                }
                AddressState::Ours { announcements: 0 } | AddressState::Duplicate => {}
                AddressState::Ours { announcements } => {
                    *announcements -= 1;
                    own.due = (*announcements > 0).then_some(now + ANNOUNCE_INTERVAL);
                    enqueue(queue, Assertion::Announce(own.address));
                }
            }
        }
        self.next_due = first_due(&self.addresses);
        if changed {
            self.note_unusable();
            // The first announcement is due at once.
            self.poll(now);
        }
        changed
    }

    /// The next time at which [`poll`](Self::poll) sends a message or ends a wait; `None` if no address waits
    /// for a probe or an announcement.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.next_due
    }

    /// Called when the link is up again, perhaps to another switch. If this stack announces addresses,
    /// announces again the addresses that are in use. Probes of other addresses continue.
    pub(crate) fn announce_all(&mut self, now: Instant) {
        for own in self.addresses.iter_mut().filter(|_| self.announces && !self.follows) {
            if let AddressState::Ours { announcements } = &mut own.state {
                *announcements = ANNOUNCEMENTS;
                own.due = Some(now);
                self.next_due = Some(now);
            }
        }
    }

    /// Called when another host probes one of our addresses, or claims to have it. A probe for an address in
    /// use is answered, because smoltcp does not answer probes. Anything else is a conflict: gives up an
    /// address that is still being probed, and defends an address in use. Returns the conflict if it has to
    /// be reported.
    pub(crate) fn on_queried(&mut self, now: Instant, queried: &Queried) -> Option<Conflict> {
        let own = self.addresses.iter_mut().find(|own| own.address == queried.address)?;
        let lost = match own.state {
            // A probe of another host for an address that we probe at the same time is also a conflict (RFC
            // 5227 section 2.1.1, RFC 4862 section 5.4.3).
            AddressState::Tentative { .. } => true,
            AddressState::Duplicate => return None,
            AddressState::Ours { .. } if queried.is_probe => {
                enqueue(&mut self.queue, Assertion::Answer(queried.address, queried.mac));
                return None;
            }
            AddressState::Ours { .. } => false,
        };
        if lost {
            (own.state, own.due) = (AddressState::Duplicate, None);
            self.has_news = true;
            self.next_due = first_due(&self.addresses);
        } else {
            if own.defended.is_some_and(|at| now < at + DEFEND_INTERVAL) {
                return None;
            }
            own.defended = Some(now);
            enqueue(&mut self.queue, Assertion::Announce(queried.address));
        }
        Some(Conflict { address: queried.address, mac: queried.mac, lost })
    }

    /// Called when this stack joins a host that another stack leads: from now on, this stack no longer sends
    /// the probes and announcements that become due.
    pub(crate) fn stop_leading(&mut self) {
        self.follows = true;
        self.next_due = None;
        for own in &mut self.addresses {
            own.due = None;
        }
    }

    /// The states of the addresses, two bits for each address. The leader publishes this value for the other
    /// stacks.
    pub(crate) fn states(&self) -> u32 {
        self.addresses.iter().rev().fold(0, |states, own| states << 2 | own.state.bits())
    }

    /// Takes over the [`states`](Self::states) of the leader. `states` is `None` if the leader has not
    /// published its states yet. Returns whether the state of an address changed.
    pub(crate) fn follow(&mut self, states: Option<u32>) -> bool {
        let Some(mut states) = states.filter(|states| *states != self.states()) else { return false };
        for own in &mut self.addresses {
            own.state = AddressState::of_bits(states & 3);
            states >>= 2;
        }
        self.note_unusable();
        true
    }

    /// Called when the leader is gone and this stack becomes the leader: probes the tentative addresses, and,
    /// if the stack announces addresses, announces the addresses in use again.
    pub(crate) fn lead(&mut self, now: Instant) {
        self.follows = false;
        for own in &mut self.addresses {
            if let AddressState::Tentative { .. } = own.state {
                own.due = Some(now);
            }
        }
        self.next_due = first_due(&self.addresses);
        self.announce_all(now);
    }

    /// Whether an address has changed its state since the last call of [`note_news`](Self::note_news).
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.has_news
    }

    /// Called when the states were published or taken over: resets [`has_news`](Self::has_news).
    pub(crate) fn note_news(&mut self) {
        self.has_news = false;
    }

    fn note_unusable(&mut self) {
        self.has_news = true;
        self.any_unusable = self.addresses.iter().any(|own| !matches!(own.state, AddressState::Ours { .. }));
    }

    /// Whether there is an assertion to send.
    #[inline]
    pub(crate) fn has_assertion(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The next assertion to send; `None` if there is none. [`asserted`](Self::asserted) removes it.
    pub(crate) fn assertion(&self) -> Option<Assertion> {
        self.queue.first().copied()
    }

    /// Removes the next assertion, because it was sent.
    pub(crate) fn asserted(&mut self) {
        self.queue.remove(0);
    }
}

/// The earliest deadline of all addresses; `None` if no address has a deadline.
fn first_due(addresses: &[OwnAddress]) -> Option<Instant> {
    addresses.iter().filter_map(|own| own.due).min()
}

/// Adds a message to the queue, unless the same message already waits or the queue is full. If an answer is
/// dropped, the other host will probe again.
fn enqueue(queue: &mut ArrayVec<Assertion, QUEUE>, assertion: Assertion) {
    if !queue.is_full() && !queue.contains(&assertion) {
        queue.push(assertion);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: IpAddress = IpAddress::v4(10, 0, 0, 1);
    const THEM: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 9]);

    fn ours(policy: AddressProbing) -> ConflictDetection {
        ConflictDetection::new(policy, [US].into_iter(), Duration::from_millis(300))
    }

    fn at(ms: i64) -> Instant {
        Instant::from_millis(ms)
    }

    /// The messages that were sent up to `ms`, each with the time at which it was sent.
    fn said(addresses: &mut ConflictDetection, ms: i64) -> Vec<(i64, Assertion)> {
        let mut said = Vec::new();
        let mut now = at(0);
        loop {
            addresses.poll(now);
            while let Some(assertion) = addresses.assertion() {
                addresses.asserted();
                said.push((now.total_millis(), assertion));
            }
            match addresses.next_deadline().filter(|due| *due <= at(ms)) {
                Some(due) => now = now.max(due),
                None => return said,
            }
        }
    }

    const CONFLICT: Queried = Queried { address: US, mac: THEM, is_probe: false };

    #[test]
    fn an_address_is_announced_twice_and_again_when_the_link_is_back() {
        let announce = Assertion::Announce(US);
        let mut addresses = ours(AddressProbing::Announce);
        assert!(addresses.is_usable(&US));
        assert_eq!(said(&mut addresses, 60_000), [(0, announce), (2000, announce)]);
        addresses.announce_all(at(70_000));
        assert_eq!(said(&mut addresses, 99_000), [(70_000, announce), (72_000, announce)]);
        let mut silent = ours(AddressProbing::Off);
        silent.announce_all(at(0));
        assert_eq!(said(&mut silent, 60_000), []);
    }

    #[test]
    fn a_probed_address_is_used_when_nobody_answered() {
        let mut addresses = ours(AddressProbing::Probe);
        assert!(!addresses.is_usable(&US));
        let (probe, announce) = (Assertion::Probe(US), Assertion::Announce(US));
        assert_eq!(said(&mut addresses, 4299), [(300, probe), (1300, probe), (2300, probe)]);
        assert!(!addresses.is_usable(&US));
        assert_eq!(said(&mut addresses, 60_000), [(4300, announce), (6300, announce)]);
        assert!(addresses.is_usable(&US));
    }

    #[test]
    fn a_probed_address_is_given_up_when_somebody_answers_or_probes_it_too() {
        for is_probe in [false, true] {
            let mut addresses = ours(AddressProbing::Probe);
            said(&mut addresses, 1000);
            let conflict = addresses.on_queried(at(1000), &Queried { is_probe, ..CONFLICT });
            assert_eq!(conflict, Some(Conflict { address: US, mac: THEM, lost: true }));
            assert_eq!(addresses.on_queried(at(1001), &CONFLICT), None, "told once");
            assert_eq!(said(&mut addresses, 60_000), []);
            assert!(!addresses.is_usable(&US) && addresses.is_lost(&US));
        }
    }

    #[test]
    fn an_address_in_use_is_kept_and_defended_once_in_ten_seconds() {
        let mut addresses = ours(AddressProbing::Off);
        let news: Vec<i64> = (0..25_000)
            .step_by(100)
            .filter(|ms| addresses.on_queried(at(*ms), &CONFLICT).is_some())
            .collect();
        assert_eq!(news, [0, 10_000, 20_000]);
        assert_eq!(addresses.assertion(), Some(Assertion::Announce(US)));
        assert!(addresses.is_usable(&US) && !addresses.is_lost(&US));
    }

    #[test]
    fn who_probes_an_address_in_use_is_answered() {
        let mut addresses = ours(AddressProbing::Off);
        assert_eq!(addresses.on_queried(at(0), &Queried { is_probe: true, ..CONFLICT }), None);
        assert_eq!(addresses.assertion(), Some(Assertion::Answer(US, THEM)));
    }

    #[test]
    fn more_probes_than_answers_that_wait_are_answered_when_they_come_again() {
        let mut addresses = ours(AddressProbing::Off);
        let probe =
            |last| Queried { mac: EthernetAddress([2, 0, 0, 0, 1, last]), is_probe: true, ..CONFLICT };
        for last in [0, 0].into_iter().chain(0..40) {
            assert_eq!(addresses.on_queried(at(0), &probe(last)), None);
        }
        let answers = said(&mut addresses, 0).into_iter().map(|(_, assertion)| assertion);
        assert!(answers.eq((0..32).map(|last| Assertion::Answer(US, probe(last).mac))));
    }

    #[test]
    fn each_address_stands_for_itself() {
        let second = IpAddress::v4(10, 0, 1, 1);
        let wait = Duration::from_millis(300);
        let mut addresses = ConflictDetection::new(AddressProbing::Probe, [US, second].into_iter(), wait);
        assert!(addresses.is_usable(&IpAddress::v4(10, 0, 2, 1)), "not ours at all");
        let probes = |ms| [(ms, Assertion::Probe(US)), (ms, Assertion::Probe(second))];
        assert_eq!(said(&mut addresses, 1000), probes(300));
        assert!(addresses.on_queried(at(1000), &CONFLICT).is_some_and(|conflict| conflict.lost));
        assert!(addresses.is_lost(&US) && !addresses.is_lost(&second) && !addresses.is_usable(&second));
        addresses.announce_all(at(1000));
        assert_eq!(said(&mut addresses, 4299).len(), 2, "probes of the other");
        assert!(addresses.poll(at(4300)));
        assert_eq!(addresses.assertion(), Some(Assertion::Announce(second)), "at once");
        assert!(addresses.is_usable(&second) && !addresses.is_usable(&US) && addresses.is_lost(&US));
    }
}
