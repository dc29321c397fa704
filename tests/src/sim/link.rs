//! One direction of the wire: rate, delay, queue, and all faults.
//!
//! A TCP segment passes these stages in this order:
//!
//! 1. the middlebox, which joins and splits segments;
//! 2. loss: by selection, in a blackout, or at random;
//! 3. reneging: the segment is dropped and selectively acknowledged nevertheless;
//! 4. a smaller MTU;
//! 5. corruption and duplication;
//! 6. the queue in front of the wire, which may mark the frame, and drops it if the queue is full;
//! 7. the wire, which may delay the frame.
//!
//! Forged frames (`forge.rs`) bypass all these stages. ARP, NDP and ICMP have no faults, since the simulator
//! tests TCP.

use std::collections::HashMap;

use super::coverage::{Coverage, Occurrence};
use super::dice::Part;
use super::forge::{Forged, forge};
use super::middlebox::{Coalescer, split};
use testkit::dice::Dice;
use testkit::packet::{Damage, Frame, Tcp, complete, flag, mark_congestion, parse, too_big};

/// Number of bytes at the start of a stream that are never corrupted with a correct checksum, since MPA's
/// startup frames (RFC 5044 section 7.1) have no CRC.
const STARTUP_BYTES: i64 = 1024;

/// Number of acknowledgements that selectively acknowledge bytes on which their sender reneges later.
const RENEGED_ACKS: u32 = 3;

/// Losses in bursts. The link has a good and a bad state, and each frame may change the state
/// (Gilbert-Elliott model).
#[derive(Clone, Copy, Debug, Default)]
pub struct Burst {
    /// Probability of a change from the good to the bad state, in parts per million.
    pub enter_ppm: u32,
    /// Probability of a change from the bad to the good state, in parts per million.
    pub leave_ppm: u32,
    /// Probability of a loss in the bad state, in parts per million.
    pub loss_ppm: u32,
}

/// The segments that a loss rule selects. In each connection, segments are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selector {
    /// The segment with this number, among the segments with new bytes.
    Data(u64),
    /// Any segment that contains this offset of the stream.
    Offset(u64),
    /// The segment with this number, among the segments with payload but without new bytes.
    Retransmission(u64),
    /// The segments from this number on, among the segments without payload, SYN, FIN and RST: as many as
    /// [`LossRule::times`].
    Ack(u64),
    /// Any SYN.
    Syn,
    /// Any FIN.
    Fin,
}

/// A rule that loses selected segments.
#[derive(Clone, Copy, Debug)]
pub struct LossRule {
    /// The selected segments.
    pub selector: Selector,
    /// Number of transmissions of the selected segments that are lost.
    pub times: u32,
}

/// A period of time.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// The first microsecond of the period.
    pub from_us: u64,
    /// The first microsecond after the period.
    pub to_us: u64,
}

impl Span {
    /// Whether the period includes `now_us`.
    pub fn holds(&self, now_us: u64) -> bool {
        (self.from_us..self.to_us).contains(&now_us)
    }
}

/// A smaller MTU during a period.
#[derive(Clone, Copy, Debug)]
pub struct SmallMtu {
    /// The period.
    pub span: Span,
    /// Maximum length in bytes of an IP packet.
    pub mtu: u16,
    /// Whether a router reports a dropped packet to the sender (ICMP). Otherwise the router drops the packet
    /// silently.
    pub reported: bool,
}

/// The properties of a direction. Probabilities are in parts per million, and apply until `until_us`.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Rate in bytes per millisecond.
    pub rate: u64,
    /// Time in microseconds on the wire.
    pub delay_us: u64,
    /// Maximum length in bytes of the queue in front of the wire.
    pub queue_bytes: u64,
    /// Minimum length in bytes of the queue at which ECN-capable frames are marked.
    pub mark_bytes: Option<u64>,
    /// The time at which random faults end, in microseconds.
    pub until_us: u64,
    /// Probability that a frame is lost.
    pub loss_ppm: u32,
    /// Losses in bursts.
    pub burst: Burst,
    /// Losses of selected segments.
    pub loss_rules: Vec<LossRule>,
    /// Probability that a frame is delayed.
    pub reorder_ppm: u32,
    /// Maximum additional delay in microseconds of a delayed frame.
    pub reorder_us: u64,
    /// Probability that a frame is duplicated.
    pub duplicate_ppm: u32,
    /// Probability of a flipped bit in the bytes that a checksum covers.
    pub corrupt_ppm: u32,
    /// Probability that a bit of the payload flips and the checksum is recomputed.
    pub corrupt_payload_ppm: u32,
    /// Probability that the receiver selectively acknowledges a segment and drops it later (reneging, RFC
    /// 2018 section 8).
    pub renege_ppm: u32,
    /// Probability that a forged frame is inserted after a frame.
    pub forge_ppm: u32,
    /// Probability that a frame is marked, independent of the length of the queue.
    pub mark_ppm: u32,
    /// Probability that a segment is split.
    pub split_ppm: u32,
    /// If segments are joined: the maximum payload of a joined segment in bytes, and the time in microseconds
    /// for which a segment waits for the next segment.
    pub join: Option<(usize, u64)>,
    /// Periods with a smaller MTU.
    pub small_mtus: Vec<SmallMtu>,
    /// Periods in which all TCP segments are lost.
    pub blackouts: Vec<Span>,
}

