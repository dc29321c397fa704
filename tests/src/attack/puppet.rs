//! A peer without a stack: its TCP and MPA are made by hand, so that it may do what none would do.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4};

use iwarp::mpa::Framer;

use super::segment::{Segment, syn_options};
use super::victim::{PORT, VICTIM};
use crate::sim::packet::{Tcp, flag};

/// How far a puppet has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Its SYN was sent, or is about to be.
    Syn,
    /// TCP is established; the Request has not been asked for, or not been answered.
    Tcp,
    /// The Reply is here, and the first FPDU was sent: everything may be said.
    Ready,
    /// A FIN or a RST was heard.
    Over,
}

/// What it does by itself.
#[derive(Clone, Copy, Debug)]
pub struct Manners {
    /// The maximum segment size it names.
    pub mss: u16,
    /// It scales windows, so that they may be large, and knows SACK.
    pub large: bool,
    /// The window it offers from the third segment on, not scaled.
    pub window: u16,
    /// It goes on with MPA by itself.
    pub mpa: bool,
    /// It acknowledges what it hears.
    pub acknowledges: bool,
    /// It answers a FIN with its own.
    pub closes: bool,
}

impl Default for Manners {
    fn default() -> Self {
        Self { mss: 1460, large: true, window: 0xffff, mpa: true, acknowledges: true, closes: true }
    }
}

/// The peer.
pub struct Puppet {
    manners: Manners,
    macs: [[u8; 6]; 2],
    /// Its own endpoint.
    pub here: SocketAddrV4,
    /// The first sequence number.
    iss: u32,
    /// The next one to send.
    pub nxt: u32,
    /// The next one to hear.
    pub heard: u32,
    /// The first one heard.
    pub irs: u32,
    /// Where it stands.
    pub stage: Stage,
    /// Bytes of the victim's stream, in order.
    pub inbox: Vec<u8>,
    /// It was reset.
    pub reset: bool,
    /// The latest acknowledgement.
    pub acknowledged: u32,
    /// Bare ACKs it has heard.
    pub acks: u64,
    framer: Framer,
    out: VecDeque<Vec<u8>>,
}

/// The Request of revision 2 that a puppet sends: CRC, no peer-to-peer, depths of 8 and 8.
pub fn request() -> Vec<u8> {
    let mut bytes = b"MPA ID Req Frame".to_vec();
    bytes.extend([0x50, 2, 0, 4, 0, 8, 0, 8]);
    bytes
}

/// Bytes of the Reply to it.
pub const REPLY: usize = 24;

/// A Write to `stag`.
pub fn write(stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    [&[0xc1, 0x40][..], &stag.to_be_bytes(), &to.to_be_bytes(), payload].concat()
}

/// An untagged message of one segment.
pub fn untagged(control: u8, qn: u32, msn: u32, payload: &[u8]) -> Vec<u8> {
    let numbers = [qn, msn, 0].map(u32::to_be_bytes).concat();
    [&[0x41, control, 0, 0, 0, 0][..], &numbers, payload].concat()
}

/// A Read Request for `size` bytes.
pub fn read(msn: u32, size: u32, stag: u32, to: u64) -> Vec<u8> {
    let sink = [0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0];
    let payload = [&sink[..], &size.to_be_bytes(), &stag.to_be_bytes(), &to.to_be_bytes()].concat();
    untagged(0x41, 1, msn, &payload)
}

/// Where the puppet of this number is: addresses behind the router, a port of its own.
pub fn place(number: u32) -> SocketAddrV4 {
    let [.., high, low] = (number / 50_000).to_be_bytes();
    SocketAddrV4::new(Ipv4Addr::new(198, 18, high, low), 10_000 + (number % 50_000) as u16)
}

impl Puppet {
    /// A puppet whose SYN is about to be sent. `macs` are its router's and the victim's.
    pub fn new(macs: [[u8; 6]; 2], here: SocketAddrV4, manners: Manners) -> Self {
        let iss = u32::from(here.port()).wrapping_mul(0x9e37_79b9);
        let mut puppet = Self {
            manners,
            macs,
            here,
            iss,
            nxt: iss,
            heard: 0,
            irs: 0,
            stage: Stage::Syn,
            inbox: Vec::new(),
            reset: false,
            acknowledged: iss,
            acks: 0,
            framer: Framer::new(false, true),
            out: VecDeque::new(),
        };
        puppet.nxt = iss.wrapping_add(1);
        let syn = puppet.syn();
        puppet.out.push_back(syn);
        puppet
    }

