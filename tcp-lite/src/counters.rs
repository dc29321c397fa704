//! Counters of a stack.

use crate::out_of_order::OutOfOrder;

/// Counters of the whole stack, never reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackCounters {
    /// Frames given to the stack, those that it drops included.
    pub rx_frames: u64,
    /// Frames handed to another stack of the host ([`Member`](crate::Member)): one that has the connection,
    /// or the one that leads.
    pub handed_over: u64,
    /// Frames that were for another stack of the host and were dropped: its ring was full, or it was gone.
    pub handed_over_dropped: u64,
    /// Frames among `rx_frames` that other stacks of the host handed to this one.
    pub rx_handed_over: u64,
    /// TCP segments received that passed all checks.
    pub rx_segments: u64,
    /// Frames handed to the slow path.
    pub rx_slow: u64,
    /// Frames too short or inconsistent.
    pub rx_malformed: u64,
    /// Frames with a bad IP or TCP checksum.
    pub rx_bad_checksum: u64,
    /// Frames for another Ethernet or IP address, or another VLAN.
    pub rx_not_ours: u64,
    /// TCP segments for no connection and no listener (answered with RST where allowed).
    pub rx_no_connection: u64,
    /// SYNs dropped because of `Limits` or of their listener's limits
    /// ([`ListenerCounters`](crate::ListenerCounters) tells them apart).
    pub rx_syn_dropped: u64,
    /// Connections that left TIME-WAIT early because all of `Limits::connections` were in use.
    pub time_wait_recycled: u64,
    /// SYNs answered with a cookie because their listener's backlog was full.
    pub tx_syn_cookies: u64,
    /// Connections established by a cookie.
    pub rx_syn_cookies: u64,
    /// Inconsistent fragments, and packets dropped incomplete because of their age or to make room for
    /// others.
    pub rx_fragments_dropped: u64,
    /// TCP segments that came through IP reassembly.
    pub rx_reassembled: u64,
    /// Bytes ahead of the frontiers of all connections together.
    pub out_of_order: OutOfOrder,
    /// Out-of-order bytes dropped for lack of budget.
    pub rx_out_of_order_dropped: u64,
    /// Out-of-order bytes given up again for lack of memory ([`Event::Evict`](crate::Event)).
    pub rx_out_of_order_evicted: u64,
    /// Times that a connection reached its own limit
    /// ([`TcpConfig::out_of_order_bytes`](crate::TcpConfig)).
    pub out_of_order_over_connection: u64,
    /// Times that out-of-order bytes were refused at the stack's limit
    /// ([`Limits::out_of_order_bytes`](crate::Limits)).
    pub out_of_order_over_stack: u64,
    /// Times that out-of-order bytes were refused because less than an eighth of the pool's buffers was free.
    pub out_of_order_no_buffers: u64,
    /// Received bytes that had been handed up before (duplicates).
    pub rx_duplicate_bytes: u64,
    /// ACKs in answer to segments that were not acceptable (RFC 5961), duplicates among them, or whose
    /// bytes did not fit.
    pub challenge_acks: u64,
    /// Challenge ACKs that were not sent because the connection was at its limit
    /// ([`TcpConfig::challenge_acks_per_second`](crate::TcpConfig)).
    pub challenge_acks_withheld: u64,
    /// TCP segments sent, including retransmissions.
    pub tx_segments: u64,
    /// Frames that carried several segments, for a port that cuts them.
    pub tx_trains: u64,
    /// Segments sent again.
    pub tx_retransmits: u64,
    /// Segments received that a router had marked (RFC 3168).
    pub rx_congestion_experienced: u64,
    /// Reductions of a congestion window because the peer echoed marks.
    pub ecn_reductions: u64,
    /// Retransmission timeouts.
    pub rto_expired: u64,
    /// Fast recoveries: loss found by acknowledgements.
    pub fast_retransmits: u64,
    /// Retransmissions found lost by acknowledgements (RFC 8985).
    pub lost_retransmits: u64,
    /// Connections on whose path reordering was seen (RFC 8985 section 6.2, step 3).
    pub reordering_seen: u64,
    /// Tail loss probes sent (RFC 8985 section 7).
    pub tail_loss_probes: u64,
    /// Retransmission timeouts found to be spurious and undone (RFC 4015, RFC 5682).
    pub spurious_timeouts: u64,
    /// Fast recoveries found to be spurious and undone.
    pub spurious_recoveries: u64,
    /// Acknowledgements that reported duplicate bytes (D-SACK, RFC 2883).
    pub dsack_received: u64,
    /// ICMP errors about a segment in flight that were only counted: soft ones, and hard ones for
    /// connections past their SYN (RFC 1122 section 4.2.3.9, RFC 5927 section 5).
    pub icmp_soft_errors: u64,
    /// ICMP errors about TCP that quote no segment in flight: forged, or too late (RFC 5927 section 4).
    pub icmp_ignored: u64,
    /// Reported conflicts over one of our addresses ([`Event::AddressConflict`](crate::Event)).
    pub address_conflicts: u64,
    /// Probes and announcements of our addresses sent, and answers to others' probes for them.
    pub tx_assertions: u64,
    /// Changes of a neighbour's Ethernet address that were refused because it had just changed.
    pub neighbor_moves_refused: u64,
    /// Times that the link went away.
    pub link_downs: u64,
    /// Black holes found: paths that drop large packets without an ICMP error (RFC 8899 section 4.3).
    pub path_mtu_black_holes: u64,
    /// Path MTU probes sent.
    pub path_mtu_probes: u64,
    /// Probes whose arrival the peer reported.
    pub path_mtu_probes_answered: u64,
    /// Probes that were not answered in time, or that a router reported as too big.
    pub path_mtu_probes_lost: u64,
    /// Searches deferred because of `Limits::path_mtu_searches`.
    pub path_mtu_searches_put_off: u64,
    /// Segments dropped for a timestamp older than the latest (PAWS, RFC 7323 section 5).
    pub rx_old_timestamps: u64,
    /// Probes of a window that the peer had closed.
    pub window_probes: u64,
    /// Segments cut because EMSS dropped.
    pub tx_cut_by_emss: u64,
    /// Segments cut because the peer's window stayed below them (persist timer).
    pub tx_cut_by_persist: u64,
    /// Pure ACKs sent.
    pub tx_acks: u64,
    /// RSTs sent.
    pub tx_resets: u64,
    /// Times no packet buffer was left to send with.
    pub tx_no_mbuf: u64,
    /// Times no packet buffer was left to hand up a part of a received segment, which is dropped.
    pub rx_no_mbuf: u64,
}

