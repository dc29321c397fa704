//! MPA (RFC 5044): FPDUs in any segmentation and order of arrival.

mod arrival;
mod fuzz;
mod oracle;
mod support;
