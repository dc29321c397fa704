//! Multicast groups of a stack, and the messages by which routers and switches learn of them: IGMP version 2
//! (RFC 2236) and MLD version 1 (RFC 2710).
//!
//! A group is reported when it is joined, and once more some seconds later, because the first report may be
//! lost. Queries are answered after a random delay. Queriers of later versions accept these reports (RFC 3376
//! section 7.3.2, RFC 3810 section 8.3.2). A host may leave out its report if another host reports the same
//! group; this module does not, because switches need the report of each host.

use arrayvec::ArrayVec;

use crate::checksum::{InternetChecksum, pseudo_header};
use crate::facade::{Duration, Instant, IpAddress, Ipv4Address, Ipv6Address};
use crate::ip::{IPV6_BYTES, IpHeader, PROTOCOL_ICMPV6, PROTOCOL_IGMP, Upper};

/// Maximum number of multicast groups of a stack.
pub const MAX_GROUPS: usize = 32;

/// Maximum number of bytes of the IP packet of a message: IPv6 with a router alert, and MLD.
pub(crate) const MAX_MESSAGE_BYTES: usize = IPV6_BYTES + ROUTER_ALERT_BYTES + MLD_BYTES;

/// Maximum time between the first report of a group and its repetition (RFC 2236 section 8.10, RFC 2710
/// section 7.10).
const REPEAT_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum time between the return of the link and the reports. The port may now be connected to another
/// switch.
const LINK_UP_INTERVAL: Duration = Duration::from_secs(1);

const IGMP_BYTES: usize = 8;
const IGMP_QUERY: u8 = 0x11;
const IGMP_REPORT: u8 = 0x16;
const IGMP_LEAVE: u8 = 0x17;
/// Number of bytes of an IPv4 header with the option "router alert" (RFC 2113).
const IPV4_ALERT_BYTES: usize = 24;
/// Number of bytes of the hop-by-hop header with the option "router alert" (RFC 2711).
const ROUTER_ALERT_BYTES: usize = 8;
const MLD_BYTES: usize = 24;
const MLD_QUERY: u8 = 130;
const MLD_REPORT: u8 = 131;
const MLD_DONE: u8 = 132;
/// "Internetwork control": the type of service and traffic class of IGMP and MLD messages (RFC 3376 section
/// 4).
const CONTROL_CLASS: u8 = 0xc0;

/// The groups of all hosts and all routers of the link.
const ALL_HOSTS: Ipv4Address = Ipv4Address::new(224, 0, 0, 1);
const ALL_ROUTERS: Ipv4Address = Ipv4Address::new(224, 0, 0, 2);
const ALL_NODES_IPV6: Ipv6Address = Ipv6Address::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_ROUTERS_IPV6: Ipv6Address = Ipv6Address::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

/// Why a multicast group was not joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinGroupError {
    /// The address is not a multicast address.
    #[error("the address is not that of a multicast group")]
    NotMulticast,
    /// The stack has joined [`MAX_GROUPS`] other groups.
    #[error("{MAX_GROUPS} multicast groups are joined already")]
    Full,
}

/// A message about one of our groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Membership {
    /// We are in the group.
    Report,
    /// We have left the group.
    Leave,
}

/// A router's query for groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MembershipQuery {
    /// The group that is queried. The unspecified address of the family queries all groups.
    group: IpAddress,
    /// The time within which the reports have to be sent.
    max_delay: Duration,
}

struct Group {
    address: IpAddress,
    /// Number of joins without a leave.
    joins: u32,
    /// The time of the next report; `None` if no report is due.
    report: Option<Instant>,
}

/// The groups of a stack.
#[derive(Default)]
pub(crate) struct Groups {
    groups: ArrayVec<Group, MAX_GROUPS>,
}

impl Groups {
    /// Whether the stack is in the group.
    pub(crate) fn contains(&self, address: &IpAddress) -> bool {
        self.groups.iter().any(|group| group.address == *address)
    }

