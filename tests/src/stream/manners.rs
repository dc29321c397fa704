//! What the end of a stream does besides moving bytes, so that the other one has something to bear.

use std::time::Duration;

use clap::Args;

/// Manners of one end.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Manners {
    /// Milliseconds to stand still when half of the stream has passed: nothing is sent, or nothing is read.
    #[arg(long, default_value_t = 0)]
    pub pause: u64,
    /// The system's TCP: probes after so many seconds of silence, and again after as many; one in vain is the
    /// end.
    #[arg(long)]
    pub keepalive: Option<u64>,
    /// The system's TCP: one byte in 8192 is sent as urgent.
    #[arg(long)]
    pub urgent: bool,
    /// The system's TCP: connects by fast open (RFC 7413).
    #[arg(long)]
    pub fast_open: bool,
    /// The system's TCP: connects by Multipath TCP (RFC 8684), which falls back to TCP.
    #[arg(long)]
    pub multipath: bool,
    /// Ours: the receive window, bytes; 0: the stack's default.
    #[arg(long, default_value_t = 0)]
    pub window: u32,
    /// Ours: asks for ECN (RFC 3168).
    #[arg(long)]
    pub ecn: bool,
}

impl Manners {
    /// How long it stands still, if it does.
    pub(super) fn pause(&self) -> Option<Duration> {
        (self.pause > 0).then(|| Duration::from_millis(self.pause))
    }
}
