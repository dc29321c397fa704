//! Writes and parses the bytes of MPA (RFC 5044, 6581), DDP (RFC 5041) and RDMAP (RFC 5040, 7306), correct
//! and incorrect.
//!
//! Parsing refuses no value: fields keep their received values. Only the deframer checks what it reads (pad
//! bytes, markers and CRC), and reports deviations with the FPDU (`Fpdu::complaints`). The functions of
//! `describe` print the fields.

pub mod atomic;
mod crc;
pub mod describe;
mod fpdu;
mod segment;
mod startup;
mod terminate;

pub use crc::crc32c;
pub use fpdu::{Deframer, Fault, Fpdu, Framer};
pub use segment::{ReadRequest, Segment, opcode};
pub use startup::{Depths, REPLY_KEY, REQUEST_KEY, Startup, flag};
pub use terminate::{Code, Terminate};

#[cfg(test)]
mod tests;
