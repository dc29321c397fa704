//! The stack under test and its clock. This module passes frames to the stack, and reports the stack's frames
//! and events in the script's notation.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::net::SocketAddr;

use dp::{Burst, Mempool};
use tcp_lite::{CloseReason, ConnId, Event, Instant, Stack};

use crate::peer::Peer;
use crate::segment::Segment;
use crate::settings::Settings;
use crate::wire::{self, Raw};

/// The stack's time when the script begins, in microseconds.
const START_US: u64 = 1_000_000;
/// Maximum number of polls at one time.
const POLLS_AT_ONCE: u32 = 100;

/// A segment that was sent.
pub(crate) struct Sent {
    pub(crate) at_us: u64,
    pub(crate) peer: u8,
    pub(crate) segment: Segment,
}

/// An event that no line has matched yet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The text of the event in the script's notation.
    Plain(String),
    Received {
        from: u64,
        to: u64,
        ahead: bool,
    },
}

/// The stack under test.
pub(crate) struct Machine {
    pub(crate) stack: Stack,
    pub(crate) settings: Settings,
    pub(crate) now_us: u64,
    pub(crate) peers: BTreeMap<u8, Peer>,
    /// Sent segments that no line has matched yet.
    pub(crate) sent: VecDeque<Sent>,
    pub(crate) seen: Vec<(u8, Seen)>,
    pub(crate) transcript: String,
    pool: Mempool,
}

impl Machine {
    pub(crate) fn new(settings: Settings) -> Result<Self, String> {
        let pool = Mempool::heap("scripts", 2048, usize::from(settings.stack.mtu).max(2048));
        let mut machine = Self {
            stack: Stack::new(settings.stack.clone(), pool.clone()),
            settings,
            now_us: 0,
            peers: BTreeMap::new(),
            sent: VecDeque::new(),
            seen: Vec::new(),
            transcript: String::new(),
            pool,
        };
        // The stack knows the peer's Ethernet address from the start, since scripts are about TCP.
        machine.arrives(&wire::neighbor(&machine.settings.addresses))?;
        Ok(machine)
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::from_micros((START_US + self.now_us) as i64)
    }

    pub(crate) fn peer(&mut self, number: u8) -> &mut Peer {
        let isn = self.settings.peer_isn;
        self.peers.entry(number).or_insert_with(|| Peer::new(number, isn))
    }

    pub(crate) fn conn(&mut self, peer: u8) -> Result<ConnId, String> {
        self.peer(peer).conn.ok_or_else(|| "there is no connection".to_owned())
    }

    pub(crate) fn remote(&mut self, peer: u8) -> SocketAddr {
        let port = self.peer(peer).port;
        SocketAddr::new(self.settings.addresses.peers.into(), port)
    }

    pub(crate) fn note(&mut self, text: impl std::fmt::Display) {
        let seconds = self.now_us as f64 / 1e6;
        let _ = writeln!(self.transcript, "  {seconds:.6} {text}");
    }

    /// Advances the time to `until_us`. If not `inclusive`, timers that are due at `until_us` do not run,
    /// because an arrival at this time may precede them. Stops when a segment was sent.
    pub(crate) fn run_to(&mut self, until_us: u64, inclusive: bool) -> Result<(), String> {
        let mut polls = 0;
        while self.sent.is_empty() {
            let deadline = self.stack.next_deadline(self.now());
            let Some(due_us) = deadline.map(|at| (at.total_micros() as u64).saturating_sub(START_US)) else {
                break;
            };
            let due_us = due_us.max(self.now_us);
            if due_us > until_us || due_us == until_us && !inclusive {
                break;
            }
            polls = if due_us == self.now_us { polls + 1 } else { 0 };
            if polls > POLLS_AT_ONCE {
                return Err("the stack requests polls for ever".into());
            }
            self.now_us = due_us;
            self.poll()?;
        }
        if self.sent.is_empty() {
            self.now_us = self.now_us.max(until_us);
        }
        Ok(())
    }

    /// Passes an arriving frame to the stack, and polls the stack.
    pub(crate) fn arrives(&mut self, frame: &[u8]) -> Result<(), String> {
        let mut buf = self.pool.alloc().ok_or("no buffer")?;
        if !buf.append_slice(frame) {
            return Err("the frame does not fit its buffer".into());
        }
        self.stack.input(self.now(), buf);
        self.poll()
    }

