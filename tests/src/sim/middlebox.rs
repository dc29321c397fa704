//! Splits and joins TCP segments between the hosts, as a middlebox or large receive offload (LRO) does.

use testkit::dice::Dice;
use testkit::packet::{Damage, Frame, Tcp, flag, parse};

/// Joins consecutive segments of one flow.
#[derive(Debug)]
pub struct Coalescer {
    /// Maximum payload of a joined segment in bytes.
    max_bytes: usize,
    /// Maximum time in microseconds for which a segment waits for the next segment.
    hold_us: u64,
    held: Option<(u64, Frame, Tcp)>,
    joined: u64,
}

impl Coalescer {
    /// Returns a coalescer that joins segments up to `max_bytes` of payload, and holds a segment for at most
    /// `hold_us`.
    pub fn new(max_bytes: usize, hold_us: u64) -> Self {
        Self { max_bytes, hold_us, held: None, joined: 0 }
    }

    /// Returns the number of segments that were joined to an earlier segment.
    pub fn joined(&self) -> u64 {
        self.joined
    }

    /// Returns the time at which the held segment has to be released.
    pub fn next_us(&self) -> Option<u64> {
        self.held.as_ref().map(|(at_us, ..)| *at_us)
    }

    /// Accepts a frame. Adds the frames that are released now to `out`.
    pub fn push(&mut self, now_us: u64, frame: Frame, out: &mut Vec<Frame>) {
        let plain = flag::SYN | flag::FIN | flag::RST | flag::CWR | flag::ECE;
        let segment = parse(&frame.bytes)
            .filter(|tcp| frame.damage == Damage::None && !tcp.is_empty() && tcp.flags & plain == 0);
        let Some(tcp) = segment else {
            self.flush(out);
            out.push(frame);
            return;
        };
        if let Some((_, held, first)) = &mut self.held
            && follows(first, &held.bytes, &tcp, &frame.bytes)
            && first.len() + tcp.len() <= self.max_bytes
        {
            // The joined segment has the headers of the later segment, whose acknowledgement, window and
            // timestamps are newer.
            let mut payload = held.bytes[first.payload.clone()].to_vec();
            payload.extend_from_slice(&frame.bytes[tcp.payload.clone()]);
            held.bytes = tcp.rebuilt(&frame.bytes, first.seq, &payload, first.flags | tcp.flags);
            self.joined += 1;
            if let Some(joined) = parse(&held.bytes) {
                *first = joined;
            }
            return;
        }
        self.flush(out);
        self.held = Some((now_us + self.hold_us, frame, tcp));
    }

    /// Releases a segment that was held long enough.
    pub fn poll(&mut self, now_us: u64, out: &mut Vec<Frame>) {
        if self.next_us().is_some_and(|at_us| at_us <= now_us) {
            self.flush(out);
        }
    }

    fn flush(&mut self, out: &mut Vec<Frame>) {
        out.extend(self.held.take().map(|(_, frame, _)| frame));
    }
}

fn follows(first: &Tcp, first_frame: &[u8], next: &Tcp, next_frame: &[u8]) -> bool {
    (first.src_port, first.dst_port) == (next.src_port, next.dst_port)
        && first.seq.wrapping_add(first.len() as u32) == next.seq
        && first.options.len() == next.options.len()
        && first.ecn(first_frame) == next.ecn(next_frame)
}

/// Splits a segment into two to four segments, at places that its sender does not know. A SYN, a RST, a
/// damaged segment and a segment with less than two bytes of payload are not split.
pub fn split(dice: &mut Dice, frame: Frame, out: &mut Vec<Frame>) {
    let segment = parse(&frame.bytes)
        .filter(|tcp| frame.damage == Damage::None && tcp.len() > 1 && !tcp.has(flag::SYN | flag::RST));
    let Some(tcp) = segment else { return out.push(frame) };
    let mut cuts: Vec<usize> =
        (0..dice.between(1, 3)).map(|_| dice.between(1, tcp.len() as u64 - 1) as usize).collect();
    cuts.extend([0, tcp.len()]);
    cuts.sort_unstable();
    cuts.dedup();
    let payload = &frame.bytes[tcp.payload.clone()];
    for pair in cuts.windows(2) {
        let last = pair[1] == tcp.len();
        let flags = if last { tcp.flags } else { tcp.flags & !(flag::FIN | flag::PSH) };
        let seq = tcp.seq.wrapping_add(pair[0] as u32);
        let bytes = tcp.rebuilt(&frame.bytes, seq, &payload[pair[0]..pair[1]], flags);
        out.push(Frame { bytes, damage: Damage::None });
    }
}
