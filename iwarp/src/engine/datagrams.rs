//! The queue pairs of type UD of an engine. The first one opens the UDP port of RoCEv2 in the stack.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tcp_lite::{Backoff, Datagram, DatagramHeader, Instant, SendDatagramError, Stack};

use crate::datagram::{Arrival, DatagramQp, InvalidSend, Outgoing};
use crate::memory::EpochGuard;
use crate::queues::{Ask, QpShared};
use crate::roce::{Qpn, UDP_PORT, UdSend};

/// Maximum number of datagrams that a queue pair sends in a poll before other queue pairs have a turn.
const MAX_IN_TURN: usize = 16;

/// Maximum number of datagrams that all queue pairs together send in a poll.
const MAX_IN_POLL: usize = 128;

/// The source port of our datagrams. RoCEv2 leaves the port to the sender; routers that spread flows over
/// several paths need a fixed port for each flow.
const SOURCE_PORT: u16 = 0xC000;

/// Counters of all queue pairs of type UD of an engine. `EngineCounters` describes these fields.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DatagramCounters {
    pub(super) rx_ud: u64,
    pub(super) rx_ud_invalid: u64,
    pub(super) rx_ud_refused: u64,
    pub(super) rx_ud_not_ready: u64,
    pub(super) tx_ud: u64,
    pub(super) tx_ud_dropped: u64,
}

/// The open queue pairs of type UD.
#[derive(Default)]
pub(super) struct Datagrams {
    /// The queue pairs by their numbers on the wire.
    qps: BTreeMap<u32, Member>,
    /// The queue pairs that are attached to a group, as (group, number).
    attached: BTreeSet<(IpAddr, u32)>,
    /// Whether the groups of the stack may have changed since the port was told them.
    has_new_groups: bool,
    /// The numbers of the queue pairs that may have something to send, in the order of their turns.
    waiting: VecDeque<u32>,
    /// The backoff while no packet buffer is free, or too many datagrams wait for Ethernet addresses.
    backoff: Backoff,
    /// A packet that the port has received in several buffers.
    joined: Vec<u8>,
    pub(super) counters: DatagramCounters,
}

/// An open queue pair.
struct Member {
    qp: DatagramQp,
    /// Whether the queue pair's number is in the list `waiting`.
    is_waiting: bool,
}

impl Datagrams {
    /// Whether queue pairs wait for their turn.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the time at which [`send`](Self::send) next has work; `None` if no queue pair waits.
    pub(super) fn next_deadline(&self, now: Instant) -> Option<Instant> {
        self.is_waiting().then(|| self.backoff.next_try(now).unwrap_or(now))
    }

    /// Opens `qp` with `number` on the wire. Returns `false`, and ends the queue pair, if the number is in
    /// use or the UDP port of RoCEv2 cannot be opened.
    pub(super) fn open(&mut self, now: Instant, tcp: &mut Stack, qp: Arc<QpShared>, number: Qpn) -> bool {
        // The user may have dropped the number's former queue pair, whose doorbell is not answered yet.
        let has_ended = |former: &Member| former.qp.qp().signals.asked() >= Ask::Close;
        if self.qps.get(&number.get()).is_some_and(has_ended) {
            self.end(now, tcp, number.get(), None);
        }
        let is_possible =
            !self.qps.contains_key(&number.get()) && (!self.qps.is_empty() || tcp.open_udp(UDP_PORT).is_ok());
        if !is_possible {
            qp.enter_error();
            return false;
        }
        self.joined.reserve(usize::from(u16::MAX));
        self.waiting.reserve(self.qps.len() + 1);
        qp.opened();
        self.qps.insert(number.get(), Member { qp: DatagramQp::new(qp, number), is_waiting: false });
        // Requests that were posted before this call rang no doorbell.
        self.schedule(number.get());
        true
    }

    /// Schedules the queue pair with this number, whose doorbell was rung.
    #[cold]
    pub(super) fn schedule(&mut self, number: u32) {
        if let Some(member) = self.qps.get_mut(&number)
            && !std::mem::replace(&mut member.is_waiting, true)
        {
            self.waiting.push_back(number);
        }
    }

    /// Schedules all queue pairs, because a doorbell was lost.
    #[cold]
    pub(super) fn schedule_all(&mut self) {
        self.waiting.clear();
        for (number, member) in &mut self.qps {
            member.is_waiting = true;
            self.waiting.push_back(*number);
        }
    }

    /// Ends all queue pairs, because no thread polls the engine any more.
    pub(super) fn end_all(&mut self) {
        self.waiting.clear();
        self.attached.clear();
        while let Some((_, Member { qp, .. })) = self.qps.pop_first() {
            qp.end(None);
        }
    }

