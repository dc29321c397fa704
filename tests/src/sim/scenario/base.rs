//! A run without faults: hosts, a wire, and work.

use tcp_lite::{CongestionAlgorithm, Duration, EcnMode, Limits, Pacing, TcpConfig};

use crate::sim::link::Plan;
use crate::sim::run::START_US;
use crate::sim::setup::{HostSetup, Setup, SmoltcpConfig, Work};
use crate::sim::steering::SteeringPlan;
use crate::sim::world::{Chunks, Close, EndPlan, Kind, Operation, RdmaPlan, StreamPlan};
use testkit::dice::Dice;

/// A user timeout that no run reaches, since a connection without progress breaks the bound on progress long
/// before this time has passed.
const USER_TIMEOUT: Duration = Duration::from_secs(3600);

pub(super) fn draw(dice: &mut Dice, keys: [[u8; 32]; 2]) -> Setup {
    let ipv6 = dice.one_in(3);
    let mtu = match ipv6 {
        false => dice.pick(&[1500, 1500, 1500, 9000, 576]),
        true => dice.pick(&[1500, 1500, 9000, 1280]),
    };
    let (rdma, smoltcp_side) = match dice.below(4) {
        0 | 1 => (true, None),
        2 => (false, None),
        _ => (false, Some(dice.below(2) as usize)),
    };
    let rto_max_s = if smoltcp_side.is_some() { 5 } else { dice.pick(&[2, 10, 60]) };
    // The minimum RTO has to be above the peer's delay of acknowledgements, which is 10 ms for smoltcp.
    let delayed_ms = [dice.pick(&[1, 5, 10, 40]), dice.pick(&[1, 5, 10, 40])];
    let floor_ms = 10 + delayed_ms[0].max(delayed_ms[1]);
    let hosts = [0, 1].map(|side: usize| HostSetup {
        mtu,
        ipv6,
        tcp: tcp(dice, delayed_ms[side], floor_ms, rto_max_s),
        mbufs: 1024,
        out_of_order_bytes: Limits::default().out_of_order_bytes,
        key: keys[side],
        quantum_bytes: dice.pick(&[1000, 4000, 16_000]),
        backlog: 1024,
        path_shrinks: false,
        steering: SteeringPlan::default(),
        smoltcp: (smoltcp_side == Some(side)).then(|| SmoltcpConfig {
            // The buffer holds at least two segments, since otherwise segments would have to be split.
            rx_bytes: dice.scaled(2 * u64::from(mtu), 1 << 18) as usize,
            tx_bytes: dice.scaled(4096, 1 << 18) as usize,
            nagle: dice.one_in(2),
            cubic: dice.one_in(2),
        }),
    });
    let delay_us = dice.scaled(5, 40_000);
    let links = [0, 1].map(|_| {
        let (rate, queue) = (dice.scaled(1000, 1_250_000), dice.scaled(64, 512));
        let clean = Plan::clean(rate, delay_us, queue * u64::from(mtu));
        Plan { until_us: START_US + dice.scaled(500_000, 16_000_000), ..clean }
    });
    let work = if rdma {
        Work::Rdma(rdma_plans(dice, 3))
    } else {
        let ours = smoltcp_side.is_none();
        Work::Streams((0..dice.between(1, 3)).map(|_| stream_plan(dice, ours)).collect())
    };
    Setup {
        hosts,
        links,
        lro: [None; 2],
        flaps: Vec::new(),
        stalls: Default::default(),
        work,
        may_cut: false,
        lossless: false,
    }
}

