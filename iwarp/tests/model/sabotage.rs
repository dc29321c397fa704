//! Deliberate defects, put between the stack and the model: what the model is there to find.

use dp::{Burst, LinkState, Mempool, Port, PortCounters, PortInfo};
use iwarp::verbs::{MemoryRegion, WcOpcode, WcStatus, WorkCompletion};

use super::memory::{Life, Region, Span};

/// A defect. All but the wire's show at the `n`th occasion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    None,
    /// A completion is lost.
    LostCompletion,
    /// A completion comes twice.
    RepeatedCompletion,
    /// Two completions change places.
    SwappedCompletions,
    /// A failure is told as a success.
    FalseSuccess,
    /// A success is told as flushed.
    FalseFlush,
    /// A receive completes with a length too large by one.
    WrongLength,
    /// An octet that was placed is another one.
    WrongOctet,
    /// An octet beside what was placed changes.
    StrayOctet,
    /// Memory changes after it was revoked.
    RevokedOctet,
    /// The wire turns payload, with good TCP checksums, and no CRC is used.
    Wire,
    /// The same, and the model knows: with CRCs it is no defect of the stack's.
    WireUnderCrc,
}

impl Defect {
    /// All that must be found.
    pub(crate) const ALL: [Self; 10] = [
        Self::LostCompletion,
        Self::RepeatedCompletion,
        Self::SwappedCompletions,
        Self::FalseSuccess,
        Self::FalseFlush,
        Self::WrongLength,
        Self::WrongOctet,
        Self::StrayOctet,
        Self::RevokedOctet,
        Self::Wire,
    ];
}

pub(crate) struct Sabotage {
    defect: Defect,
    /// Occasions to let pass.
    left: usize,
}

impl Sabotage {
    pub(crate) fn new(defect: Defect) -> Self {
        Self { defect, left: 5 }
    }

    fn is_now(&mut self, defect: Defect) -> bool {
        if self.defect != defect {
            return false;
        }
        let now = self.left == 0;
        self.left = self.left.wrapping_sub(1);
        now
    }

    /// What becomes of completions that were taken from one queue.
    pub(crate) fn completions(&mut self, taken: Vec<WorkCompletion>) -> Vec<WorkCompletion> {
        let mut told = Vec::new();
        for mut wc in taken {
            let success = wc.status == WcStatus::Success;
            if self.is_now(Defect::LostCompletion) {
                continue;
            }
            if success && self.is_now(Defect::FalseFlush) {
                wc.status = WcStatus::WrFlushError;
            }
            if !success && self.is_now(Defect::FalseSuccess) {
                wc.status = WcStatus::Success;
            }
            if wc.opcode == WcOpcode::Recv && self.is_now(Defect::WrongLength) {
                wc.byte_len += 1;
            }
            if self.is_now(Defect::RepeatedCompletion) {
                told.push(wc);
            }
            told.push(wc);
        }
        let queue = |wc: &WorkCompletion| (wc.qp_num, wc.opcode == WcOpcode::Recv);
        if let [first, second, ..] = &mut told[..]
            && queue(first) == queue(second)
            && self.is_now(Defect::SwappedCompletions)
        {
            std::mem::swap(first, second);
        }
        told
    }

    pub(crate) fn memory(&mut self, memory: &[Option<MemoryRegion>], placed: &[Span]) {
        if let Some(span) = placed.iter().find(|span| span.len > 0)
            && let Some(region) = &memory[span.region]
        {
            if self.is_now(Defect::WrongOctet) {
                flip(region, span.at);
            }
            if span.end() < region.len() && self.is_now(Defect::StrayOctet) {
                flip(region, span.end());
            }
        }
    }

    pub(crate) fn rest(&mut self, memory: &[Option<MemoryRegion>], regions: &[Region]) {
        let gone = memory.iter().zip(regions).find(|(_, region)| region.life == Life::Gone);
        if let Some((Some(region), _)) = gone
            && self.is_now(Defect::RevokedOctet)
        {
            flip(region, 0);
        }
    }

    /// Whether streams may end because of the wire.
    pub(crate) fn is_known_wire(&self) -> bool {
        self.defect == Defect::WireUnderCrc
    }

    pub(crate) fn wires(&self, ports: (Box<dyn Port>, Box<dyn Port>)) -> (Box<dyn Port>, Box<dyn Port>) {
        if !matches!(self.defect, Defect::Wire | Defect::WireUnderCrc) {
            return ports;
        }
        (ports.0, Box::new(TurningPort { port: ports.1, frames: 0 }))
    }
}

fn flip(region: &MemoryRegion, at: usize) {
    let mut octet = [0];
    region.read_at(at, &mut octet).expect("inside the region");
    region.write_at(at, &[octet[0] ^ 0x10]).expect("inside the region");
}

/// A port that turns the last octet of long frames and says that their checksum is good.
struct TurningPort {
    port: Box<dyn Port>,
    frames: u64,
}

impl Port for TurningPort {
    fn info(&self) -> &PortInfo {
        self.port.info()
    }

    fn mempool(&self) -> &Mempool {
        self.port.mempool()
    }

    fn rx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        let count = self.port.rx_burst(now_us, frames);
        for frame in frames.iter_mut() {
            self.frames += 1;
            if frame.len() < 300 || !self.frames.is_multiple_of(4) {
                continue;
            }
            let Some(mut copy) = frame.deep_copy(self.port.mempool()) else { continue };
            let at = copy.len() / 2;
            if let Some(octet) = copy.head_mut().and_then(|octets| octets.get_mut(at)) {
                *octet ^= 0x40;
            }
            copy.set_rx_checksum(dp::Checksum::Good);
            *frame = copy;
        }
        count
    }

    fn tx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        self.port.tx_burst(now_us, frames)
    }

    fn link_state(&mut self) -> LinkState {
        self.port.link_state()
    }

    fn counters(&self) -> PortCounters {
        self.port.counters()
    }

    fn next_due_us(&self) -> Option<u64> {
        self.port.next_due_us()
    }
}
