//! A peer without a stack. This module builds its TCP and MPA by hand, so that the peer can do what no stack
//! would do.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4};

use iwarp::mpa::Framer;

use super::segment::{Segment, syn_options};
use super::victim::{PORT, VICTIM};
use testkit::packet::{Tcp, flag};

/// The progress of a crafted peer's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The SYN was sent, or is about to be sent.
    Syn,
    /// TCP is established. The Request has not been sent or not been answered.
    Tcp,
    /// The Reply has arrived, and the first FPDU was sent, so any FPDU may follow.
    Ready,
    /// A FIN or a RST has arrived.
    Over,
}

/// The automatic behaviour of a crafted peer.
#[derive(Clone, Copy, Debug)]
pub struct PeerOptions {
    /// The maximum segment size that the peer announces.
    pub mss: u16,
    /// Whether the peer offers SACK and window scaling (for large windows).
    pub large: bool,
    /// The window field of all segments after the SYN, not scaled.
    pub window: u16,
    /// Whether the peer starts MPA by itself.
    pub mpa: bool,
    /// Whether the peer acknowledges received bytes.
    pub acknowledges: bool,
    /// Whether the peer answers a FIN with its own FIN.
    pub closes: bool,
}

impl Default for PeerOptions {
    fn default() -> Self {
        Self { mss: 1460, large: true, window: 0xffff, mpa: true, acknowledges: true, closes: true }
    }
}

/// A crafted peer.
pub struct CraftedPeer {
    options: PeerOptions,
    macs: [[u8; 6]; 2],
    /// Address and port of this peer.
    pub here: SocketAddrV4,
    /// Initial sequence number.
    iss: u32,
    /// SND.NXT.
    pub nxt: u32,
    /// RCV.NXT.
    pub heard: u32,
    /// Initial sequence number of the victim.
    pub irs: u32,
    /// The progress of the connection.
    pub stage: Stage,
    /// The bytes of the victim's stream that have arrived, in order.
    pub inbox: Vec<u8>,
    /// Whether the connection was reset.
    pub reset: bool,
    /// The latest acknowledgement number that the victim sent.
    pub acknowledged: u32,
    /// Number of bare ACKs received.
    pub acks: u64,
    framer: Framer,
    out: VecDeque<Vec<u8>>,
}

/// Returns the peer's MPA Request of revision 2: with CRC, without the peer-to-peer model, with depths of 8
/// and 8.
pub fn request() -> Vec<u8> {
    let mut bytes = b"MPA ID Req Frame".to_vec();
    bytes.extend([0x50, 2, 0, 4, 0, 8, 0, 8]);
    bytes
}

/// Length in bytes of the Reply to [`request`].
pub const REPLY: usize = 24;

/// Returns the ULPDU of a Write to `stag`.
pub fn write(stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    [&[0xc1, 0x40][..], &stag.to_be_bytes(), &to.to_be_bytes(), payload].concat()
}

/// Returns the ULPDU of an untagged message of one segment.
pub fn untagged(control: u8, qn: u32, msn: u32, payload: &[u8]) -> Vec<u8> {
    let numbers = [qn, msn, 0].map(u32::to_be_bytes).concat();
    [&[0x41, control, 0, 0, 0, 0][..], &numbers, payload].concat()
}

/// Returns the ULPDU of a Read Request for `size` bytes.
pub fn read(msn: u32, size: u32, stag: u32, to: u64) -> Vec<u8> {
    let sink = [0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0];
    let payload = [&sink[..], &size.to_be_bytes(), &stag.to_be_bytes(), &to.to_be_bytes()].concat();
    untagged(0x41, 1, msn, &payload)
}

/// Returns the address and port of the peer with this number: an address behind the router, and a port of its
/// own.
pub fn place(number: u32) -> SocketAddrV4 {
    let [.., high, low] = (number / 50_000).to_be_bytes();
    SocketAddrV4::new(Ipv4Addr::new(198, 18, high, low), 10_000 + (number % 50_000) as u16)
}

