//! Reassembly of IP fragments (RFC 791 section 3.2, RFC 8200 section 4.5), bounded in packets, bytes and
//! time.
//!
//! Reassembly is part of the slow path, because fragmented TCP is a sign of a misconfigured middlebox. Memory
//! is allocated when fragments arrive, and kept for reuse: at most `PACKETS` + 1 buffers of 64 KiB. At most
//! [`PACKETS_OF_ONE`] packets of one source are in reassembly: a further packet of this source replaces its
//! oldest packet. So a source that floods replaces mostly its own packets. When all entries are in use, a new
//! packet of a source with fewer packets replaces a spoiled packet or, if no packet is spoiled, the oldest
//! packet. A first fragment has to contain a TCP header without options, or eight bytes of another protocol
//! (RFC 7112, RFC 3128). An atomic fragment (RFC 6946) is processed at once, independently of other
//! fragments.
//!
//! Fragments belong to the same packet if their addresses, their identification and, with IPv4, their
//! protocol are equal. An overlap discards the packet and all its later fragments, as RFC 5722 requires for
//! IPv6. RFC 791 lets the later fragment overwrite the earlier fragment, so an attacker who guesses an
//! identification could replace bytes. Ordinary senders create no overlapping fragments, so the stack uses
//! RFC 5722's rule for IPv4 as well.

use arrayvec::ArrayVec;

use crate::checksum::InternetChecksum;
use crate::facade::{Duration, Instant, IpAddress};
use crate::ip::{Ecn, Fragment, IPV4_BYTES, IPV6_BYTES, PROTOCOL_TCP};
use crate::tcp::header::MIN_HEADER_BYTES;

/// Maximum number of packets in reassembly. The number is small, because each packet may take 64 KiB.
const PACKETS: usize = 8;
/// Maximum number of packets in reassembly from one source. Two packets are enough for a source that sends
/// the fragments of two packets at the same time.
const PACKETS_OF_ONE: usize = 2;
/// Maximum number of separate runs of received bytes in an incomplete packet: enough for ordinary reordering.
const RUNS: usize = 16;
/// Number of bytes of the largest fragmentable part with IPv6, and of the largest whole packet with IPv4.
const MAX_PACKET_BYTES: usize = 65_535;
/// The time for which a packet waits for its missing fragments. The time is shorter than the 60 s of RFC
/// 8200, because TCP retransmits the bytes long before 60 s have passed.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Minimum number of bytes of an upper-layer header in the first fragment, except for TCP.
const LEAST_HEADER_BYTES: usize = 8;

/// Key of a packet: both addresses, identification and, with IPv4, the protocol.
type Key = (IpAddress, IpAddress, u32, Option<u8>);

struct Packet {
    key: Key,
    expires: Instant,
    next_header: u8,
    /// The fixed header, followed by the bytes of the fragmentable part that have arrived.
    bytes: Vec<u8>,
    /// Number of bytes of the fixed header.
    fixed_bytes: usize,
    /// Received ranges of the fragmentable part: sorted, disjoint, not adjacent.
    runs: ArrayVec<(usize, usize), RUNS>,
    /// Length of the fragmentable part; `None` until the last fragment has arrived.
    total: Option<usize>,
    /// ECN codepoints of the fragments, as a bit set.
    codepoints: u8,
    /// True if the fragments contradict each other or have too many holes, so that all later fragments of
    /// this packet are dropped as well.
    spoiled: bool,
}

/// The packets in reassembly.
#[derive(Default)]
pub(crate) struct Reassembly {
    packets: Vec<Packet>,
    /// Buffers for reuse.
    spare: Vec<Vec<u8>>,
    /// The packet that was completed last.
    whole: Vec<u8>,
    dropped: u64,
}

