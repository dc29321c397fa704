//! One of the peers that the script plays. This module converts the script's sequence numbers to the numbers
//! on the wire, and records what the stack has sent to this peer.

use std::collections::BTreeMap;

use tcp_lite::ConnId;
use testkit::stream::byte;

use crate::segment::{ACK, Options, SYN, Segment, Timestamps, URG};
use crate::wire::Raw;

/// The peer's timestamp at time 0 of the script.
const PEER_CLOCK: u32 = 100_000;
/// Window of an arriving segment that has no `win`.
const WINDOW: u16 = 65_535;
/// Our port. The ports of the peers follow, starting with peer 1.
pub(crate) const OUR_PORT: u16 = 1000;
const PEER_PORTS: u16 = 2000;

const RST: u8 = 0x04;
const KIND_MSS: u8 = 2;
const KIND_SCALE: u8 = 3;
const KIND_SACK_PERMITTED: u8 = 4;
const KIND_SACK: u8 = 5;
const KIND_TIMESTAMPS: u8 = 8;

/// `len` bytes of a stream from `offset` on.
pub(crate) fn bytes(offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64).map(byte).collect()
}

/// A range of bytes that the stack sends as one segment.
#[derive(Clone, Copy)]
struct Piece {
    bytes: u32,
    /// True if the script gave the stack a segment with these boundaries (`send`), or if the stack has sent
    /// such a segment.
    known: bool,
}

/// A peer and the connection with it.
#[derive(Default)]
pub(crate) struct Peer {
    pub(crate) port: u16,
    pub(crate) our_port: u16,
    pub(crate) conn: Option<ConnId>,
    /// Sequence numbers of both SYNs. The number of our SYN is known once our SYN is sent.
    theirs: u32,
    ours: Option<u32>,
    /// Our timestamp at time 0 (known from our first timestamp), which sides have offered timestamps, and our
    /// last timestamp.
    our_clock: Option<u32>,
    we_offered: bool,
    they_offered: bool,
    latest: u32,
    /// Timestamps of the peer that our segments may echo.
    clocks: Vec<u32>,
    /// The segments by sequence number. A segment has the boundaries that the script gave it with `send`, or
    /// its boundaries after the stack has split it.
    segments: BTreeMap<i64, Piece>,
    /// Number of bytes that the script has sent with `send`.
    pushed: u64,
    /// IP packets that we have sent, with their sequence numbers.
    packets: Vec<(u32, Vec<u8>)>,
}

impl Peer {
    pub(crate) fn new(number: u8, isn: u32) -> Self {
        let port = PEER_PORTS + u16::from(number);
        Self { port, our_port: OUR_PORT, theirs: isn, ..Self::default() }
    }

    /// Returns the number of the peer with this port.
    pub(crate) fn number(port: u16) -> u8 {
        port.wrapping_sub(PEER_PORTS) as u8
    }

    /// Makes our next SYN start a new sequence of numbers.
    pub(crate) fn anew(&mut self) {
        *self = Self { port: self.port, our_port: self.our_port, theirs: self.theirs, ..Self::default() };
    }

    /// Returns the sequence number on the wire for our number `number` of the script.
    pub(crate) fn our_seq(&self, number: i64) -> u32 {
        self.ours.unwrap_or(0).wrapping_add(number as u32)
    }

    /// Returns the last IP packet that we have sent with this sequence number; `None` if there is no such
    /// packet.
    pub(crate) fn packet_at(&self, number: i64) -> Option<&[u8]> {
        let seq = self.our_seq(number);
        self.packets.iter().rev().find(|(it, _)| *it == seq).map(|(_, packet)| &packet[..])
    }

    /// Records a segment of `len` bytes that the script sends with `send`. Returns the bytes of the segment.
    pub(crate) fn push(&mut self, len: usize) -> Vec<u8> {
        self.segments.insert(self.pushed as i64 + 1, Piece { bytes: len as u32, known: true });
        let bytes = bytes(self.pushed, len);
        self.pushed += len as u64;
        bytes
    }

