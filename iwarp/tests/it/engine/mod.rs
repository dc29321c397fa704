//! Engines: their polls, their ports and queues, and what they report.

mod due;
mod local_wire;
mod on_queues;
mod pauses;
mod port_events;
#[cfg(target_os = "linux")]
mod processes;
mod prometheus;
mod queues;
mod receive_window;
mod shared;
mod stuck_port;
#[cfg(feature = "tracing")]
mod trace;
mod unreachable;
