//! A stack whose frames the target itself delivers and receives. The targets with such a stack share these
//! rules: the stack's frames are well-formed, the stack is idle when nothing happens, and it returns its
//! buffers.

use dp::{Burst, Checksum, Mbuf, Mempool};
use tcp_lite::facade::EthernetAddress;
use tcp_lite::{AddressProbing, Instant, Limits, Stack, StackConfig, StackUsage, TcpConfig};

use super::rig::{self, CHECK_EVERY};
use super::trace::{Shown, trace};
use testkit::packet::{Addresses, ETHERNET, is_sound, protocol};

/// Number of packet buffers of the stack, and bytes of each buffer.
const BUFFERS: usize = 32;
const BUFFER_BYTES: usize = 1600;

/// Maximum number of polls while nothing happens.
const REST_POLLS: usize = 20_000;

thread_local! {
    /// Packet buffers that are kept between executions; each execution has to return all of them. A buffer
    /// keeps its old contents, and no code may read a buffer before writing it.
    static POOL: Mempool = Mempool::heap("fuzz", BUFFERS, BUFFER_BYTES);
}

/// Addresses of frames from the peer to the stack.
pub(super) const ENDS: Addresses = Addresses {
    macs: [[2, 0, 0, 0, 0, 0x0a], [2, 0, 0, 0, 0, 0x0b]],
    v4: [[10, 0, 0, 1], [10, 0, 0, 2]],
    v6: [
        [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
    ],
};

/// The stack, its buffers and the time.
pub(super) struct Host {
    pub(super) stack: Stack,
    pub(super) pool: Mempool,
    /// Time in microseconds.
    pub(super) now_us: u64,
    mtu: u16,
    out: Burst,
    calls: usize,
}

impl Host {
    /// Returns a host whose stack has the given configuration and limits.
    pub(super) fn new(mtu: u16, tcp: TcpConfig, limits: Limits) -> Self {
        let pool = POOL.with(Mempool::clone);
        assert_eq!(pool.available(), pool.capacity(), "an execution before kept packet buffers");
        let config = StackConfig {
            mac: EthernetAddress(ENDS.macs[1]),
            vlan: None,
            addresses: ["10.0.0.2/24", "2001:db8::2/64"]
                .iter()
                .map(|address| address.parse().expect("an address"))
                .collect(),
            gateways: Default::default(),
            address_probing: AddressProbing::Off,
            derived_neighbors: None,
            loopback: false,
            mtu,
            offloads: dp::Offloads::TX_MULTI_SEGMENT | dp::Offloads::RX_SCATTER,
            limits,
            tcp: TcpConfig { header_prediction: rig::predicts(), ..tcp },
            seed: [7; 32],
        };
        let stack = Stack::new(config, pool.clone());
        Self { stack, pool, now_us: 1_000_000, mtu, out: Burst::new(), calls: 0 }
    }

    /// Returns the time in the stack's type.
    pub(super) fn now(&self) -> Instant {
        Instant::from_micros(self.now_us as i64)
    }

    /// Delivers a frame in buffers that end at `cuts`. The frame is lost if no buffer is free, as on a
    /// device.
    pub(super) fn deliver(&mut self, bytes: &[u8], cuts: &[usize], checksum: Checksum) {
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
        ends.push(bytes.len());
        ends.sort_unstable();
        let mut from = 0;
        let mut chain: Option<Mbuf> = None;
        for end in ends {
            for piece in bytes[from..end].chunks(BUFFER_BYTES).chain((from == end).then_some(&[][..])) {
                let Some(mut buf) = self.pool.alloc() else { return };
                assert!(buf.append_slice(piece));
                match &mut chain {
                    Some(chain) => assert!(chain.chain(buf).is_ok()),
                    None => chain = Some(buf),
                }
            }
            from = end;
        }
        let Some(mut frame) = chain else { return };
        frame.set_rx_checksum(checksum);
        trace(format_args!("{} in  {} {checksum:?}", self.now_us, Shown(bytes)));
        self.stack.input(self.now(), frame);
        self.called();
    }

    /// Has to be called after each call of the stack. Every `CHECK_EVERY`th call checks the stack's
    /// invariants.
    fn called(&mut self) {
        self.calls += 1;
        if self.calls.is_multiple_of(CHECK_EVERY) {
            self.assert_invariants();
        }
    }

    fn assert_invariants(&self) {
        self.stack.check_invariants().expect("invariants of the stack");
    }

    /// Returns the frames that the stack sends now, and checks each of them.
    pub(super) fn sent(&mut self) -> Vec<Vec<u8>> {
        let now = self.now();
        self.called();
        self.stack.poll(now);
        let mut frames = Vec::new();
        loop {
            let more = self.stack.transmit(now, &mut self.out);
            let bytes_of = |frame: Mbuf| frame.segments().flatten().copied().collect::<Vec<u8>>();
            frames.extend(self.out.drain(..).map(bytes_of));
            if !more {
                break;
            }
        }
        self.called();
        frames.iter().for_each(|frame| self.check(frame));
        frames
    }

    fn check(&self, frame: &[u8]) {
        trace(format_args!("{} out {}", self.now_us, Shown(frame)));
        assert!(frame.len() <= ETHERNET + usize::from(self.mtu), "a frame of {} bytes", frame.len());
        assert!(is_sound(frame), "a bad checksum: {frame:02x?}");
        assert_eq!(frame[6..12], ENDS.macs[1], "from another Ethernet address");
        let ours_by_tcp = frame.get(12..14) == Some(&[8, 0]) && frame[ETHERNET + 9] == protocol::TCP;
        assert!(
            !ours_by_tcp || frame[0] & 1 == 0 && frame[..6] != [0; 6],
            "TCP to a group or nobody: {frame:02x?}"
        );
    }

    /// Returns the stack's next deadline in microseconds, or `None` if the stack has no deadline.
    pub(super) fn next_us(&mut self) -> Option<u64> {
        let now = self.now();
        self.stack.next_deadline(now).map(|at| at.total_micros() as u64)
    }

    /// Advances the time to `until_us` without answering the stack. Passes each frame that the stack sends to
    /// `seen`.
    ///
    /// # Panics
    /// If the stack asks for more than `REST_POLLS` polls.
    pub(super) fn rest(&mut self, until_us: u64, mut seen: impl FnMut(&mut Self, Vec<u8>)) {
        for _ in 0..REST_POLLS {
            for frame in self.sent() {
                seen(self, frame);
            }
            match self.next_us() {
                Some(next_us) if next_us <= until_us => self.now_us = next_us.max(self.now_us + 1),
                _ => {
                    self.now_us = self.now_us.max(until_us);
                    return;
                }
            }
        }
        panic!("{REST_POLLS} polls until {} us, and more are asked for", self.now_us);
    }

    /// Checks that the stack has returned all packet buffers, and holds nothing except resolved addresses of
    /// neighbours.
    pub(super) fn assert_all_given_back(&self) {
        self.assert_invariants();
        assert_eq!(self.pool.available(), self.pool.capacity(), "packet buffers are gone");
        let usage = self.stack.usage();
        assert_eq!(usage, StackUsage { neighbors: usage.neighbors, ..StackUsage::default() });
    }
}
