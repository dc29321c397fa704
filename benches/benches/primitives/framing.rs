//! Times framing and deframing of FPDUs, with and without markers. Framing inserts the markers, and deframing
//! extracts the ULPDU from between the markers.
//!
//! All cases run with and without CRC: markers slow the CRC most, since they split the bytes into runs of 508
//! bytes. The ULPDU is copied from a slice.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput};
use dp::{Mbuf, Mempool};
use iwarp::mpa::{Deframed, Deframer, Framer, HeldSlab};

/// Lengths of ULPDUs that nearly fill a segment at MTU 1500 and at MTU 9000.
const LENGTHS: [usize; 2] = [1402, 8862];

/// After this many FPDUs of one size, the positions of the markers in the FPDUs repeat: 127 times 4 bytes lie
/// between two markers, and the length of an FPDU without its markers is a multiple of 4.
const CYCLE: usize = 127;

const WAYS: [(&str, bool, bool); 4] = [
    ("plain", false, false),
    ("markers", true, false),
    ("plain, crc32c", false, true),
    ("markers, crc32c", true, true),
];

fn ulpdu(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 13 + at / 249) as u8).collect()
}

pub(crate) fn frame(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("mpa frame");
    for len in LENGTHS {
        let ulpdu = ulpdu(len);
        for (name, markers, crc) in WAYS {
            Receiver::new(len, markers, crc).check(&cycle(&ulpdu, markers, crc), &ulpdu);
            let mut framer = Framer::new(markers, crc);
            let mut out = vec![0; framer.wire_len(len) + 64];
            group.throughput(Throughput::Bytes(len as u64));
            group.bench_function(BenchmarkId::new(name, len), |bencher| {
                bencher.iter(|| {
                    let wire = framer.wire_len(len);
                    framer.frame(&mut out[..wire], black_box(&ulpdu));
                    black_box(out[wire - 1])
                });
            });
        }
    }
    group.finish();
}

pub(crate) fn deframe(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("mpa deframe");
    for len in LENGTHS {
        let ulpdu = ulpdu(len);
        for (name, markers, crc) in WAYS {
            let fpdus = cycle(&ulpdu, markers, crc);
            let mut receiver = Receiver::new(len, markers, crc);
            receiver.check(&fpdus, &ulpdu);
            let mut next = 0;
            group.throughput(Throughput::Bytes(len as u64));
            group.bench_function(BenchmarkId::new(name, len), |bencher| {
                bencher.iter(|| {
                    receiver.receive(black_box(&fpdus[next]));
                    next = (next + 1) % CYCLE;
                });
            });
        }
    }
    group.finish();
}

/// The receiving side, which deframes FPDUs.
struct Receiver {
    deframer: Deframer,
    slab: HeldSlab,
    /// The last received ULPDU. `count` is the number of received ULPDUs.
    out: Vec<u8>,
    count: usize,
    offset: u64,
}

impl Receiver {
    fn new(len: usize, markers: bool, crc: bool) -> Self {
        Self {
            deframer: Deframer::new(0, markers, crc),
            slab: HeldSlab::new(16, 16),
            out: vec![0; len],
            count: 0,
            offset: 0,
        }
    }

    /// Receives the next FPDU, as a view of `fpdu`.
    fn receive(&mut self, fpdu: &Mbuf) {
        let Self { deframer, slab, out, count, offset } = self;
        let end = *offset + fpdu.len() as u64;
        let view = fpdu.share().expect("a view");
        let mut ulpdus = deframer.receive(*offset, view, end, slab);
        while let Some(received) = ulpdus.next().expect("a sound FPDU") {
            if let Deframed::InOrder(ulpdu) = received {
                ulpdu.copy_to(0, out);
                *count += 1;
            }
        }
        ulpdus.finish();
        *offset = end;
    }

    /// Receives `fpdus` twice, and checks that each FPDU yields `ulpdu`.
    fn check(&mut self, fpdus: &[Mbuf], ulpdu: &[u8]) {
        for (count, fpdu) in fpdus.iter().chain(fpdus).enumerate() {
            self.out.fill(0);
            self.receive(fpdu);
            assert!(self.count == count + 1 && self.out == ulpdu, "FPDU {count} of {}", ulpdu.len());
        }
    }
}

/// Returns [`CYCLE`] FPDUs, which can be received again and again: the position relative to the markers is
/// the same after the last FPDU as before the first.
fn cycle(ulpdu: &[u8], markers: bool, crc: bool) -> Vec<Mbuf> {
    let mut framer = Framer::new(markers, crc);
    let pool = Mempool::heap("fpdus", CYCLE, 16 << 10);
    let fpdus: Vec<Mbuf> = (0..CYCLE)
        .map(|_| {
            let mut fpdu = pool.alloc().expect("a buffer");
            framer.frame(fpdu.append(framer.wire_len(ulpdu.len())).expect("room"), ulpdu);
            fpdu
        })
        .collect();
    assert!(!markers || framer.position().is_multiple_of(512), "a cycle ends where it began");
    fpdus
}
