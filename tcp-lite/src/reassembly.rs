//! Reassembly of IPv6 fragments (RFC 8200 section 4.5), which smoltcp's interface does for IPv4 only.
//!
//! Part of the slow path: a few packets at a time, memory taken when the first fragment comes and kept.

use arrayvec::ArrayVec;

use crate::facade::{Duration, Instant, IpAddress};
use crate::ip::{IPV6_OCTETS, Ipv6Fragment};

/// Packets being put together at a time. When all are busy the oldest gives way.
const PACKETS: usize = 4;
/// Separate runs of octets that a packet may consist of on its way.
const RUNS: usize = 16;
/// Largest payload of an IPv6 packet.
const MAX_OCTETS: usize = 65_535;
/// How long the rest is waited for. Shorter than RFC 8200's 60 s: TCP has sent it again by then.
const TIMEOUT: Duration = Duration::from_secs(15);

/// What names a packet.
type Key = (IpAddress, IpAddress, u32);

struct Packet {
    key: Key,
    expires: Instant,
    next_header: u8,
    /// Fixed header, then the fragmentable part as far as it came.
    octets: Vec<u8>,
    /// Which octets of the fragmentable part are there; sorted, disjoint, not adjacent.
    runs: ArrayVec<(usize, usize), RUNS>,
    /// Its length, once the last fragment came.
    total: Option<usize>,
}

/// The packets under way.
#[derive(Default)]
pub(crate) struct Reassembly {
    packets: Vec<Packet>,
    /// Storage of finished packets, to use again.
    spare: Vec<Vec<u8>>,
    /// The packet finished last.
    whole: Vec<u8>,
}

impl Reassembly {
    /// One fragment: `packet` is the whole IPv6 packet that carries it. Returns the reassembled packet, extensions
    /// in front of the fragment header left out, when this was its last missing piece.
    pub(crate) fn add(
        &mut self,
        now: Instant,
        src: IpAddress,
        dst: IpAddress,
        fragment: &Ipv6Fragment,
        packet: &[u8],
    ) -> Option<&[u8]> {
        self.expire(now);
        let fixed = packet.first_chunk::<IPV6_OCTETS>()?;
        let piece = packet.get(fragment.header_octets..)?;
        let end = fragment.offset + piece.len();
        let odd = fragment.more && piece.len() % 8 != 0;
        if piece.is_empty() || odd || end > MAX_OCTETS {
            return None;
        }
        let key = (src, dst, fragment.identification);
        let at =
            self.packets.iter().position(|p| p.key == key).unwrap_or_else(|| self.start(now, key, fixed));
        let under_way = &mut self.packets[at];
        // Overlaps end the whole packet (RFC 5722), as does a length that contradicts what came before.
        let consistent = under_way.insert(fragment, end, piece);
        let complete = under_way.total.is_some_and(|total| under_way.runs.as_slice() == [(0, total)]);
        if consistent && !complete {
            return None;
        }
        let mut finished = self.packets.remove(at);
        if !consistent {
            self.spare.push(finished.octets);
            return None;
        }
        let payload = (finished.octets.len() - IPV6_OCTETS) as u16;
        finished.octets[4..6].copy_from_slice(&payload.to_be_bytes());
        finished.octets[6] = finished.next_header;
        self.spare.push(std::mem::replace(&mut self.whole, finished.octets));
        Some(&self.whole)
    }

    fn start(&mut self, now: Instant, key: Key, fixed: &[u8; IPV6_OCTETS]) -> usize {
        if self.packets.len() == PACKETS {
            let oldest = self.packets.remove(0);
            self.spare.push(oldest.octets);
        }
        let mut octets = self.spare.pop().unwrap_or_default();
        octets.clear();
        octets.extend_from_slice(fixed);
        let expires = now + TIMEOUT;
        let packet = Packet { key, expires, next_header: 0, octets, runs: ArrayVec::new(), total: None };
        self.packets.push(packet);
        self.packets.len() - 1
    }

    fn expire(&mut self, now: Instant) {
        while self.packets.first().is_some_and(|p| p.expires <= now) {
            let expired = self.packets.remove(0);
            self.spare.push(expired.octets);
        }
    }
}

