//! MPA: DDP segments as FPDUs in a TCP stream, and the startup exchange in front of them.
//!
//! Implements draft-ietf-rddp-mpa-06 (RFC 5044 as published) and RFC 6581 (revision 2: depths, peer-to-peer,
//! RTR). It does no I/O and reads no clock: octets and deadlines come in, octets and events go out. It knows
//! nothing of what a ULPDU means; that is [`ddp`](crate::ddp)'s.
//!
//! | file | what |
//! |---|---|
//! | [`frame`] | the startup frame's octets |
//! | [`startup`] | who says what before the first FPDU: [`Initiator`], [`Responder`] |
//! | [`crc`] | CRC32c, and copying with it |
//! | [`marker`] | where markers are and where they point |
//! | [`framer`] | ULPDUs into FPDUs |
//! | [`deframer`] | received buffers into ULPDUs, in order and out of order |
//! | [`error`] | what ends a connection, and how |
//!
//! Positions are `u64` octet counts of one direction from the first octet behind the startup frame; stream
//! offsets are TCP's, which begin before it.

pub mod crc;
pub mod deframer;
pub mod error;
pub mod frame;
pub mod framer;
pub mod marker;
pub mod startup;

pub use crc::Crc32c;
pub use deframer::{Deframer, HeldBuf, HeldList, HeldSlab, NoSlot, Received, Ulpdu, Ulpdus};
pub use error::{Action, MpaError, StartupFault, TerminateCode};
pub use framer::{FpduWriter, Framer, Room};
pub use startup::{
    Accept, ConnectRequest, Initiator, InitiatorEvent, MpaConfig, Negotiated, Responder, Rtr, RtrKind,
    RtrKinds,
};

/// Octets of the ULPDU length field that opens an FPDU.
pub const LENGTH_OCTETS: usize = 2;

/// Octets of the CRC field that ends an FPDU, in use or not.
pub const CRC_OCTETS: usize = 4;

/// Longest ULPDU that may be sent: what fits an IP datagram with all options, down to a multiple of 128
/// (section 3 of the draft).
pub const MAX_ULPDU: usize = 64_768;

/// MULPDU is never reported below this, whatever EMSS is (section 4.5).
pub const MIN_MULPDU: usize = 128;

/// Pad octets behind a ULPDU: an FPDU without its markers is a multiple of 4.
///
/// ```
/// # use iwarp::mpa::pad_octets;
/// assert_eq!([1, 2, 3, 4].map(pad_octets), [1, 0, 3, 2]);
/// ```
pub const fn pad_octets(ulpdu_octets: usize) -> usize {
    (LENGTH_OCTETS + ulpdu_octets).wrapping_neg() % 4
}

/// Octets of an FPDU without its markers.
pub const fn fpdu_octets(ulpdu_octets: usize) -> usize {
    LENGTH_OCTETS + ulpdu_octets + pad_octets(ulpdu_octets) + CRC_OCTETS
}
