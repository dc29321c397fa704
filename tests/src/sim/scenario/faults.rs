//! The faults of each scenario.

use tcp_lite::{Duration, EcnMode};

use super::base;
use crate::sim::link::{Burst, LossRule, Plan, Selector, SmallMtu, Span};
use crate::sim::run::START_US;
use crate::sim::setup::{Setup, Stall, StallKind, Work};
use crate::sim::steering::{Rule, SteeringPlan};
use crate::sim::world::{Close, Fault, Reader, StreamPlan};
use testkit::dice::Dice;

/// Maximum length of the IP and TCP headers, without extension headers.
const HEADERS: u16 = 100;

/// Number of queues, and of engines, of each host.
const QUEUES: usize = 4;

pub(super) fn clean(_: &mut Dice, setup: &mut Setup) {
    for link in &mut setup.links {
        // The link is so fast that no acknowledgement waits long behind data.
        link.rate = link.rate.max(50_000);
        link.queue_bytes = 1 << 30;
    }
    if let Work::Streams(plans) = &mut setup.work {
        // In a simultaneous open the SYN is retransmitted with an ACK, but this scenario must not have any
        // retransmission.
        plans.iter_mut().for_each(|plan| plan.simultaneous = false);
    }
    setup.lossless = true;
}

/// Applies `work` to one direction or to both directions.
fn directions(dice: &mut Dice, setup: &mut Setup, mut work: impl FnMut(&mut Dice, &mut Plan)) {
    let which = dice.below(3);
    for (side, link) in setup.links.iter_mut().enumerate() {
        if which == 2 || which == side as u64 {
            work(dice, link);
        }
    }
}

pub(super) fn random_loss(dice: &mut Dice, setup: &mut Setup) {
    directions(dice, setup, |dice, link| link.loss_ppm = dice.scaled(500, 150_000) as u32);
}

pub(super) fn burst_loss(dice: &mut Dice, setup: &mut Setup) {
    directions(dice, setup, |dice, link| {
        link.burst = Burst {
            enter_ppm: dice.scaled(500, 50_000) as u32,
            leave_ppm: dice.scaled(50_000, 500_000) as u32,
            loss_ppm: dice.between(300_000, 1_000_000) as u32,
        };
    });
}

pub(super) fn named_loss(dice: &mut Dice, setup: &mut Setup) {
    directions(dice, setup, |dice, link| {
        for _ in 0..dice.between(1, 4) {
            let selector = match dice.below(8) {
                0..3 => Selector::Data(dice.scaled(1, 64) - 1),
                3 => Selector::Offset(dice.scaled(1, 200_000)),
                4 => Selector::Retransmission(dice.below(6)),
                5 => Selector::Ack(dice.below(40)),
                6 => Selector::Syn,
                _ => Selector::Fin,
            };
            link.loss_rules.push(LossRule { selector, times: dice.between(1, 4) as u32 });
        }
    });
}

pub(super) fn reorder(dice: &mut Dice, setup: &mut Setup) {
    directions(dice, setup, |dice, link| {
        link.reorder_ppm = dice.scaled(2000, 500_000) as u32;
        link.reorder_us = dice.scaled(10, 100_000);
        if dice.one_in(3) {
            // Most frames are delayed, many of them for longer than the RTO, so timeouts are spurious.
            link.reorder_ppm = 900_000;
            link.reorder_us = dice.scaled(100_000, 1_000_000);
        }
    });
}

pub(super) fn duplicate(dice: &mut Dice, setup: &mut Setup) {
    directions(dice, setup, |dice, link| {
        link.duplicate_ppm = dice.scaled(2000, 900_000) as u32;
        if dice.one_in(2) {
            link.reorder_ppm = 100_000;
            link.reorder_us = dice.scaled(10, 50_000);
        }
    });
}

pub(super) fn corrupt(dice: &mut Dice, setup: &mut Setup) {
    let unseen = matches!(setup.work, Work::Rdma(_)) && dice.one_in(2);
    if let Work::Rdma(plans) = &mut setup.work
        && unseen
    {
        for plan in plans {
            plan.crc = true;
            plan.poison = true;
        }
    }
    directions(dice, setup, |dice, link| {
        link.corrupt_ppm = dice.scaled(1000, 100_000) as u32;
        if unseen {
            link.corrupt_payload_ppm = dice.scaled(1000, 50_000) as u32;
        }
    });
}

pub(super) fn middlebox(dice: &mut Dice, setup: &mut Setup) {
    let mtu = usize::from(setup.hosts[0].mtu - HEADERS);
    directions(dice, setup, |dice, link| {
        link.split_ppm = dice.scaled(10_000, 1_000_000) as u32;
        if dice.one_in(2) {
            link.join = Some((mtu, dice.scaled(5, 2000)));
        }
        if dice.one_in(2) {
            link.loss_ppm = dice.scaled(500, 30_000) as u32;
        }
    });
}

