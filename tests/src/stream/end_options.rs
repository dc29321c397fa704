//! Behaviour of one end of a stream that the other end has to handle.

use std::time::Duration;

use clap::Args;

/// Options for the behaviour of one end.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct EndOptions {
    /// Milliseconds of a pause after half of the stream: nothing is sent, or nothing is read.
    #[arg(long, default_value_t = 0)]
    pub pause: u64,
    /// The system's TCP: keepalive after this many seconds of silence, and again after as many; one
    /// unanswered probe ends the connection.
    #[arg(long)]
    pub keepalive: Option<u64>,
    /// The system's TCP: one byte in 8192 is urgent.
    #[arg(long)]
    pub urgent: bool,
    /// The system's TCP: connects with Fast Open (RFC 7413).
    #[arg(long)]
    pub fast_open: bool,
    /// The system's TCP: connects with Multipath TCP (RFC 8684), which falls back to TCP.
    #[arg(long)]
    pub multipath: bool,
    /// Our TCP: the receive window, bytes; 0: the default.
    #[arg(long, default_value_t = 0)]
    pub window: u32,
    /// Our TCP: asks for ECN (RFC 3168).
    #[arg(long)]
    pub ecn: bool,
}

impl EndOptions {
    /// The length of the pause, or `None` without a pause.
    pub(super) fn pause(&self) -> Option<Duration> {
        (self.pause > 0).then(|| Duration::from_millis(self.pause))
    }
}