    /// Returns an arriving segment in two forms: as it is on the wire, and in the script's notation with all
    /// default values filled in.
    pub(crate) fn write(&mut self, segment: &Segment, now_us: u64) -> (Raw, Segment) {
        let now_ms = (now_us / 1000) as i64;
        let mut options = segment.options.clone().unwrap_or_default();
        let syn = segment.flags & SYN != 0;
        if syn {
            self.they_offered = options.timestamps.is_some_and(|it| it != Timestamps::Without);
        }
        let echo = self.our_clock.map_or(0, |clock| i64::from(self.latest.wrapping_sub(clock) as i32));
        let wanted = match options.timestamps {
            Some(Timestamps::Any) => true,
            None => self.is_agreed() && !syn,
            _ => false,
        };
        if wanted {
            options.timestamps = Some(Timestamps::Exactly(now_ms, echo));
        }
        let mut written = segment.clone();
        written.window.get_or_insert(WINDOW);
        let base = segment.seq + i64::from(syn);
        let raw = Raw {
            codepoint: segment.codepoint,
            src_port: self.port,
            dst_port: self.our_port,
            seq: self.theirs.wrapping_add(segment.seq as u32),
            ack: segment.ack.map_or(0, |ack| self.our_seq(ack)),
            flags: segment.flags,
            window: segment.window.unwrap_or(WINDOW),
            urgent: segment.urgent.unwrap_or(0),
            options: self.write_options(&options, segment.flags),
            payload: bytes((base - 1).max(0) as u64, segment.len as usize),
        };
        written.options = Some(options);
        (raw, written)
    }

    fn write_options(&mut self, options: &Options, flags: u8) -> Vec<(u8, Vec<u8>)> {
        let mut out = Vec::new();
        out.extend(options.unknown.map(|(kind, bytes)| (kind, vec![0xee; usize::from(bytes) - 2])));
        out.extend(options.mss.map(|mss| (KIND_MSS, mss.to_be_bytes().to_vec())));
        out.extend(options.sack_permitted.then(|| (KIND_SACK_PERMITTED, vec![])));
        if let Some(Timestamps::Exactly(value, echo)) = options.timestamps {
            let value = PEER_CLOCK.wrapping_add(value as u32);
            let echo =
                if flags & ACK == 0 { 0 } else { self.our_clock.unwrap_or(0).wrapping_add(echo as u32) };
            self.clocks.push(value);
            out.push((KIND_TIMESTAMPS, [value.to_be_bytes(), echo.to_be_bytes()].concat()));
        }
        out.extend(options.window_scale.map(|shift| (KIND_SCALE, vec![shift])));
        if !options.sack.is_empty() {
            let edges = options.sack.iter().flat_map(|(start, end)| [*start, *end]);
            let body = edges.flat_map(|edge| self.our_seq(edge).to_be_bytes()).collect();
            out.push((KIND_SACK, body));
        }
        out
    }

    /// Converts a segment that we have sent to the script's notation. `packet` is the IP packet of the
    /// segment.
    pub(crate) fn read(&mut self, raw: &Raw, packet: &[u8], now_us: u64) -> Result<Segment, String> {
        self.packets.push((raw.seq, packet.to_vec()));
        if raw.flags & SYN != 0 {
            self.ours.get_or_insert(raw.seq);
            self.our_port = raw.src_port;
            self.we_offered = raw.option(KIND_TIMESTAMPS).is_some();
        }
        let seq = i64::from(raw.seq.wrapping_sub(self.ours.unwrap_or(0)) as i32);
        let len = raw.payload.len() as u32;
        if len > 0 && raw.payload != bytes((seq - 1) as u64, raw.payload.len()) {
            return Err("its bytes are not those that were pushed".into());
        }
        let cut = len > 0 && self.is_cut(seq, len)?;
        let acks = raw.flags & ACK != 0;
        Ok(Segment {
            codepoint: raw.codepoint,
            flags: raw.flags,
            seq,
            len,
            ack: acks.then(|| self.their_number(raw.ack)),
            window: Some(raw.window),
            urgent: (raw.flags & URG != 0).then_some(raw.urgent),
            options: Some(self.read_options(raw, now_us)?),
            cut,
        })
    }

    /// Whether the script gave the stack no segment with the boundaries of `seq..seq + len`, and the stack
    /// has sent no such segment before. If so, this range and the remaining parts of its segment become
    /// separate segments.
    fn is_cut(&mut self, seq: i64, len: u32) -> Result<bool, String> {
        let end = seq + i64::from(len);
        let around = self.segments.range(..=seq).next_back().map(|(start, piece)| (*start, *piece));
        let (start, old_end, known) = around
            .map(|(start, piece)| (start, start + i64::from(piece.bytes), piece.known))
            .filter(|(_, old_end, _)| *old_end >= end)
            .ok_or("it joins what was pushed apart, or was never pushed")?;
        let whole = (start, old_end) == (seq, end) && known;
        self.segments.remove(&start);
        for (from, to) in [(start, seq), (seq, end), (end, old_end)] {
            if from < to {
                let known = from == seq;
                self.segments.insert(from, Piece { bytes: (to - from) as u32, known });
            }
        }
        Ok(!whole)
    }

