//! MPA: DDP segments as FPDUs in a TCP stream, and the startup exchange before them.
//!
//! This module implements RFC 5044 and RFC 6581 (MPA revision 2: negotiation of IRD and ORD, peer-to-peer
//! connections, RTR). MPA does no I/O and reads no clock: it receives bytes and deadlines, and returns bytes
//! and events. MPA does not interpret the bytes of a ULPDU, which is the task of [`ddp`](crate::ddp).
//!
//! | module | contents |
//! |---|---|
//! | [`frame`] | the bytes of a startup frame |
//! | [`startup`] | the exchange before the first FPDU: [`Initiator`], [`Responder`] |
//! | [`crc`] | CRC32c, and copies that compute the CRC |
//! | [`marker`] | the positions of markers, and the positions to which markers point |
//! | [`framer`] | writes ULPDUs as FPDUs |
//! | [`deframer`] | finds ULPDUs in received buffers, in order and out of order |
//! | [`error`] | the errors that end a connection, and how the connection ends |
//!
//! A position is the `u64` number of a byte in one direction. Position 0 is the first byte after the startup
//! frame. A stream offset is the number of a byte in the whole TCP stream, where the first byte of the stream
//! has number 0.

pub mod crc;
pub mod deframer;
pub mod error;
pub mod frame;
pub mod framer;
pub mod marker;
pub mod startup;

pub use crc::Crc32c;
pub use deframer::{Deframed, Deframer, HeldBuf, HeldList, HeldSlab, NoSlot, Ulpdu, Ulpdus};
pub(crate) use deframer::{HEAD_BYTES, is_borrowed, take_runs};
pub use error::{Action, MpaError, StartupFault, TerminateCode};
pub use framer::{FpduAround, FpduPlan, FpduWriter, Framer, Room, UlpduHead};
pub use startup::{
    Accept, ConnectRequest, Initiator, InitiatorEvent, MpaConfig, Negotiated, Responder, Rtr, RtrKind,
    RtrKinds,
};

/// Number of bytes of the ULPDU length field, the first field of an FPDU.
pub const LENGTH_BYTES: usize = 2;

/// Number of bytes of the CRC field, the last field of an FPDU. Every FPDU has this field, even if CRCs are
/// not in use.
pub const CRC_BYTES: usize = 4;

/// Maximum number of bytes of a ULPDU that may be sent (RFC 5044 section 3). Its FPDU fits into an IP
/// datagram, even with all options of IP and TCP.
pub const MAX_ULPDU: usize = 64_768;

/// The smallest MULPDU that a framer reports, however small EMSS is (RFC 5044 section 4.5).
pub const MIN_MULPDU: usize = 128;

/// Returns the number of pad bytes after a ULPDU. The pad makes the length of an FPDU without its markers a
/// multiple of 4.
///
/// ```
/// # use iwarp::mpa::pad_bytes;
/// assert_eq!([1, 2, 3, 4].map(pad_bytes), [1, 0, 3, 2]);
/// ```
pub const fn pad_bytes(ulpdu_bytes: usize) -> usize {
    (LENGTH_BYTES + ulpdu_bytes).wrapping_neg() % 4
}

/// Returns the number of bytes of an FPDU without its markers.
pub const fn fpdu_bytes(ulpdu_bytes: usize) -> usize {
    LENGTH_BYTES + ulpdu_bytes + pad_bytes(ulpdu_bytes) + CRC_BYTES
}
