//! The parameters of a test on which both sides agree, with perftest's defaults.

mod test;

pub use test::{ATOMIC_BYTES, AtomicKind, Test, Verb};

use iwarp::verbs::ContextLimits;

use crate::errors::Error;
use crate::rate::Rate;

/// Default port of perftest's tools and of iwperf.
pub const DEFAULT_PORT: u16 = 18515;

/// Largest message of an `--all` sweep in bytes (perftest's `MAX_SIZE`).
pub const MAX_SIZE: u32 = 8 << 20;

/// Default number of receives that a target keeps posted on each queue pair (perftest's `DEF_RX_SEND`).
pub const RX_DEPTH_SEND: u32 = 512;

/// Maximum number of receives of a queue pair.
pub const MAX_RX_DEPTH: u32 = 16_384;

/// Minimum length in bytes of each half of a queue pair's buffer (perftest's cycle buffer).
pub const CYCLE_BUFFER: u32 = 4096;

/// Maximum number of queue pairs of one side. A stack can have more connections, and a `wr_id` has 16 bits
/// for the number of the queue pair.
pub const MAX_QPS: u32 = 16_000;

/// Number of requests for marks and credits for which a queue pair has room in addition to the data.
pub(crate) const EXTRA_SENDS: u32 = 32;

/// Maximum number of outstanding Reads on each queue pair that serve to confirm the messages of a run at a
/// given rate.
pub(crate) const FLUSHES: u32 = 16;

/// Maximum number of bytes of the local halves of all buffers, unless messages are validated or one half is
/// longer. Queue pairs share buffers if a buffer for each queue pair would need more memory.
const SHARED_BYTES: usize = 256 << 20;

/// Minimum and maximum number of messages of a warm-up.
const WARM_UP_MESSAGES: [u32; 2] = [10, 1000];

/// Maximum rate, in bytes or messages per second.
pub const MAX_RATE: u64 = 1_000_000_000_000;

/// A test whose defaults are all resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// The test.
    pub test: Test,
    /// Number of bytes of a message. With `all`, this is the number of bytes of the largest message.
    pub size: u32,
    /// Number of messages of each queue pair, or 0 if `duration_s` is set.
    pub iters: u32,
    /// Number of seconds to run, or 0 if `iters` is set.
    pub duration_s: u32,
    /// Whether to run all sizes from 2 bytes to 8 MiB, each twice the previous size.
    pub all: bool,
    /// Whether both sides send at the same time.
    pub bidirectional: bool,
    /// Number of outstanding requests on each queue pair.
    pub tx_depth: u32,
    /// Number of queue pairs.
    pub qps: u32,
    /// A completion is requested for every this many messages.
    pub cq_mod: u32,
    /// Number of requests posted with one doorbell.
    pub post_list: u32,
    /// Messages of at most this many bytes are copied when they are posted.
    pub inline: u32,
    /// Number of outstanding Reads on each queue pair.
    pub outs: u32,
    /// Whether to wait for completions by events instead of polling.
    pub events: bool,
    /// Whether every received byte is checked.
    pub validate: bool,
    /// Whether to send without a copy.
    pub zero_copy: bool,
    /// Whether to ask the peer for markers.
    pub markers: bool,
    /// Whether this side asks for CRCs.
    pub crc: bool,
    /// Seed of the patterns.
    pub seed: u64,
    /// Rate of all queue pairs together. `None` means as fast as possible.
    pub rate: Option<Rate>,
    /// Number of messages that are due at the same time, if there is a rate.
    pub burst: u32,
    /// Number of receives that a target keeps posted on each queue pair, if messages need receives.
    pub rx_depth: u32,
    /// Number of receives posted at a time.
    pub recv_post_list: u32,
    /// The operation of atomic tests.
    pub atomic: AtomicKind,
    /// Whether to send some messages before the first measurement.
    pub warm_up: bool,
    /// Whether to run until interrupted, with a row every `duration_s` seconds.
    pub endless: bool,
}

impl Params {
    /// The sizes of the runs, in order.
    pub fn sizes(&self) -> Vec<u32> {
        if self.all { (1..24).map(|power| 1 << power).collect() } else { vec![self.size] }
    }

