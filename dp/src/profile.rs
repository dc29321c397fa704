//! A profiler of a thread's cycles by layer, for `iwperf --profile`.
//!
//! Code of a layer runs in a [`scope`]. Scopes nest, and an inner scope's cycles do not count for the
//! outer one: the figures are exclusive and add up to the time between [`start`] and [`stop`]. The
//! protocol crates read no clock: they name the layer, and this crate takes the time stamps.
//!
//! Without the feature `profile` a scope is a type without size or destructor, so the code around it is
//! unchanged. With the feature, a thread that has not started counting tests one flag.

#[cfg(not(feature = "profile"))]
mod off;
#[cfg(feature = "profile")]
mod on;

#[cfg(not(feature = "profile"))]
use off as stamps;
#[cfg(feature = "profile")]
use on as stamps;

pub use stamps::Scope;

/// Whether this build can profile.
pub const AVAILABLE: bool = cfg!(feature = "profile");

/// Layers, from the wire upwards and down again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Layer {
    /// The application: everything outside of other scopes.
    User,
    /// Receiving frames from the port's queue.
    PortRx,
    /// TCP input: headers, checksum, lookup, acknowledgements, order.
    TcpIn,
    /// Deframing FPDUs, and their CRC.
    Deframe,
    /// DDP and RDMAP of received segments: headers, checks, delivery.
    Receive,
    /// Copying bytes into registered memory.
    Place,
    /// Posting work requests.
    Post,
    /// Polling completions.
    Poll,
    /// DDP and RDMAP of sent segments: choice of the next message, segmentation, headers.
    Transmit,
    /// Copying bytes out of registered memory, and their CRC.
    Fetch,
    /// TCP output: buffers, segments, headers, timers.
    TcpOut,
    /// Sending frames to the port's queue.
    PortTx,
    /// The rest of an engine's poll: commands, doorbells, events, deadlines.
    Engine,
    /// Polls that found nothing to do. See [`mark`].
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

    /// Its name in tables.
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

/// Cost of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Cycles of [`Clock::cycles`](crate::Clock::cycles), without those of inner scopes.
    pub cycles: u64,
    /// Number of its scopes that were entered.
    pub scopes: u64,
}

/// Costs of all layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    costs: [Cost; Layer::ALL.len()],
}

impl Profile {
    /// Cost of `layer`.
    pub fn cost(&self, layer: Layer) -> Cost {
        self.costs[layer as usize]
    }

    /// Sum of the costs of two threads.
    pub fn merged(mut self, other: &Self) -> Self {
        for (cost, theirs) in self.costs.iter_mut().zip(&other.costs) {
            *cost = Cost { cycles: cost.cycles + theirs.cycles, scopes: cost.scopes + theirs.scopes };
        }
        self
    }

    /// Sum over all layers except idle polls.
    pub fn busy(&self) -> Cost {
        let busy = Layer::ALL.into_iter().filter(|&layer| layer != Layer::Idle).map(|layer| self.cost(layer));
        busy.fold(Cost::default(), |sum, cost| Cost {
            cycles: sum.cycles + cost.cycles,
            scopes: sum.scopes + cost.scopes,
        })
    }
}

/// Counts the cycles until the returned value is dropped for `layer`.
#[inline(always)]
pub fn scope(layer: Layer) -> Scope {
    stamps::scope(layer)
}

/// Counts the cycles of `action` for `layer`.
#[inline(always)]
pub fn within<T>(layer: Layer, action: impl FnOnce() -> T) -> T {
    let _scope = scope(layer);
    action()
}

/// Starts counting in the calling thread, from zero, outside of all scopes.
pub fn start() {
    stamps::start();
}

/// Stops counting in the calling thread and returns the result; all zero if it was not started.
pub fn stop() -> Profile {
    stamps::stop()
}

/// Called between two polls of a loop, outside of all scopes. If `idle`, everything since the last mark
/// (or the start) counts as [`Layer::Idle`], whichever layer it was spent in.
#[inline(always)]
pub fn mark(idle: bool) {
    stamps::mark(idle);
}

/// Cost of a scope itself, cycles: the time stamps are part of the figures, about half in the scope's
/// layer and half in the one around. Measured over empty scopes; stops counting in the calling thread.
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
