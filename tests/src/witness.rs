//! Counts the frames on a wire by their properties, to prove that a peer behaved as a test requires. The
//! module parses the frames by `testkit::packet`, not by code of a stack. So the counts do not share the
//! defects of the stack under test, and do not depend on its counters.

use std::collections::BTreeSet;
use std::fmt;

use dp::{Below, Burst, Link, Mbuf, Port, PortBase, PortLayer, Sleep, Statistics};

use crate::lab::Result;
use crate::lab_error;
use testkit::packet::{Tcp, flag, parse};

/// The counts of one side. As text, they are words `name=value` on one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Number of segments with payload.
    pub data: u64,
    /// Payload of the longest segment in bytes.
    pub longest: usize,
    /// Number of window probes (RFC 9293 section 3.8.6.1): segments of one byte or no byte from just below
    /// the peer's acknowledgement, while the peer's window was closed.
    pub window_probes: u64,
    /// Number of keepalives (section 3.8.4): segments like window probes, but while the peer's window was
    /// open.
    pub keepalives: u64,
    /// Number of segments with an urgent pointer.
    pub urgent: u64,
    /// Number of payload bytes in SYNs.
    pub syn_bytes: u64,
    /// Number of segments that announce a window of zero.
    pub zero_windows: u64,
    /// Number of ECN-capable packets (RFC 3168).
    pub ect: u64,
    /// Kinds of options in SYNs.
    pub syn_options: BTreeSet<u8>,
    /// Kinds of options in segments without SYN.
    pub options: BTreeSet<u8>,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { data, longest, window_probes, keepalives, urgent, syn_bytes, zero_windows, ect, .. } =
            self;
        write!(f, "data={data} longest={longest} window_probes={window_probes} keepalives={keepalives} ")?;
        write!(f, "urgent={urgent} syn_bytes={syn_bytes} zero_windows={zero_windows} ect={ect}")?;
        for (name, kinds) in [("syn_options", &self.syn_options), ("options", &self.options)] {
            let kinds: Vec<String> = kinds.iter().map(u8::to_string).collect();
            write!(f, " {name}={}", kinds.join(","))?;
        }
        Ok(())
    }
}

/// Returns the value of the word `name=value` in the line that begins with `side`, in a program's output.
///
/// # Errors
/// If there is no such word.
pub fn word<'a>(text: &'a str, side: &str, name: &str) -> Result<&'a str> {
    let line = text.lines().find(|line| line.split(' ').next() == Some(side));
    let word =
        line.and_then(|line| line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('=')));
    word.ok_or_else(|| lab_error!("there is no {name} of {side}: {text}"))
}

/// Returns the value of the word `name=value` as a number, in the line that begins with `side`.
///
/// # Errors
/// If there is no such word, or if its value is not a number.
pub fn count(text: &str, side: &str, name: &str) -> Result<u64> {
    let word = word(text, side, name)?;
    word.parse().map_err(|_| lab_error!("{name}={word} is not a number"))
}

/// The latest acknowledgement and window of a side.
#[derive(Clone, Copy, Debug)]
struct LatestNumbers {
    ack: u32,
    closed: bool,
}

/// Watches both directions of a wire with one TCP connection at a time.
#[derive(Clone, Debug, Default)]
pub struct Witness {
    seen: [Seen; 2],
    latest: [Option<LatestNumbers>; 2],
}

impl Witness {
    /// Returns the counts of each side.
    pub fn seen(&self) -> &[Seen; 2] {
        &self.seen
    }

    /// Counts a frame that `side` (0 or 1) has sent.
    pub fn see(&mut self, side: usize, frame: &[u8]) {
        let Some(tcp) = parse(frame) else { return };
        let seen = &mut self.seen[side];
        let kinds = tcp.options(frame).map(|(kind, _)| kind);
        if tcp.has(flag::SYN) {
            seen.syn_options.extend(kinds);
            seen.syn_bytes += tcp.len() as u64;
        } else {
            seen.options.extend(kinds);
        }
        seen.data += u64::from(!tcp.is_empty());
        seen.longest = seen.longest.max(tcp.len());
        seen.urgent += u64::from(tcp.has(flag::URG));
        seen.ect += u64::from(matches!(tcp.ecn(frame), 1 | 2));
        let closed = tcp.window == 0 && !tcp.has(flag::RST);
        seen.zero_windows += u64::from(closed);
        if let Some(other) = self.latest[1 - side].filter(|other| is_probe(&tcp, other.ack)) {
            let probes = if other.closed { &mut seen.window_probes } else { &mut seen.keepalives };
            *probes += 1;
        }
        if tcp.has(flag::ACK) {
            self.latest[side] = Some(LatestNumbers { ack: tcp.ack, closed });
        }
    }
}

/// Whether a segment only asks for an answer. `ack` is the peer's latest acknowledgement.
fn is_probe(tcp: &Tcp, ack: u32) -> bool {
    tcp.flags & (flag::SYN | flag::FIN | flag::RST) == 0 && tcp.len() <= 1 && tcp.seq.wrapping_add(1) == ack
}

/// A port with a witness. Side 0 is the host that sends through the port.
pub struct Watched<'a> {
    port: &'a mut dyn Port,
    witness: Witness,
}

impl<'a> Watched<'a> {
    /// Returns a port that passes all frames to `port` and counts them.
    pub fn new(port: &'a mut dyn Port) -> Self {
        Self { port, witness: Witness::default() }
    }

    /// Returns the witness.
    pub fn witness(&self) -> &Witness {
        &self.witness
    }
}

fn bytes(frame: &Mbuf) -> Vec<u8> {
    let mut bytes = vec![0; frame.len()];
    frame.copy_to(0, &mut bytes);
    bytes
}

impl PortLayer for Watched<'_> {
    fn below(&self) -> Below<&dyn Port, &PortBase> {
        Below::Port(&*self.port)
    }

    fn below_mut(&mut self) -> Below<&mut dyn Port, &mut PortBase> {
        Below::Port(&mut *self.port)
    }
}

impl Port for Watched<'_> {
    fn rx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        let before = frames.len();
        let received = self.port.rx_burst(now_us, frames);
        for frame in &frames[before..] {
            self.witness.see(1, &bytes(frame));
        }
        received
    }

    fn tx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        let waiting: Vec<_> = frames.iter().map(bytes).collect();
        let sent = self.port.tx_burst(now_us, frames);
        for bytes in &waiting[..sent] {
            self.witness.see(0, bytes);
        }
        sent
    }
}

impl Link for Watched<'_> {}
impl Sleep for Watched<'_> {}
impl Statistics for Watched<'_> {}

#[cfg(test)]
mod tests;
