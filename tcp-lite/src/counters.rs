//! Counters of a stack.

use crate::out_of_order::OutOfOrder;

dp::counters! {
    "uwarp_tcp_", "_total";
    /// Counters of the whole stack, which are never reset.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct StackCounters {
        /// Frames passed to the stack, including dropped frames.
        pub rx_frames: u64,
        /// Frames handed to another stack of the host ([`Member`](crate::Member)): the stack that has the
        /// connection, or the leading stack.
        pub handed_over: u64,
        /// Frames for another stack of the host that were dropped, because that stack's ring was full or that
        /// stack was gone.
        pub handed_over_dropped: u64,
        /// Frames among `rx_frames` that other stacks of the host handed to this stack.
        pub rx_handed_over: u64,
        /// TCP segments received that passed all checks.
        pub rx_segments: u64,
        /// Frames handed to the slow path.
        pub rx_slow: u64,
        /// Frames that are too short or inconsistent.
        pub rx_malformed: u64,
        /// Frames with a bad IP or TCP checksum.
        pub rx_bad_checksum: u64,
        /// Frames for another Ethernet or IP address, or another VLAN, and frames from an address that no
        /// peer can have.
        pub rx_not_ours: u64,
        /// TCP segments that belong to no connection, except SYNs to a listener and ACKs of SYN cookies
        /// (usually answered with RST).
        pub rx_no_connection: u64,
        /// SYNs and ACKs of SYN cookies that were dropped, for example because of `Limits`, or because of the
        /// limits of their listener ([`ListenerCounters`](crate::ListenerCounters) has the listener's
        /// reasons).
        pub rx_syn_dropped: u64,
        /// Connections that left TIME-WAIT early because all of `Limits::connections` were in use.
        pub time_wait_recycled: u64,
        /// SYNs answered with a cookie because their listener's backlog was full.
        pub tx_syn_cookies: u64,
        /// Connections established by a cookie.
        pub rx_syn_cookies: u64,
        /// Dropped fragments (for example inconsistent, overlapping or too short), incomplete packets that
        /// were dropped because of their age or to make room for other packets, and packets that would lose a
        /// router's mark.
        pub rx_fragments_dropped: u64,
        /// TCP segments that IP reassembly put together.
        pub rx_reassembled: u64,
        /// UDP datagrams passed to the user.
        pub rx_datagrams: u64,
        /// UDP datagrams to an open port that were dropped: broadcasts, datagrams to groups that are not
        /// joined, from an address that no peer can have, in fragments, with IP options, with a wrong length
        /// or checksum, and datagrams for which no event or packet buffer was left.
        pub rx_datagram_dropped: u64,
        /// UDP datagrams of the user that were sent.
        pub tx_datagrams: u64,
        /// UDP datagrams of the user that were dropped, because the Ethernet address of the next hop was not
        /// found in time, too many datagrams waited, or the port had no link.
        pub tx_datagram_dropped: u64,
        /// Bytes that all connections together hold: received ahead of their frontiers or held in order, and
        /// not released by the user.
        pub out_of_order: OutOfOrder,
        /// Out-of-order bytes that were dropped because a limit was reached.
        pub rx_out_of_order_dropped_bytes: u64,
        /// Out-of-order bytes that the user gave up because memory was short
        /// ([`Event::Evict`](crate::Event)).
        pub rx_out_of_order_evicted_bytes: u64,
        /// Times that a connection reached its own limit
        /// ([`TcpConfig::out_of_order_bytes`](crate::TcpConfig)).
        pub out_of_order_over_connection: u64,
        /// Times that the stack refused out-of-order bytes at its limit
        /// ([`Limits::out_of_order_bytes`](crate::Limits)).
        pub out_of_order_over_stack: u64,
        /// Times that the stack refused out-of-order bytes because less than an eighth of the pool's buffers
        /// was free.
        pub out_of_order_no_buffers: u64,
        /// Received bytes that had been passed to the user before (duplicates).
        pub rx_duplicate_bytes: u64,
        /// ACKs that answered segments that were not acceptable (RFC 5961), such as duplicates, and segments
        /// whose bytes were refused for lack of memory.
        pub challenge_acks: u64,
        /// Challenge ACKs that were not sent because the connection was at its limit
        /// ([`TcpConfig::challenge_acks_per_second`](crate::TcpConfig)), or at the lower limit for bare
        /// segments (without payload, SYN and FIN).
        pub challenge_acks_withheld: u64,
        /// TCP segments sent, including retransmissions.
        pub tx_segments: u64,
        /// Frames that carried several segments, for a port with TSO.
        pub tx_trains: u64,
        /// Segments sent again.
        pub tx_retransmits: u64,
        /// Segments received that a router had marked (RFC 3168).
        pub rx_congestion_experienced: u64,
        /// Reductions of a congestion window because the peer echoed marks.
        pub ecn_reductions: u64,
        /// Retransmission timeouts.
        pub rto_expired: u64,
        /// Fast recoveries, which start when acknowledgements reveal a loss.
        pub fast_retransmits: u64,
        /// Retransmissions found lost by acknowledgements (RFC 8985).
        pub lost_retransmits: u64,
        /// Connections that found reordering on their path (RFC 8985 section 6.2, step 3).
        pub reordering_seen: u64,
        /// Tail loss probes sent (RFC 8985 section 7).
        pub tail_loss_probes: u64,
        /// Retransmission timeouts found to be spurious and undone (RFC 4015, RFC 5682).
        pub spurious_timeouts: u64,
        /// Fast recoveries found to be spurious and undone.
        pub spurious_recoveries: u64,
        /// Acknowledgements that reported duplicate bytes (D-SACK, RFC 2883).
        pub dsack_received: u64,
        /// ICMP errors that quoted a segment in flight but did not end the connection: soft errors, and hard
        /// errors after the SYN was answered (RFC 1122 section 4.2.3.9, RFC 5927 section 5).
        pub icmp_soft_errors: u64,
        /// ICMP errors about TCP that quote neither a segment nor a path MTU probe in flight, because they
        /// are forged or too late (RFC 5927 section 4).
        pub icmp_ignored: u64,
        /// Reported conflicts about one of our addresses ([`Event::AddressConflict`](crate::Event)).
        pub address_conflicts: u64,
        /// Probes and announcements of our addresses that we sent, and answers to probes of other hosts.
        pub tx_assertions: u64,
        /// Changes of a neighbour's Ethernet address that were refused because the Ethernet address had just
        /// changed.
        pub neighbor_moves_refused: u64,
        /// Times that the link went away.
        pub link_downs: u64,
        /// Black holes found: paths that drop large packets without an ICMP error (RFC 8899 section 4.3).
        pub path_mtu_black_holes: u64,
        /// Path MTU probes sent.
        pub path_mtu_probes: u64,
        /// Path MTU probes whose arrival the peer reported.
        pub path_mtu_probes_answered: u64,
        /// Path MTU probes that were not answered in time, or that a router reported as too big.
        pub path_mtu_probes_lost: u64,
        /// Path MTU searches that were deferred because of `Limits::path_mtu_searches`.
        pub path_mtu_searches_put_off: u64,
        /// Segments dropped because their timestamp was older than the latest timestamp (PAWS, RFC 7323
        /// section 5).
        pub rx_old_timestamps: u64,
        /// Probes of a window that the peer had closed.
        pub window_probes: u64,
        /// Segments that were cut because the EMSS became smaller.
        pub tx_cut_by_emss: u64,
        /// Segments that were cut because the peer's window had been too small for a long time (persist
        /// timer).
        pub tx_cut_by_persist: u64,
        /// Pure ACKs sent.
        pub tx_acks: u64,
        /// RSTs sent.
        pub tx_resets: u64,
        /// Times that no packet buffer was left for sending.
        pub tx_no_mbuf: u64,
        /// Times that a part of a received segment was dropped because no packet buffer was left to pass the
        /// part to the user.
        pub rx_no_mbuf: u64,
    }
}