pub(super) fn lro(dice: &mut Dice, setup: &mut Setup) {
    let ours = setup.ours();
    for side in [0, 1] {
        if ours[side] && !dice.one_in(3) {
            setup.lro[side] = Some((dice.scaled(3000, 60_000) as usize, dice.scaled(5, 1000)));
        }
    }
    directions(dice, setup, |dice, link| link.loss_ppm = dice.scaled(500, 30_000) as u32);
}

pub(super) fn ecn(dice: &mut Dice, setup: &mut Setup) {
    for host in &mut setup.hosts {
        host.tcp.ecn = dice.pick(&[EcnMode::Accept, EcnMode::Request, EcnMode::Request]);
    }
    for link in &mut setup.links {
        link.queue_bytes = link.queue_bytes.min(dice.between(64, 128) * 9000);
        link.mark_bytes = Some(dice.scaled(2000, 60_000));
        link.mark_ppm = if dice.one_in(2) { dice.scaled(1000, 300_000) as u32 } else { 0 };
    }
}

fn span(dice: &mut Dice, longest_us: u64) -> Span {
    let from_us = START_US + dice.scaled(100, 1_000_000);
    Span { from_us, to_us: from_us + dice.scaled(1000, longest_us) }
}

/// Adds a smaller MTU to some of the directions whose sender is tcp-lite, since smoltcp ignores reports of
/// the MTU.
fn small_mtu(dice: &mut Dice, setup: &mut Setup, reported: bool) {
    let ours = setup.ours();
    let least = if setup.hosts[0].ipv6 { 1280 } else { 576 };
    let most = u64::from(setup.hosts[0].mtu).max(least + 1) - 1;
    for (side, link) in setup.links.iter_mut().enumerate() {
        if !ours[side] || dice.one_in(3) {
            continue;
        }
        let mut span = span(dice, 4_000_000);
        // Black holes and half of the reported MTUs last until the end, unless `mtu_rise` ends them.
        if !reported || dice.one_in(2) {
            span.to_us = u64::MAX;
        }
        link.small_mtus.push(SmallMtu { span, mtu: dice.between(least, most) as u16, reported });
        setup.hosts[side].path_shrinks = true;
    }
    setup.may_cut = true;
}

pub(super) fn mtu_drop(dice: &mut Dice, setup: &mut Setup) {
    small_mtu(dice, setup, true);
    if dice.one_in(3) {
        random_loss(dice, setup);
    }
}

pub(super) fn blackhole(dice: &mut Dice, setup: &mut Setup) {
    small_mtu(dice, setup, false);
}

pub(super) fn mtu_rise(dice: &mut Dice, setup: &mut Setup) {
    let reported = dice.one_in(2);
    small_mtu(dice, setup, reported);
    for host in &mut setup.hosts {
        host.tcp.path_mtu.probe_timer = Duration::from_millis(dice.between(10, 1000));
        host.tcp.path_mtu.raise_timer = Duration::from_millis(dice.between(100, 5000));
    }
    for small in setup.links.iter_mut().flat_map(|link| &mut link.small_mtus) {
        small.span.to_us = small.span.from_us + dice.scaled(100_000, 4_000_000);
    }
}

pub(super) fn blackout(dice: &mut Dice, setup: &mut Setup) {
    directions(dice, setup, |dice, link| {
        for _ in 0..dice.between(1, 3) {
            link.blackouts.push(span(dice, 10_000_000));
        }
    });
}

pub(super) fn flap(dice: &mut Dice, setup: &mut Setup) {
    let mut from_us = START_US;
    for _ in 0..dice.between(1, 5) {
        from_us += dice.scaled(100, 500_000);
        let to_us = from_us + dice.scaled(100, 2_000_000);
        setup.flaps.push(Span { from_us, to_us });
        from_us = to_us;
    }
}

