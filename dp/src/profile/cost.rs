//! The layers of the data path, and the costs of the layers.

/// The layers of the data path. Between `User` and `Engine`, the variants are in the order of the data path:
/// reception upwards from the wire, the verbs, and transmission downwards to the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Layer {
    /// The application: everything outside of other scopes.
    User,
    /// Receiving frames from the port's queue.
    PortRx,
    /// TCP input: headers, checksum, lookup, acknowledgements, reordering.
    TcpIn,
    /// Deframing FPDUs, and checking their CRCs.
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
    /// Copying bytes out of registered memory, and computing their CRC.
    Fetch,
    /// TCP output: buffers, segments, headers, timers.
    TcpOut,
    /// Sending frames to the port's queue.
    PortTx,
    /// The rest of an engine's poll: commands, doorbells, events, deadlines.
    Engine,
    /// Polls that have found nothing to do: see [`mark`](super::mark).
    Idle,
}

impl Layer {
    /// All layers, in the order of the variants.
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

    /// A short name for tables, such as `TCP in`.
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

/// The cost of a layer from [`start`](super::start) to [`stop`](super::stop).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Number of cycles of [`Clock::cycles`](crate::Clock::cycles), without the cycles of inner scopes.
    pub cycles: u64,
    /// Number of scopes of the layer that were entered.
    pub scopes: u64,
}

/// The costs of all layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    pub(super) costs: [Cost; Layer::ALL.len()],
}

impl Profile {
    /// The cost of `layer`. Cycles and scopes are zero if the layer has not run.
    pub fn cost(&self, layer: Layer) -> Cost {
        self.costs[layer as usize]
    }

    /// The sum of this profile and the profile of another thread.
    pub fn merged(mut self, other: &Self) -> Self {
        for (cost, theirs) in self.costs.iter_mut().zip(&other.costs) {
            *cost = Cost { cycles: cost.cycles + theirs.cycles, scopes: cost.scopes + theirs.scopes };
        }
        self
    }

    /// The sum of the costs of all layers except [`Layer::Idle`].
    pub fn busy(&self) -> Cost {
        let busy = Layer::ALL.into_iter().filter(|&layer| layer != Layer::Idle).map(|layer| self.cost(layer));
        busy.fold(Cost::default(), |sum, cost| Cost {
            cycles: sum.cycles + cost.cycles,
            scopes: sum.scopes + cost.scopes,
        })
    }
}