impl Reassembly {
    /// Adds one fragment. `packet` is the IP packet that carries the fragment. If this was the last missing
    /// fragment, returns the reassembled packet, without the options and extensions before the fragment. A
    /// packet that would lose a mark is dropped instead ([`Packet::loses_mark`]).
    pub(crate) fn add(
        &mut self,
        now: Instant,
        src: IpAddress,
        dst: IpAddress,
        fragment: &Fragment,
        packet: &[u8],
    ) -> Option<&[u8]> {
        self.expire(now);
        let ipv4 = matches!(src, IpAddress::Ipv4(_));
        let fixed = packet.get(..if ipv4 { IPV4_BYTES } else { IPV6_BYTES })?;
        let piece = packet.get(fragment.header_bytes..)?;
        let end = fragment.offset + piece.len();
        let largest = if ipv4 { MAX_PACKET_BYTES - IPV4_BYTES } else { MAX_PACKET_BYTES };
        let odd = fragment.more && piece.len() % 8 != 0;
        if piece.is_empty() || odd || end > largest || is_tiny(fragment, piece) {
            self.dropped += 1;
            return None;
        }
        let key = (src, dst, fragment.identification, ipv4.then_some(fragment.next_header));
        // An atomic fragment never joins a packet in reassembly, even if the key is equal (RFC 6946 section
        // 4).
        let isolated = fragment.offset == 0 && !fragment.more;
        let known = self.packets.iter().position(|p| p.key == key).filter(|_| !isolated);
        let at = known.unwrap_or_else(|| self.start(now, key, fixed));
        let under_way = &mut self.packets[at];
        // An overlap (RFC 5722), a contradictory length or too many holes discard the whole packet.
        if under_way.spoiled || !under_way.insert(fragment, end, piece) {
            under_way.spoil();
            self.dropped += 1;
            return None;
        }
        let class = if ipv4 { fixed[1] } else { fixed[1] >> 4 };
        under_way.codepoints |= 1 << (class & 3);
        if under_way.total.is_none_or(|total| under_way.runs.as_slice() != [(0, total)]) {
            return None;
        }
        let mut finished = self.packets.remove(at);
        if finished.loses_mark() {
            self.dropped += 1;
            self.spare.push(finished.bytes);
            return None;
        }
        finished.complete_header();
        self.keep(finished.bytes);
        Some(&self.whole)
    }

    /// Number of dropped fragments, of dropped incomplete packets, and of packets that were dropped because
    /// they would have lost an ECN mark.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Creates an entry for a new packet, and evicts another packet if needed. Returns the entry's index.
    fn start(&mut self, now: Instant, key: Key, fixed: &[u8]) -> usize {
        let of_source = self.packets.iter().filter(|p| p.key.0 == key.0).count();
        let victim = if of_source >= PACKETS_OF_ONE {
            self.packets.iter().position(|p| p.key.0 == key.0)
        } else if self.packets.len() == PACKETS {
            Some(self.packets.iter().position(|p| p.spoiled).unwrap_or(0))
        } else {
            None
        };
        if let Some(victim) = victim {
            self.drop_at(victim);
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(fixed);
        self.packets.push(Packet {
            key,
            expires: now + TIMEOUT,
            next_header: 0,
            bytes,
            fixed_bytes: fixed.len(),
            runs: ArrayVec::new(),
            total: None,
            codepoints: 0,
            spoiled: false,
        });
        self.packets.len() - 1
    }

    fn expire(&mut self, now: Instant) {
        while self.packets.first().is_some_and(|p| p.expires <= now) {
            self.drop_at(0);
        }
    }

    fn drop_at(&mut self, at: usize) {
        let packet = self.packets.remove(at);
        self.dropped += u64::from(!packet.spoiled);
        self.spare.push(packet.bytes);
    }

    /// Stores the completed packet for the caller, and the buffer of the previous packet for reuse.
    fn keep(&mut self, finished: Vec<u8>) {
        self.spare.push(std::mem::replace(&mut self.whole, finished));
    }
}

/// Whether the fragment is a first fragment that is too short for the upper-layer header: a TCP header
/// without options, or [`LEAST_HEADER_BYTES`] of another protocol.
fn is_tiny(fragment: &Fragment, piece: &[u8]) -> bool {
    let least = if fragment.next_header == PROTOCOL_TCP { MIN_HEADER_BYTES } else { LEAST_HEADER_BYTES };
    fragment.offset == 0 && fragment.more && piece.len() < least
}

impl Packet {
    /// Stores a fragment. Returns `false` if the fragment contradicts the earlier fragments, or if there
    /// would be more than [`RUNS`] runs.
    fn insert(&mut self, fragment: &Fragment, end: usize, piece: &[u8]) -> bool {
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
        let needed = self.fixed_bytes + end;
        if self.bytes.len() < needed {
            self.bytes.resize(needed, 0);
        }
        self.bytes[self.fixed_bytes + fragment.offset..needed].copy_from_slice(piece);
        true
    }

