//! A hostile client that stays within the protocol, or nearly, and keeps the server busy: what honest clients on the same
//! engine get meanwhile, what it costs, and what it holds (RFC 5042 sections 2.2.8 and 6.4).

mod common;

use common::peer::read_request;
use common::raw::{fpdu, request};
use common::served::EMPTY_WRITE;
use common::world::{ALL, End, NOTHING_SHARED, REGION, World, next};
use dp::link::{LinkConfig, LinkPlan};
use iwarp::verbs::{RemoteAddr, SendOp, SendRequest, StreamError, WcStatus};

/// What the hostile client does, as much of it as TCP takes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flood {
    Nothing,
    /// Long Writes: the yardstick.
    Writes,
    /// No octet in any of them.
    EmptyWrites,
    /// As many as may be outstanding, again and again.
    EmptyReads,
    /// One octet of the stream in each TCP segment, so that every FPDU is split.
    Crumbs,
    /// Each frame twice.
    Twice,
    /// Half of the frames late.
    OutOfOrder,
    /// Connections that are begun and given up.
    Connects,
}

const FLOODS: [Flood; 7] = [
    Flood::Writes,
    Flood::EmptyWrites,
    Flood::EmptyReads,
    Flood::Crumbs,
    Flood::Twice,
    Flood::OutOfOrder,
    Flood::Connects,
];

/// What came of it in `TURNS` turns.
#[derive(Debug)]
struct Outcome {
    /// Writes of an honest client.
    done: u64,
    /// Octets and frames that reached the server.
    octets: u64,
    frames: u64,
    /// Cycles of the server's engine for a frame: the least of all chunks, which no other work of the machine disturbed.
    cost: u64,
}

const TURNS: u64 = 600;
/// Turns between two looks at the cost.
const CHUNK: u64 = 50;

/// An honest client keeps so many Writes of 4096 octets under way.
fn under(flood: Flood, honest_writes: usize) -> Outcome {
    let plan = match flood {
        Flood::Twice => LinkPlan { duplicate_ppm: 1_000_000, ..LinkPlan::default() },
        Flood::OutOfOrder => LinkPlan { reorder_ppm: 500_000, reorder_us: 20, ..LinkPlan::default() },
        _ => LinkPlan::default(),
    };
    let mut world = World::with(NOTHING_SHARED, &LinkConfig { b_to_a: plan, ..LinkConfig::default() });
    let (end, mut framer) = world.intrude();
    let to = (end.region.rkey(), end.region.addr());
    let write = [&[0xc1, 0x40][..], &to.0.to_be_bytes(), &to.1.to_be_bytes(), &[7; 1200]].concat();
    let lent = &world.honest[0].end.region;
    let remote = RemoteAddr { addr: lent.addr(), rkey: lent.rkey() };
    let post = |world: &World| {
        let write = SendRequest::new(1, SendOp::Write { remote }, world.local.sge(0, REGION));
        world.honest[0].qp.post_send(&write).unwrap();
    };
    for _ in 0..honest_writes {
        post(&world);
    }
    let (mut pending, mut at, mut reads, mut done) = (Vec::new(), 0, 0, 0);
    let before = world.raw.engine.counters();
    let (mut last, mut cost) = (before, u64::MAX);
    for turn in 0..TURNS {
        if at == pending.len() {
            at = 0;
            pending = match flood {
                Flood::Nothing | Flood::Connects => Vec::new(),
                Flood::EmptyReads => {
                    // Answers are FPDUs of 20 octets.
                    if reads > 0 && world.raw.inbox.len() < 8 * 20 {
                        Vec::new()
                    } else {
                        world.raw.inbox.clear();
                        let some = (reads + 1..reads + 9).map(|msn| read_request(msn, 0, 0, 0));
                        reads += 8;
                        some.flat_map(|ulpdu| fpdu(&mut framer, &ulpdu)).collect()
                    }
                }
                Flood::EmptyWrites => (0..60).flat_map(|_| fpdu(&mut framer, &EMPTY_WRITE)).collect(),
                _ => fpdu(&mut framer, &write),
            };
        }
        if flood == Flood::Connects && turn % 8 == 0 {
            world.raw.connect();
        } else if flood == Flood::Connects && turn % 8 == 6 {
            world.raw.offer(&request(true));
        }
        let segments = if flood == Flood::Crumbs { 16 } else { 8 };
        for _ in 0..segments {
            let most = if flood == Flood::Crumbs { (at + 1).min(pending.len()) } else { pending.len() };
            if at < most {
                at += world.raw.offer(&pending[at..most]);
            }
        }
        world.raw.turn();
        if turn % CHUNK == CHUNK - 1 {
            let now = world.raw.engine.counters();
            let frames = now.port.rx_frames - last.port.rx_frames;
            cost = cost.min((now.busy_cycles - last.busy_cycles).checked_div(frames).unwrap_or(u64::MAX));
            last = now;
        }
        while let Some(wc) = world.clients_cq.poll_one() {
            assert_eq!(wc.status, WcStatus::Success);
            done += 1;
            post(&world);
        }
    }
    let after = world.raw.engine.counters();
    let usage = world.raw.context.usage();
    assert!(usage.all().iter().all(|it| it.used <= it.limit), "{flood:?}: {usage:?}");
    let pool = world.raw.engine.counters().stack.tx_no_mbuf;
    assert_eq!(pool, 0, "{flood:?}: no buffer was left");
    assert_eq!(world.honest[0].end.qp.error(), None);
    if !matches!(flood, Flood::Connects) {
        assert_eq!(end.qp.error(), None, "{flood:?} is no fault");
    }
    Outcome {
        done,
        octets: after.port.rx_octets - before.port.rx_octets,
        frames: after.port.rx_frames - before.port.rx_frames,
        cost,
    }
}