/// For the sum over several.
impl std::ops::AddAssign for StackCounters {
    fn add_assign(&mut self, more: Self) {
        let Self {
            rx_frames,
            handed_over,
            handed_over_dropped,
            rx_handed_over,
            rx_segments,
            rx_slow,
            rx_malformed,
            rx_bad_checksum,
            rx_not_ours,
            rx_no_connection,
            rx_syn_dropped,
            time_wait_recycled,
            tx_syn_cookies,
            rx_syn_cookies,
            rx_fragments_dropped,
            rx_reassembled,
            out_of_order,
            rx_out_of_order_dropped,
            rx_out_of_order_evicted,
            out_of_order_over_connection,
            out_of_order_over_stack,
            out_of_order_no_buffers,
            rx_duplicate_bytes,
            challenge_acks,
            challenge_acks_withheld,
            tx_segments,
            tx_trains,
            tx_retransmits,
            rx_congestion_experienced,
            ecn_reductions,
            rto_expired,
            fast_retransmits,
            lost_retransmits,
            reordering_seen,
            tail_loss_probes,
            spurious_timeouts,
            spurious_recoveries,
            dsack_received,
            icmp_soft_errors,
            icmp_ignored,
            address_conflicts,
            tx_assertions,
            neighbor_moves_refused,
            link_downs,
            path_mtu_black_holes,
            path_mtu_probes,
            path_mtu_probes_answered,
            path_mtu_probes_lost,
            path_mtu_searches_put_off,
            rx_old_timestamps,
            window_probes,
            tx_cut_by_emss,
            tx_cut_by_persist,
            tx_acks,
            tx_resets,
            tx_no_mbuf,
            rx_no_mbuf,
        } = more;
        self.rx_frames += rx_frames;
        self.handed_over += handed_over;
        self.handed_over_dropped += handed_over_dropped;
        self.rx_handed_over += rx_handed_over;
        self.rx_segments += rx_segments;
        self.rx_slow += rx_slow;
        self.rx_malformed += rx_malformed;
        self.rx_bad_checksum += rx_bad_checksum;
        self.rx_not_ours += rx_not_ours;
        self.rx_no_connection += rx_no_connection;
        self.rx_syn_dropped += rx_syn_dropped;
        self.time_wait_recycled += time_wait_recycled;
        self.tx_syn_cookies += tx_syn_cookies;
        self.rx_syn_cookies += rx_syn_cookies;
        self.rx_fragments_dropped += rx_fragments_dropped;
        self.rx_reassembled += rx_reassembled;
        self.out_of_order += out_of_order;
        self.rx_out_of_order_dropped += rx_out_of_order_dropped;
        self.rx_out_of_order_evicted += rx_out_of_order_evicted;
        self.out_of_order_over_connection += out_of_order_over_connection;
        self.out_of_order_over_stack += out_of_order_over_stack;
        self.out_of_order_no_buffers += out_of_order_no_buffers;
        self.rx_duplicate_bytes += rx_duplicate_bytes;
        self.challenge_acks += challenge_acks;
        self.challenge_acks_withheld += challenge_acks_withheld;
        self.tx_segments += tx_segments;
        self.tx_trains += tx_trains;
        self.tx_retransmits += tx_retransmits;
        self.rx_congestion_experienced += rx_congestion_experienced;
        self.ecn_reductions += ecn_reductions;
        self.rto_expired += rto_expired;
        self.fast_retransmits += fast_retransmits;
        self.lost_retransmits += lost_retransmits;
        self.reordering_seen += reordering_seen;
        self.tail_loss_probes += tail_loss_probes;
        self.spurious_timeouts += spurious_timeouts;
        self.spurious_recoveries += spurious_recoveries;
        self.dsack_received += dsack_received;
        self.icmp_soft_errors += icmp_soft_errors;
        self.icmp_ignored += icmp_ignored;
        self.address_conflicts += address_conflicts;
        self.tx_assertions += tx_assertions;
        self.neighbor_moves_refused += neighbor_moves_refused;
        self.link_downs += link_downs;
        self.path_mtu_black_holes += path_mtu_black_holes;
        self.path_mtu_probes += path_mtu_probes;
        self.path_mtu_probes_answered += path_mtu_probes_answered;
        self.path_mtu_probes_lost += path_mtu_probes_lost;
        self.path_mtu_searches_put_off += path_mtu_searches_put_off;
        self.rx_old_timestamps += rx_old_timestamps;
        self.window_probes += window_probes;
        self.tx_cut_by_emss += tx_cut_by_emss;
        self.tx_cut_by_persist += tx_cut_by_persist;
        self.tx_acks += tx_acks;
        self.tx_resets += tx_resets;
        self.tx_no_mbuf += tx_no_mbuf;
        self.rx_no_mbuf += rx_no_mbuf;
    }
}