impl Plan {
    /// Returns the plan of a direction without faults.
    pub fn clean(rate: u64, delay_us: u64, queue_bytes: u64) -> Self {
        Self {
            rate,
            delay_us,
            queue_bytes,
            mark_bytes: None,
            until_us: u64::MAX,
            loss_ppm: 0,
            burst: Burst::default(),
            loss_rules: Vec::new(),
            reorder_ppm: 0,
            reorder_us: 0,
            duplicate_ppm: 0,
            corrupt_ppm: 0,
            corrupt_payload_ppm: 0,
            renege_ppm: 0,
            forge_ppm: 0,
            mark_ppm: 0,
            split_ppm: 0,
            join: None,
            small_mtus: Vec::new(),
            blackouts: Vec::new(),
        }
    }
}

/// What happens because of a frame.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Frames that arrive at the receiver, with their arrival times.
    pub arrivals: Vec<(u64, Frame)>,
    /// ICMP errors for the sender, with their arrival times.
    pub to_sender: Vec<(u64, Vec<u8>)>,
    /// Whether the frame met a fault that a transport has to repair.
    pub fault: bool,
    /// Client ports of connections whose payload was corrupted with a correct checksum.
    pub poisoned: Vec<u16>,
    /// Bytes that the receiver selectively acknowledges although it has dropped them.
    pub reneged: Vec<Reneged>,
}

/// Bytes on which a receiver reneges.
#[derive(Clone, Copy, Debug)]
pub struct Reneged {
    /// Source port and destination port of the segments that acknowledge the bytes.
    ports: (u16, u16),
    /// Sequence numbers of the bytes.
    block: (u32, u32),
    /// Number of further acknowledgements whose SACK blocks report the reneged bytes.
    left: u32,
}

/// The progress of one connection, as the loss rules count it.
#[derive(Debug, Default)]
struct Flow {
    isn: Option<u32>,
    high: i64,
    data: u64,
    retransmissions: u64,
    acks: u64,
    /// Whether the FIN was sent.
    finished: bool,
}

/// One direction of the wire.
#[derive(Debug)]
pub struct Link {
    plan: Plan,
    dice: Dice,
    bad: bool,
    joiner: Option<Coalescer>,
    flows: HashMap<(u16, u16), Flow>,
    /// For each rule and connection: the range that the rule selected, and the number of transmissions lost
    /// so far.
    found: HashMap<(usize, u16, u16), (i64, i64, u32)>,
    reneged: Vec<Reneged>,
    /// The time until which the wire is busy. The time is in nanoseconds, since a frame takes 1.2
    /// microseconds at 10 Gb/s.
    busy_until_ns: u64,
    coverage: Coverage,
}

impl Link {
    /// Returns the direction in which host `side` sends.
    pub fn new(plan: Plan, seed: u64, side: usize) -> Self {
        let joiner = plan.join.map(|(bytes, hold_us)| Coalescer::new(bytes, hold_us));
        Self {
            plan,
            dice: Part::Link(side).dice(seed),
            bad: false,
            joiner,
            flows: HashMap::new(),
            found: HashMap::new(),
            reneged: Vec::new(),
            busy_until_ns: 0,
            coverage: Coverage::default(),
        }
    }

    /// Returns the counts of the faults so far.
    pub fn coverage(&self) -> Coverage {
        let mut coverage = self.coverage;
        coverage.count(Occurrence::JoinedByMiddlebox, self.joiner.as_ref().map_or(0, Coalescer::joined));
        coverage
    }