    /// Number of receives that are kept posted on each queue pair for the peer's messages.
    pub fn receives(&self) -> u32 {
        if self.test == Test::SendBw && self.validate {
            slots_for(self.stride(self.size), self.rx_depth, self.qps)
        } else if self.iters > 0 {
            // perftest's client and server also use the smaller of the two numbers. perftest's receiver sends
            // a credit after a third of this many messages. perftest's sender stops after this many messages
            // without a credit.
            self.rx_depth.min(self.iters)
        } else {
            self.rx_depth
        }
    }

    /// Depth of a queue pair's send queue, which holds the data and the other requests.
    pub fn sends(&self) -> u32 {
        let flushes = if self.rate.is_some() { FLUSHES } else { 0 };
        self.tx_depth + EXTRA_SENDS + flushes
    }

    /// Number of completed receives that the target collects, and then posts again together. In the meantime
    /// the source can still send, since it has credits for other receives.
    pub fn receives_at_a_time(&self) -> u32 {
        self.recv_post_list.min(self.receives() / 2).max(1)
    }

    /// Number of messages of `size` bytes that have their own place in each half of a queue pair's buffer.
    /// The number is 1 for latency tests, which have one message in flight, and without validation, because
    /// only validation checks each message.
    pub fn slots(&self, size: u32) -> u32 {
        if !self.validate || self.test.is_latency() {
            1
        } else if self.test == Test::SendBw {
            slots_for(self.stride(size), self.tx_depth.max(self.receives()), self.qps)
        } else {
            slots_for(self.stride(size), self.tx_depth, self.qps)
        }
    }

    /// Number of messages of each queue pair before the first measurement: four times `tx_depth`, but at
    /// least 10 and at most 1000. The number is even. In the latency test of Writes, the last byte of a
    /// message counts the messages, beginning with 1. After an even number of messages this byte is even, so
    /// the receiver recognizes the 1 of the first measured message.
    pub fn warm_up_messages(&self) -> u64 {
        u64::from((4 * self.tx_depth).clamp(WARM_UP_MESSAGES[0], WARM_UP_MESSAGES[1]))
    }

    /// Distance of two slots in bytes: a message, followed by a guard if messages are validated, rounded up
    /// to a multiple of 64.
    pub fn stride(&self, size: u32) -> usize {
        let guard = if self.validate { GUARD_BYTES } else { 0 };
        (size as usize + guard).next_multiple_of(64)
    }

    /// Number of bytes of one half of a queue pair's buffer.
    pub fn half_bytes(&self) -> usize {
        let largest = |size: u32| self.stride(size) * self.slots(size) as usize;
        let most = self.sizes().into_iter().map(largest).max().unwrap_or(0);
        most.max(CYCLE_BUFFER as usize).next_multiple_of(64)
    }

    /// Number of buffers. Each queue pair has its own buffer, unless the buffers need too much memory.
    /// Validation needs separate buffers.
    pub fn buffers(&self) -> u32 {
        if self.validate {
            return self.qps;
        }
        let fit = SHARED_BYTES / self.half_bytes();
        (fit as u32).clamp(1, self.qps)
    }

    /// The parameters for core `index` of `cores`, with its share of the queue pairs and of the rate.
    pub fn share(&self, index: u32, cores: u32) -> Self {
        let rate = self.rate.map(|rate| rate.share(index.into(), cores.into()));
        Self { qps: self.qps / cores + u32::from(index < self.qps % cores), rate, ..self.clone() }
    }

