//! MPA startup: the machines of both roles and revisions, fed octets in arbitrary pieces; and an engine whose peer says
//! arbitrary octets, at once or behind a plain stream (delayed startup, RFC 5044 section 7.1.3).

mod engine;
mod frames;
mod machines;

use crate::input::Input;

/// One input.
pub fn run(octets: &[u8]) {
    let mut input = Input::new(octets);
    match input.below(4) {
        0 => machines::alone(&mut input),
        1 => machines::together(&mut input),
        _ => engine::run(&mut input),
    }
}