    /// Returns the number of lost frames, without those on which the receiver reneges.
    pub fn lost(&self) -> u64 {
        use Occurrence::{
            LostAtFullQueue, LostAtRandom, LostBySelection, LostInBlackout, LostInBurst, TooBigReported,
            TooBigSilent,
        };
        let reasons = [
            LostAtRandom,
            LostInBurst,
            LostBySelection,
            LostInBlackout,
            LostAtFullQueue,
            TooBigReported,
            TooBigSilent,
        ];
        reasons.iter().map(|reason| self.coverage.times(*reason)).sum()
    }

    /// Makes the host that sends in this direction renege on bytes that the other direction lost.
    pub fn renege(&mut self, bytes: Reneged) {
        self.reneged.push(bytes);
    }

    /// Returns the time at which the middlebox releases its next frame.
    pub fn next_us(&self) -> Option<u64> {
        self.joiner.as_ref().and_then(Coalescer::next_us)
    }

    /// Whether the middlebox holds no frame.
    pub fn is_empty(&self) -> bool {
        self.next_us().is_none()
    }

    /// Carries a frame that the sender sends now. Returns what happens because of the frame.
    pub fn carry(&mut self, now_us: u64, bytes: Vec<u8>) -> Outcome {
        let frame = Frame { bytes, damage: Damage::None };
        let mut joined = Vec::new();
        match &mut self.joiner {
            Some(joiner) => joiner.push(now_us, frame, &mut joined),
            None => joined.push(frame),
        }
        self.forward(now_us, joined)
    }

    /// Releases frames that the middlebox has held long enough.
    pub fn poll(&mut self, now_us: u64) -> Outcome {
        let mut joined = Vec::new();
        if let Some(joiner) = &mut self.joiner {
            joiner.poll(now_us, &mut joined);
        }
        self.forward(now_us, joined)
    }

    fn forward(&mut self, now_us: u64, frames: Vec<Frame>) -> Outcome {
        let mut outcome = Outcome::default();
        for frame in frames {
            let mut pieces = Vec::new();
            if self.chance(now_us, self.plan.split_ppm) {
                self.coverage.count(Occurrence::Split, 1);
                split(&mut self.dice, frame, &mut pieces);
            } else {
                pieces.push(frame);
            }
            for piece in pieces {
                self.one(now_us, piece, &mut outcome);
            }
        }
        outcome
    }

    fn chance(&mut self, now_us: u64, ppm: u32) -> bool {
        ppm > 0 && now_us < self.plan.until_us && self.dice.hits(ppm)
    }

    fn one(&mut self, now_us: u64, mut frame: Frame, outcome: &mut Outcome) {
        let Some(mut tcp) = parse(&frame.bytes) else {
            outcome.arrivals.push((now_us + self.plan.delay_us, frame));
            return;
        };
        // The rules look at the segment before any fault, so that they count every segment that was sent.
        let offset = self.offset(&tcp);
        let selected = self.is_selected(&tcp, offset);
        self.forge(now_us, &frame, &tcp, offset, outcome);
        let dark = self.plan.blackouts.iter().any(|span| span.holds(now_us));
        let reason = match (selected, dark) {
            (true, _) => Some(Occurrence::LostBySelection),
            (_, true) => Some(Occurrence::LostInBlackout),
            _ => self.random_loss(now_us),
        };
        if let Some(reason) = reason {
            self.coverage.count(reason, 1);
            outcome.fault = true;
            return;
        }
        if !tcp.is_empty() && !tcp.has(flag::FIN) && self.chance(now_us, self.plan.renege_ppm) {
            outcome.fault = true;
            let block = (tcp.seq, tcp.seq.wrapping_add(tcp.len() as u32));
            let ports = (tcp.dst_port, tcp.src_port);
            outcome.reneged.push(Reneged { ports, block, left: RENEGED_ACKS });
            return;
        }
        self.add_reneged_block(&mut frame, &mut tcp);
        if let Some(small) = self.plan.small_mtus.iter().find(|small| small.span.holds(now_us))
            && frame.bytes.len() > usize::from(small.mtu) + 14
        {
            self.coverage
                .count(if small.reported { Occurrence::TooBigReported } else { Occurrence::TooBigSilent }, 1);
            outcome.fault = true;
            if small.reported {
                let reported = too_big(&frame.bytes, &tcp, small.mtu);
                outcome.to_sender.push((now_us + self.plan.delay_us, reported));
            }
            return;
        }
        self.damage(now_us, &mut frame, &tcp, offset, outcome);
        let copy = self.chance(now_us, self.plan.duplicate_ppm).then(|| frame.clone());
        self.coverage.count_if(Occurrence::Duplicated, copy.is_some());
        for frame in [Some(frame), copy].into_iter().flatten() {
            self.queue(now_us, frame, &tcp, outcome);
        }
    }

