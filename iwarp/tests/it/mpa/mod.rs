//! MPA (RFC 5044): FPDUs, however they arrive.

mod arrival;
mod fuzz;
mod oracle;
mod support;
