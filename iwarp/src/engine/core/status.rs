//! The state of the engine, for those that ask.

use dp::LinkState;

use super::Core;
use crate::verbs::{ConnectionStatus, EngineStatus};

impl Core {
    /// Its state at this time.
    #[cold]
    pub(super) fn status(&self) -> EngineStatus {
        let info = self.port.info();
        let stack = &self.io.config.stack;
        let addresses = stack.addresses.iter().map(|cidr| (cidr.address().into(), cidr.prefix_len()));
        let connections = self.connections.iter().flatten().filter_map(|connection| {
            let (phase, qp) = connection.status();
            Some(ConnectionStatus { qp, phase, tcp: self.io.tcp.info(connection.conn())? })
        });
        EngineStatus {
            index: self.io.shared.index(),
            port: info.name.clone(),
            mac: info.mac,
            mtu: info.mtu,
            link_up: self.carrier.state() == LinkState::Up,
            shared_memory_bytes: self.port.shared_memory_bytes(),
            addresses: addresses.collect(),
            listens: self.io.listeners.iter().map(|listener| listener.shared.options.port).collect(),
            connections: connections.collect(),
            counters: self.counters(),
        }
    }
}
