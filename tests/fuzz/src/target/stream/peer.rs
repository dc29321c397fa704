//! The peer of the stream. The peer frames most of its messages with valid CRC, markers and ULPDU length, and
//! derives the fields of DDP and RDMAP from the current state of the stream.

use iwarp::memory::Stag;
use iwarp::mpa::Framer;
use iwarp::rdmap::{AtomicOp, AtomicRequest, AtomicResponse, ReadRequest, Terminate, TerminateError};
use iwarp::verbs::RemoteAddr;

use super::super::rig::raw::fpdu;
use super::memory::Memory;
use crate::input::Input;

/// Number of ULPDUs that are remembered.
const REMEMBERED: usize = 16;

/// The state of the direction in which the peer sends, and what the peer received.
pub(super) struct Peer {
    pub(super) framer: Framer,
    /// The next MSN of each queue.
    msn: [u32; 4],
    /// Offset of the next segment in the current message. The message's queue or STag is in the last ULPDU.
    offset: u32,
    ulpdus: Vec<Vec<u8>>,
    /// The engine's Reads that the peer has not answered: sink STag, tagged offset, number of bytes.
    pub(super) reads: Vec<(u32, u64, u32)>,
    /// Request Identifiers of the outstanding atomics.
    pub(super) atomics: Vec<u32>,
}

/// Returns an untagged header.
fn untagged(opcode: u8, invalidate: u32, [qn, msn, mo]: [u32; 3], last: bool) -> Vec<u8> {
    let mut ulpdu = vec![if last { 0x41 } else { 0x01 }, 0x40 | opcode];
    ulpdu.extend(invalidate.to_be_bytes());
    [qn, msn, mo].iter().for_each(|word| ulpdu.extend(word.to_be_bytes()));
    ulpdu
}

fn tagged(opcode: u8, name: RemoteAddr, last: bool) -> Vec<u8> {
    let mut ulpdu = vec![if last { 0xc1 } else { 0x81 }, 0x40 | opcode];
    ulpdu.extend(name.rkey.to_be_bytes());
    ulpdu.extend(name.addr.to_be_bytes());
    ulpdu
}

impl Peer {
    pub(super) fn new(framer: Framer) -> Self {
        Self { framer, msn: [1; 4], offset: 0, ulpdus: Vec::new(), reads: Vec::new(), atomics: Vec::new() }
    }

    /// Returns an FPDU with fields chosen by the input.
    pub(super) fn fpdu(&mut self, input: &mut Input<'_>, memory: &Memory) -> Vec<u8> {
        let mut ulpdu = self.ulpdu(input, memory);
        if input.one_in(3) {
            for _ in 0..1 + input.below(3) {
                let (at, byte) = (input.below(56), input.u8());
                if let Some(place) = ulpdu.get_mut(at) {
                    *place = byte;
                }
            }
        }
        if self.ulpdus.len() == REMEMBERED {
            self.ulpdus.remove(0);
        }
        self.ulpdus.push(ulpdu.clone());
        let mut bytes = fpdu(&mut self.framer, &ulpdu);
        if input.one_in(40) {
            // MPA has to detect this error: a wrong CRC, marker or length.
            let at = input.below(bytes.len());
            bytes[at] ^= 1 << input.below(8);
        }
        bytes
    }

    /// Returns the last ULPDU of the peer.
    pub(super) fn last_ulpdu(&self) -> &[u8] {
        self.ulpdus.last().map_or(&[], |ulpdu| ulpdu)
    }

    fn name(&self, input: &mut Input<'_>, memory: &Memory) -> RemoteAddr {
        let name = memory.name(input.below(7));
        RemoteAddr { addr: name.addr.wrapping_add(input.delta() as u64), ..name }
    }

