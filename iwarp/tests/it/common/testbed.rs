//! The wire of a test and the hosts on it: two engines, or an engine and a bare TCP peer.
//!
//! | type | hosts |
//! |---|---|
//! | [`Pair`] | two engines and their users, with connections between them (`hosts`) |
//! | [`RawPair`] | an engine and a bare TCP peer, which sends any bytes; routers that drop, peers that stop reading |
//! | `Responder` | a `RawPair` whose engine listens: the peer sends the Request that the test chooses |
//! | `Initiator` | a `RawPair` whose engine connects: the peer sends the Reply that the test chooses |
//! | `Served` | a `Responder` with an accepted connection, and one of each object |
//! | `World` | a `RawPair` with a hub as its wire, and honest clients on a third host |

use dp::Port;
use dp::link::{LinkConfig, LinkControl, pair_with_control};
use iwarp::engine::{Engine, EngineConfig};
use iwarp::verbs::{Context, ContextConfig};
use tcp_lite::Limits;

use super::Pair;
use super::hooked::{Hooks, hooked};
use super::raw::RawPair;

/// Builds the hosts of a test from ports, an engine configuration and a context. The default is a wire
/// without faults and engines with their default configuration.
pub(crate) struct Testbed<'a> {
    ports: (Box<dyn Port>, Box<dyn Port>),
    configure: Box<dyn Fn(&mut EngineConfig) + 'a>,
    context: Option<Context>,
    late_memory_checks: bool,
}

impl<'a> Testbed<'a> {
    pub(crate) fn new() -> Self {
        Self::on(&LinkConfig::default())
    }

    pub(crate) fn on(link: &LinkConfig) -> Self {
        Self::with_control(link).0
    }

    /// Returns a wire that the test can control.
    pub(crate) fn with_control(link: &LinkConfig) -> (Self, LinkControl) {
        let (a, b, control) = pair_with_control(link);
        (Self::over((a, b)), control)
    }

    /// Returns a testbed on any two ports.
    pub(crate) fn over(ports: (Box<dyn Port>, Box<dyn Port>)) -> Self {
        Self { ports, configure: Box::new(|_| {}), context: None, late_memory_checks: false }
    }

    /// Calls `hooks` for the bursts of the first host's port.
    pub(crate) fn hook_a(mut self, hooks: impl Hooks) -> Self {
        self.ports.0 = hooked(self.ports.0, hooks);
        self
    }

    /// Calls `hooks` for the bursts of the second host's port.
    pub(crate) fn hook_b(mut self, hooks: impl Hooks) -> Self {
        self.ports.1 = hooked(self.ports.1, hooks);
        self
    }

    /// Applies `configure` to the configuration of every engine.
    pub(crate) fn configure(self, configure: impl Fn(&mut EngineConfig) + 'a) -> Self {
        Self { configure: Box::new(configure), ..self }
    }

    /// Sets the context of the engine that has a bare TCP peer.
    pub(crate) fn context(self, context: Context) -> Self {
        Self { context: Some(context), ..self }
    }

    /// Gives both hosts contexts that accept requests with invalid local memory.
    pub(crate) fn late_memory_checks(self) -> Self {
        Self { late_memory_checks: true, ..self }
    }

    pub(crate) fn hosts(self) -> Pair {
        let config =
            ContextConfig { late_memory_checks: self.late_memory_checks, ..ContextConfig::default() };
        Pair::over(self.ports, &config, self.configure)
    }

    /// Creates an engine, and a bare TCP peer on the second port.
    pub(crate) fn peer(self) -> RawPair {
        let seeded = || Context::new(ContextConfig { seed: Some([3; 32]), ..ContextConfig::default() });
        let context = self.context.unwrap_or_else(|| seeded().unwrap());
        RawPair::over(context, self.ports, Limits::default(), self.configure)
    }
}

/// Creates one more engine of `context`, with `address` on `port`.
pub(crate) fn engine(context: &Context, port: Box<dyn Port>, address: &str, seed: u8) -> Engine {
    let mut config = EngineConfig::new(&*port, &[address]).unwrap();
    config.stack.seed = [seed; 32];
    Engine::new(context, port, config).unwrap()
}
