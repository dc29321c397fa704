//! MPA startup (RFC 5044 section 7, RFC 6581), streaming mode before it, and what a listener admits.

mod crc_policy;
mod delayed;
mod ended;
mod first_fpdu;
mod initiator;
mod listener_limits;
mod responder;
mod streaming;
mod switch;
