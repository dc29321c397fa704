//! A pipe between two cores: a ring of slots, into which one core copies bytes, and out of which the other
//! core copies them. The source and the destination stay in the caches of their cores. The rate is the limit
//! of a transport that copies each byte twice, once at each side.
//!
//! `measure pipe` runs the pipe as a separate process, so that `compare` sees whether its two threads lost
//! their CPUs.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use rtrb::{Consumer, Producer, RingBuffer};
use testing::lab::Result;
use testing::{ensure, lab_error};

use crate::compare::cpus::pin;
use crate::compare::last_line::last_line;
use crate::compare::session::Session;

/// The slots of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Args)]
pub(crate) struct Slots {
    /// Number of bytes of a slot.
    bytes: usize,
    /// Number of slots of the ring.
    slots: usize,
}

/// Slots of the length of a full frame with MTU 9000.
pub(crate) const FRAMES: Slots = Slots { bytes: 9014, slots: 64 };

/// Slots of 64 KiB.
pub(crate) const LARGE: Slots = Slots { bytes: 65_536, slots: 16 };

/// The pipes among the limits, with the names of their figures.
pub(crate) const PIPES: [(&str, Slots); 2] = [("pipe_9014", FRAMES), ("pipe_65536", LARGE)];

/// Number of slots that the source has, and that the destination has.
const CACHED: usize = 16;

/// Time limit of a run in addition to its duration.
const LIMIT: Duration = Duration::from_secs(20);

/// A plain pipe between two cores. Prints its rate in bytes per second
#[derive(Args, Debug)]
pub(crate) struct PipeOptions {
    #[command(flatten)]
    slots: Slots,
    /// The CPU that copies into the ring, and the CPU that copies out of it
    #[arg(long, value_delimiter = ',', default_value = "0,1")]
    cpus: Vec<usize>,
    /// Duration in seconds
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
}

