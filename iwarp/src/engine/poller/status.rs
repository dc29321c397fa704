//! The state of the engine, for threads that request it.

use dp::LinkState;

use super::Poller;
use crate::verbs::{ConnectionStatus, EngineStatus};

impl Poller {
    #[cold]
    pub(super) fn status(&self) -> EngineStatus {
        let info = self.port.info();
        let stack = &self.state.config.stack;
        let addresses = stack.addresses.iter().map(|cidr| (cidr.address().into(), cidr.prefix_len()));
        let connections = self.connections.iter().flatten().filter_map(|connection| {
            let (phase, qp) = connection.status();
            Some(ConnectionStatus { qp, phase, tcp: self.state.tcp.info(connection.conn())? })
        });
        EngineStatus {
            index: self.state.handle.index(),
            port: info.name.clone(),
            mac: info.mac,
            mtu: info.mtu,
            link_up: self.carrier.state() == LinkState::Up,
            shared_memory_bytes: self.port.shared_memory_bytes(),
            addresses: addresses.collect(),
            listens: self.state.listeners.iter().map(|listener| listener.shared.options.port).collect(),
            groups: self.state.tcp.groups().collect(),
            connections: connections.collect(),
            counters: self.counters(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::{Duration, Instant};

    use dp::link::{LinkConfig, pair};

    use crate::engine::{Engine, EngineConfig};
    use crate::verbs::{Context, ContextConfig};

    /// A thread that waits for the status of an engine stops waiting when the engine ends, and does not
    /// report the engine as silent.
    #[test]
    fn an_engine_that_ends_is_not_waited_for() {
        let context = Context::new(ContextConfig::default()).unwrap();
        let (port, _other) = pair(&LinkConfig::default());
        let config = EngineConfig::new(&*port, &["10.0.0.1/24"]).unwrap();
        let engine = RefCell::new(Some(Engine::new(&context, port, config).unwrap()));
        let patience = Duration::from_secs(60);
        let start = Instant::now();
        let status = context.status_with(patience, &|| drop(engine.take()));
        assert!(start.elapsed() < patience / 2, "it took {:?}", start.elapsed());
        assert!(status.engines.is_empty() && status.silent.is_empty(), "{status:?}");
    }
}
