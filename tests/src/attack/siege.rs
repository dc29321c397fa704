//! Connections that are made, used up and made again, so many at a time, and what the victim said on each.

use std::collections::VecDeque;
use std::time::Duration;

use iwarp::rdmap::Terminate;

use super::arena::{Actor, Arena};
use super::check;
use super::puppet::{Manners, Puppet, REPLY, Stage};
use super::troupe::Troupe;

/// Bytes of an FPDU's length field, and of its CRC.
const LENGTH: usize = 2;
const CRC: usize = 4;
/// Bytes of an untagged DDP header.
const UNTAGGED: usize = 18;
/// After how long who is not answered asks again: who attacks, as often as the honest client has frames; who
/// waits for its last connection, less often.
const IMPATIENCE_US: u64 = 20;
const PATIENCE_US: u64 = 10_000;
/// How long the last connections may take.
const END: Duration = Duration::from_secs(15);

/// What a puppet heard until its connection ended.
#[derive(Debug)]
pub struct Ended {
    /// Its number.
    pub number: u32,
    /// It got as far as MPA.
    pub connected: bool,
    /// Layer, type and code of the Terminates.
    pub terminates: Vec<(u8, u8, u8)>,
    /// Other FPDUs, and bytes in them.
    pub others: (u64, u64),
    /// It was reset, and not closed.
    pub reset: bool,
}

/// So many connections at a time.
pub struct Siege {
    /// The puppets.
    pub troupe: Troupe,
    manners: Manners,
    size: usize,
    /// Who asks to connect, and since when it was not answered, microseconds.
    asking: VecDeque<(u32, u64)>,
    /// Who has just got ready.
    ready: Vec<u32>,
    ended: Vec<Ended>,
    /// Connections that were begun.
    pub begun: u64,
    /// Nobody begins any more.
    ending: bool,
    /// The first thing that was not as specified.
    wrong: Option<String>,
}

/// Somebody who lays siege.
pub trait Besieger: Actor {
    /// Its siege.
    fn siege(&mut self) -> &mut Siege;
}

/// Nobody begins any more, and those who are under way come to their end.
///
/// # Errors
/// When they do not, or when one was answered otherwise than it has to be.
pub fn lift<B: Besieger>(besieger: &mut B, arena: &mut Arena) -> Result<(), String> {
    besieger.siege().ending = true;
    let over = arena.alone(besieger, END, |_, besieger| besieger.siege().is_empty());
    check(over, || "a connection does not come to its end".into())?;
    besieger.siege().verdict()
}

impl Siege {
    /// `size` at a time.
    pub fn new(macs: [[u8; 6]; 2], size: usize, manners: Manners) -> Self {
        let troupe = Troupe::new(macs, 0);
        Self {
            troupe,
            manners,
            size,
            asking: VecDeque::new(),
            ready: Vec::new(),
            ended: Vec::new(),
            begun: 0,
            ending: false,
            wrong: None,
        }
    }

    /// What a connection has to send by itself; a new one is begun where there is room, and who is not
    /// answered asks again.
    pub fn frame(&mut self, now_us: u64) -> Option<Vec<u8>> {
        if let Some(frame) = self.troupe.frame() {
            return Some(frame);
        }
        if self.ending || self.troupe.len() >= self.size {
            return self.ask_again(now_us);
        }
        self.begun += 1;
        let number = self.troupe.join(self.manners);
        self.asking.push_back((number, now_us));
        self.troupe.frame()
    }

    /// The SYN of who has waited longest for an answer.
    fn ask_again(&mut self, now_us: u64) -> Option<Vec<u8>> {
        let impatience_us = if self.ending { PATIENCE_US } else { IMPATIENCE_US };
        while let Some((number, since_us)) = self.asking.front().copied() {
            if !self.troupe.asks(number) {
                self.asking.pop_front();
                continue;
            }
            if now_us < since_us + impatience_us {
                return None;
            }
            self.asking.pop_front();
            self.asking.push_back((number, now_us));
            return Some(self.troupe.get(number).syn());
        }
        None
    }

    /// Who may speak, each once.
    pub fn next_ready(&mut self) -> Option<u32> {
        self.ready.pop()
    }

    /// Who is over, each once.
    pub fn next_ended(&mut self) -> Option<Ended> {
        self.ended.pop()
    }

    /// Nobody begins any more.
    pub fn end(&mut self) {
        self.ending = true;
    }

    /// Something is not as specified.
    pub fn blame(&mut self, text: impl FnOnce() -> String) {
        self.wrong.get_or_insert_with(text);
    }

    /// How it stands.
    ///
    /// # Errors
    /// The first thing that was not as specified.
    pub fn verdict(&self) -> Result<(), String> {
        self.wrong.clone().map_or(Ok(()), Err)
    }

    /// Nobody is left.
    pub fn is_empty(&self) -> bool {
        self.troupe.len() == 0
    }

    /// A frame of the victim's.
    pub fn hear(&mut self, frame: &[u8]) {
        let Some(number) = self.troupe.addressee(frame) else { return };
        let before = self.troupe.get(number).stage;
        self.troupe.hear(frame);
        let after = self.troupe.get(number).stage;
        if after == before {
            return;
        }
        if after == Stage::Ready {
            self.ready.push(number);
        } else if after == Stage::Over
            && let Some(mut puppet) = self.troupe.leave(number)
        {
            // The acknowledgement of a FIN is still to be sent.
            while let Some(frame) = puppet.frame() {
                self.troupe.queue_last(frame);
            }
            self.ended.push(ended(number, &puppet));
        }
    }
}

/// What is in a puppet's inbox.
fn ended(number: u32, puppet: &Puppet) -> Ended {
    let connected = puppet.inbox.len() >= REPLY;
    let mut ended = Ended { number, connected, terminates: Vec::new(), others: (0, 0), reset: puppet.reset };
    let mut rest = puppet.inbox.get(REPLY..).unwrap_or_default();
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