pub(crate) fn run(options: &PipeOptions) -> ExitCode {
    match take(options) {
        Ok(bytes_per_s) => {
            println!("{bytes_per_s}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("measure pipe: {error}");
            ExitCode::FAILURE
        }
    }
}

fn take(options: &PipeOptions) -> Result<f64> {
    let PipeOptions { slots, ref cpus, seconds } = *options;
    let &[first, second] = cpus.as_slice() else { return Err(lab_error!("--cpus: give two CPUs")) };
    let time = Duration::try_from_secs_f64(seconds).map_err(|error| lab_error!("--seconds: {error}"))?;
    ensure!(slots.bytes > 0 && slots.slots > 0, "a pipe needs a slot, and a slot needs a byte");
    bytes_per_s([first, second], slots, time)
}

/// Measures a pipe between the two cores of the session, in Gb/s.
///
/// # Errors
/// Fails if the process fails.
pub(crate) fn gbps(session: &Session, slots: Slots) -> Result<f64> {
    let [bytes, number, seconds] =
        [slots.bytes.to_string(), slots.slots.to_string(), session.pace.seconds.to_string()];
    let cpus = session.cpus.map(|cpu| cpu.to_string()).join(",");
    session.undisturbed(|| {
        let pipe = Session::part("pipe")?.args([&bytes, &number]).args(["--cpus", &cpus]);
        let limit = LIMIT + Duration::from_secs(session.pace.seconds.into());
        Ok(last_line::<f64>(&pipe.args(["--seconds", &seconds]).check(limit)?)? * 8.0 / 1e9)
    })
}

/// Measures the bytes per second that leave the pipe.
fn bytes_per_s([first, second]: [usize; 2], slots: Slots, time: Duration) -> Result<f64> {
    let (mut into, mut out) = RingBuffer::new(slots.bytes * slots.slots);
    // The first pass over the ring and over the destination touches their pages, and is not measured.
    let unmeasured = slots.slots.max(CACHED);
    let producer = std::thread::spawn(move || {
        pin(first)?;
        let (source, ends) = (vec![0x5a; slots.bytes * CACHED], Instant::now() + time);
        let mut passes = 0;
        fill(&mut into, &source, slots.bytes, || {
            passes += 1;
            // Even if this thread got no CPU until the end, something is measured.
            Instant::now() < ends || passes * CACHED <= unmeasured + CACHED
        });
        Ok(())
    });
    let consumer = std::thread::spawn(move || {
        pin(second)?;
        let mut destination = vec![0; slots.bytes * CACHED];
        drain(&mut out, &mut destination, slots.bytes, unmeasured);
        let started = Instant::now();
        let measured = drain(&mut out, &mut destination, slots.bytes, usize::MAX);
        ensure!(measured > 0, "no more than {unmeasured} slots passed");
        Ok((measured * slots.bytes) as f64 / started.elapsed().as_secs_f64())
    });
    let produced: Result<()> = producer.join().map_err(|_| lab_error!("the producer panicked"))?;
    let consumed = consumer.join().map_err(|_| lab_error!("the consumer panicked"))?;
    produced.and(consumed)
}

/// Copies the slots of `source` into the ring in turn, and begins another pass while `goes_on`. Ends early if
/// the consumer has gone.
fn fill(into: &mut Producer<u8>, source: &[u8], bytes: usize, mut goes_on: impl FnMut() -> bool) {
    while goes_on() {
        for slot in black_box(source).chunks_exact(bytes) {
            while into.push_entire_slice(slot).is_err() {
                if into.is_abandoned() {
                    return;
                }
            }
        }
    }
}

/// Copies at most `most` slots into the slots of `destination` in turn. Ends early if the producer has gone
/// and the ring is empty. Returns the number of copied slots.
fn drain(out: &mut Consumer<u8>, destination: &mut [u8], bytes: usize, most: usize) -> usize {
    let mut passed = 0;
    loop {
        for slot in destination.chunks_exact_mut(bytes) {
            if passed == most {
                return passed;
            }
            while out.pop_entire_slice(slot).is_err() {
                if out.is_abandoned() && out.is_empty() {
                    return passed;
                }
            }
            black_box(slot);
            passed += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::cpus::two_cpus;
    use crate::pattern;

    /// Passes three passes over the source through a ring of this many slots of five bytes. Returns the
    /// source, the destination, and the numbers of slots that were copied out: first at most `most`, and
    /// then the rest.
    fn pass(slots: usize, most: usize) -> (Vec<u8>, Vec<u8>, [usize; 2]) {
        const BYTES: usize = 5;
        let (mut into, mut out) = RingBuffer::new(slots * BYTES);
        let (source, mut destination) = (pattern::bytes(3, BYTES * CACHED), vec![0; BYTES * CACHED]);
        let copied = source.clone();
        let producer = std::thread::spawn(move || {
            let mut passes = 0..3;
            fill(&mut into, &copied, BYTES, || passes.next().is_some());
        });
        let passed = [most, usize::MAX].map(|most| drain(&mut out, &mut destination, BYTES, most));
        producer.join().unwrap();
        (source, destination, passed)
    }

    #[test]
    fn each_slot_arrives_in_its_place() {
        for slots in [1, 7, CACHED, 64] {
            let (source, destination, passed) = pass(slots, CACHED);
            assert_eq!((source, passed), (destination, [CACHED, 2 * CACHED]), "{slots} slots");
        }
    }

    #[test]
    fn the_consumer_ends_at_the_last_slot() {
        assert_eq!(pass(4, 0).2, [0, 3 * CACHED]);
        assert_eq!(pass(4, 3 * CACHED - 1).2, [3 * CACHED - 1, 1]);
        assert_eq!(pass(4, 4 * CACHED).2, [3 * CACHED, 0]);
    }

    #[test]
    fn a_producer_ends_without_a_consumer() {
        let (mut into, out) = RingBuffer::new(8);
        drop(out);
        fill(&mut into, &[7; 8], 4, || true);
        assert!(into.is_full());
    }

    #[test]
    fn each_pipe_moves_more_than_nothing_and_less_than_light() {
        for (name, slots) in PIPES {
            let rate = bytes_per_s(two_cpus().unwrap(), slots, Duration::from_millis(50)).unwrap();
            assert!((1e6..1e13).contains(&rate), "{name}: {rate}");
        }
    }
}
