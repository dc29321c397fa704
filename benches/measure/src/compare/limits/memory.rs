//! Memory bandwidth of one core: copies and CRC32C of 8 KiB at a time from buffers of 1 MiB.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crc_fast::{CrcAlgorithm, checksum};
use testing::lab::Result;
use testing::lab_error;

use crate::compare::cpus::pin;

/// Work on a block. The second argument is the destination of a copy.
pub(crate) type Work = fn(&[u8], &mut [u8]);

pub(crate) const WORKS: [(&str, Work); 2] = [("memcpy", copy), ("crc32c", check)];

const BLOCK: usize = 8 << 10;
const BUFFER: usize = 1 << 20;
const TIME: Duration = Duration::from_millis(300);

fn copy(from: &[u8], to: &mut [u8]) {
    to.copy_from_slice(from);
}

fn check(from: &[u8], _to: &mut [u8]) {
    black_box(checksum(CrcAlgorithm::Crc32Iscsi, from));
}

/// Measures the bytes per second of `work` on `cpu`.
///
/// # Errors
/// Fails if this process may not use `cpu`.
pub(crate) fn bytes_per_s(cpu: usize, work: Work) -> Result<f64> {
    let worker = std::thread::spawn(move || pin(cpu).map(|()| measure(work)));
    worker.join().map_err(|_| lab_error!("the worker panicked"))?
}

fn measure(work: Work) -> f64 {
    let (from, mut to) = (vec![0x5a; BUFFER], vec![0; BUFFER]);
    let mut pass = || {
        for (from, to) in from.chunks(BLOCK).zip(to.chunks_mut(BLOCK)) {
            work(black_box(from), black_box(to));
        }
    };
    // The first pass touches the pages, and is not measured.
    pass();
    let (started, mut passes) = (Instant::now(), 0);
    while started.elapsed() < TIME {
        pass();
        passes += 1;
    }
    (passes * BUFFER) as f64 / started.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_is_one_and_the_check_is_crc32c() {
        let mut to = [0; 9];
        copy(b"123456789", &mut to);
        assert_eq!(&to, b"123456789");
        // The value is the check value of CRC32C in the CRC catalogue.
        assert_eq!(checksum(CrcAlgorithm::Crc32Iscsi, &to), 0xe306_9283);
    }

    #[test]
    fn a_core_does_more_than_nothing_and_less_than_light() {
        for (name, work) in WORKS {
            let rate = bytes_per_s(crate::compare::cpus::two_cpus().unwrap()[0], work).unwrap();
            assert!((1e6..1e13).contains(&rate), "{name}: {rate}");
        }
    }
}