    /// Ends a queue pair. When the last queue pair has ended, closes the UDP port.
    fn end(&mut self, now: Instant, tcp: &mut Stack, number: u32, failure: Option<InvalidSend>) {
        let Some(Member { qp, .. }) = self.qps.remove(&number) else { return };
        let groups: Vec<IpAddr> =
            self.attached.iter().filter(|(_, of)| *of == number).map(|(group, _)| *group).collect();
        groups.into_iter().for_each(|group| self.detach(now, tcp, group, number));
        self.waiting.retain(|waiting| *waiting != number);
        if self.qps.is_empty() {
            tcp.close_udp(UDP_PORT);
        }
        qp.end(failure);
    }

    // ---- groups ----

    /// Attaches the queue pair to a multicast group, so that it receives the datagrams to this group. Returns
    /// `false` if the stack can join no further group.
    pub(super) fn attach(&mut self, now: Instant, tcp: &mut Stack, group: IpAddr, number: u32) -> bool {
        if !self.qps.contains_key(&number) || self.attached.contains(&(group, number)) {
            return true;
        }
        self.has_new_groups = true;
        tcp.join_group(now, group).is_ok() && self.attached.insert((group, number))
    }

    /// Detaches the queue pair from a group.
    pub(super) fn detach(&mut self, now: Instant, tcp: &mut Stack, group: IpAddr, number: u32) {
        if self.attached.remove(&(group, number)) {
            self.has_new_groups = true;
            tcp.leave_group(now, group);
        }
    }

    /// Whether the groups of the stack may have changed since the last call.
    pub(super) fn take_new_groups(&mut self) -> bool {
        std::mem::take(&mut self.has_new_groups)
    }

    // ---- sending ----

    /// Lets the queue pairs that wait send. Returns whether a datagram was sent or dropped.
    pub(super) fn send(&mut self, now: Instant, tcp: &mut Stack, guard: &EpochGuard<'_>) -> bool {
        let mut left = MAX_IN_POLL;
        let (mut is_busy, mut is_held) = (false, false);
        for _ in 0..self.waiting.len() {
            let Some(number) = self.waiting.pop_front() else { break };
            let turn = self.turn(now, tcp, guard, number, left.min(MAX_IN_TURN));
            left -= turn.sent;
            is_busy |= turn.sent > 0 || turn.outcome == TurnOutcome::Ended;
            match turn.outcome {
                TurnOutcome::Done | TurnOutcome::Ended => {}
                TurnOutcome::More => self.schedule(number),
                TurnOutcome::Unresolved => {
                    // Other queue pairs may have other destinations.
                    self.schedule(number);
                    is_held = true;
                }
                TurnOutcome::NoMbuf => {
                    self.schedule(number);
                    self.backoff.refused(now);
                    return is_busy;
                }
            }
            if left == 0 {
                break;
            }
        }
        match is_held {
            true => self.backoff.refused(now),
            false => self.backoff.succeeded(),
        }
        is_busy
    }

    /// Lets a queue pair send at most `limit` datagrams.
    fn turn(
        &mut self,
        now: Instant,
        tcp: &mut Stack,
        guard: &EpochGuard<'_>,
        number: u32,
        limit: usize,
    ) -> Turn {
        let done = |sent, outcome| Turn { sent, outcome };
        let Some(Member { qp, is_waiting }) = self.qps.get_mut(&number) else {
            return done(0, TurnOutcome::Ended);
        };
        *is_waiting = false;
        // The doorbell is answered before the requests are read.
        qp.qp().engine.clear_doorbell();
        if qp.qp().signals.take_asked() >= Ask::Close {
            self.end(now, tcp, number, None);
            return done(0, TurnOutcome::Ended);
        }
        for sent in 0..limit {
            let Some(Member { qp, .. }) = self.qps.get_mut(&number) else {
                return done(sent, TurnOutcome::Ended);
            };
            let outgoing = match qp.next() {
                None => return done(sent, TurnOutcome::Done),
                Some(Ok(outgoing)) => outgoing,
                Some(Err(invalid)) => {
                    self.end(now, tcp, number, Some(invalid));
                    return done(sent, TurnOutcome::Ended);
                }
            };
            let to = outgoing.to.addr;
            let skipped = (!qp.qp().config.own_multicast).then_some(number);
            let members = || self.attached.range((to, 0)..);
            let has_members = to.is_multicast() && members().next().is_some_and(|(group, _)| *group == to);
            let copy = &mut self.joined;
            let result = match header_of(tcp, &outgoing) {
                Some(header) => tcp.send_datagram(now, &header, outgoing.bytes, |packet, at| {
                    qp.write(guard, packet, at)?;
                    if has_members {
                        copy.clear();
                        copy.extend_from_slice(packet);
                    }
                    Ok(())
                }),
                None => Err(SendDatagramError::NoAddress),
            };
            match result {
                Ok(()) => {
                    self.counters.tx_ud += 1;
                    qp.complete_next();
                    if has_members {
                        // The port does not return a datagram to a group to its sender.
                        let packet = std::mem::take(&mut self.joined);
                        self.receive_packet(now, tcp, guard, (to, skipped), &packet);
                        self.joined = packet;
                    }
                }
                Err(SendDatagramError::NoBuffer) => return done(sent, TurnOutcome::NoMbuf),
                // Connection managers repeat their messages. A message to a host that does not exist must not
                // stop those to other hosts: any host on the link can ask for answers to such addresses.
                Err(SendDatagramError::Unresolved) if number != Qpn::GSI.get() => {
                    return done(sent, TurnOutcome::Unresolved);
                }
                Err(SendDatagramError::Fill(invalid)) => {
                    self.end(now, tcp, number, Some(invalid));
                    return done(sent, TurnOutcome::Ended);
                }
                // A datagram may be lost, so the request succeeds.
                Err(_) => {
                    self.counters.tx_ud_dropped += 1;
                    qp.complete_next();
                }
            }
        }
        done(limit, TurnOutcome::More)
    }