fn tcp(dice: &mut Dice, delayed_ms: u64, floor_ms: u64, rto_max_s: u64) -> TcpConfig {
    TcpConfig {
        timestamps: !dice.one_in(5),
        sack: !dice.one_in(5),
        recv_window_bytes: dice.scaled(1 << 15, 1 << 20) as u32,
        congestion: dice.pick(&[
            CongestionAlgorithm::Cubic,
            CongestionAlgorithm::NewReno,
            CongestionAlgorithm::Dctcp,
        ]),
        ecn: dice.pick(&[EcnMode::Off, EcnMode::Accept, EcnMode::Request]),
        pacing: dice.one_in(3).then(|| Pacing {
            burst_segments: dice.pick(&[1, 2, 4, 16]),
            rtt_min: Duration::from_micros(dice.pick(&[0, 500])),
        }),
        send_buffer_bytes: dice.scaled(1 << 15, 1 << 19) as u32,
        rto_min: Duration::from_millis(dice.between(floor_ms, 200)),
        rto_max: Duration::from_secs(rto_max_s),
        syn_retries: 100,
        user_timeout: USER_TIMEOUT,
        delayed_ack: Duration::from_millis(delayed_ms),
        // TIME-WAIT is longer than the largest RTO, which is one minute, so that a retransmitted FIN is still
        // acknowledged.
        time_wait: Duration::from_secs(70),
        ..TcpConfig::default()
    }
}

fn stream_plan(dice: &mut Dice, ours: bool) -> StreamPlan {
    let opener = dice.below(2) as usize;
    let bytes = [0, 1].map(|_| if dice.one_in(8) { 0 } else { dice.scaled(1, 400_000) });
    let aborter = dice.one_in(8).then(|| dice.below(2) as usize);
    let ends = [0, 1].map(|side: usize| EndPlan {
        bytes: bytes[side],
        chunks: if dice.one_in(2) { Chunks::Stream } else { Chunks::Records(dice.scaled(64, 9000) as usize) },
        reader: None,
        holds: dice.one_in(2),
        abort_at: (aborter == Some(side)).then(|| dice.below(bytes[1 - side] + 1)),
        closes_last: false,
    });
    // smoltcp does not support simultaneous open.
    let simultaneous = ours && dice.one_in(8);
    StreamPlan { simultaneous, ..StreamPlan::new(opener, ends) }
}

/// Returns the plans of at least one and at most `most` connections.
pub(super) fn rdma_plans(dice: &mut Dice, most: u64) -> Vec<RdmaPlan> {
    let mut plans: Vec<_> = (0..dice.between(1, most)).map(|_| rdma_plan(dice)).collect();
    let crc = plans.iter().any(|plan| plan.crc);
    plans.iter_mut().for_each(|plan| plan.crc = crc);
    plans
}

fn rdma_plan(dice: &mut Dice) -> RdmaPlan {
    let side = |dice: &mut Dice| {
        let thinks = dice.one_in(3);
        let mut operations: Vec<Operation> = (0..dice.below(24)).map(|_| operation(dice, thinks)).collect();
        // A Send after a Write shows when the Write can be checked.
        operations.push(Operation { kind: Kind::Send, bytes: 1, think_us: 0 });
        operations
    };
    let operations = [side(dice), side(dice)];
    let close = match dice.below(10) {
        0 => Close::Abort(dice.below(2) as usize, dice.below(12)),
        1 => Close::Early(dice.below(2) as usize, dice.below(12)),
        2 | 3 => Close::Both,
        _ => Close::By(dice.below(2) as usize),
    };
    RdmaPlan {
        opener: dice.below(2) as usize,
        engine: None,
        markers: [dice.one_in(2), dice.one_in(2)],
        crc: !dice.one_in(4),
        depth: dice.pick(&[1, 2, 16]),
        outstanding: dice.pick(&[1, 4, 64]),
        operations,
        close,
        poison: false,
        late_receives_us: None,
    }
}

fn operation(dice: &mut Dice, thinks: bool) -> Operation {
    let kind = match dice.below(10) {
        0..3 => Kind::Send,
        3..6 => Kind::Write,
        6 => Kind::WriteImmediate,
        7 | 8 => Kind::Read,
        _ => Kind::FetchAdd(dice.number()),
    };
    let bytes = dice.scaled(1, 40_000) as usize;
    let think_us = if thinks { dice.scaled(1, 50_000) } else { 0 };
    Operation { kind, bytes, think_us }
}