pub(super) fn slow_reader(dice: &mut Dice, setup: &mut Setup) {
    for host in &mut setup.hosts {
        if dice.one_in(2) {
            host.tcp.recv_window_bytes = dice.scaled(600, 16_000) as u32;
            // `rto_max` also limits the time until a persist timer fires.
            host.tcp.rto_max = Duration::from_secs(2);
        }
        if let Some(smoltcp) = &mut host.smoltcp {
            smoltcp.rx_bytes = dice.scaled(600, 16_000) as usize;
        }
    }
    match &mut setup.work {
        Work::Streams(plans) => {
            for plan in plans {
                for side in [0, 1] {
                    plan.ends[side].bytes = plan.ends[side].bytes.min(40_000);
                    if dice.one_in(3) {
                        continue;
                    }
                    let bytes = dice.scaled(10, 20_000);
                    let reads = 1 + plan.ends[1 - side].bytes.min(40_000) / bytes;
                    // smoltcp drops unread bytes when its TIME-WAIT ends after ten seconds.
                    let longest_us = if setup.hosts[side].smoltcp.is_some() { 5_000_000 } else { 20_000_000 };
                    let every_us = dice.scaled(100, 500_000).min(longest_us / reads).max(1);
                    plan.ends[side].reader = Some(Reader { bytes, every_us });
                }
            }
        }
        Work::Rdma(plans) => {
            for operation in plans.iter_mut().flat_map(|plan| plan.operations.iter_mut().flatten()) {
                operation.bytes = operation.bytes.min(8000);
            }
        }
    }
    setup.may_cut = true;
}

pub(super) fn crowded(dice: &mut Dice, setup: &mut Setup) {
    for host in &mut setup.hosts {
        host.out_of_order_bytes = dice.scaled(6000, 100_000);
        host.tcp.out_of_order_bytes = dice.scaled(1000, 60_000) as u32;
    }
    if dice.one_in(2) {
        random_loss(dice, setup);
    } else {
        reorder(dice, setup);
    }
}

/// Applies `work` to the links that lead to a tcp-lite host, since smoltcp accepts more forged segments than
/// it should.
fn towards_ours(dice: &mut Dice, setup: &mut Setup, mut work: impl FnMut(&mut Dice, &mut Plan)) {
    let ours = setup.ours();
    for (side, link) in setup.links.iter_mut().enumerate() {
        if ours[1 - side] {
            work(dice, link);
        }
    }
}

pub(super) fn forged(dice: &mut Dice, setup: &mut Setup) {
    towards_ours(dice, setup, |dice, link| link.forge_ppm = dice.scaled(10_000, 400_000) as u32);
}

pub(super) fn taken_back(dice: &mut Dice, setup: &mut Setup) {
    directions(dice, setup, |dice, link| {
        link.renege_ppm = dice.scaled(5000, 50_000) as u32;
        link.loss_ppm = link.loss_ppm.max(dice.scaled(2000, 50_000) as u32);
    });
}

pub(super) fn backlog(dice: &mut Dice, setup: &mut Setup) {
    for host in &mut setup.hosts {
        host.backlog = dice.pick(&[1, 1, 2]);
    }
    let ours = setup.ours() == [true, true];
    match &mut setup.work {
        Work::Streams(plans) => {
            let first = plans[0].clone();
            plans.resize(dice.between(3, 6) as usize, first);
            for plan in plans.iter_mut().filter(|_| ours) {
                plan.shares_port = true;
                plan.simultaneous = false;
            }
        }
        Work::Rdma(plans) => {
            let first = plans[0].clone();
            plans.resize(dice.between(3, 6) as usize, first);
        }
    }
}

pub(super) fn again(dice: &mut Dice, setup: &mut Setup) {
    let ours = setup.ours() == [true, true];
    if let Work::Streams(plans) = &mut setup.work
        && ours
    {
        plans.truncate(1);
        plans[0].simultaneous = false;
        let count = dice.between(2, 6) as usize;
        for number in 0..count {
            let opener = plans[0].opener;
            // The side that accepts closes first, and is in TIME-WAIT when the ports are reused.
            plans[number].ends[opener].closes_last = true;
            plans[number].ends.iter_mut().for_each(|end| end.abort_at = None);
            if number + 1 < count {
                let next = StreamPlan { after: Some(number), ..plans[0].clone() };
                plans.push(next);
            }
        }
    }
    if dice.one_in(2) {
        random_loss(dice, setup);
    }
    if dice.one_in(3) {
        duplicate(dice, setup);
    }
}

pub(super) fn not_ready(dice: &mut Dice, setup: &mut Setup) {
    if let Work::Rdma(plans) = &mut setup.work {
        for plan in plans {
            plan.late_receives_us = Some(dice.scaled(1, 300_000));
        }
        // Windows close, and open for less than a segment, so TCP may have to split segments.
        setup.may_cut = true;
    }
    match dice.below(4) {
        0 => {}
        1 => random_loss(dice, setup),
        2 => reorder(dice, setup),
        _ => duplicate(dice, setup),
    }
}

pub(super) fn faulty(dice: &mut Dice, setup: &mut Setup) {
    if let Work::Rdma(plans) = &mut setup.work {
        for plan in plans {
            let fault = dice.pick(&[Fault::WriteBeyond, Fault::WriteNowhere, Fault::ReadBeyond]);
            plan.close = Close::Fault(dice.below(2) as usize, dice.below(12), fault);
        }
    }
    if dice.one_in(2) {
        random_loss(dice, setup);
    }
}

