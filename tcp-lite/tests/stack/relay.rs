//! A host whose frames the test carries, changes and forges.

use dp::link::{LinkConfig, pair};
use dp::{Burst, Checksum, Mbuf, Port};
use tcp_lite::{Instant, StackConfig};

use crate::harness::{Host, bytes_of};

/// A host, and the test at the other side of the host's wire.
pub(crate) struct Tap {
    pub(crate) host: Host,
    wire: Box<dyn Port>,
    pub(crate) now_us: u64,
}

impl Tap {
    pub(crate) fn new(config: StackConfig) -> Self {
        Self::with_buffers(config, LinkConfig::default().mbufs)
    }

    /// Returns a host whose pool has `mbufs` buffers.
    pub(crate) fn with_buffers(config: StackConfig, mbufs: usize) -> Self {
        let link = LinkConfig { mtu: config.mtu, mbufs, ..LinkConfig::default() };
        let (port, wire) = pair(&link);
        Self { host: Host::new(config, port), wire, now_us: 1_000_000 }
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::from_micros(self.now_us as i64)
    }

    /// Returns a frame in one buffer of the host's pool, or in several buffers that are cut at `cuts`.
    pub(crate) fn mbuf(&self, bytes: &[u8], cuts: &[usize]) -> Mbuf {
        let pool = self.host.port.mempool();
        let mut places = vec![0];
        places.extend(cuts.iter().map(|c| c % (bytes.len() + 1)));
        places.push(bytes.len());
        places.sort_unstable();
        let mut pieces = places.windows(2).flat_map(|w| {
            // An empty part becomes an empty segment of the chain.
            let piece = &bytes[w[0]..w[1]];
            let empty = piece.is_empty().then_some(piece);
            piece.chunks(pool.data_bytes()).chain(empty).collect::<Vec<_>>()
        });
        let single = |piece: &[u8]| {
            let mut buf = pool.alloc().expect("a buffer");
            assert!(buf.append_slice(piece));
            buf
        };
        let mut frame = single(pieces.next().unwrap_or_default());
        for piece in pieces {
            assert!(frame.chain(single(piece)).is_ok());
        }
        frame
    }

    /// Delivers a frame to the host.
    pub(crate) fn inject(&mut self, bytes: &[u8]) {
        self.inject_as(bytes, &[], Checksum::Unknown);
    }

    pub(crate) fn inject_as(&mut self, bytes: &[u8], cuts: &[usize], checksum: Checksum) {
        let mut frame = self.mbuf(bytes, cuts);
        frame.set_rx_checksum(checksum);
        let now = self.now();
        self.host.stack.input(now, frame);
    }

    /// Polls the host, and returns the frames that it has sent.
    pub(crate) fn frames(&mut self) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        let mut burst = Burst::new();
        loop {
            let moved = self.host.poll(self.now_us);
            while self.wire.rx_burst(self.now_us, &mut burst) > 0 {
                all.extend(burst.drain(..).map(|f| bytes_of(&f)));
            }
            if !moved {
                return all;
            }
        }
    }

    /// Like [`frames`](Self::frames), but for `for_us` microseconds in steps of a millisecond.
    pub(crate) fn frames_for(&mut self, for_us: u64) -> Vec<Vec<u8>> {
        let end_us = self.now_us + for_us;
        let mut all = self.frames();
        while self.now_us < end_us {
            self.now_us += 1000;
            all.extend(self.frames());
        }
        all
    }
}

/// Two hosts. The test carries each frame between them.
pub(crate) struct Relay {
    pub(crate) a: Tap,
    pub(crate) b: Tap,
}

impl Relay {
    pub(crate) fn new(a: StackConfig, b: StackConfig) -> Self {
        Self { a: Tap::new(a), b: Tap::new(b) }
    }

    /// Carries frames until `done` returns `true`, for at most `for_us` microseconds. Returns whether `done`
    /// returned `true`. `carry` returns the frames that replace each frame. The first argument of `carry` is
    /// `true` for frames from `a` to `b`. Every round takes 100 microseconds, or a millisecond if no frame
    /// moves.
    pub(crate) fn run(
        &mut self,
        for_us: u64,
        mut carry: impl FnMut(bool, Vec<u8>) -> Vec<(Vec<u8>, Checksum)>,
        mut done: impl FnMut(&mut Self) -> bool,
    ) -> bool {
        let end_us = self.a.now_us + for_us;
        while self.a.now_us < end_us {
            let (from_a, from_b) = (self.a.frames(), self.b.frames());
            let idle = from_a.is_empty() && from_b.is_empty();
            for (a_to_b, frames) in [(true, from_a), (false, from_b)] {
                let to = if a_to_b { &mut self.b } else { &mut self.a };
                for (bytes, checksum) in frames.into_iter().flat_map(|f| carry(a_to_b, f)) {
                    to.inject_as(&bytes, &[], checksum);
                }
            }
            if done(self) {
                return true;
            }
            let now_us = self.a.now_us + if idle { 1000 } else { 100 };
            (self.a.now_us, self.b.now_us) = (now_us, now_us);
        }
        false
    }
}