    /// Discards the packet's bytes and keeps only the key.
    fn spoil(&mut self) {
        self.spoiled = true;
        self.bytes.truncate(self.fixed_bytes);
        self.runs.clear();
    }

    fn has(&self, codepoint: Ecn) -> bool {
        self.codepoints & 1 << codepoint as u8 != 0
    }

    /// Whether one fragment was marked and another fragment was not ECN-capable. RFC 3168 section 5.3 allows
    /// neither to keep nor to remove such a mark, so the packet is dropped.
    fn loses_mark(&self) -> bool {
        self.has(Ecn::Ce) && self.has(Ecn::NotEct)
    }

    /// Rewrites the fixed header for an unfragmented packet. A mark on any fragment marks the packet
    /// (RFC 3168 section 5.3).
    fn complete_header(&mut self) {
        let total = self.bytes.len();
        let marked = self.has(Ecn::Ce);
        let (header, _) = self.bytes.split_at_mut(self.fixed_bytes);
        if marked {
            header[1] |= if self.fixed_bytes == IPV6_BYTES { 0x30 } else { 3 };
        }
        if self.fixed_bytes == IPV6_BYTES {
            header[4..6].copy_from_slice(&((total - IPV6_BYTES) as u16).to_be_bytes());
            header[6] = self.next_header;
            return;
        }
        header[0] = 0x45;
        header[2..4].copy_from_slice(&(total as u16).to_be_bytes());
        // The fragment fields are cleared, and the header checksum is computed again.
        header[6..8].fill(0);
        header[10..12].fill(0);
        let mut sum = InternetChecksum::new();
        sum.add(header);
        let checksum = sum.finish();
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
    }

    /// Inserts a run that overlaps no other run before run `at`, and merges it with adjacent runs. Returns
    /// `false` if there are too many runs.
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

    /// An IPv6 packet with a fragment, as on the wire.
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
        let Upper::Fragment(fragment) = header.upper else { panic!("not a fragment") };
        r.add(Instant::ZERO, A, A, &fragment, packet).map(<[u8]>::to_vec)
    }

    proptest! {
        #[test]
        fn pieces_in_any_order_give_the_packet(units in 2usize..12, tail in 1usize..24, seed: u64) {
            let payload: Vec<u8> = (0..units * 24 + tail).map(|n| n as u8).collect();
            let mut order: Vec<usize> = (0..=units).collect();
            order.sort_by_key(|n| (*n as u64 + 1).wrapping_mul(seed | 1).rotate_left(17));
            let mut r = Reassembly::default();
            for (n, unit) in order.iter().enumerate() {
                let end = (unit * 24 + 24).min(payload.len());
                let whole = add(&mut r, &wire(unit * 24, *unit != units, &payload[unit * 24..end]));
                prop_assert_eq!(whole.is_some(), n == units);
                if let Some(whole) = whole {
                    prop_assert_eq!(&whole[IPV6_BYTES..], &payload[..]);
                    let upper = parse_ipv6(&whole, whole.len()).unwrap().upper;
                    prop_assert_eq!(upper, Upper::Whole { protocol: 6, header_bytes: 40 });
                }
            }
        }
    }

