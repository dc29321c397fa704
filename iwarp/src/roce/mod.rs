//! The packets of queue pairs of type UD in RoCEv2 (InfiniBand Architecture Specification, annex A17).
//!
//! A UD message is one IP packet. Linux's driver rxe and RoCE NICs send and receive the same packets.
//!
//! ```text
//! | IPv4, IPv6 | UDP | BTH | DETH | immediate | payload | pad    | ICRC |
//! |  20, 40    |  8  | 12  |  8   |  0 or 4   |         | 0 to 3 |  4   |
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`bth`] | the headers of every UD message: [`Bth`], [`Deth`]; numbers of queue pairs |
//! | [`ud`] | a UD message: [`UdSend`] writes and reads its headers, and checks received packets |
//! | [`icrc`](mod@icrc) | the CRC over the fields that do not change on the way |
//! | [`grh`](mod@grh) | the 40 bytes in front of a received payload, and the addresses in them |
//! | [`keys`] | P_Key and Q_Key |
//! | [`mtu`] | the longest UD message that fits an IP packet |
//! | [`multicast`] | the GIDs of multicast groups |
//! | [`sidr`] | the messages by which connection managers look up the queue pair of a service |
//! | [`cm_addresses`] | the addresses in the private data of these messages |
//! | [`fault`] | why a received packet is dropped |
//!
//! The code is pure, like the formats of iWARP, and allocates nothing. This module writes and reads no
//! Ethernet, IP or UDP headers, except that it reads the fields that an ICRC or a GRH needs. It knows no
//! queue pairs: the caller looks for the queue pair of [`UdSend::dest_qp`], and compares the Q_Keys.
//!
//! # Sending and receiving
//!
//! ```
//! use iwarp::roce::{self, Qpn, UdSend};
//!
//! let qpn = |number| Qpn::new(number).expect("24 bits");
//! let send = UdSend {
//!     solicited: false,
//!     pkey: roce::DEFAULT_PKEY,
//!     dest_qp: qpn(0x11),
//!     psn: 7,
//!     qkey: 0x1111_1111,
//!     src_qp: qpn(0x22),
//!     immediate: None,
//! };
//! // The headers of IPv4 and UDP, from 10.0.0.1 to 10.0.0.2. The length of the packet is 60.
//! let mut packet = vec![
//!     0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, //
//!     0xc0, 0, 0x12, 0xb7, 0, 40, 0, 0,
//! ];
//! packet.resize(28 + send.frame_bytes(5), 0);
//! let payload = send.write(5, &mut packet[28..]);
//! packet[28..][payload].copy_from_slice(b"hello");
//! roce::seal(&mut packet)?;
//!
//! let (received, payload) = UdSend::of_packet(&packet)?;
//! assert_eq!((received, &packet[payload]), (send, &b"hello"[..]));
//! let source = roce::source_of(&roce::grh(&packet)?).expect("a GRH");
//! assert_eq!(source.source.to_string(), "10.0.0.1");
//! # Ok::<(), roce::Fault>(())
//! ```

pub mod bth;
pub mod cm_addresses;
pub mod fault;
pub mod grh;
pub mod icrc;
pub mod keys;
mod layout;
pub mod mtu;
pub mod multicast;
pub mod sidr;
pub mod ud;

#[cfg(test)]
mod captures;
#[cfg(test)]
mod samples;

pub use bth::{Bth, Deth, Qpn};
pub use cm_addresses::CmAddresses;
pub use fault::Fault;
pub use grh::{GRH_BYTES, Source, grh, source_of};
pub use icrc::{ICRC_BYTES, Icrc, check, icrc, seal};
pub use keys::{DEFAULT_PKEY, GSI_QKEY, effective_qkey};
pub use mtu::{Mtu, max_message};
pub use multicast::{group_gid, group_of_gid};
pub use sidr::{DATAGRAM_QKEY, MAD_BYTES, MadFault, SidrMessage, SidrReply, SidrRequest};
pub use ud::UdSend;

/// The UDP destination port of RoCEv2. The source port may be any port, and should be the same for all
/// packets of a flow.
pub const UDP_PORT: u16 = 4791;
