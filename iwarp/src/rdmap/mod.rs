//! Remote Direct Memory Access Protocol (RFC 5040): opcodes, Read Requests, Read sinks and Terminate; and its
//! extensions (RFC 7306): atomics and Immediate Data.
//!
//! This module encodes, decodes and checks the bytes that DDP reserves for RDMAP, the headers that RDMAP
//! sends as DDP payload, and the error codes of all layers. The order of messages and the state of a stream
//! are in `crate::stream`.

pub mod atomic;
pub mod error;
pub mod immediate;
pub mod opcode;
pub mod read_request;
pub mod read_sink;
pub mod terminate;

pub use atomic::{AtomicOp, AtomicRequest, AtomicResponse};
pub use error::TerminateError;
pub use immediate::{IMMEDIATE_LEN, ImmediateData};
pub(crate) use immediate::{join_immediate, joined_immediate};
pub use opcode::{Extensions, Opcode, Queue};
pub use read_request::ReadRequest;
pub use read_sink::ReadSink;
pub use terminate::{BitOrder, Terminate, TerminateParseError};
