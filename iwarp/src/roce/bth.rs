//! The transport headers of a UD message: BTH and DETH (IBA volume 1, sections 9.2 and 9.3.2).

use super::Fault;

/// BTH: the solicited event bit in the second byte.
const SOLICITED: u8 = 0x80;
/// BTH: the migration bit in the second byte.
const MIGRATED: u8 = 0x40;
/// BTH: the lowest bit of the pad count in the second byte.
const PAD_SHIFT: u32 = 4;
/// BTH: the version in the second byte.
const VERSION_MASK: u8 = 0x0F;
/// BTH: the acknowledge request bit in the byte before the PSN.
const ACK_REQUEST: u8 = 0x80;

/// The number of a queue pair, 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qpn(u32);

impl Qpn {
    /// No queue pair of this module's messages: queue pair 0 carries subnet management on InfiniBand.
    pub const NONE: Qpn = Qpn(0);
    /// The queue pair of the general services interface, by which connection managers exchange messages.
    pub const GSI: Qpn = Qpn(1);
    /// The destination of a message to a multicast group.
    pub const MULTICAST: Qpn = Qpn(0xFF_FFFF);

    /// Returns the queue pair with this number, or `None` if the number has more than 24 bits.
    pub const fn new(number: u32) -> Option<Self> {
        if number <= Self::MULTICAST.0 { Some(Self(number)) } else { None }
    }

    /// Returns the queue pair whose number is in the high 24 bits of a field.
    pub(super) const fn from_high_bits(field: u32) -> Self {
        Self(field >> 8)
    }

    /// Returns the number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// The Base Transport Header, the first header behind UDP.
///
/// The congestion bits FECN and BECN, and the reserved bits, are written as 0 and not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bth {
    /// Transport and operation. [`UdSend`](super::UdSend) has the opcodes of UD.
    pub opcode: u8,
    /// Whether the message is a solicited event at the receiver.
    pub solicited: bool,
    /// The migration bit, which has no meaning in UD. NICs set the bit, and rxe does not.
    pub migrated: bool,
    /// Number of bytes of pad between the payload and the ICRC, modulo 4.
    pub pad: u8,
    /// The partition of the message.
    pub pkey: u16,
    /// The queue pair that receives the message.
    pub dest_qp: Qpn,
    /// Whether the sender asks for an acknowledgement. The bit has no meaning in UD. rxe sets the bit, and
    /// NICs do not.
    pub ack_request: bool,
    /// Packet sequence number, modulo 2^24.
    pub psn: u32,
}

impl Bth {
    /// Number of bytes on the wire.
    pub const LEN: usize = 12;
    /// The byte of the header that has the reserved bits and the congestion bits, which an ICRC leaves out.
    pub(super) const RESERVED_BYTE: usize = 4;

    /// Parses the header.
    ///
    /// # Errors
    /// [`Fault::Version`] if the version is not 0.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, Fault> {
        let [opcode, flags, pkey_high, pkey_low, _, qp @ .., ack, psn_high, psn_mid, psn_low] = *bytes;
        if flags & VERSION_MASK != 0 {
            return Err(Fault::Version(flags & VERSION_MASK));
        }
        Ok(Self {
            opcode,
            solicited: flags & SOLICITED != 0,
            migrated: flags & MIGRATED != 0,
            pad: flags >> PAD_SHIFT & 3,
            pkey: u16::from_be_bytes([pkey_high, pkey_low]),
            dest_qp: Qpn(from_24_bits(qp)),
            ack_request: ack & ACK_REQUEST != 0,
            psn: from_24_bits([psn_high, psn_mid, psn_low]),
        })
    }

    /// Returns the header on the wire: big-endian, version 0.
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        let Self { opcode, solicited, migrated, pad, pkey, dest_qp, ack_request, psn } = *self;
        let flags = flag(solicited, SOLICITED) | flag(migrated, MIGRATED) | (pad & 3) << PAD_SHIFT;
        let [k0, k1] = pkey.to_be_bytes();
        let [_, q0, q1, q2] = dest_qp.0.to_be_bytes();
        let [_, p0, p1, p2] = psn.to_be_bytes();
        [opcode, flags, k0, k1, 0, q0, q1, q2, flag(ack_request, ACK_REQUEST), p0, p1, p2]
    }
}

