//! MPA startup. Some inputs pass bytes in arbitrary parts to a state machine of either role. Other inputs
//! connect the state machines of both roles. The remaining inputs run an engine whose peer sends arbitrary
//! bytes, at once or after a plain stream (delayed startup, RFC 5044 section 7.1.3).

mod engine;
mod frames;
mod machines;

use crate::input::Input;

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.below(4) {
        0 => machines::alone(&mut input),
        1 => machines::together(&mut input),
        _ => engine::run(&mut input),
    }
}
