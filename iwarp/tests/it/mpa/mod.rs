//! Tests of MPA (RFC 5044): FPDUs in any segmentation and order of arrival, and random bytes for the parser
//! of startup frames.

mod arrival;
mod fuzz;
mod oracle;
mod support;