    /// Returns the stream offset of the payload, or 0 if no SYN has been seen. Records the sequence number of
    /// a SYN.
    fn offset(&mut self, tcp: &Tcp) -> i64 {
        let flow = self.flows.entry((tcp.src_port, tcp.dst_port)).or_default();
        if tcp.has(flag::SYN) {
            flow.isn = Some(tcp.seq);
        }
        flow.isn.map_or(0, |isn| i64::from(tcp.seq.wrapping_sub(isn).wrapping_sub(1) as i32))
    }

    fn is_selected(&mut self, tcp: &Tcp, offset: i64) -> bool {
        let key = (tcp.src_port, tcp.dst_port);
        let Some(flow) = self.flows.get_mut(&key) else { return false };
        let (start, end) = (offset, offset + tcp.len() as i64);
        let (fresh, again) = (!tcp.is_empty() && end > flow.high, !tcp.is_empty() && end <= flow.high);
        let bare = tcp.is_bare();
        let (data, retransmissions, acks) = (flow.data, flow.retransmissions, flow.acks);
        flow.high = flow.high.max(end);
        flow.finished |= tcp.has(flag::FIN);
        flow.data += u64::from(fresh);
        flow.retransmissions += u64::from(again);
        flow.acks += u64::from(bare);
        let mut selected = false;
        for (number, rule) in self.plan.loss_rules.iter().enumerate() {
            let found = self.found.entry((number, key.0, key.1)).or_insert((i64::MAX, i64::MAX, 0));
            let (from, to, lost) = *found;
            let repeated = lost > 0 && !tcp.is_empty() && start < to && from < end;
            let hit = match rule.selector {
                Selector::Data(n) => fresh && data == n || repeated,
                Selector::Offset(at) => (start..end).contains(&(at as i64)),
                Selector::Retransmission(n) => again && (retransmissions == n || repeated),
                Selector::Ack(n) => bare && (n..n + u64::from(rule.times)).contains(&acks),
                Selector::Syn => tcp.has(flag::SYN),
                Selector::Fin => tcp.has(flag::FIN),
            };
            if hit && lost < rule.times {
                *found = if lost == 0 { (start, end, 1) } else { (from, to, lost + 1) };
                selected = true;
            }
        }
        selected
    }

    fn random_loss(&mut self, now_us: u64) -> Option<Occurrence> {
        let burst = self.plan.burst;
        let changes = if self.bad { burst.leave_ppm } else { burst.enter_ppm };
        self.bad ^= self.chance(now_us, changes);
        if self.bad && self.chance(now_us, burst.loss_ppm) {
            return Some(Occurrence::LostInBurst);
        }
        self.chance(now_us, self.plan.loss_ppm).then_some(Occurrence::LostAtRandom)
    }

    /// May insert a forged frame, which arrives before any frame that is sent later.
    fn forge(&mut self, now_us: u64, frame: &Frame, tcp: &Tcp, offset: i64, outcome: &mut Outcome) {
        if !self.chance(now_us, self.plan.forge_ppm) {
            return;
        }
        let Some(flow) = self.flows.get(&(tcp.src_port, tcp.dst_port)) else { return };
        let (Ok(high), finished) = (u32::try_from(flow.high - offset), flow.finished) else { return };
        let Some(Forged { occurrence, bytes, to_sender }) =
            forge(&mut self.dice, &frame.bytes, tcp, high, finished)
        else {
            return;
        };
        self.coverage.count(occurrence, 1);
        let at_us = now_us + self.plan.delay_us;
        if to_sender {
            outcome.to_sender.push((at_us, bytes));
        } else {
            outcome.arrivals.push((at_us, Frame { bytes, damage: Damage::Forged }));
        }
    }