    /// The addresses of all groups.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddress> {
        self.groups.iter().map(|group| group.address)
    }

    /// Counts a join. Returns whether the group is new, so that the caller sends a report now. `delay`
    /// returns a random time up to its argument.
    pub(crate) fn join(
        &mut self,
        now: Instant,
        address: IpAddress,
        delay: impl FnOnce(Duration) -> Duration,
    ) -> Result<bool, JoinGroupError> {
        if !address.is_multicast() {
            return Err(JoinGroupError::NotMulticast);
        }
        if let Some(group) = self.groups.iter_mut().find(|group| group.address == address) {
            group.joins = group.joins.saturating_add(1);
            return Ok(false);
        }
        let report = is_reported(&address).then(|| now + delay(REPEAT_INTERVAL));
        let group = Group { address, joins: 1, report };
        self.groups.try_push(group).map_err(|_full| JoinGroupError::Full)?;
        Ok(true)
    }

    /// Counts a leave. Returns whether the stack has left the group by this call.
    pub(crate) fn leave(&mut self, address: &IpAddress) -> bool {
        let Some(at) = self.groups.iter().position(|group| group.address == *address) else { return false };
        let group = &mut self.groups[at];
        group.joins -= 1;
        let leaves = group.joins == 0;
        if leaves {
            self.groups.swap_remove(at);
        }
        leaves
    }

    /// Schedules the reports that a query demands. `delay` returns a random time up to its second argument.
    pub(crate) fn queried(
        &mut self,
        now: Instant,
        query: &MembershipQuery,
        delay: impl Fn(&IpAddress, Duration) -> Duration,
    ) {
        let all = query.group.is_unspecified();
        for group in &mut self.groups {
            let is_meant = match all {
                true => group.address.version() == query.group.version(),
                false => group.address == query.group,
            };
            if is_meant && is_reported(&group.address) {
                let at = now + delay(&group.address, query.max_delay);
                group.report = Some(group.report.map_or(at, |due| due.min(at)));
            }
        }
    }

    /// Schedules a report of each group, because the link has come up.
    pub(crate) fn on_link_up(&mut self, now: Instant, delay: impl Fn(&IpAddress, Duration) -> Duration) {
        for group in self.groups.iter_mut().filter(|group| is_reported(&group.address)) {
            group.report = Some(now + delay(&group.address, LINK_UP_INTERVAL));
        }
    }

    /// Removes and returns a report that is due; `None` if no report is due.
    pub(crate) fn next_report(&mut self, now: Instant) -> Option<IpAddress> {
        let is_due = |group: &&mut Group| group.report.is_some_and(|due| due <= now);
        let group = self.groups.iter_mut().find(is_due)?;
        group.report = None;
        Some(group.address)
    }

    /// The time of the next report; `None` if no report is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.groups.iter().filter_map(|group| group.report).min()
    }
}

/// Whether hosts report this group. They do not report the group of all hosts, and IPv6 groups that do not
/// leave the interface (RFC 2710 section 4).
pub(crate) fn is_reported(group: &IpAddress) -> bool {
    match group {
        IpAddress::Ipv4(group) => *group != ALL_HOSTS,
        IpAddress::Ipv6(group) => *group != ALL_NODES_IPV6 && group.octets()[1] & 0x0f > 1,
    }
}

/// Parses a query in a whole IP packet; `None` if the packet is another packet, or not valid.
pub(crate) fn parse_query(packet: &[u8], ip: &IpHeader) -> Option<MembershipQuery> {
    let Upper::Whole { protocol, header_bytes } = ip.upper else { return None };
    let message = packet.get(header_bytes..ip.total_bytes)?;
    match (protocol, ip.dst) {
        (PROTOCOL_IGMP, IpAddress::Ipv4(_)) => {
            let mut sum = InternetChecksum::new();
            sum.add(message);
            let fixed: &[u8; IGMP_BYTES] = message.first_chunk()?;
            // A query has a TTL of 1 (RFC 2236 section 2), so it does not come from beyond the link.
            if fixed[0] != IGMP_QUERY || ip.hop_limit != 1 || sum.finish() != 0 {
                return None;
            }
            let group = Ipv4Address::new(fixed[4], fixed[5], fixed[6], fixed[7]);
            // Queriers of version 1 state no time, and mean 10 s. Later versions state times of up to 12.7 s
            // in tenths of a second, and longer times as floating-point numbers, which are read as shorter
            // times.
            let tenths = if fixed[1] == 0 { 100 } else { fixed[1] };
            let max_delay = Duration::from_millis(100 * u64::from(tenths));
            Some(MembershipQuery { group: group.into(), max_delay })
        }
        (PROTOCOL_ICMPV6, IpAddress::Ipv6(_)) => {
            let mut sum = pseudo_header(&ip.src, &ip.dst, PROTOCOL_ICMPV6, message.len());
            sum.add(message);
            let fixed: &[u8; MLD_BYTES] = message.first_chunk()?;
            // Hosts beyond the link cannot send such a source or hop limit (RFC 2710 section 5).
            let is_of_link = ip.hop_limit == 1 && is_link_local(&ip.src);
            if fixed[0] != MLD_QUERY || !is_of_link || sum.finish() != 0 {
                return None;
            }
            let mut group = [0; 16];
            group.copy_from_slice(&fixed[8..24]);
            let max_delay = Duration::from_millis(u64::from(u16::from_be_bytes([fixed[4], fixed[5]])));
            Some(MembershipQuery { group: Ipv6Address::from(group).into(), max_delay })
        }
        _ => None,
    }
}