impl Packet {
    /// Puts a piece in its place; `false` when it cannot be right.
    fn insert(&mut self, fragment: &Ipv6Fragment, end: usize, piece: &[u8]) -> bool {
        if fragment.offset == 0 {
            self.next_header = fragment.next_header;
        }
        let last = self.runs.last().map_or(0, |run| run.1);
        match self.total {
            Some(total) if end > total || (!fragment.more && end != total) => return false,
            None if !fragment.more && last > end => return false,
            None if !fragment.more => self.total = Some(end),
            _ => {}
        }
        let at = self.runs.partition_point(|run| run.1 <= fragment.offset);
        if self.runs.get(at).is_some_and(|run| run.0 < end) || !self.add_run(at, fragment.offset, end) {
            return false;
        }
        let needed = IPV6_OCTETS + end;
        if self.octets.len() < needed {
            self.octets.resize(needed, 0);
        }
        self.octets[IPV6_OCTETS + fragment.offset..needed].copy_from_slice(piece);
        true
    }

    /// Adds a run that overlaps none, in front of run `at`, and joins it with its neighbours.
    fn add_run(&mut self, at: usize, start: usize, end: usize) -> bool {
        let joins_previous = at > 0 && self.runs[at - 1].1 == start;
        let joins_next = self.runs.get(at).is_some_and(|run| run.0 == end);
        match (joins_previous, joins_next) {
            (true, true) => {
                self.runs[at - 1].1 = self.runs[at].1;
                self.runs.remove(at);
            }
            (true, false) => self.runs[at - 1].1 = end,
            (false, true) => self.runs[at].0 = start,
            (false, false) if self.runs.is_full() => return false,
            (false, false) => self.runs.insert(at, (start, end)),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ip::{Upper, parse_ipv6};

    const A: IpAddress = IpAddress::Ipv6(crate::facade::Ipv6Address::new(1, 0, 0, 0, 0, 0, 0, 1));

    /// A fragment packet as on the wire.
    fn wire(offset: usize, more: bool, piece: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, 0, 44, 64];
        packet[4..6].copy_from_slice(&(8 + piece.len() as u16).to_be_bytes());
        packet.extend([1; 32]);
        packet.extend([6, 0]);
        packet.extend((offset as u16 | u16::from(more)).to_be_bytes());
        packet.extend([0, 0, 0, 9]);
        packet.extend(piece);
        packet
    }

    fn add(r: &mut Reassembly, packet: &[u8]) -> Option<Vec<u8>> {
        let header = parse_ipv6(packet, packet.len()).unwrap();
        let Upper::Ipv6Fragment(fragment) = header.upper else { panic!("not a fragment") };
        r.add(Instant::ZERO, A, A, &fragment, packet).map(<[u8]>::to_vec)
    }

    proptest! {
        #[test]
        fn pieces_in_any_order_give_the_packet(units in 2usize..12, tail in 1usize..8, seed: u64) {
            let payload: Vec<u8> = (0..units * 8 + tail).map(|n| n as u8).collect();
            let mut order: Vec<usize> = (0..=units).collect();
            order.sort_by_key(|n| (*n as u64 + 1).wrapping_mul(seed | 1).rotate_left(17));
            let mut r = Reassembly::default();
            for (n, unit) in order.iter().enumerate() {
                let end = (unit * 8 + 8).min(payload.len());
                let whole = add(&mut r, &wire(unit * 8, *unit != units, &payload[unit * 8..end]));
                prop_assert_eq!(whole.is_some(), n == units);
                if let Some(whole) = whole {
                    prop_assert_eq!(&whole[IPV6_OCTETS..], &payload[..]);
                    let upper = parse_ipv6(&whole, whole.len()).unwrap().upper;
                    prop_assert_eq!(upper, Upper::Whole { protocol: 6, header_octets: 40 });
                }
            }
        }
    }

    #[test]
    fn an_overlap_ends_the_packet() {
        let mut r = Reassembly::default();
        assert!(add(&mut r, &wire(0, true, &[1; 16])).is_none());
        assert!(add(&mut r, &wire(8, false, &[2; 16])).is_none());
        assert!(r.packets.is_empty());
    }
}
