//! MPA: DDP segments as FPDUs in a TCP stream, and the startup exchange in front of them.
//!
//! Implements draft-ietf-rddp-mpa-06 (RFC 5044 as published) and RFC 6581 (revision 2: depths, peer-to-peer,
//! RTR). It does no I/O and reads no clock: bytes and deadlines come in, bytes and events go out. It knows
//! nothing of what a ULPDU means; that is [`ddp`](crate::ddp)'s.
//!
//! | file | what |
//! |---|---|
//! | [`frame`] | the startup frame's bytes |
//! | [`startup`] | who says what before the first FPDU: [`Initiator`], [`Responder`] |
//! | [`crc`] | CRC32c, and copying with it |
//! | [`marker`] | where markers are and where they point |
//! | [`framer`] | ULPDUs into FPDUs |
//! | [`deframer`] | received buffers into ULPDUs, in order and out of order |
//! | [`error`] | what ends a connection, and how |
//!
//! Positions are `u64` byte counts of one direction from the first byte behind the startup frame; stream
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

/// Bytes of the ULPDU length field that opens an FPDU.
pub const LENGTH_BYTES: usize = 2;

/// Bytes of the CRC field that ends an FPDU, in use or not.
pub const CRC_BYTES: usize = 4;

/// Longest ULPDU that may be sent: what fits an IP datagram with all options, down to a multiple of 128
/// (section 3 of the draft).
pub const MAX_ULPDU: usize = 64_768;

/// MULPDU is never reported below this, whatever EMSS is (section 4.5).
pub const MIN_MULPDU: usize = 128;

/// Pad bytes behind a ULPDU: an FPDU without its markers is a multiple of 4.
///
/// ```
/// # use iwarp::mpa::pad_bytes;
/// assert_eq!([1, 2, 3, 4].map(pad_bytes), [1, 0, 3, 2]);
/// ```
pub const fn pad_bytes(ulpdu_bytes: usize) -> usize {
    (LENGTH_BYTES + ulpdu_bytes).wrapping_neg() % 4
}

/// Bytes of an FPDU without its markers.
pub const fn fpdu_bytes(ulpdu_bytes: usize) -> usize {
    LENGTH_BYTES + ulpdu_bytes + pad_bytes(ulpdu_bytes) + CRC_BYTES
}