    fn ulpdu(&mut self, input: &mut Input<'_>, memory: &Memory) -> Vec<u8> {
        let last = !input.one_in(4);
        match input.below(14) {
            0..=2 => {
                let mut ulpdu = tagged(0, self.name(input, memory), last);
                self.payload(input, &mut ulpdu);
                ulpdu
            }
            3 | 4 => self.response(input, memory),
            5 | 6 => {
                let opcode = input.pick(&[3, 5, 4, 6]);
                let stag = memory.name(input.below(7)).rkey;
                let mut ulpdu = untagged(opcode, stag, [0, self.next(0, last), 0], last);
                self.payload(input, &mut ulpdu);
                ulpdu
            }
            7 => {
                let mut ulpdu = untagged(input.pick(&[8, 9]), 0, [0, self.next(0, true), 0], true);
                ulpdu.extend(input.u64().to_be_bytes());
                ulpdu
            }
            8 => {
                let (sink, source) = (self.name(input, memory), self.name(input, memory));
                let request = ReadRequest {
                    sink_stag: Stag(sink.rkey),
                    sink_to: sink.addr,
                    size: input.size(),
                    source_stag: Stag(source.rkey),
                    source_to: source.addr,
                };
                let header = untagged(1, 0, [1, self.next(1, true), 0], true);
                [&header[..], &request.to_bytes()].concat()
            }
            9 => {
                let name = self.name(input, memory);
                let op = match input.below(3) {
                    0 => AtomicOp::FetchAdd { add: input.u64(), mask: input.u64() },
                    1 => AtomicOp::Swap { swap: input.u64() },
                    _ => {
                        AtomicOp::CmpSwap { compare: input.u64(), compare_mask: 0xff, swap: 1, swap_mask: !0 }
                    }
                };
                let addr = if input.one_in(4) { name.addr } else { name.addr & !7 };
                let request = AtomicRequest { id: input.u32(), stag: Stag(name.rkey), to: addr, op };
                let header = untagged(10, 0, [1, self.next(1, true), 0], true);
                [&header[..], &request.to_bytes()].concat()
            }
            10 => {
                let id = self.atomics.first().copied().unwrap_or_else(|| input.u32());
                let response = AtomicResponse { id, original: input.u64() };
                if !input.one_in(4) && !self.atomics.is_empty() {
                    self.atomics.remove(0);
                }
                let header = untagged(11, 0, [3, self.next(3, true), 0], true);
                [&header[..], &response.to_bytes()].concat()
            }
            11 => self.more(input, 0, last),
            12 => match input.below(6) {
                0 => input.bytes(60).to_vec(),
                // This Atomic Response is unsolicited.
                1 => {
                    let response = AtomicResponse { id: input.u32(), original: input.u64() };
                    let header = untagged(11, 0, [3, self.next(3, true), 0], true);
                    [&header[..], &response.to_bytes()].concat()
                }
                // Leaves a gap, or repeats bytes.
                2 => {
                    let apart = input.delta() as u32;
                    self.more(input, apart, last)
                }
                // This Read Response is unsolicited, too early, or for another part of the sink.
                3 => {
                    let asked = self.reads.last().map(|&(rkey, addr, _)| RemoteAddr { addr, rkey });
                    let name = asked.filter(|_| input.one_in(2));
                    let mut ulpdu = tagged(2, name.unwrap_or_else(|| self.name(input, memory)), last);
                    self.payload(input, &mut ulpdu);
                    ulpdu
                }
                4 => {
                    let error = input.pick(TerminateError::ALL);
                    let back = input.below(REMEMBERED);
                    let of = self.ulpdus.iter().rev().nth(back).map_or(&[][..], |ulpdu| &ulpdu[..]);
                    let terminate = Terminate::of_segment(error, of, of.len(), None);
                    [&untagged(7, 0, [2, 1, 0], true)[..], &terminate.to_bytes()].concat()
                }
                _ => {
                    let mut ulpdu = untagged(7, 0, [2, 1, 0], true);
                    ulpdu.extend(input.bytes(60));
                    ulpdu
                }
            },
            _ => {
                let back = input.below(REMEMBERED);
                self.ulpdus.iter().rev().nth(back).cloned().unwrap_or_default()
            }
        }
    }

    /// Returns the MSN of the current message of a queue. If `last`, the message ends with this segment.
    fn next(&mut self, queue: usize, last: bool) -> u32 {
        let msn = self.msn[queue];
        self.msn[queue] = msn.wrapping_add(u32::from(last));
        self.offset = 0;
        msn
    }

    fn payload(&mut self, input: &mut Input<'_>, ulpdu: &mut Vec<u8>) {
        let bytes = input.size() as usize % 1400;
        self.offset = bytes as u32;
        ulpdu.resize(ulpdu.len() + bytes, 0xee);
    }

    /// Returns a Read Response into the sink of an outstanding Read, or elsewhere.
    fn response(&mut self, input: &mut Input<'_>, memory: &Memory) -> Vec<u8> {
        let Some(&(rkey, addr, bytes)) = self.reads.first() else {
            let mut ulpdu = tagged(2, self.name(input, memory), true);
            self.payload(input, &mut ulpdu);
            return ulpdu;
        };
        let whole = !input.one_in(3);
        let now = if whole { bytes } else { input.below(bytes as usize + 2) as u32 };
        let mut ulpdu = tagged(2, RemoteAddr { addr, rkey }, now >= bytes);
        ulpdu.resize(ulpdu.len() + (now as usize).min(1400), 0xdd);
        if now >= bytes {
            self.reads.remove(0);
        } else {
            self.reads[0] = (rkey, addr + u64::from(now), bytes - now);
        }
        ulpdu
    }

    /// Returns the next segment of the latest message, `apart` bytes from its regular offset. Returns no
    /// bytes if there is no message.
    fn more(&mut self, input: &mut Input<'_>, apart: u32, last: bool) -> Vec<u8> {
        let Some(before) = self.ulpdus.last().filter(|ulpdu| ulpdu.len() >= 18) else { return Vec::new() };
        let offset = self.offset.wrapping_add(apart);
        let mut ulpdu = before[..if before[0] & 0x80 != 0 { 14 } else { 18 }].to_vec();
        ulpdu[0] = ulpdu[0] & !0x40 | u8::from(last) << 6;
        if ulpdu.len() == 14 {
            let to = u64::from_be_bytes(*ulpdu[6..].first_chunk().expect("eight bytes"));
            ulpdu[6..].copy_from_slice(&to.wrapping_add(offset as i32 as u64).to_be_bytes());
            self.payload(input, &mut ulpdu);
        } else {
            let mo = u32::from_be_bytes(*ulpdu[14..].first_chunk().expect("four bytes"));
            ulpdu[14..].copy_from_slice(&mo.wrapping_add(offset).to_be_bytes());
            if last && ulpdu[9] == 0 {
                self.msn[0] = self.msn[0].wrapping_add(1);
            }
            self.payload(input, &mut ulpdu);
        }
        ulpdu
    }
}
