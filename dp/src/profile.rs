//! Where a thread's cycles go, by layer: the stamps behind `iwperf --profile`.
//!
//! Code of a layer runs in a [`scope`] of it. Scopes nest, and a layer has what no inner one takes from it:
//! the figures are exclusive and add up to the time between [`start`] and [`stop`]. The protocol crates read
//! no clock; they name the layer, and this crate, which owns the clock, stamps.
//!
//! Without the feature `profile` a scope is nothing: a type without size or destructor, so that the code
//! around it is the same as without. With the feature, a thread that has not started counting pays a test of
//! one flag.

#[cfg(not(feature = "profile"))]
mod off;
#[cfg(feature = "profile")]
mod on;

#[cfg(not(feature = "profile"))]
use off as stamps;
#[cfg(feature = "profile")]
use on as stamps;

pub use stamps::Scope;

/// Whether this build can stamp.
pub const AVAILABLE: bool = cfg!(feature = "profile");

/// What cycles are spent on, from the wire upwards and down again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Layer {
    /// Whoever uses the verbs: all that is in no other scope.
    User,
    /// Frames from the port's queue.
    PortRx,
    /// TCP input: headers, checksum, lookup, acknowledgements, order.
    TcpIn,
    /// FPDUs found in the stream, and their CRC.
    Deframe,
    /// DDP and RDMAP of what has arrived: headers, checks, delivery.
    Receive,
    /// Bytes copied into registered memory.
    Place,
    /// Work requests posted.
    Post,
    /// Completions polled.
    Poll,
    /// DDP and RDMAP of what is sent: which message is next, segments, headers.
    Transmit,
    /// Bytes copied out of registered memory, and their CRC.
    Fetch,
    /// TCP output: buffers, segments, headers, timers.
    TcpOut,
    /// Frames to the port's queue.
    PortTx,
    /// The rest of an engine's turn: commands, doorbells, events, deadlines.
    Engine,
    /// Turns in which there was nothing to do. See [`mark`].
    Idle,
}

impl Layer {
    /// All of them, in the order above.
    pub const ALL: [Self; 14] = [
        Self::User,
        Self::PortRx,
        Self::TcpIn,
        Self::Deframe,
        Self::Receive,
        Self::Place,
        Self::Post,
        Self::Poll,
        Self::Transmit,
        Self::Fetch,
        Self::TcpOut,
        Self::PortTx,
        Self::Engine,
        Self::Idle,
    ];

    /// What it is called in a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "application",
            Self::PortRx => "port rx",
            Self::TcpIn => "TCP in",
            Self::Deframe => "deframe + CRC",
            Self::Receive => "DDP/RDMAP in",
            Self::Place => "placement",
            Self::Post => "verbs post",
            Self::Poll => "verbs poll",
            Self::Transmit => "DDP/RDMAP out",
            Self::Fetch => "fetch + CRC",
            Self::TcpOut => "TCP out",
            Self::PortTx => "port tx",
            Self::Engine => "engine",
            Self::Idle => "idle",
        }
    }
}

/// What a layer took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Cycles of [`Clock::cycles`](crate::Clock::cycles), without those of scopes inside.
    pub cycles: u64,
    /// Scopes of it that were entered.
    pub scopes: u64,
}

/// What all layers took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    costs: [Cost; Layer::ALL.len()],
}

impl Profile {
    /// What `layer` took.
    pub fn cost(&self, layer: Layer) -> Cost {
        self.costs[layer as usize]
    }

    /// What two threads took.
    pub fn merged(mut self, other: &Self) -> Self {
        for (cost, theirs) in self.costs.iter_mut().zip(&other.costs) {
            *cost = Cost { cycles: cost.cycles + theirs.cycles, scopes: cost.scopes + theirs.scopes };
        }
        self
    }

    /// What all layers took together, without idle turns.
    pub fn busy(&self) -> Cost {
        let busy = Layer::ALL.into_iter().filter(|&layer| layer != Layer::Idle).map(|layer| self.cost(layer));
        busy.fold(Cost::default(), |sum, cost| Cost {
            cycles: sum.cycles + cost.cycles,
            scopes: sum.scopes + cost.scopes,
        })
    }
}

/// Spends the cycles from here to the end of the returned value on `layer`.
#[inline(always)]
pub fn scope(layer: Layer) -> Scope {
    stamps::scope(layer)
}

/// Spends the cycles of `action` on `layer`.
#[inline(always)]
pub fn within<T>(layer: Layer, action: impl FnOnce() -> T) -> T {
    let _scope = scope(layer);
    action()
}

/// Begins to count in the calling thread, from zero, outside of all scopes.
pub fn start() {
    stamps::start();
}

/// Ends counting in the calling thread; what it came to, all zero where it was not started.
pub fn stop() -> Profile {
    stamps::stop()
}

/// Between two turns of a loop, outside of all scopes: with `idle`, all since the last mark (or the start)
/// counts as [`Layer::Idle`], whichever layer looked for work in vain.
#[inline(always)]
pub fn mark(idle: bool) {
    stamps::mark(idle);
}

/// What a scope itself costs, cycles: the stamps are part of the figures, about half of it in the scope's
/// layer and half in the one around. Measured over scopes with nothing in them; ends counting in the calling
/// thread.
pub fn scope_cycles() -> f64 {
    const SCOPES: u32 = 100_000;
    start();
    for _ in 0..SCOPES {
        let _scope = scope(Layer::Engine);
    }
    stop().busy().cycles as f64 / f64::from(SCOPES)
}

#[cfg(test)]
mod tests;
