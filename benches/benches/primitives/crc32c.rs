//! Times CRC32c and the copy from registered memory: each alone, the two one after the other, and the two in
//! one pass.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput};
use dp::Region;
use iwarp::memory::{Access, Accessor, MemoryTable, PdId, RegisterOptions, Registration, Source, StreamId};
use iwarp::mpa::Crc32c;

/// Lengths in bytes: for example of small messages (16, 64), and of the payload of a tagged FPDU at MTU 1500
/// (1428) and approximately at MTU 9000 (8932). The last length is more than the first-level cache usually
/// holds.
const LENGTHS: [usize; 8] = [16, 64, 200, 512, 1428, 4096, 8932, 65_536];
/// Number of packets used in rotation, so that a buffer is reused only after the other buffers.
const PACKETS: usize = 8;
/// Offset of a payload in a packet: after Ethernet, IPv4, TCP, the FPDU's length and a tagged header.
const PAYLOAD_AT: usize = 14 + 20 + 20 + 2 + 14;

/// Value of all copied bytes.
const FILL: u8 = 0x5a;

const ME: Accessor = Accessor { pd: PdId(1), stream: StreamId(1) };

/// Times the CRC of received bytes.
pub(crate) fn alone(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("crc32c");
    for len in LENGTHS {
        let packets = packets(len);
        let payload = &packets[1][PAYLOAD_AT..];
        let mut crc = Crc32c::new();
        crc.update(payload);
        assert_eq!(crc.finish(), crc32c::crc32c(payload));
        let mut next = 0;
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_with_input(BenchmarkId::from_parameter(len), &len, |bencher, _| {
            bencher.iter(|| {
                next = (next + 1) % PACKETS;
                let mut crc = Crc32c::new();
                crc.update(black_box(&packets[next][PAYLOAD_AT..]));
                crc.finish()
            });
        });
    }
    group.finish();
}

/// Times the copy out of registered memory: without a CRC, with the CRC in a second pass, and with the CRC in
/// the same pass, as the send path does it.
pub(crate) fn copies(criterion: &mut Criterion) {
    copy(criterion, "copy", |source, out| {
        let mut crc = Crc32c::unused();
        source.fetch_with_crc(0, out, crc.running()).expect("registered");
        crc.finish()
    });
    copy(criterion, "copy then crc32c", |source, out| {
        source.fetch(0, out).expect("registered");
        let mut crc = Crc32c::new();
        crc.update(out);
        crc.finish()
    });
    copy(criterion, "copy with crc32c", |source, out| {
        let mut crc = Crc32c::new();
        source.fetch_with_crc(0, out, crc.running()).expect("registered");
        crc.finish()
    });
}

fn copy(criterion: &mut Criterion, name: &str, work: impl Fn(&Source<'_>, &mut [u8]) -> u32) {
    let mut group = criterion.benchmark_group(name);
    for len in LENGTHS {
        let table = MemoryTable::new(1, [0; 32]);
        let memory = register(&table, len * PACKETS);
        let engine = table.join();
        let guard = engine.enter();
        let sources: Vec<Source<'_>> = (0..PACKETS)
            .map(|i| memory.base_to() + (i * len) as u64)
            .map(|to| guard.check_read(memory.stag(), to, len as u64, ME).expect("inside the registration"))
            .collect();
        let mut packets = packets(len);
        let out = &mut packets[0][PAYLOAD_AT..];
        let crc = work(&sources[0], out);
        assert!(
            out.iter().all(|byte| *byte == FILL) && [0, crc32c::crc32c(out)].contains(&crc),
            "{name} {len}"
        );
        let mut next = 0;
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_with_input(BenchmarkId::from_parameter(len), &len, |bencher, _| {
            bencher.iter(|| {
                next = (next + 1) % PACKETS;
                work(black_box(&sources[next]), black_box(&mut packets[next][PAYLOAD_AT..]))
            });
        });
    }
    group.finish();
}

fn register(table: &MemoryTable, bytes: usize) -> Registration {
    let options = RegisterOptions { pd: ME.pd, access: Access::REMOTE_READ, ..Default::default() };
    let region = Arc::new(Region::new(bytes).expect("memory"));
    let memory = table.register(region, &options).expect("room in the table");
    memory.memory().write_at(0, &vec![FILL; bytes]).expect("inside the registration");
    memory
}

/// Returns packets, each with space for a payload of `len` bytes.
fn packets(len: usize) -> Vec<Vec<u8>> {
    (0..PACKETS).map(|i| vec![i as u8; PAYLOAD_AT + len]).collect()
}