    /// Its SYN.
    pub fn syn(&self) -> Vec<u8> {
        let options = syn_options(self.manners.mss, self.manners.large.then_some(7));
        let syn = Segment { seq: self.iss, flags: flag::SYN, ack: None, window: 0xffff, ..self.blank() };
        Segment { options: &options, ..syn }.frame(self.macs)
    }

    /// A bare ACK as it would be now.
    fn blank(&self) -> Segment<'static> {
        Segment {
            from: self.here,
            to: SocketAddrV4::new(VICTIM, PORT),
            seq: self.nxt,
            ack: Some(self.heard),
            flags: 0,
            window: self.manners.window,
            options: &[],
            payload: &[],
        }
    }

    /// A bare ACK, changed.
    pub fn segment(&self, change: impl FnOnce(&mut Segment<'static>)) -> Vec<u8> {
        let mut segment = self.blank();
        change(&mut segment);
        segment.frame(self.macs)
    }

    /// Bytes at `seq`, wherever the stream stands.
    pub fn data(&self, seq: u32, payload: &[u8]) -> Vec<u8> {
        Segment { seq, payload, ..self.blank() }.frame(self.macs)
    }

    /// The next bytes of the stream, in one segment.
    pub fn say(&mut self, bytes: &[u8]) -> Vec<u8> {
        let frame = self.data(self.nxt, bytes);
        self.nxt = self.nxt.wrapping_add(bytes.len() as u32);
        frame
    }

    /// A ULPDU as the next FPDU's bytes.
    pub fn fpdu(&mut self, ulpdu: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; self.framer.wire_len(ulpdu.len())];
        self.framer.frame(&mut bytes, ulpdu);
        bytes
    }

    /// Has it offer another window from now on.
    pub fn set_window(&mut self, window: u16) {
        self.manners.window = window;
    }

    /// Stops or begins to acknowledge.
    pub fn set_acknowledges(&mut self, acknowledges: bool) {
        self.manners.acknowledges = acknowledges;
    }

    /// What it has to send by itself.
    pub fn frame(&mut self) -> Option<Vec<u8>> {
        self.out.pop_front()
    }

    /// A frame to be sent before anything new.
    pub fn queue(&mut self, frame: Vec<u8>) {
        self.out.push_back(frame);
    }

    /// The victim says something to it.
    pub fn hear(&mut self, frame: &[u8], tcp: &Tcp) {
        if tcp.has(flag::RST) {
            (self.reset, self.stage) = (true, Stage::Over);
            return;
        }
        if tcp.has(flag::ACK) && tcp.ack.wrapping_sub(self.acknowledged) as i32 > 0 {
            self.acknowledged = tcp.ack;
        }
        if tcp.has(flag::SYN) {
            if self.stage == Stage::Syn {
                (self.irs, self.heard) = (tcp.seq, tcp.seq.wrapping_add(1));
                self.stage = Stage::Tcp;
                let ack = self.segment(|_| {});
                self.out.push_back(ack);
                if self.manners.mpa {
                    let request = self.say(&request());
                    self.out.push_back(request);
                }
            }
            return;
        }
        self.acks += u64::from(tcp.is_empty() && !tcp.has(flag::FIN));
        let ahead = tcp.seq.wrapping_sub(self.heard) as i32;
        let known = ahead.min(0).unsigned_abs() as usize;
        if ahead > 0 {
            return;
        }
        if known > tcp.len() {
            // A probe: who is there says so.
            if self.manners.acknowledges {
                let ack = self.segment(|_| {});
                self.out.push_back(ack);
            }
            return;
        }
        let new = &frame[tcp.payload.clone()][known..];
        self.inbox.extend_from_slice(new);
        self.heard = self.heard.wrapping_add(new.len() as u32);
        let fin = tcp.has(flag::FIN) && self.stage != Stage::Over;
        let news = !new.is_empty() || fin;
        if fin {
            self.heard = self.heard.wrapping_add(1);
        }
        if news && self.manners.acknowledges {
            let ack = self.segment(|ack| ack.flags |= if fin && self.manners.closes { flag::FIN } else { 0 });
            self.out.push_back(ack);
        }
        if fin {
            self.stage = Stage::Over;
        } else if self.stage == Stage::Tcp && self.manners.mpa && self.inbox.len() >= REPLY {
            let ready = self.fpdu(&write(0, 0, &[]));
            let ready = self.say(&ready);
            self.out.push_back(ready);
            self.stage = Stage::Ready;
        }
    }

    /// The first sequence number, which the SYN had.
    pub fn iss(&self) -> u32 {
        self.iss
    }
}