    #[test]
    fn an_overlap_ends_the_packet_and_what_else_comes_of_it() {
        let mut r = Reassembly::default();
        assert!(add(&mut r, &wire(0, true, &[1; 24])).is_none());
        assert!(add(&mut r, &wire(16, false, &[2; 16])).is_none());
        // The next two fragments make up a whole packet without overlap.
        assert!(add(&mut r, &wire(0, true, &[1; 24])).is_none());
        assert!(add(&mut r, &wire(24, false, &[1; 8])).is_none());
        assert_eq!((r.dropped(), r.packets[0].bytes.len()), (3, IPV6_BYTES));
    }

    #[test]
    fn lengths_that_contradict_each_other_end_the_packet() {
        for (first, then) in [
            // The last fragment ends before bytes that have arrived.
            ((48, true, 24), (8, false, 16)),
            // A fragment after the last fragment.
            ((24, false, 8), (40, true, 8)),
            // Two fragments claim to be the last fragment.
            ((24, false, 16), (8, false, 8)),
        ] {
            let mut r = Reassembly::default();
            for (offset, more, bytes) in [first, then] {
                assert!(add(&mut r, &wire(offset, more, &vec![1; bytes])).is_none());
            }
            assert_eq!((r.dropped(), r.packets[0].spoiled), (1, true), "{first:?}, {then:?}");
        }
    }

    #[test]
    fn no_packet_is_larger_than_its_length_can_say() {
        let mut r = Reassembly::default();
        assert!(add(&mut r, &wire(65_520, true, &[1; 8])).is_none());
        assert_eq!((r.dropped(), r.packets.len()), (0, 1));
        assert!(add(&mut r, &wire(65_528, false, &[1; 8])).is_none());
        assert_eq!((r.dropped(), r.packets[0].total), (1, None));
    }

    /// The largest packet whose length fits into the header is reassembled. A larger packet, whose length
    /// would wrap, is dropped. The length field of IPv4 includes the header; the length field of IPv6
    /// excludes the header.
    #[test]
    fn a_packet_is_put_together_up_to_the_length_that_its_header_can_say() {
        for ([a, b, _], fixed, largest) in [(HOSTS[0], IPV4_BYTES, 65_515), (HOSTS[1], IPV6_BYTES, 65_535)] {
            let split = largest / 8 * 8;
            for (last, fits) in
                [(largest - split - 1, true), (largest - split, true), (largest - split + 1, false)]
            {
                let mut r = Reassembly::default();
                let key = (a, b, 7);
                assert_eq!(piece(&mut r, key, (0, true), (&vec![1; split], 0)), None);
                let whole = piece(&mut r, key, (split, false), (&vec![2; last], 0));
                assert_eq!(whole.is_some(), fits, "{last} bytes behind {split} for {a}");
                assert_eq!(r.dropped(), u64::from(!fits));
                let Some(whole) = whole else { continue };
                assert_eq!(whole.len(), fixed + split + last);
                let at = if fixed == IPV4_BYTES { 2 } else { 4 };
                let said = usize::from(u16::from_be_bytes([whole[at], whole[at + 1]]));
                assert_eq!(said, split + last + if fixed == IPV4_BYTES { IPV4_BYTES } else { 0 });
                assert!(
                    whole.ends_with(&vec![2; last]) && whole[fixed..fixed + split].iter().all(|b| *b == 1)
                );
            }
        }
    }