/// The destination of a message about `group`.
pub(crate) fn destination(group: &IpAddress, kind: Membership) -> IpAddress {
    match (group, kind) {
        (_, Membership::Report) => *group,
        (IpAddress::Ipv4(_), Membership::Leave) => ALL_ROUTERS.into(),
        (IpAddress::Ipv6(_), Membership::Leave) => ALL_ROUTERS_IPV6.into(),
    }
}

/// Whether a message about `group` may have the source `address`. With IPv6, the source is a link-local
/// address (RFC 2710 section 3).
pub(crate) fn may_be_source(group: &IpAddress, address: &IpAddress) -> bool {
    match group {
        IpAddress::Ipv4(_) => matches!(address, IpAddress::Ipv4(_)),
        IpAddress::Ipv6(_) => is_link_local(address),
    }
}

/// Writes the IP packet of a message about `group` to the front of `out`, which has at least
/// [`MAX_MESSAGE_BYTES`] bytes. Returns the length of the packet in bytes; `None` if the addresses are of
/// different families.
pub(crate) fn emit(out: &mut [u8], source: IpAddress, group: IpAddress, kind: Membership) -> Option<usize> {
    match (source, group, destination(&group, kind)) {
        (IpAddress::Ipv4(source), IpAddress::Ipv4(group), IpAddress::Ipv4(destination)) => {
            let total = IPV4_ALERT_BYTES + IGMP_BYTES;
            let (ip, message) = out[..total].split_at_mut(IPV4_ALERT_BYTES);
            ip[0..12].copy_from_slice(&[0x46, CONTROL_CLASS, 0, total as u8, 0, 0, 0x40, 0, 1, 2, 0, 0]);
            ip[12..16].copy_from_slice(&source.octets());
            ip[16..20].copy_from_slice(&destination.octets());
            ip[20..24].copy_from_slice(&[0x94, 4, 0, 0]);
            put_checksum(ip, 10, InternetChecksum::new());
            let kind = if kind == Membership::Report { IGMP_REPORT } else { IGMP_LEAVE };
            message[0..4].copy_from_slice(&[kind, 0, 0, 0]);
            message[4..8].copy_from_slice(&group.octets());
            put_checksum(message, 2, InternetChecksum::new());
            Some(total)
        }
        (IpAddress::Ipv6(source), IpAddress::Ipv6(group), IpAddress::Ipv6(destination)) => {
            let payload = ROUTER_ALERT_BYTES + MLD_BYTES;
            let total = IPV6_BYTES + payload;
            let (ip, message) = out[..total].split_at_mut(IPV6_BYTES + ROUTER_ALERT_BYTES);
            ip[0..8].copy_from_slice(&[0x60 | CONTROL_CLASS >> 4, 0, 0, 0, 0, payload as u8, 0, 1]);
            ip[8..24].copy_from_slice(&source.octets());
            ip[24..40].copy_from_slice(&destination.octets());
            // The hop-by-hop header: the next header, the option "router alert" for MLD, and padding.
            ip[40..48].copy_from_slice(&[PROTOCOL_ICMPV6, 0, 5, 2, 0, 0, 1, 0]);
            let kind = if kind == Membership::Report { MLD_REPORT } else { MLD_DONE };
            message[0..8].copy_from_slice(&[kind, 0, 0, 0, 0, 0, 0, 0]);
            message[8..24].copy_from_slice(&group.octets());
            let pseudo = pseudo_header(&source.into(), &destination.into(), PROTOCOL_ICMPV6, MLD_BYTES);
            put_checksum(message, 2, pseudo);
            Some(total)
        }
        _ => None,
    }
}

/// Writes the checksum of `bytes`, whose checksum field at `at` is 0. `sum` is the sum of preceding bytes.
fn put_checksum(bytes: &mut [u8], at: usize, mut sum: InternetChecksum) {
    sum.add(bytes);
    bytes[at..at + 2].copy_from_slice(&sum.finish().to_be_bytes());
}

fn is_link_local(address: &IpAddress) -> bool {
    matches!(address, IpAddress::Ipv6(address) if address.segments()[0] & 0xffc0 == 0xfe80)
}

#[cfg(test)]
mod tests {
    use smoltcp::phy::ChecksumCapabilities;
    use smoltcp::wire::{IgmpPacket, IgmpRepr, Ipv4Packet, Ipv4Repr};

