//! Connections that an attacker establishes, ends and establishes again, several at a time. The victim's
//! answers on each connection are recorded and checked.

use std::collections::VecDeque;
use std::time::Duration;

use iwarp::rdmap::Terminate;

use super::arena::{Actor, Arena};
use super::check;
use super::crafted_peer::{CraftedPeer, PeerOptions, REPLY, Stage};
use super::crafted_peers::CraftedPeers;

/// Length in bytes of an FPDU's length field.
const LENGTH: usize = 2;
const CRC: usize = 4;
/// Length in bytes of an untagged DDP header.
const UNTAGGED: usize = 18;
/// Time in microseconds after which an attacker repeats an unanswered SYN. The time is short, so that the
/// attacker has a frame for each frame of the honest client. While the attacker waits for its last
/// connections, `PATIENCE_US` applies instead.
const IMPATIENCE_US: u64 = 20;
const PATIENCE_US: u64 = 10_000;
/// Time limit for the last connections.
const END: Duration = Duration::from_secs(15);

/// What a peer received until its connection ended.
#[derive(Debug)]
pub struct Ended {
    /// Number of the peer in [`Reconnects::crafted`].
    pub number: u32,
    /// Whether the peer received a whole Reply.
    pub connected: bool,
    /// Layer, type and code of each received Terminate.
    pub terminates: Vec<(u8, u8, u8)>,
    /// Number of other FPDUs, and the sum of the lengths of their ULPDUs in bytes.
    pub others: (u64, u64),
    /// Whether the connection was reset instead of closed.
    pub reset: bool,
}

/// A fixed number of connections at a time. A new connection replaces each connection that ends.
pub struct Reconnects {
    /// The peers.
    pub crafted: CraftedPeers,
    options: PeerOptions,
    size: usize,
    /// Peers with an unanswered SYN, each with the time of its SYN in microseconds.
    asking: VecDeque<(u32, u64)>,
    /// Peers that have just become ready.
    ready: Vec<u32>,
    ended: Vec<Ended>,
    /// Number of connections begun.
    pub begun: u64,
    /// Whether no further connection is begun.
    ending: bool,
    /// The first answer that was not as specified.
    wrong: Option<String>,
}

/// An attacker whose connections are [`Reconnects`].
pub trait ReconnectingAttacker: Actor {
    /// Returns the attacker's connections.
    fn reconnects(&mut self) -> &mut Reconnects;
}

/// Begins no further connection, and waits until the connections in progress have ended.
///
/// # Errors
/// If a connection does not end, or an answer was not as specified.
pub fn finish<B: ReconnectingAttacker>(attacker: &mut B, arena: &mut Arena) -> Result<(), String> {
    attacker.reconnects().ending = true;
    let over = arena.alone(attacker, END, |_, attacker| attacker.reconnects().is_empty());
    check(over, || "a connection does not end".into())?;
    attacker.reconnects().verdict()
}

impl Reconnects {
    /// Creates peers of which `size` connect at a time.
    pub fn new(macs: [[u8; 6]; 2], size: usize, options: PeerOptions) -> Self {
        let crafted = CraftedPeers::new(macs, 0);
        Self {
            crafted,
            options,
            size,
            asking: VecDeque::new(),
            ready: Vec::new(),
            ended: Vec::new(),
            begun: 0,
            ending: false,
            wrong: None,
        }
    }

    /// Returns the next frame that a peer sends by itself. Begins a new connection if fewer than `size`
    /// connections exist, unless the attack is [ending](Self::end). Otherwise repeats an unanswered SYN when
    /// it is time.
    pub fn frame(&mut self, now_us: u64) -> Option<Vec<u8>> {
        if let Some(frame) = self.crafted.frame() {
            return Some(frame);
        }
        if self.ending || self.crafted.len() >= self.size {
            return self.ask_again(now_us);
        }
        self.begun += 1;
        let number = self.crafted.join(self.options);
        self.asking.push_back((number, now_us));
        self.crafted.frame()
    }

    /// Returns the SYN of the peer that has waited longest for an answer, if it is time to repeat the SYN.
    fn ask_again(&mut self, now_us: u64) -> Option<Vec<u8>> {
        let impatience_us = if self.ending { PATIENCE_US } else { IMPATIENCE_US };
        while let Some((number, since_us)) = self.asking.front().copied() {
            if !self.crafted.asks(number) {
                self.asking.pop_front();
                continue;
            }
            if now_us < since_us + impatience_us {
                return None;
            }
            self.asking.pop_front();
            self.asking.push_back((number, now_us));
            return Some(self.crafted.get(number).syn());
        }
        None
    }

    /// Returns a peer that has become ready. Each peer is returned once.
    pub fn next_ready(&mut self) -> Option<u32> {
        self.ready.pop()
    }

    /// Returns a connection that has ended. Each connection is returned once.
    pub fn next_ended(&mut self) -> Option<Ended> {
        self.ended.pop()
    }

    /// Stops beginning new connections.
    pub fn end(&mut self) {
        self.ending = true;
    }

    /// Records an answer that was not as specified. Only the first such answer is kept.
    pub fn record_error(&mut self, text: impl FnOnce() -> String) {
        self.wrong.get_or_insert_with(text);
    }

    /// Checks that all answers so far were as specified.
    ///
    /// # Errors
    /// The first answer that was not as specified.
    pub fn verdict(&self) -> Result<(), String> {
        self.wrong.clone().map_or(Ok(()), Err)
    }

    /// Whether no connection is left.
    pub fn is_empty(&self) -> bool {
        self.crafted.len() == 0
    }

    /// Handles a frame of the victim.
    pub fn on_frame(&mut self, frame: &[u8]) {
        let Some(number) = self.crafted.addressee(frame) else { return };
        let before = self.crafted.get(number).stage;
        self.crafted.on_frame(frame);
        let after = self.crafted.get(number).stage;
        if after == before {
            return;
        }
        if after == Stage::Ready {
            self.ready.push(number);
        } else if after == Stage::Over
            && let Some(mut peer) = self.crafted.leave(number)
        {
            // The peer may still have to acknowledge a FIN.
            while let Some(frame) = peer.frame() {
                self.crafted.queue_last(frame);
            }
            self.ended.push(ended(number, &peer));
        }
    }
}

/// Returns what a peer has received, by its inbox.
fn ended(number: u32, peer: &CraftedPeer) -> Ended {
    let connected = peer.inbox.len() >= REPLY;
    let mut ended = Ended { number, connected, terminates: Vec::new(), others: (0, 0), reset: peer.reset };
    let mut rest = peer.inbox.get(REPLY..).unwrap_or_default();
    while let Some(length) = rest.first_chunk::<LENGTH>() {
        let ulpdu = usize::from(u16::from_be_bytes(*length));
        let whole = (LENGTH + ulpdu).next_multiple_of(4) + CRC;
        let Some(fpdu) = rest.get(..whole) else { break };
        rest = &rest[whole..];
        let ulpdu = &fpdu[LENGTH..LENGTH + ulpdu];
        let payload = ulpdu.get(UNTAGGED..).filter(|_| ulpdu[..2] == [0x41, 0x47]);
        match payload.and_then(|payload| Terminate::parse(payload).ok()) {
            Some(Terminate { layer, etype, code, .. }) => ended.terminates.push((layer, etype, code)),
            None => ended.others = (ended.others.0 + 1, ended.others.1 + ulpdu.len() as u64),
        }
    }
    ended
}