    /// Adds a SACK block to a bare acknowledgement: the bytes on which its sender is about to renege, while
    /// there is a hole before them.
    fn add_reneged_block(&mut self, frame: &mut Frame, tcp: &mut Tcp) {
        for bytes in &mut self.reneged {
            let (start, end) = bytes.block;
            if bytes.ports != (tcp.src_port, tcp.dst_port) || (start.wrapping_sub(tcp.ack) as i32) <= 0 {
                continue;
            }
            let Some(reported) = tcp.with_sack_block(&frame.bytes, (start, end)) else { continue };
            let Some(parsed) = parse(&reported) else { continue };
            (frame.bytes, *tcp) = (reported, parsed);
            bytes.left -= 1;
            self.coverage.count(Occurrence::Reneged, 1);
        }
        self.reneged.retain(|bytes| bytes.left > 0);
    }

    fn damage(&mut self, now_us: u64, frame: &mut Frame, tcp: &Tcp, offset: i64, outcome: &mut Outcome) {
        let seen = self.chance(now_us, self.plan.corrupt_ppm);
        let unseen = self.chance(now_us, self.plan.corrupt_payload_ppm);
        let range = if seen {
            // IPv6 has no checksum over its header, so only bits after it are flipped.
            (if tcp.ipv6 { tcp.l4 } else { 14 })..tcp.payload.end
        } else if unseen && !tcp.is_empty() && offset >= STARTUP_BYTES {
            tcp.payload.clone()
        } else {
            return;
        };
        let at = range.start + self.dice.below(range.len() as u64) as usize;
        frame.bytes[at] ^= 1 << self.dice.below(8);
        frame.damage = Damage::WrongChecksum;
        if !seen {
            complete(&mut frame.bytes);
            frame.damage = Damage::CorrectChecksum;
            outcome.poisoned.push(tcp.src_port.max(tcp.dst_port));
        }
        self.coverage.count(
            if seen { Occurrence::CorruptedWrongChecksum } else { Occurrence::CorruptedCorrectChecksum },
            1,
        );
        outcome.fault = true;
    }

    /// Passes a frame through the queue in front of the wire and over the wire.
    fn queue(&mut self, now_us: u64, mut frame: Frame, tcp: &Tcp, outcome: &mut Outcome) {
        let bytes = frame.bytes.len() as u64;
        let now_ns = now_us * 1000;
        let waiting = self.busy_until_ns.saturating_sub(now_ns) * self.plan.rate / 1_000_000;
        if waiting + bytes > self.plan.queue_bytes {
            self.coverage.count(Occurrence::LostAtFullQueue, 1);
            outcome.fault = true;
            return;
        }
        let full = self.plan.mark_bytes.is_some_and(|mark| waiting >= mark);
        if frame.damage == Damage::None
            && matches!(tcp.ecn(&frame.bytes), 1 | 2)
            && (full || self.chance(now_us, self.plan.mark_ppm))
        {
            mark_congestion(&mut frame.bytes, tcp);
            self.coverage.count(Occurrence::Marked, 1);
        }
        self.busy_until_ns = self.busy_until_ns.max(now_ns) + (bytes * 1_000_000).div_ceil(self.plan.rate);
        let mut at_us = self.busy_until_ns.div_ceil(1000) + self.plan.delay_us;
        if self.chance(now_us, self.plan.reorder_ppm) {
            at_us += self.dice.between(1, self.plan.reorder_us.max(1));
            self.coverage.count(Occurrence::Delayed, 1);
            outcome.fault = true;
        }
        outcome.arrivals.push((at_us, frame));
    }
}

#[cfg(test)]
mod tests {
    use super::{Link, Plan};
    use testkit::packet::{complete, parse};

    /// Returns the frame of a TCP segment of 1460 bytes: 1514 bytes with its headers.
    fn frame() -> Vec<u8> {
        let mut bytes = vec![0; 1514];
        bytes[12..14].copy_from_slice(&[8, 0]);
        bytes[14] = 0x45;
        bytes[16..18].copy_from_slice(&1500_u16.to_be_bytes());
        bytes[23] = 6;
        bytes[14 + 20 + 12] = 0x50;
        complete(&mut bytes);
        bytes
    }

    #[test]
    fn ten_gigabits_a_second_are_carried_as_such() {
        assert!(parse(&frame()).is_some());
        let mut link = Link::new(Plan::clean(1_250_000, 500, 1 << 24), 1, 0);
        let arrivals = |link: &mut Link, count| -> Vec<u64> {
            (0..count).flat_map(|_| link.carry(0, frame()).arrivals).map(|(at_us, _)| at_us).collect()
        };
        let at_us = arrivals(&mut link, 10_000);
        assert_eq!((at_us[0], at_us[9999]), (502, 12_620), "1.212 us each");
        assert_eq!(at_us.len(), 10_000);
    }
}
