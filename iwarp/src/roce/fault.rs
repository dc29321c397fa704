//! Why a received packet is dropped. A UD receiver sends no answer to such a packet.

use super::Qpn;

/// Why a packet is not a UD message that a queue pair may receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The bytes are not a whole IP packet with one UDP datagram. IPv4 options, extension headers of IPv6 and
    /// fragments are not allowed in RoCEv2.
    #[error("not a whole IP packet with one UDP datagram, or with options or extension headers")]
    Packet,
    /// The UDP datagram is too short for the headers and the ICRC, or its length is not a multiple of 4.
    #[error("a UDP datagram with {bytes} bytes of payload is no UD message")]
    Length {
        /// Number of bytes behind the UDP header.
        bytes: usize,
    },
    /// The version of the transport headers is not 0.
    #[error("transport header version {0} is not 0")]
    Version(u8),
    /// The opcode is neither UD SEND only nor UD SEND only with immediate.
    #[error("opcode {0:#04x} is no UD SEND")]
    Opcode(u8),
    /// The packet is of another partition.
    #[error("P_Key {0:#06x} does not match the default partition")]
    Pkey(u16),
    /// The message is for queue pair 0 or from it. Queue pair 0 carries subnet management on InfiniBand.
    #[error("queue pair 0 is the destination or the source")]
    QpZero,
    /// The message is for queue pair 1, and its Q_Key is not [`GSI_QKEY`](super::GSI_QKEY).
    #[error("Q_Key {0:#010x} is not the Q_Key of queue pair 1")]
    GsiQkey(u32),
    /// The pad count is larger than the number of bytes behind the headers.
    #[error("a pad of {pad} bytes with {bytes} bytes of payload and pad")]
    Pad {
        /// The pad count of the BTH.
        pad: u8,
        /// Number of bytes between the headers and the ICRC.
        bytes: usize,
    },
    /// The packet has a multicast address and a queue pair other than [`Qpn::MULTICAST`], or has a unicast
    /// address and the queue pair [`Qpn::MULTICAST`].
    #[error("queue pair {0:?} and the destination address disagree on multicast")]
    Multicast(Qpn),
    /// The ICRC does not match the packet.
    #[error("wrong ICRC")]
    Icrc,
}