    #[test]
    fn pieces_that_no_sender_makes_are_dropped() {
        for [a, b, _] in HOSTS {
            let mut r = Reassembly::default();
            let key = (a, b, 7);
            // An empty fragment is dropped. A fragment that is not the last is dropped if its length is not a
            // multiple of eight.
            for (more, bytes) in [(true, 0), (false, 0), (true, 7), (true, 31), (true, 33)] {
                assert_eq!(piece(&mut r, key, (24, more), (&vec![1; bytes], 0)), None);
            }
            assert_eq!((r.dropped(), r.packets.len()), (5, 0), "{a}");
            // The first fragment of a TCP segment must contain the whole fixed header, 20 bytes.
            assert_eq!(piece(&mut r, key, (0, true), (&[1; 16], 0)), None);
            assert_eq!((r.dropped(), r.packets.len()), (6, 0), "{a}");
            assert_eq!(piece(&mut r, key, (0, true), (&[1; 24], 0)), None);
            assert!(piece(&mut r, key, (24, false), (&[1; 7], 0)).is_some(), "the last may have any length");
            assert_eq!((r.dropped(), r.packets.len()), (6, 0), "{a}");
        }
    }

    #[test]
    fn so_many_holes_are_kept_and_no_more() {
        for (holes, fits) in [(RUNS, true), (RUNS + 1, false)] {
            let [a, b, _] = HOSTS[0];
            let mut r = Reassembly::default();
            for nr in 0..holes {
                assert_eq!(piece(&mut r, (a, b, 7), (24 + nr * 16, true), (&[1; 8], 0)), None);
            }
            assert_eq!((r.dropped(), r.packets[0].spoiled), (u64::from(!fits), !fits));
            // Each further fragment fills a hole.
            let mut whole = piece(&mut r, (a, b, 7), (0, true), (&[1; 24], 0));
            for nr in 0..holes {
                assert_eq!(whole, None);
                whole = piece(&mut r, (a, b, 7), (32 + nr * 16, nr + 1 < holes), (&[1; 8], 0));
            }
            assert_eq!(whole.is_some(), fits);
        }
    }

    #[test]
    fn fragments_of_another_protocol_are_of_another_packet_with_ipv4() {
        let (src, dst) = (IpAddress::v4(10, 0, 0, 1), IpAddress::v4(10, 0, 0, 2));
        let mut r = Reassembly::default();
        for (offset, next_header) in [(0, 6), (24, 17)] {
            let fragment =
                Fragment { identification: 9, offset, more: offset == 0, next_header, header_bytes: 20 };
            assert!(r.add(Instant::ZERO, src, dst, &fragment, &[0x45; 44]).is_none());
        }
        assert_eq!((r.dropped(), r.packets.len()), (0, 2));
    }

    #[test]
    fn a_whole_packet_behind_a_fragment_header_meets_no_others() {
        let mut r = Reassembly::default();
        assert!(add(&mut r, &wire(0, true, &[1; 24])).is_none());
        let fragment =
            Fragment { identification: 9, offset: 0, more: false, next_header: 60, header_bytes: 48 };
        let atomic = wire(0, false, &[2; 24]);
        let whole = r.add(Instant::ZERO, A, A, &fragment, &atomic).map(<[u8]>::to_vec).unwrap();
        assert_eq!((&whole[IPV6_BYTES..], whole[6]), (&[2; 24][..], 60));
        let whole = add(&mut r, &wire(24, false, &[1; 8])).unwrap();
        assert_eq!(whole[IPV6_BYTES..], [1; 32]);
    }

    #[test]
    fn a_first_fragment_brings_the_header_of_what_it_carries() {
        let mut r = Reassembly::default();
        assert!(add(&mut r, &wire(0, true, &[1; 16])).is_none());
        assert!(add(&mut r, &wire(16, false, &[1; 16])).is_none());
        assert_eq!((r.dropped(), r.packets.len()), (1, 1));
    }

    /// A fragment of packet `identification` from `source`.
    fn from(r: &mut Reassembly, source: u8, identification: u32, offset: usize, now: Instant) -> bool {
        let src = IpAddress::v6(1, 0, 0, 0, 0, 0, 0, source.into());
        let piece = wire(offset, offset == 0, &[1; 24]);
        let (more, next_header, header_bytes) = (offset == 0, 6, 48);
        let fragment = Fragment { identification, offset, more, next_header, header_bytes };
        r.add(now, src, A, &fragment, &piece).is_some()
    }