    /// Runs timers, handles events, and transmits.
    pub(crate) fn poll(&mut self) -> Result<(), String> {
        let now = self.now();
        self.stack.poll(now);
        self.take_events()?;
        let mut out = Burst::new();
        loop {
            let more = self.stack.transmit(now, &mut out);
            let frames: Vec<Vec<u8>> =
                out.drain(..).map(|frame| frame.segments().flatten().copied().collect()).collect();
            for frame in &frames {
                self.leaves(frame)?;
            }
            if !more {
                return Ok(());
            }
        }
    }

    fn leaves(&mut self, frame: &[u8]) -> Result<(), String> {
        let Some(raw) = Raw::parse(frame, &self.settings.addresses) else {
            if wire::asks_for_neighbor(frame) {
                let answer = wire::neighbor_answer(&self.settings.addresses);
                self.arrives(&answer)?;
            } else if !wire::is_discovery(frame) {
                return Err(format!("a frame that is no TCP was sent: {frame:02x?}"));
            }
            return Ok(());
        };
        let raw = raw?;
        let (number, now_us) = (Peer::number(raw.dst_port), self.now_us);
        let segment = self.peer(number).read(&raw, &frame[14..], now_us);
        let segment = segment.map_err(|reason| format!("{raw:?}: {reason}"))?;
        self.note(format_args!("{} {segment}", arrow('>', number)));
        self.sent.push_back(Sent { at_us: self.now_us, peer: number, segment });
        Ok(())
    }

    fn take_events(&mut self) -> Result<(), String> {
        while let Some(event) = self.stack.event() {
            let (conn, seen) = match event {
                Event::Established { conn, listener } => {
                    if listener.is_some() {
                        let remote = self.stack.info(conn).ok_or("established, and no connection")?.remote;
                        self.peer(Peer::number(remote.port())).conn = Some(conn);
                    }
                    (conn, Seen::Plain("established".into()))
                }
                Event::Evict { conn, bytes } => (conn, Seen::Plain(format!("evict {bytes}"))),
                Event::Writable { conn } => (conn, Seen::Plain("writable".into())),
                Event::Acknowledged { conn } => (conn, Seen::Plain("acknowledged".into())),
                Event::PeerClosed { conn } => (conn, Seen::Plain("peer-closed".into())),
                Event::AddressConflict { address, mac, .. } => {
                    return Err(format!("{mac} uses {address}, too"));
                }
                Event::Datagram => return Err("a datagram arrived, and no UDP port is open".into()),
                Event::Closed { conn, reason } => (conn, Seen::Plain(format!("closed {}", name(reason)))),
                Event::Received { conn, received } => {
                    let bytes: Vec<u8> = received.buf.segments().flatten().copied().collect();
                    if bytes != crate::peer::bytes(received.offset, bytes.len()) {
                        return Err(format!("bytes at {} are not those that arrived", received.offset));
                    }
                    let (from, to) = (received.offset, received.offset + bytes.len() as u64);
                    let ahead = received.offset >= received.frontier;
                    if ahead && self.settings.releases {
                        self.stack.release(conn, bytes.len());
                    }
                    (conn, Seen::Received { from, to, ahead })
                }
            };
            let peer = self.peers.iter().find(|(_, peer)| peer.conn == Some(conn));
            let number = peer.map(|(number, _)| *number).ok_or("an event of no known connection")?;
            self.note(format_args!("event@{number} {seen:?}"));
            self.seen.push((number, seen));
        }
        Ok(())
    }
}

/// Returns the arrow of a line in the script's notation, for example `>` for the first peer and `>@2` for the
/// second peer.
pub(crate) fn arrow(arrow: char, peer: u8) -> String {
    if peer == 1 { arrow.to_string() } else { format!("{arrow}@{peer}") }
}

fn name(reason: CloseReason) -> &'static str {
    match reason {
        CloseReason::Graceful => "graceful",
        CloseReason::Reset => "reset",
        CloseReason::Refused => "refused",
        CloseReason::TimedOut => "timed-out",
        CloseReason::LinkDown => "link-down",
        CloseReason::PortGone => "port-gone",
        CloseReason::NoNeighbor => "no-neighbor",
        CloseReason::Unreachable => "unreachable",
        CloseReason::AddressLost => "address-lost",
        CloseReason::Aborted => "aborted",
        other => panic!("no name for {other:?}"),
    }
}