    fn their_number(&self, seq: u32) -> i64 {
        i64::from(seq.wrapping_sub(self.theirs) as i32)
    }

    fn read_options(&mut self, raw: &Raw, now_us: u64) -> Result<Options, String> {
        let mut options = Options::default();
        for (kind, body) in &raw.options {
            let word = |at: usize| u32::from_be_bytes([body[at], body[at + 1], body[at + 2], body[at + 3]]);
            match (*kind, &body[..]) {
                (KIND_MSS, [high, low]) => options.mss = Some(u16::from_be_bytes([*high, *low])),
                (KIND_SCALE, [shift]) => options.window_scale = Some(*shift),
                (KIND_SACK_PERMITTED, []) => options.sack_permitted = true,
                (KIND_SACK, body) if body.len() % 8 == 0 => {
                    let edge = |at| self.their_number(word(at));
                    options.sack = (0..body.len()).step_by(8).map(|at| (edge(at), edge(at + 4))).collect();
                }
                (KIND_TIMESTAMPS, body) if body.len() == 8 => {
                    let clock = *self.our_clock.get_or_insert(word(0).wrapping_sub((now_us / 1000) as u32));
                    self.latest = word(0);
                    let value = i64::from(word(0).wrapping_sub(clock) as i32);
                    let echo = match raw.flags & ACK {
                        0 => i64::from(word(4)),
                        _ => i64::from(word(4).wrapping_sub(PEER_CLOCK) as i32),
                    };
                    options.timestamps = Some(Timestamps::Exactly(value, echo));
                }
                (kind, body) => return Err(format!("an option of kind {kind} with {body:?}")),
            }
        }
        Ok(options)
    }

    fn is_agreed(&self) -> bool {
        self.we_offered && self.they_offered
    }

    /// Returns the first difference between the expected segment and the segment sent at `now_us`; `None` if
    /// they agree.
    pub(crate) fn difference(&self, expected: &Segment, came: &Segment, now_us: u64) -> Option<&'static str> {
        let differs = [
            (expected.codepoint != came.codepoint, "another codepoint"),
            (expected.flags != came.flags, "other flags"),
            (expected.seq != came.seq, "another sequence number"),
            (expected.len != came.len, "another length"),
            (expected.ack != came.ack, "another acknowledgement"),
            (expected.window.is_some_and(|it| Some(it) != came.window), "another window"),
            (expected.urgent != came.urgent, "another urgent pointer"),
            (expected.cut && !came.cut, "a segment as it was pushed"),
            (!expected.cut && came.cut, "a part of a segment (`cut`)"),
        ];
        let differs = differs.into_iter().find_map(|(differs, what)| differs.then_some(what));
        let options = came.options.clone().unwrap_or_default();
        differs.or_else(|| self.options_differ(expected, &options, now_us))
    }

    fn options_differ(&self, expected: &Segment, came: &Options, now_us: u64) -> Option<&'static str> {
        let (syn, rst) = (expected.flags & SYN != 0, expected.flags & RST != 0);
        if expected.options.is_none() && (syn || rst) {
            return None;
        }
        let wanted = expected.options.clone().unwrap_or_default();
        if wanted.sack != came.sack {
            return Some("other SACK blocks");
        }
        let alike = Options { timestamps: came.timestamps, ..wanted.clone() };
        if alike != *came {
            return Some("other options");
        }
        let right = match (wanted.timestamps, came.timestamps) {
            (Some(Timestamps::Any), timestamps) => timestamps.is_some(),
            (Some(Timestamps::Without), timestamps) => timestamps.is_none(),
            (Some(exactly), timestamps) => timestamps == Some(exactly),
            (None, None) => syn || rst || !self.is_agreed(),
            (None, Some(Timestamps::Exactly(value, echo))) => {
                let echoed = PEER_CLOCK.wrapping_add(echo as u32);
                !syn && self.is_agreed() && value == (now_us / 1000) as i64 && self.clocks.contains(&echoed)
            }
            (None, Some(_)) => false,
        };
        (!right).then_some("other timestamps")
    }
}
