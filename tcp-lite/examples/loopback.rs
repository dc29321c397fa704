//! Measures the speed of one stream between two stacks on a wire in memory. Both stacks run on one core.
//!
//! `cargo run --release -p tcp-lite --no-default-features --example loopback [MEGABYTES]`

use std::time::Instant as Wall;

use dp::link::{LinkConfig, pair};
use dp::{Burst, Port};
use tcp_lite::facade::EthernetAddress;
use tcp_lite::{Event, Instant, Limits, Stack, StackConfig, TcpConfig};

/// A stack and its port.
struct Host {
    stack: Stack,
    port: Box<dyn Port>,
    out: Burst,
}

impl Host {
    fn new(n: u8, mtu: u16, port: Box<dyn Port>) -> Self {
        let config = StackConfig {
            mac: EthernetAddress([2, 0, 0, 0, 0, n]),
            vlan: None,
            addresses: std::iter::once(format!("10.0.0.{n}/24").parse().expect("an address")).collect(),
            gateways: Default::default(),
            address_probing: Default::default(),
            derived_neighbors: None,
            loopback: false,
            mtu,
            offloads: port.info().offloads,
            limits: Limits::default(),
            tcp: TcpConfig { recv_window_bytes: 4 << 20, send_buffer_bytes: 4 << 20, ..TcpConfig::default() },
            seed: [n; 32],
        };
        Self { stack: Stack::new(config, port.mempool().clone()), port, out: Burst::new() }
    }

    /// Polls once: receives frames, runs timers, handles events, and sends frames.
    fn poll(&mut self, now_us: u64, mut on_event: impl FnMut(Event)) {
        let now = Instant::from_micros(now_us as i64);
        let mut frames = Burst::new();
        self.port.rx_burst(now_us, &mut frames);
        frames.drain(..).for_each(|frame| self.stack.input(now, frame));
        self.stack.poll(now);
        while let Some(event) = self.stack.event() {
            on_event(event);
        }
        while self.stack.transmit(now, &mut self.out) && self.port.tx_burst(now_us, &mut self.out) > 0 {}
        self.port.tx_burst(now_us, &mut self.out);
    }
}

fn main() {
    let megabytes = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(2000);
    for (mtu, checksum_offload) in [(1500, false), (1500, true), (9000, false), (9000, true)] {
        let link = LinkConfig { mtu, checksum_offload, mbufs: 16_384, ..LinkConfig::default() };
        let (port_a, port_b) = pair(&link);
        let (mut a, mut b) = (Host::new(1, mtu, port_a), Host::new(2, mtu, port_b));
        b.stack.listen(1).expect("a free port");
        let remote = "10.0.0.2:1".parse().expect("an address");
        let conn = a.stack.connect(Instant::ZERO, remote, None).expect("a route");
        let total = megabytes * 1_000_000;
        let chunk = vec![0x5a; 65_536];
        let (mut sent, mut received, mut ready) = (0, 0, false);
        let start = Wall::now();
        while received < total {
            let now_us = start.elapsed().as_micros() as u64;
            let now = Instant::from_micros(now_us as i64);
            a.poll(now_us, |event| {
                ready |= matches!(event, Event::Established { .. } | Event::Writable { .. })
            });
            while ready && sent < total {
                match a.stack.send(now, conn, &chunk[..chunk.len().min(total - sent)]) {
                    Ok(taken) => sent += taken,
                    Err(_) => ready = false,
                }
            }
            b.poll(now_us, |event| {
                if let Event::Received { received: bytes, .. } = event {
                    received += bytes.buf.len();
                }
            });
        }
        let seconds = start.elapsed().as_secs_f64();
        let gbps = received as f64 * 8e-9 / seconds;
        let counters = a.stack.counters();
        println!(
            "MTU {mtu}, checksums {}: {gbps:.1} Gb/s, {} segments, {} sent again",
            if checksum_offload { "offloaded" } else { "in software" },
            counters.tx_segments,
            counters.tx_retransmits,
        );
    }
}