    #[test]
    fn one_that_floods_does_not_starve_another_and_memory_has_a_bound() {
        let mut r = Reassembly::default();
        assert!(!from(&mut r, 1, 7, 0, Instant::ZERO));
        for flood in 0..1000 {
            assert!(!from(&mut r, 2, flood, 0, Instant::ZERO));
            assert!(r.packets.len() <= PACKETS && r.spare.len() <= PACKETS + 1);
        }
        assert_eq!(r.dropped(), 1000 - PACKETS_OF_ONE as u64);
        assert!(from(&mut r, 1, 7, 24, Instant::ZERO), "the other's packet is whole");
        // Packets of many flooding sources are dropped in the order in which they arrived.
        for source in 0..100 {
            from(&mut r, source, 1, 0, Instant::ZERO);
            assert!(r.packets.len() <= PACKETS && r.spare.len() <= PACKETS + 1);
        }
        assert!(from(&mut r, 99, 1, 24, Instant::ZERO));
        assert!(!from(&mut r, 1, 1, 24, Instant::ZERO));
    }

    #[test]
    fn the_rest_is_waited_for_a_while_only() {
        let mut r = Reassembly::default();
        assert!(!from(&mut r, 1, 7, 0, Instant::ZERO));
        assert!(!from(&mut r, 1, 7, 24, Instant::ZERO + TIMEOUT));
        assert_eq!(r.dropped(), 1);
        let mut r = Reassembly::default();
        assert!(!from(&mut r, 1, 7, 0, Instant::ZERO));
        assert!(from(&mut r, 1, 7, 24, Instant::ZERO + TIMEOUT - Duration::from_micros(1)));
    }

    /// A fragment of packet `identification` between two hosts, with a codepoint of ECN.
    fn piece(
        r: &mut Reassembly,
        (src, dst, identification): (IpAddress, IpAddress, u32),
        (offset, more): (usize, bool),
        (bytes, ecn): (&[u8], u8),
    ) -> Option<Vec<u8>> {
        let ipv4 = matches!(src, IpAddress::Ipv4(_));
        let mut packet = vec![0; if ipv4 { IPV4_BYTES } else { IPV6_BYTES + 8 }];
        packet[1] = if ipv4 { ecn } else { ecn << 4 };
        let fragment = Fragment { identification, offset, more, next_header: 6, header_bytes: packet.len() };
        packet.extend(bytes);
        r.add(Instant::ZERO, src, dst, &fragment, &packet).map(<[u8]>::to_vec)
    }

    /// Three hosts of each family.
    const HOSTS: [[IpAddress; 3]; 2] = [
        [IpAddress::v4(10, 0, 0, 1), IpAddress::v4(10, 0, 0, 2), IpAddress::v4(10, 0, 0, 3)],
        [
            IpAddress::v6(1, 0, 0, 0, 0, 0, 0, 1),
            IpAddress::v6(1, 0, 0, 0, 0, 0, 0, 2),
            IpAddress::v6(1, 0, 0, 0, 0, 0, 0, 3),
        ],
    ];

    #[test]
    fn a_strangers_bytes_do_not_get_in_by_an_overlap() {
        for [a, b, _] in HOSTS {
            // The forged fragment has one of several offsets and lengths, and arrives before or after the
            // first genuine fragment.
            for (at, bytes) in [(0, 24), (24, 24), (48, 8), (8, 8), (16, 24), (0, 56)] {
                for first in [true, false] {
                    let mut r = Reassembly::default();
                    let key = (a, b, 7);
                    let forged = |r: &mut Reassembly| piece(r, key, (at, true), (&vec![6; bytes], 0));
                    if first {
                        assert_eq!(forged(&mut r), None);
                    }
                    let mut got = vec![piece(&mut r, key, (24, true), (&[1; 24], 0))];
                    if !first {
                        assert_eq!(forged(&mut r), None);
                    }
                    got.push(piece(&mut r, key, (0, true), (&[1; 24], 0)));
                    got.push(piece(&mut r, key, (48, false), (&[1; 8], 0)));
                    assert!(got.iter().all(Option::is_none), "{a}: {at} {bytes} {first}");
                    assert!(r.packets.len() == 1 && r.packets[0].spoiled, "{a}: {at} {bytes} {first}");
                }
            }
        }
    }