    /// Checks the ranges and the combinations of the parameters, which come from options or from a peer's
    /// private data.
    ///
    /// # Errors
    /// Returns [`Error::Usage`], which names the options that are wrong.
    pub fn check(&self) -> Result<(), Error> {
        let usage = |text: String| Err(Error::Usage(text));
        let ranges = [
            ("--size", self.size, 1, 1 << 30),
            ("--tx-depth", self.tx_depth, 1, 16_384),
            ("--qp", self.qps, 1, MAX_QPS),
            ("--cq-mod", self.cq_mod, 1, 16_384),
            ("--post-list", self.post_list, 1, 16_384),
            ("--inline", self.inline, 0, iwarp::verbs::MAX_INLINE as u32),
            ("--outs", self.outs, 1, 1024),
            ("--burst_size", self.burst, 1, 1 << 20),
            ("--rx-depth", self.rx_depth, 1, MAX_RX_DEPTH),
            ("--recv_post_list", self.recv_post_list, 1, MAX_RX_DEPTH),
        ];
        for (name, value, low, high) in ranges {
            if !(low..=high).contains(&value) {
                return usage(format!("{name} {value}: must be from {low} to {high}"));
            }
        }
        // All queue pairs of a side share one completion queue for each direction.
        let entries = ContextLimits::default().max_cqe as u32;
        for (name, depth, least) in
            [("--tx-depth", self.tx_depth, self.sends() - self.tx_depth), ("--rx-depth", self.receives(), 0)]
        {
            let room = (entries / self.qps).saturating_sub(least);
            if depth > room {
                return usage(format!(
                    "{name} {depth}: {} queue pairs have {entries} completions together: give {name} {room} or less",
                    self.qps
                ));
            }
        }
        if (self.iters == 0) == (self.duration_s == 0) {
            return usage("give either --iters or --duration, and more than 0".into());
        }
        if self.duration_s > 0 && self.all {
            return usage("--duration cannot be used with --all".into());
        }
        if self.test.is_latency() && (self.qps > 1 || self.bidirectional || self.post_list > 1) {
            return usage(format!(
                "{}: --qp, --bidirectional and --post-list are for bandwidth tests only",
                self.test.name()
            ));
        }
        if self.test == Test::WriteLat && self.events {
            return usage("write-lat polls memory: it cannot be used with --events".into());
        }
        if matches!(self.test, Test::WriteLat | Test::SendLat) && self.iters == 1 {
            return usage(format!(
                "{}: a latency is the time from one message to the next: --iters must be at least 2",
                self.test.name()
            ));
        }
        if self.test.verb() == Verb::Atomic && (self.all || self.size != ATOMIC_BYTES) {
            return usage(format!(
                "{}: atomics have {ATOMIC_BYTES} bytes: leave --size out",
                self.test.name()
            ));
        }
        if self.zero_copy && self.test.verb().is_answered() {
            return usage(format!(
                "{}: --zero-copy is for Writes and Sends: answers to Reads are copied",
                self.test.name()
            ));
        }
        if self.recv_post_list > self.rx_depth {
            return usage(format!(
                "--recv_post_list {}: must be at most --rx-depth ({})",
                self.recv_post_list, self.rx_depth
            ));
        }
        if self.endless && (self.duration_s == 0 || self.test.is_latency() || self.rate.is_some()) {
            return usage(
                "--run_infinitely works with bandwidth tests, without --iters and --rate_limit".into(),
            );
        }
        if self.post_list > self.tx_depth {
            return usage(format!(
                "--post-list {}: must be at most --tx-depth ({})",
                self.post_list, self.tx_depth
            ));
        }
        if self.rate.is_some_and(|rate| !(1..=MAX_RATE).contains(&rate.per_s())) {
            return usage("--rate_limit: must be from 1 to 10^12 bytes or messages a second".into());
        }
        if self.rate.is_some() && (self.test.is_latency() || self.events || self.post_list > 1) {
            return usage(
                "--rate_limit works with bandwidth tests only (and measures latency there), without --events and --post-list"
                    .into(),
            );
        }
        if self.rate.is_none() && self.burst > 1 {
            return usage("--burst_size needs --rate_limit".into());
        }
        if self.validate && self.post_list > 1 {
            return usage("--validate cannot be used with --post-list".into());
        }
        Ok(())
    }
}

/// Length in bytes of the guard between two messages.
pub const GUARD_BYTES: usize = 64;

/// Memory in bytes that validation may use for the local halves of all buffers, unless one slot for each
/// queue pair needs more.
const VALIDATION_BYTES: usize = 32 << 20;

fn slots_for(stride: usize, wanted: u32, qps: u32) -> u32 {
    let fit = VALIDATION_BYTES / stride.max(1) / qps.max(1) as usize;
    (fit as u32).clamp(1, wanted.max(1))
}

