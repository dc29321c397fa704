//! A port that is connected to two wires: a network on which a host has several neighbours.

use dp::link::{LinkConfig, pair};
use dp::{Below, Burst, Link, LinkState, Port, PortBase, PortLayer, Sleep, Statistics};

/// Sends a frame to the wire on which the frame's Ethernet destination was first seen as a source. A frame
/// with an unknown destination is sent to both wires.
pub(crate) struct Hub {
    wires: [Box<dyn Port>; 2],
    heard: Vec<([u8; 6], usize)>,
    first: usize,
}

/// Returns the hub, and the port at the other side of each wire. In each of `links`, `a_to_b` is the
/// direction from the hub to the returned port.
pub(crate) fn hub(links: [&LinkConfig; 2]) -> (Box<dyn Port>, [Box<dyn Port>; 2]) {
    let [(near_0, far_0), (near_1, far_1)] = links.map(pair);
    (Box::new(Hub { wires: [near_0, near_1], heard: Vec::new(), first: 0 }), [far_0, far_1])
}

impl PortLayer for Hub {
    fn below(&self) -> Below<&dyn Port, &PortBase> {
        Below::Port(&*self.wires[0])
    }

    fn below_mut(&mut self) -> Below<&mut dyn Port, &mut PortBase> {
        Below::Port(&mut *self.wires[0])
    }
}

impl Port for Hub {
    fn rx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        let before = frames.len();
        // The wires take turns to be first, so that no wire starves the other one.
        self.first = 1 - self.first;
        for wire in [self.first, 1 - self.first] {
            let start = frames.len();
            self.wires[wire].rx_burst(now_us, frames);
            for frame in &frames[start..] {
                let mut source = [0; 6];
                frame.copy_to(6, &mut source);
                if !self.heard.iter().any(|(address, _)| *address == source) {
                    self.heard.push((source, wire));
                }
            }
        }
        frames.len() - before
    }

    fn tx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        let count = frames.len();
        let mut ways = [Burst::new(), Burst::new()];
        for frame in frames.drain(..) {
            let mut to = [0; 6];
            frame.copy_to(0, &mut to);
            match self.heard.iter().find(|(address, _)| *address == to) {
                Some(&(_, wire)) => ways[wire].push(frame),
                None => {
                    ways[0].extend(frame.deep_copy(self.wires[0].mempool()));
                    ways[1].push(frame);
                }
            }
        }
        for (wire, mut way) in self.wires.iter_mut().zip(ways) {
            // Frames for which the wire's ring has no space are lost, as in a switch.
            wire.tx_burst(now_us, &mut way);
        }
        count
    }
}

impl Link for Hub {
    fn link_state(&mut self) -> LinkState {
        let any = self.wires.iter_mut().any(|wire| wire.link_state() == LinkState::Up);
        if any { LinkState::Up } else { LinkState::Down }
    }
}

impl Statistics for Hub {}

impl Sleep for Hub {
    fn next_due_us(&self) -> Option<u64> {
        self.wires.iter().filter_map(|wire| wire.next_due_us()).min()
    }
}