    // ---- receiving ----

    /// Delivers a datagram that has arrived at the UDP port of RoCEv2.
    pub(super) fn receive(
        &mut self,
        now: Instant,
        tcp: &mut Stack,
        guard: &EpochGuard<'_>,
        datagram: &Datagram,
    ) {
        let Datagram { local, frame, ip, .. } = datagram;
        let mut joined = std::mem::take(&mut self.joined);
        joined.clear();
        let packet = match frame.head().get(ip.clone()) {
            Some(packet) => packet,
            None => {
                frame.segments().for_each(|bytes| joined.extend_from_slice(bytes));
                joined.get(ip.clone()).unwrap_or_default()
            }
        };
        self.receive_packet(now, tcp, guard, (local.ip(), None), packet);
        self.joined = joined;
    }

    /// Delivers the message of an IP packet that was sent to `to`, one of our addresses or a group. The queue
    /// pair with the number `skipped` gets no message to a group.
    fn receive_packet(
        &mut self,
        now: Instant,
        tcp: &mut Stack,
        guard: &EpochGuard<'_>,
        (to, skipped): (IpAddr, Option<u32>),
        packet: &[u8],
    ) {
        match UdSend::of_packet(packet) {
            Err(_) => self.counters.rx_ud_invalid += 1,
            Ok((send, payload)) if send.dest_qp == Qpn::MULTICAST => {
                let mut next = self.attached.range((to, 0)..).next().copied();
                while let Some((group, number)) = next.filter(|(group, _)| *group == to) {
                    if skipped != Some(number) {
                        self.deliver(now, tcp, guard, number, (packet, &send, payload.clone()));
                    }
                    next = self.attached.range((group, number + 1)..).next().copied();
                }
            }
            Ok((send, payload)) => {
                self.deliver(now, tcp, guard, send.dest_qp.get(), (packet, &send, payload));
            }
        }
    }

    fn deliver(
        &mut self,
        now: Instant,
        tcp: &mut Stack,
        guard: &EpochGuard<'_>,
        number: u32,
        (packet, send, payload): (&[u8], &UdSend, std::ops::Range<usize>),
    ) {
        let Some(Member { qp, .. }) = self.qps.get_mut(&number) else {
            self.counters.rx_ud_refused += 1;
            return;
        };
        match qp.receive(guard, packet, send, payload) {
            Arrival::Delivered => self.counters.rx_ud += 1,
            Arrival::WrongQkey => self.counters.rx_ud_refused += 1,
            Arrival::NotReady | Arrival::TooLong => self.counters.rx_ud_not_ready += 1,
            Arrival::Failed => self.end(now, tcp, number, None),
        }
    }
}

/// The result of a queue pair's turn.
struct Turn {
    /// Number of datagrams that were sent or dropped.
    sent: usize,
    outcome: TurnOutcome,
}

#[derive(PartialEq, Eq)]
enum TurnOutcome {
    /// The queue pair has nothing to send.
    Done,
    /// The queue pair may have more to send.
    More,
    /// No packet buffer was free.
    NoMbuf,
    /// Too many datagrams wait for the Ethernet addresses of their next hops.
    Unresolved,
    /// The queue pair has ended.
    Ended,
}

/// Returns the header of a datagram; `None` if the stack has no address of the destination's family.
fn header_of(tcp: &Stack, outgoing: &Outgoing) -> Option<DatagramHeader> {
    let Outgoing { to, .. } = outgoing;
    let local = tcp.datagram_source(to.addr)?;
    Some(DatagramHeader {
        local: SocketAddr::new(local, SOURCE_PORT),
        remote: SocketAddr::new(to.addr, UDP_PORT),
        traffic_class: to.traffic_class,
        hop_limit: to.hop_limit,
        flow_label: to.flow_label,
        // The ICRC protects the datagram.
        checksum: false,
    })
}
