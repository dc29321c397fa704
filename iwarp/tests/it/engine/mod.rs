//! An engine and its port.

mod port_events;
mod receive_window;
mod stuck_port;
mod unreachable;