#[cfg(test)]
pub(crate) fn example(test: Test) -> Params {
    Params {
        test,
        size: if test.verb() == Verb::Atomic { ATOMIC_BYTES } else { 65536 },
        iters: 5000,
        duration_s: 0,
        all: false,
        bidirectional: false,
        tx_depth: 128,
        qps: 1,
        cq_mod: 100,
        post_list: 1,
        inline: 0,
        outs: 16,
        events: false,
        validate: false,
        zero_copy: false,
        markers: false,
        crc: true,
        seed: 1,
        rate: None,
        burst: 1,
        rx_depth: RX_DEPTH_SEND,
        recv_post_list: 1,
        atomic: AtomicKind::default(),
        warm_up: false,
        endless: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_means_perftests_23_sizes() {
        let params = Params { all: true, size: MAX_SIZE, ..example(Test::WriteBw) };
        let sizes = params.sizes();
        assert_eq!((sizes.len(), sizes[0], sizes[22]), (23, 2, MAX_SIZE));
        assert!(params.half_bytes() >= MAX_SIZE as usize);
    }

    #[test]
    fn validation_bounds_its_memory() {
        for test in Test::ALL {
            for size in [1, 64, 65536, MAX_SIZE] {
                let params = Params { validate: true, size, qps: 4, ..example(test) };
                assert!(params.half_bytes() * 4 <= (VALIDATION_BYTES).max(4 * params.stride(size)));
                assert!(params.receives() <= params.slots(size).max(RX_DEPTH_SEND));
            }
        }
    }

    #[test]
    fn cores_share_queue_pairs_and_rate_without_a_rest() {
        let all = Params { qps: 7, rate: Some(Rate::Messages(1000)), ..example(Test::WriteBw) };
        let shares: Vec<_> = (0..3).map(|index| all.share(index, 3)).collect();
        assert_eq!(shares.iter().map(|share| share.qps).collect::<Vec<_>>(), [3, 2, 2]);
        assert_eq!(shares.iter().map(|share| share.rate.unwrap().per_s()).sum::<u64>(), 1000);
    }

    #[test]
    fn many_queue_pairs_share_buffers_but_not_when_validating() {
        let many = Params { qps: 10_000, ..example(Test::WriteBw) };
        assert_eq!(many.buffers(), 4096);
        assert_eq!(Params { validate: true, ..many.clone() }.buffers(), 10_000);
        assert_eq!(Params { qps: 3, ..many.clone() }.buffers(), 3);
        assert_eq!(Params { size: 1 << 30, ..many }.buffers(), 1);
    }

    #[test]
    fn contradictions_are_named() {
        let bad = |change: fn(&mut Params), word: &str| {
            let mut params = example(Test::WriteLat);
            change(&mut params);
            let text = params.check().unwrap_err().to_string();
            assert!(text.contains(word), "{text}");
        };
        bad(|p| p.size = 0, "--size");
        bad(|p| p.duration_s = 3, "--duration");
        bad(|p| p.qps = 2, "--qp");
        bad(|p| p.events = true, "--events");
        bad(|p| p.rate = Some(Rate::Messages(5)), "--rate_limit");
        bad(|p| (p.test, p.rate) = (Test::WriteBw, Some(Rate::Bytes(0))), "--rate_limit");
        bad(|p| p.burst = 2, "--burst_size");
        bad(|p| p.iters = 1, "--iters must be at least 2");
        bad(|p| p.endless = true, "--run_infinitely");
        bad(|p| (p.test, p.size) = (Test::AtomicLat, 16), "8 bytes");
        bad(|p| (p.test, p.size, p.all) = (Test::AtomicBw, 8, true), "8 bytes");
        bad(|p| p.recv_post_list = 600, "--rx-depth (512)");
        bad(|p| p.rx_depth = 0, "--rx-depth");
        bad(|p| p.inline = 4096, "--inline");
        bad(|p| (p.test, p.zero_copy) = (Test::ReadBw, true), "--zero-copy");
        bad(|p| (p.test, p.post_list) = (Test::WriteBw, 500), "--post-list");
        assert!(example(Test::WriteLat).check().is_ok());
    }
}
