//! Times the Internet checksum in software, which a segment needs if its port has no checksum offload.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput};
use tcp_lite::bench::internet_checksum;

/// Lengths in bytes: for example of a header (20), of a small message (64), and of the payload of a segment
/// at MTU 1500 (1448) and at MTU 9000 (8948). The last length is more than the first-level cache usually
/// holds.
const LENGTHS: [usize; 7] = [20, 64, 512, 1448, 4096, 8948, 65_536];

pub(crate) fn all(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("internet checksum");
    for len in LENGTHS {
        // The bytes begin after Ethernet, IPv4 and TCP headers, as the payload does in a packet.
        let packet: Vec<u8> = (0..66 + len).map(|at| (at * 31 + at / 253) as u8).collect();
        let payload = &packet[66..];
        assert_eq!(internet_checksum(payload), !smoltcp::wire::checksum::data(payload));
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_with_input(BenchmarkId::from_parameter(len), payload, |bencher, payload| {
            bencher.iter(|| internet_checksum(black_box(payload)));
        });
    }
    group.finish();
}