impl CraftedPeer {
    /// Returns a peer whose SYN is about to be sent. `macs` are the addresses of the peer's router and of the
    /// victim.
    pub fn new(macs: [[u8; 6]; 2], here: SocketAddrV4, options: PeerOptions) -> Self {
        let iss = u32::from(here.port()).wrapping_mul(0x9e37_79b9);
        let mut peer = Self {
            options,
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
        peer.nxt = iss.wrapping_add(1);
        let syn = peer.syn();
        peer.out.push_back(syn);
        peer
    }

    /// Returns the SYN of this peer.
    pub fn syn(&self) -> Vec<u8> {
        let options = syn_options(self.options.mss, self.options.large.then_some(7));
        let syn = Segment { seq: self.iss, flags: flag::SYN, ack: None, window: 0xffff, ..self.blank() };
        Segment { options: &options, ..syn }.frame(self.macs)
    }

    /// Returns a bare ACK with the current sequence and acknowledgement numbers.
    fn blank(&self) -> Segment<'static> {
        Segment {
            from: self.here,
            to: SocketAddrV4::new(VICTIM, PORT),
            seq: self.nxt,
            ack: Some(self.heard),
            flags: 0,
            window: self.options.window,
            options: &[],
            payload: &[],
        }
    }

    /// Returns a bare ACK that `change` has changed.
    pub fn segment(&self, change: impl FnOnce(&mut Segment<'static>)) -> Vec<u8> {
        let mut segment = self.blank();
        change(&mut segment);
        segment.frame(self.macs)
    }

    /// Returns a bare ACK of the bytes before `ack`, with at most four SACK blocks.
    pub fn sack(&self, ack: u32, blocks: &[(u32, u32)]) -> Vec<u8> {
        let mut options = vec![1, 1, 5, 2 + 8 * blocks.len() as u8];
        for (start, end) in blocks {
            options.extend(start.to_be_bytes());
            options.extend(end.to_be_bytes());
        }
        Segment { ack: Some(ack), options: &options, ..self.blank() }.frame(self.macs)
    }

    /// Returns a segment with `payload` at `seq`, which need not be the next position of the stream.
    pub fn data(&self, seq: u32, payload: &[u8]) -> Vec<u8> {
        Segment { seq, payload, ..self.blank() }.frame(self.macs)
    }

    /// Returns a segment with the next bytes of the stream.
    pub fn send_data(&mut self, bytes: &[u8]) -> Vec<u8> {
        let frame = self.data(self.nxt, bytes);
        self.nxt = self.nxt.wrapping_add(bytes.len() as u32);
        frame
    }

    /// Returns the next FPDU, with this ULPDU.
    pub fn fpdu(&mut self, ulpdu: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; self.framer.wire_len(ulpdu.len())];
        self.framer.frame(&mut bytes, ulpdu);
        bytes
    }

    /// Sets the window that the peer offers from now on.
    pub fn set_window(&mut self, window: u16) {
        self.options.window = window;
    }

    /// Sets whether the peer acknowledges received bytes.
    pub fn set_acknowledges(&mut self, acknowledges: bool) {
        self.options.acknowledges = acknowledges;
    }

    /// Removes and returns the first queued frame.
    pub fn frame(&mut self) -> Option<Vec<u8>> {
        self.out.pop_front()
    }

    /// Queues a frame behind the frames that are already queued.
    pub fn queue(&mut self, frame: Vec<u8>) {
        self.out.push_back(frame);
    }

    /// Handles a segment of the victim.
    pub fn on_frame(&mut self, frame: &[u8], tcp: &Tcp) {
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
                if self.options.mpa {
                    let request = self.send_data(&request());
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
            // The segment is a probe, which a live peer answers.
            if self.options.acknowledges {
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
        if news && self.options.acknowledges {
            let ack = self.segment(|ack| ack.flags |= if fin && self.options.closes { flag::FIN } else { 0 });
            self.out.push_back(ack);
        }
        if fin {
            self.stage = Stage::Over;
        } else if self.stage == Stage::Tcp && self.options.mpa && self.inbox.len() >= REPLY {
            let ready = self.fpdu(&write(0, 0, &[]));
            let ready = self.send_data(&ready);
            self.out.push_back(ready);
            self.stage = Stage::Ready;
        }
    }

    /// Returns the initial sequence number, which the SYN has.
    pub fn iss(&self) -> u32 {
        self.iss
    }
}
