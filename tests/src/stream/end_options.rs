//! Options for the behaviour of one side of a stream. The peer has to handle this behaviour.

use std::time::Duration;

use clap::Args;

/// Options for the behaviour of one side.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct EndOptions {
    /// Length of a pause after half of the stream, milliseconds: the sender sends nothing, or the receiver
    /// reads nothing.
    #[arg(long, default_value_t = 0)]
    pub pause: u64,
    /// Kernel's TCP: send a keepalive after this many seconds of silence; after as many seconds without an
    /// answer, the connection ends.
    #[arg(long)]
    pub keepalive: Option<u64>,
    /// Kernel's TCP: make one byte in 8192 urgent.
    #[arg(long)]
    pub urgent: bool,
    /// Kernel's TCP: connect with Fast Open (RFC 7413).
    #[arg(long)]
    pub fast_open: bool,
    /// Kernel's TCP: connect with Multipath TCP (RFC 8684), which falls back to TCP.
    #[arg(long)]
    pub multipath: bool,
    /// Our TCP: size of the receive window, bytes; 0: the default.
    #[arg(long, default_value_t = 0)]
    pub window: u32,
    /// Our TCP: ask for ECN (RFC 3168).
    #[arg(long)]
    pub ecn: bool,
}

impl EndOptions {
    /// Returns the length of the pause; `None`: there is no pause.
    pub(super) fn pause(&self) -> Option<Duration> {
        (self.pause > 0).then(|| Duration::from_millis(self.pause))
    }
}