    use super::*;
    use crate::ip;

    fn address(text: &str) -> IpAddress {
        text.parse().unwrap()
    }

    fn message(source: &str, group: &str, kind: Membership) -> Vec<u8> {
        let mut out = vec![0xee; MAX_MESSAGE_BYTES];
        let bytes = emit(&mut out, address(source), address(group), kind).unwrap();
        out.truncate(bytes);
        out
    }

    #[test]
    fn reports_and_leaves_of_igmp_are_well_formed() {
        for (kind, to) in [(Membership::Report, "239.1.2.3"), (Membership::Leave, "224.0.0.2")] {
            let packet = message("10.0.0.1", "239.1.2.3", kind);
            let ip = Ipv4Packet::new_checked(&packet[..]).unwrap();
            let repr = Ipv4Repr::parse(&ip, &ChecksumCapabilities::default()).unwrap();
            assert_eq!((IpAddress::from(repr.dst_addr), repr.hop_limit), (address(to), 1));
            assert_eq!(packet[20..24], [0x94, 4, 0, 0], "router alert");
            let igmp = IgmpPacket::new_checked(ip.payload()).unwrap();
            assert!(igmp.verify_checksum());
            match (IgmpRepr::parse(&igmp).unwrap(), kind) {
                (IgmpRepr::MembershipReport { group_addr, .. }, Membership::Report)
                | (IgmpRepr::LeaveGroup { group_addr }, Membership::Leave) => {
                    assert_eq!(IpAddress::from(group_addr), address("239.1.2.3"));
                }
                (other, _) => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn reports_and_dones_of_mld_are_well_formed() {
        for (kind, to, number) in [(Membership::Report, "ff15::7", 131), (Membership::Leave, "ff02::2", 132)]
        {
            let packet = message("fe80::1", "ff15::7", kind);
            let header = ip::parse_ipv6(&packet, packet.len()).unwrap();
            let upper = Upper::Whole { protocol: PROTOCOL_ICMPV6, header_bytes: 48 };
            assert_eq!((header.src, header.dst, header.hop_limit), (address("fe80::1"), address(to), 1));
            assert_eq!((header.upper, header.total_bytes), (upper, packet.len()));
            assert_eq!(packet[42..46], [5, 2, 0, 0], "router alert");
            let mut sum = pseudo_header(&header.src, &header.dst, PROTOCOL_ICMPV6, MLD_BYTES);
            sum.add(&packet[48..]);
            assert_eq!(sum.finish(), 0);
            let group = Ipv6Address::from(*packet[56..].first_chunk::<16>().unwrap());
            assert_eq!((packet[48], IpAddress::from(group), packet.len()), (number, address("ff15::7"), 72));
        }
    }

    /// A query in an IP packet with the fields that IGMP or MLD requires.
    fn query(group: &str, delay: u16) -> Vec<u8> {
        let unspecified = if group.contains(':') { "fe80::99" } else { "10.0.0.99" };
        let mut packet = message(unspecified, group, Membership::Report);
        match address(group) {
            IpAddress::Ipv4(_) => {
                packet[24..28].copy_from_slice(&[IGMP_QUERY, delay as u8, 0, 0]);
                put_checksum(&mut packet[24..], 2, InternetChecksum::new());
            }
            IpAddress::Ipv6(_) => {
                packet[48..52].copy_from_slice(&[MLD_QUERY, 0, 0, 0]);
                packet[52..54].copy_from_slice(&delay.to_be_bytes());
                let pseudo = pseudo_header(&address("fe80::99"), &address(group), PROTOCOL_ICMPV6, MLD_BYTES);
                put_checksum(&mut packet[48..], 2, pseudo);
            }
        }
        packet
    }

    fn parsed(packet: &[u8]) -> Option<MembershipQuery> {
        let header = match packet[0] >> 4 {
            4 => ip::parse_ipv4(packet, packet.len()),
            _ => ip::parse_ipv6(packet, packet.len()),
        };
        parse_query(packet, &header.ok()?)
    }

    #[test]
    fn queries_are_parsed_and_other_messages_are_not() {
        let ms = Duration::from_millis;
        let expected = |group, max_delay| Some(MembershipQuery { group: address(group), max_delay });
        assert_eq!(parsed(&query("239.1.2.3", 25)), expected("239.1.2.3", ms(2500)));
        assert_eq!(parsed(&query("239.1.2.3", 0)), expected("239.1.2.3", ms(10_000)), "version 1");
        assert_eq!(parsed(&query("ff15::7", 700)), expected("ff15::7", ms(700)));
        for (source, group) in [("10.0.0.1", "239.1.2.3"), ("fe80::1", "ff15::7")] {
            assert_eq!(parsed(&message(source, group, Membership::Report)), None);
        }
        for group in ["239.1.2.3", "ff15::7"] {
            let whole = query(group, 10);
            let at = if group.contains(':') { 48 } else { 24 };
            for byte in at..whole.len() {
                let mut wrong = whole.clone();
                wrong[byte] ^= 1;
                assert_eq!(parsed(&wrong), None, "{group}: byte {byte}");
            }
        }
        // Another TTL or hop limit, and a source that is not link-local (the checksum is still right).
        let mut far = query("239.1.2.3", 10);
        (far[8], far[10], far[11]) = (2, 0, 0);
        put_checksum(&mut far[..24], 10, InternetChecksum::new());
        assert_eq!(parsed(&far), None);
        let mut far = query("ff15::7", 10);
        far[7] = 64;
        assert_eq!(parsed(&far), None);
        let mut far = query("ff15::7", 10);
        (far[8], far[10]) = (far[8] ^ 0x20, far[10] ^ 0x20);
        assert_eq!(parsed(&far), None);
    }

    #[test]
    fn a_group_is_left_after_as_many_leaves_as_joins() {
        let mut groups = Groups::default();
        let (now, group) = (Instant::ZERO, address("239.1.2.3"));
        let mut join = |address| groups.join(now, address, |most| most);
        assert_eq!((join(group), join(group)), (Ok(true), Ok(false)));
        assert_eq!(join(address("10.0.0.1")), Err(JoinGroupError::NotMulticast));
        for last in 1..MAX_GROUPS as u8 {
            assert_eq!(join(IpAddress::v4(239, 0, 0, last)), Ok(true));
        }
        assert_eq!(join(address("239.9.9.9")), Err(JoinGroupError::Full));
        assert_eq!(join(group), Ok(false), "a full table still counts joins");
        assert_eq!([0; 3].map(|_| groups.leave(&group)), [false, false, true]);
        assert!(!groups.contains(&group) && !groups.leave(&group));
        assert!(groups.contains(&address("239.0.0.7")), "another group stays");
    }

    #[test]
    fn a_query_asks_for_one_group_or_for_all_of_its_family() {
        let all = ["239.1.2.3", "239.1.2.4", "224.0.0.1", "ff15::7", "ff02::1", "ff01::7"].map(address);
        let reported = |query: Option<(&str, u64)>, at_ms: u64| {
            let mut groups = Groups::default();
            for group in all {
                groups.join(Instant::ZERO, group, |most| most).unwrap();
            }
            let at = Instant::ZERO + Duration::from_millis(at_ms);
            if let Some((group, ms)) = query {
                let query = MembershipQuery { group: address(group), max_delay: Duration::from_millis(ms) };
                groups.queried(Instant::ZERO, &query, |_, most| most);
            }
            let next = groups.next_deadline();
            let mut due: Vec<_> = std::iter::from_fn(|| groups.next_report(at)).collect();
            assert_eq!(next.is_some_and(|next| next <= at), !due.is_empty());
            due.sort_unstable();
            due
        };
        assert_eq!(reported(None, 9_999), []);
        assert_eq!(reported(None, 10_000), [all[0], all[1], all[3]], "the repetition");
        assert_eq!(reported(Some(("0.0.0.0", 500)), 499), []);
        assert_eq!(reported(Some(("0.0.0.0", 500)), 500), [all[0], all[1]]);
        assert_eq!(reported(Some(("::", 500)), 500), [all[3]]);
        assert_eq!(reported(Some(("239.1.2.4", 500)), 500), [all[1]]);
        assert_eq!(reported(Some(("224.0.0.1", 500)), 500), []);
        assert_eq!(reported(Some(("239.1.2.4", 12_700)), 10_000).len(), 3, "no later than without the query");
    }

    #[test]
    fn groups_are_reported_when_the_link_comes_up() {
        let mut groups = Groups::default();
        groups.join(Instant::ZERO, address("239.1.2.3"), |most| most).unwrap();
        groups.join(Instant::ZERO, address("ff02::1"), |most| most).unwrap();
        let later = Instant::from_secs(100);
        assert_eq!(groups.next_report(later), Some(address("239.1.2.3")));
        assert_eq!((groups.next_report(later), groups.next_deadline()), (None, None));
        groups.on_link_up(later, |_, most| most / 2);
        assert_eq!(groups.next_deadline(), Some(later + LINK_UP_INTERVAL / 2));
    }
}
