//! RDMAP (RFC 5040): its messages, and the Terminates of both peers.

mod receive;
mod siw_terminates;
mod terminates;
mod wire;