/// Whatever an established peer, or one that connects, does without ending its stream: an honest client keeps more than half
/// of its fair share of the engine, which is half of what it has alone, and what is used of everything that is limited stays
/// within its limit.
// Proves SEC-119, SEC-153: of out-of-order and doubled frames, split FPDUs, empty Writes and Reads, and connects a frame
// costs the engine no more than forty frames of plain Writes, the worst being one of 50 empty Writes. Fragments are noise_on_the_slow_path_does_not_disturb_a_transfer.
#[test]
fn a_flood_leaves_honest_clients_their_share() {
    const BULK: usize = 16;
    let alone = under(Flood::Nothing, BULK);
    let mut plain = None;
    for flood in FLOODS {
        let (outcome, cost) = (under(flood, BULK), under(flood, 0).cost);
        eprintln!(
            "{flood:?}: {} of {} Writes, {} cycles for a frame of {} octets",
            outcome.done,
            alone.done,
            cost,
            outcome.octets / outcome.frames,
        );
        assert!(outcome.done * 4 >= alone.done, "{flood:?}: {outcome:?}, alone {alone:?}");
        if flood != Flood::EmptyReads {
            assert!(
                outcome.frames > alone.frames * outcome.done / alone.done,
                "{flood:?} is none: {outcome:?}"
            );
        }
        let plain = *plain.get_or_insert(cost);
        assert!(cost <= 40 * plain, "{flood:?}: {cost} cycles for a frame, {plain} for one of plain Writes");
    }
}

/// The peer hears nothing, so that its first Read is never answered in full: it may have as many Reads pending as were
/// granted, and not one more. Another stream has all of its own meanwhile.
// Proves SEC-036.
#[test]
fn pending_reads_take_their_own_streams_places_alone() {
    for more in [false, true] {
        let mut world = World::new(NOTHING_SHARED);
        let (end, mut framer) = world.intrude();
        let granted = world.raw.context.usage().read_slots.used;
        let ird = u32::from(end.qp.query().ird.unwrap());
        let large = end.domain.reg_mr(8 << 20, ALL).unwrap();
        world.raw.deaf = true;
        for msn in 1..=ird + u32::from(more) {
            let read = read_request(msn, 8 << 20, large.rkey(), large.addr());
            let octets = fpdu(&mut framer, &read);
            assert_eq!(world.raw.offer(&octets), octets.len());
        }
        world.raw.until(20_000, |_| false);
        let no_buffer = StreamError { layer: 1, etype: 2, code: 2, from_peer: false };
        assert_eq!(end.qp.error(), more.then_some(no_buffer), "{ird} may be pending");
        assert_eq!(world.raw.context.usage().read_slots.used, granted);
        let honest = &world.honest[0];
        let remote = RemoteAddr { addr: honest.end.region.addr(), rkey: honest.end.region.rkey() };
        let reads = u64::from(honest.qp.query().ord.unwrap());
        for wr_id in 0..reads {
            let read = SendRequest::new(wr_id, SendOp::Read { remote }, world.local.sge(REGION, REGION));
            honest.qp.post_send(&read).unwrap();
        }
        for wr_id in 0..reads {
            let wc = next(&mut world.raw, &world.clients_cq);
            assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
        }
        world.exchange(0, 50);
    }
}

/// Segments of one octet and Writes of none: each connection's counts tell who sends them, the application ends that one, and
/// the honest clients' counts look otherwise.
// Proves SEC-154: that other streams keep their share is a_flood_leaves_honest_clients_their_share; frames that TCP drops, twice
// the same or in fragments, are counted for the engine.
#[test]
fn who_makes_work_without_data_is_seen_and_ended() {
    for crumbs in [false, true] {
        let mut world = World::new(NOTHING_SHARED);
        let (end, mut framer) = world.intrude();
        let seen = |end: &End| end.id.as_ref().unwrap().activity().unwrap();
        world.raw.until(1_000, |_| false);
        let before = seen(&end);
        let octets: Vec<u8> = (0..50).flat_map(|_| fpdu(&mut framer, &EMPTY_WRITE)).collect();
        let piece = if crumbs { 1 } else { octets.len() };
        for piece in octets.chunks(piece) {
            assert_eq!(world.raw.offer(piece), piece.len());
            world.raw.turn();
        }
        world.raw.until(5_000, |_| false);
        let after = seen(&end);
        let segments = if crumbs { octets.len() as u64 } else { 1 };
        assert_eq!(after.rx_segments - before.rx_segments, segments);
        assert_eq!((after.rx_fpdus - before.rx_fpdus, after.rx_placed_octets), (50, 0));
        let suspicious = |end: &End| {
            let seen = seen(end);
            seen.rx_segments > 8 * seen.rx_fpdus || seen.rx_fpdus * 16 > seen.rx_placed_octets + 256
        };
        for round in 2..6 {
            world.exchange(0, round);
            world.exchange(1, round);
        }
        assert!(suspicious(&end) && !world.honest.iter().any(|honest| suspicious(&honest.end)));
        end.id.as_ref().unwrap().abort();
        assert!(world.raw.until(10_000, |raw| raw.is_over()));
        world.exchange(0, 6);
    }
}