/// The Datagram Extended Transport Header, which follows the [`Bth`] of a UD message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deth {
    /// The key that the receiving queue pair must have.
    pub qkey: u32,
    /// The queue pair that has sent the message.
    pub src_qp: Qpn,
}

impl Deth {
    /// Number of bytes on the wire.
    pub const LEN: usize = 8;

    /// Parses the header. The reserved byte is not read.
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [k0, k1, k2, k3, _, q0, q1, q2] = *bytes;
        Self { qkey: u32::from_be_bytes([k0, k1, k2, k3]), src_qp: Qpn(from_24_bits([q0, q1, q2])) }
    }

    /// Returns the header on the wire: big-endian.
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        let [k0, k1, k2, k3] = self.qkey.to_be_bytes();
        let [_, q0, q1, q2] = self.src_qp.0.to_be_bytes();
        [k0, k1, k2, k3, 0, q0, q1, q2]
    }
}

const fn from_24_bits([high, mid, low]: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, high, mid, low])
}

const fn flag(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::{Bth, Deth, Qpn};
    use crate::roce::Fault;

    /// Each field has different bytes, so that the test notices if two fields are swapped.
    #[test]
    fn each_field_is_in_its_place() {
        let bth = Bth {
            opcode: 0x64,
            solicited: true,
            migrated: false,
            pad: 2,
            pkey: 0xa1a2,
            dest_qp: Qpn::new(0x00b1_b2b3).unwrap(),
            ack_request: false,
            psn: 0x00c1_c2c3,
        };
        let bytes = [0x64, 0xa0, 0xa1, 0xa2, 0, 0xb1, 0xb2, 0xb3, 0, 0xc1, 0xc2, 0xc3];
        assert_eq!((bth.to_bytes(), Bth::parse(&bytes)), (bytes, Ok(bth)));
        let other = Bth { solicited: false, migrated: true, pad: 1, ack_request: true, ..bth };
        let bytes = [0x64, 0x50, 0xa1, 0xa2, 0, 0xb1, 0xb2, 0xb3, 0x80, 0xc1, 0xc2, 0xc3];
        assert_eq!((other.to_bytes(), Bth::parse(&bytes)), (bytes, Ok(other)));

        let deth = Deth { qkey: 0xd1d2_d3d4, src_qp: Qpn::new(0x00e1_e2e3).unwrap() };
        let bytes = [0xd1, 0xd2, 0xd3, 0xd4, 0, 0xe1, 0xe2, 0xe3];
        assert_eq!((deth.to_bytes(), Deth::parse(&bytes)), (bytes, deth));
    }

    #[test]
    fn reserved_and_congestion_bits_are_not_read() {
        let plain = [0x65, 0, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 0, 5];
        let marked = [0x65, 0, 0xff, 0xff, 0xff, 0, 0, 9, 0x7f, 0, 0, 5];
        assert_eq!(Bth::parse(&marked), Bth::parse(&plain));
        assert_eq!(Deth::parse(&[1, 2, 3, 4, 0xff, 5, 6, 7]), Deth::parse(&[1, 2, 3, 4, 0, 5, 6, 7]));
    }

    #[test]
    fn only_version_0_is_known() {
        for version in 1..16 {
            let bytes = [0x64, 0xf0 | version, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 0, 5];
            assert_eq!(Bth::parse(&bytes), Err(Fault::Version(version)));
        }
    }

    /// A PSN counts modulo 2^24, and its upper bits never reach the bit of the acknowledge request.
    #[test]
    fn numbers_have_24_bits() {
        assert_eq!(Qpn::new(0x0100_0000), None);
        assert_eq!(Qpn::new(0x00ff_ffff), Some(Qpn::MULTICAST));
        let bth = Bth::parse(&[0; 12]).unwrap();
        assert_eq!(Bth { psn: 0xff00_0001, ..bth }.to_bytes(), Bth { psn: 1, ..bth }.to_bytes());
    }
}