    #[test]
    fn fragments_of_other_hosts_and_of_other_numbers_are_of_other_packets() {
        for [a, b, c] in HOSTS {
            for other in [(c, b, 7), (a, c, 7), (b, a, 7), (a, b, 8)] {
                let mut r = Reassembly::default();
                assert_eq!(piece(&mut r, (a, b, 7), (0, true), (&[1; 24], 0)), None);
                assert_eq!(piece(&mut r, other, (24, false), (&[6; 8], 0)), None);
                let whole = piece(&mut r, (a, b, 7), (24, false), (&[2; 8], 0)).unwrap();
                assert!(whole.ends_with(&[[1; 24].as_slice(), &[2; 8]].concat()), "{other:?}");
                assert_eq!(r.dropped(), 0);
            }
        }
    }

    #[test]
    fn a_mark_on_any_fragment_is_one_on_the_packet_unless_another_could_have_none() {
        let (not, ect1, ect0, ce) = (0, 1, 2, 3);
        for [a, b, _] in HOSTS {
            for (codepoints, expected) in [
                ([ect0, ect0], Some(ect0)),
                ([ect0, ce], Some(ce)),
                ([ce, ect0], Some(ce)),
                ([ect1, ce], Some(ce)),
                ([ce, ce], Some(ce)),
                ([not, not], Some(not)),
                ([not, ce], None),
                ([ce, not], None),
            ] {
                let mut r = Reassembly::default();
                assert_eq!(piece(&mut r, (a, b, 7), (0, true), (&[1; 24], codepoints[0])), None);
                let whole = piece(&mut r, (a, b, 7), (24, false), (&[1; 8], codepoints[1]));
                let class = |whole: Vec<u8>| if whole.len() == 20 + 32 { whole[1] } else { whole[1] >> 4 };
                assert_eq!(whole.map(class), expected, "{codepoints:?}");
                assert_eq!((r.dropped(), r.packets.len()), (u64::from(expected.is_none()), 0));
            }
        }
    }

    #[test]
    fn an_ipv4_packet_is_whole_with_a_header_of_its_own() {
        let mut r = Reassembly::default();
        let (src, dst) = (IpAddress::v4(10, 0, 0, 1), IpAddress::v4(10, 0, 0, 2));
        for (offset, more) in [(24_u16, false), (0, true)] {
            let mut packet =
                vec![0x46, 0, 0, 48, 0, 9, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 1, 1, 1, 1];
            packet[6..8].copy_from_slice(&((offset / 8) | if more { 0x2000 } else { 0 }).to_be_bytes());
            let mut sum = InternetChecksum::new();
            sum.add(&packet);
            let checksum = sum.finish();
            packet[10..12].copy_from_slice(&checksum.to_be_bytes());
            packet.extend([offset as u8; 24]);
            let Upper::Fragment(fragment) = crate::ip::parse_ipv4(&packet, packet.len()).unwrap().upper
            else {
                panic!("not a fragment")
            };
            let whole = r.add(Instant::ZERO, src, dst, &fragment, &packet);
            assert_eq!(whole.is_some(), more);
            if let Some(whole) = whole {
                let header = crate::ip::parse_ipv4(whole, whole.len()).unwrap();
                assert_eq!(header.upper, Upper::Whole { protocol: 6, header_bytes: 20 });
                assert_eq!((header.src, header.dst, header.total_bytes), (src, dst, 68));
                assert_eq!(whole[20..], [[0; 24], [24; 24]].concat());
            }
        }
    }
}