/// Stalls the tcp-lite hosts a few times. In two of three runs, one of the two hosts is left out. `kind`
/// draws the kind of each stall. The stalls last at most a minute in total, which is shorter than TIME-WAIT.
/// If the peer is smoltcp, the stalls are shorter than smoltcp's TIME-WAIT. Stalls while connections are
/// being established are even shorter, since a host that does not answer ARP or NDP for three seconds counts
/// as unreachable.
fn stall(dice: &mut Dice, setup: &mut Setup, mut kind: impl FnMut(&mut Dice) -> StallKind) {
    let ours = setup.ours();
    let spared = dice.below(3) as usize;
    let counts = [0, 1].map(|side| if ours[side] && spared != side { dice.between(1, 3) } else { 0 });
    let opening = dice.one_in(4);
    let (first_us, all_us) = match ours {
        _ if opening => (0, 2_000_000),
        [true, true] => (connected_us(setup), 60_000_000),
        _ => (connected_us(setup), 5_000_000),
    };
    let longest_us = all_us / counts.iter().sum::<u64>().max(1);
    for (side, count) in counts.into_iter().enumerate() {
        let mut from_us = START_US + first_us;
        for _ in 0..count {
            from_us += dice.scaled(100, 500_000);
            let to_us = from_us + dice.scaled(100, longest_us);
            setup.stalls[side].push(Stall { span: Span { from_us, to_us }, kind: kind(dice) });
            from_us = to_us;
        }
    }
    // After a late window update, a small window may stay open until the persist timer expires.
    setup.may_cut = true;
}

/// Returns the time by which all connections are established if there are no faults. Establishing takes two
/// requests and answers, one after the other, for all connections together. On a slow wire, the transmission
/// of these frames takes longer than the wire's delay.
fn connected_us(setup: &Setup) -> u64 {
    /// Length of the longest frame of a handshake, and the number of other frames: address announcements and
    /// ARP or NDP requests.
    const BYTES: u64 = 128;
    const OTHERS: u64 = 8;
    let connections = match &setup.work {
        Work::Streams(plans) => plans.len(),
        Work::Rdma(plans) => plans.len(),
    };
    let bytes = BYTES * (OTHERS + 2 * connections as u64);
    let links = setup.links.iter();
    let takes_us: u64 = links.map(|link| 2 * link.delay_us + bytes * 1000 / link.rate).sum();
    takes_us.max(10 * setup.links[0].delay_us)
}

pub(super) fn stuck_port(dice: &mut Dice, setup: &mut Setup) {
    stall(dice, setup, |dice| if dice.one_in(3) { StallKind::NoBuffers } else { StallKind::PortStuck });
}

pub(super) fn stopped(dice: &mut Dice, setup: &mut Setup) {
    stall(dice, setup, |dice| StallKind::Stopped(dice.scaled(1, 200) as usize));
}

/// Gives the hosts devices with several queues. Some of the devices choose queues by a wrong rule. In half of
/// the runs, the faults of `everything` are added.
pub(super) fn queues(dice: &mut Dice, setup: &mut Setup) {
    let mut plans = base::rdma_plans(dice, 6);
    plans
        .iter_mut()
        .for_each(|plan| plan.engine = dice.one_in(2).then(|| dice.below(QUEUES as u64) as usize));
    setup.work = Work::Rdma(plans);
    for host in &mut setup.hosts {
        host.smoltcp = None;
        let moving = dice.scaled(8, 1000);
        let rule = dice.pick(&[
            Rule::Rss,
            Rule::OtherTable,
            Rule::Unannounced,
            Rule::FirstQueue,
            Rule::InTurn,
            Rule::Moving(moving),
        ]);
        host.steering = SteeringPlan { queues: QUEUES, rule };
    }
    if dice.one_in(2) {
        everything(dice, setup);
    }
}

pub(super) fn everything(dice: &mut Dice, setup: &mut Setup) {
    // `backlog` is missing here: a host that answers with a cookie keeps no state, so a retransmitted SYN may
    // count as a new SYN.
    let all: [fn(&mut Dice, &mut Setup); 18] = [
        random_loss,
        burst_loss,
        named_loss,
        reorder,
        duplicate,
        corrupt,
        middlebox,
        lro,
        ecn,
        mtu_drop,
        blackhole,
        mtu_rise,
        blackout,
        flap,
        slow_reader,
        crowded,
        forged,
        taken_back,
    ];
    for _ in 0..dice.between(2, 5) {
        dice.pick(&all)(dice, setup);
    }
    for link in &mut setup.links {
        // Segments that are joined before a link with a smaller MTU could not pass this link, whatever their
        // sender does.
        if !link.small_mtus.is_empty() {
            link.join = None;
        }
    }
}
