//! Prefetches the connections of the later frames of a burst, while earlier frames are processed.
//!
//! With many connections, the state of a connection is usually no longer in the cache. The stack guesses the
//! connection of a frame from the addresses and ports in the frame. A wrong guess only costs time.

use arrayvec::ArrayVec;
use dp::{BURST, Burst, Mbuf};

use super::Stack;
use crate::ethernet;
use crate::four_tuple::FourTuple;
use crate::table::TupleHash;

/// The guessed connections of the frames of a burst.
#[derive(Debug)]
pub struct Ahead(ArrayVec<Option<TupleHash>, BURST>);

impl Stack {
    /// Guesses the connections of frames that will be passed to [`input_next`](Self::input_next).
    pub fn look_ahead(&self, burst: &Burst) -> Ahead {
        let ip_at = ethernet::header_bytes(self.framing.vlan);
        let hash = |frame: &Mbuf| {
            let tuple = FourTuple::seen_in(frame.head(), ip_at)?;
            Some(self.connections.prefetch_slot_of(&tuple))
        };
        Ahead(burst.iter().map(hash).collect())
    }

    /// The slot of the connection to which the `n`th frame probably belongs; `None` if the guess found no
    /// connection. The caller passes the slot to [`prefetch`](Self::prefetch), and to
    /// [`expect_next`](Self::expect_next) when this frame is next.
    pub fn slot_ahead(&self, ahead: &Ahead, n: usize) -> Option<usize> {
        let hash = *ahead.0.get(n)?;
        self.connections.guess(hash?).map(|slot| slot as usize)
    }

    /// Announces that the next frame probably belongs to the connection in `slot`. The lookup for the next
    /// frame tries that slot first.
    pub fn expect_next(&mut self, slot: usize) {
        self.connections.expect_next(slot as u32);
    }
}

#[cfg(test)]
mod tests {
    use dp::Mempool;

    use super::*;
    use crate::{Instant, Limits, StackConfig, TcpConfig};

    /// A stack with connections to `10.0.0.2`, ports 1 to 3.
    fn stack() -> Stack {
        let config = StackConfig {
            mac: crate::facade::EthernetAddress([2, 0, 0, 0, 0, 1]),
            vlan: None,
            addresses: ["10.0.0.1/24".parse().expect("an address")].into_iter().collect(),
            gateways: Default::default(),
            address_probing: crate::AddressProbing::Off,
            derived_neighbors: None,
            loopback: false,
            mtu: 1500,
            offloads: Default::default(),
            limits: Limits::default(),
            tcp: TcpConfig::default(),
            seed: [1; 32],
        };
        let mut stack = Stack::new(config, Mempool::heap("ahead", 64, 2048));
        for port in 1..=3 {
            stack.connect(Instant::ZERO, ([10, 0, 0, 2], port).into(), Some(1000 + port)).expect("a route");
        }
        stack
    }

    /// The headers of a frame from a port of the peer to one of our ports.
    fn frame(pool: &Mempool, from: u16, to: u16) -> Mbuf {
        let mut bytes = vec![0; 14];
        bytes.extend([0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1]);
        bytes.extend([from.to_be_bytes(), to.to_be_bytes()].concat());
        let mut frame = pool.alloc().expect("a buffer");
        frame.append(bytes.len()).expect("room").copy_from_slice(&bytes);
        frame
    }

    #[test]
    fn each_frame_of_a_burst_is_for_the_connection_of_its_ports_or_for_none() {
        let (stack, pool) = (stack(), Mempool::heap("frames", 8, 2048));
        let mut burst: Burst = [(2, 1002), (1, 1001), (1, 1002), (3, 1003)]
            .map(|(from, to)| frame(&pool, from, to))
            .into_iter()
            .collect();
        burst.push(pool.alloc().expect("a buffer"));
        let ahead = stack.look_ahead(&burst);
        let slots: Vec<_> = (0..6).map(|n| stack.slot_ahead(&ahead, n)).collect();
        assert_eq!(slots, [Some(1), Some(0), None, Some(2), None, None]);
    }

    #[test]
    fn a_wrong_expectation_does_not_change_the_result() {
        let mut stack = stack();
        let tuple = stack.connections.get(1).expect("a connection").tuple;
        for slot in [0, 1, 2, 7] {
            stack.expect_next(slot);
            assert_eq!(stack.connections.find_next(&tuple), Some(1), "{slot} was expected");
        }
        stack.expect_next(1);
        let stranger = FourTuple { remote_port: 9, ..tuple };
        assert_eq!(stack.connections.find_next(&stranger), None);
    }
}
