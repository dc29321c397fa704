//! A hostile client keeps the server busy, and follows the protocol or breaks it only slightly. The tests
//! check how much honest clients on the same engine can transfer, how much work the hostile client causes,
//! and how much memory the hostile client holds (RFC 5042 sections 2.2.8 and 6.4).

use crate::common::ext::read_request;
use crate::common::raw::{EMPTY_WRITE, fpdu, request};
use crate::common::world::{End, NOTHING_SHARED, REGION, World, next};
use crate::common::{ALL, remote_addr};
use dp::link::{LinkConfig, LinkPlan};
use iwarp::engine::EngineCounters;
use iwarp::verbs::{SendOp, SendRequest, StreamError, WcStatus};

/// What the hostile client sends, as fast as TCP accepts it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flood {
    Nothing,
    /// Long Writes, for comparison.
    Writes,
    /// Writes without any byte.
    EmptyWrites,
    /// Reads of no bytes, as many at a time as may be outstanding.
    EmptyReads,
    /// Each TCP segment has one byte of the stream, so that every FPDU is split.
    Crumbs,
    /// Each frame arrives twice.
    Twice,
    /// Half of the frames arrive late.
    OutOfOrder,
    /// Connections that are begun and then aborted.
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

/// Counts of the server after `POLLS` polls.
#[derive(Debug)]
struct Outcome {
    /// Number of completed Writes of an honest client.
    done: u64,
    honest: Work,
    hostile: Work,
    /// Number of FPDUs that the hostile client began to send, and number of their payload bytes.
    said: (u64, u64),
    /// Frames and bytes from the hostile client, and frames and bytes to the hostile client.
    frames: [u64; 2],
    bytes: [u64; 2],
    /// Number of duplicate bytes that TCP received.
    doubled: u64,
    cycles: u64,
}

/// The work that the server did for a client.
#[derive(Debug)]
struct Work {
    segments: u64,
    fpdus: u64,
    placed: u64,
}

impl Work {
    /// Returns the number of operations. A segment, an FPDU and the placement of a segment's bytes are one
    /// operation each.
    fn operations(&self) -> u64 {
        self.segments + self.fpdus + self.placed / 1460
    }
}

const POLLS: u64 = 150;
/// Maximum number of segments that the hostile client sends in a poll. TCP may accept fewer.
const SEGMENTS: usize = 200;
/// Length in bytes of an FPDU that answers a Read of no bytes.
const ANSWER: u64 = 20;

/// Runs a flood while an honest client keeps `honest_writes` Writes of 4096 bytes outstanding.
fn under(flood: Flood, honest_writes: usize) -> Outcome {
    let plan = match flood {
        Flood::Twice => LinkPlan { duplicate_ppm: 1_000_000, ..LinkPlan::default() },
        Flood::OutOfOrder => LinkPlan { reorder_ppm: 500_000, reorder_us: 20, ..LinkPlan::default() },
        _ => LinkPlan::default(),
    };
    let mut world = World::with(NOTHING_SHARED, &LinkConfig { b_to_a: plan, ..LinkConfig::default() });
    let (end, mut framer) = world.connect_hostile();
    let to = (end.region.rkey(), end.region.addr());
    let write = [&[0xc1, 0x40][..], &to.0.to_be_bytes(), &to.1.to_be_bytes(), &[7; 1200]].concat();
    let lent = &world.honest[0].end.region;
    let remote = remote_addr(lent, 0);
    let post = |world: &World| {
        let write = SendRequest::new(1, SendOp::Write { remote }, world.local.sge(0, REGION));
        world.honest[0].qp.post_send(&write).unwrap();
    };
    for _ in 0..honest_writes {
        post(&world);
    }
    let reads_at_a_time = u64::from(end.qp.query().ird.unwrap()) * ANSWER;
    let (mut pending, mut at, mut done, mut said) = (Vec::new(), 0, 0, (0, 0));
    let before = (world.raw.engine.counters(), heard(&world));
    for poll in 0..POLLS {
        if flood == Flood::Connects && poll % 4 == 0 {
            world.raw.connect();
        } else if flood == Flood::Connects && poll % 4 == 3 {
            world.raw.offer(&request(true));
        }
        for _ in 0..SEGMENTS {
            if at == pending.len() {
                let answered = world.raw.inbox.len() as u64;
                let ulpdus = match flood {
                    Flood::Nothing | Flood::Connects => Vec::new(),
                    Flood::EmptyWrites => vec![EMPTY_WRITE.to_vec(); 60],
                    Flood::EmptyReads if said.0 * ANSWER - answered == reads_at_a_time => Vec::new(),
                    Flood::EmptyReads => vec![read_request(said.0 as u32 + 1, 0, 0, 0)],
                    _ => vec![write.clone()],
                };
                at = 0;
                said.0 += ulpdus.len() as u64;
                said.1 += 1200 * u64::from(ulpdus.first() == Some(&write));
                pending = ulpdus.iter().flat_map(|ulpdu| fpdu(&mut framer, ulpdu)).collect();
            }
            let most = if flood == Flood::Crumbs { (at + 1).min(pending.len()) } else { pending.len() };
            let taken = if at < most { world.raw.offer(&pending[at..most]) } else { 0 };
            if taken == 0 {
                break;
            }
            at += taken;
        }
        world.raw.poll();
        while let Some(wc) = world.clients_cq.poll_one() {
            assert_eq!(wc.status, WcStatus::Success);
            done += 1;
            post(&world);
        }
    }
    let after = (world.raw.engine.counters(), heard(&world));
    let usage = world.raw.context.usage();
    assert!(usage.all().iter().all(|it| it.used <= it.limit), "{flood:?}: {usage:?}");
    assert_eq!(after.0.stack.tx_no_mbuf + after.0.stack.rx_no_mbuf, 0, "{flood:?}: no buffer was left");
    assert_eq!(world.honest[0].end.qp.error(), None);
    if !matches!(flood, Flood::Connects) {
        assert_eq!(end.qp.error(), None, "{flood:?} is no fault");
    }
    let [honest, all] =
        [(before.1, after.1), (of_engine(&before.0), of_engine(&after.0))].map(|(before, after)| {
            let [segments, fpdus, placed] = [0, 1, 2].map(|at| after[at] - before[at]);
            Work { segments, fpdus, placed }
        });
    let hostile = Work {
        // The counters of a hub's port count only the wire to the hostile client.
        segments: all.segments,
        fpdus: all.fpdus - honest.fpdus,
        placed: all.placed - honest.placed,
    };
    let (from, to) = (&before.0.port, &after.0.port);
    Outcome {
        done,
        honest,
        hostile,
        said,
        frames: [to.rx_frames - from.rx_frames, to.tx_frames - from.tx_frames],
        bytes: [to.rx_bytes - from.rx_bytes, to.tx_bytes - from.tx_bytes],
        doubled: after.0.stack.rx_duplicate_bytes - before.0.stack.rx_duplicate_bytes,
        cycles: after.0.busy_cycles - before.0.busy_cycles,
    }
}

/// Returns the number of segments, FPDUs and placed bytes of the honest clients so far.
fn heard(world: &World) -> [u64; 3] {
    let seen = world.honest.iter().map(|honest| honest.end.id.as_ref().unwrap().activity().unwrap());
    seen.fold([0; 3], |[segments, fpdus, placed], it| {
        [segments + it.rx_segments, fpdus + it.rx_fpdus, placed + it.rx_placed_bytes]
    })
}

fn of_engine(counters: &EngineCounters) -> [u64; 3] {
    [counters.port.rx_frames, counters.rx_fpdus, counters.rx_placed_bytes]
}

/// A hostile peer sends a flood that does not end its stream. In the same number of polls, an honest client
/// completes at least half of the transfers that it completes without the hostile peer. No byte is processed
/// twice, the hostile peer receives at most as many frames and bytes as it sends, and every limit holds.
// Proves SEC-119, SEC-153: the floods are empty Writes and Reads, split FPDUs, doubled and late frames, and
// connects. A busy poll advances the simulated clock by 1 us, however much work the poll does. The transfers
// therefore show that no client waits for the flood, and the operations show the flood's cost: each FPDU and
// byte is processed once, and each frame gets at most one frame in answer. Processor time is not divided
// between clients: a frame full of empty Writes costs as much as its 60 FPDUs, as the printed figures show.
// `noise_on_the_slow_path_does_not_disturb_a_transfer` tests fragments.
#[test]
fn a_flood_leaves_honest_clients_their_share() {
    const BULK: usize = 70;
    let alone = under(Flood::Nothing, BULK);
    for flood in FLOODS {
        let (beside, by_itself) = (under(flood, BULK), under(flood, 0));
        let [ours, theirs] = [&beside.honest, &beside.hostile].map(Work::operations);
        eprintln!(
            "{flood:?}: {} of {} Writes beside {} hostile frames; {ours} operations for the honest client, {theirs} for the \
             hostile one; {} cycles for a byte of the flood",
            beside.done,
            alone.done,
            beside.hostile.segments,
            by_itself.cycles / by_itself.bytes[0],
        );
        assert!(beside.done * 2 >= alone.done, "{flood:?}: {beside:?}, alone {alone:?}");
        if matches!(flood, Flood::Writes | Flood::EmptyWrites | Flood::Crumbs | Flood::Twice) {
            assert!(beside.hostile.segments * 2 >= beside.honest.segments, "{flood:?} is none: {beside:?}");
        }
        for outcome in [&beside, &by_itself] {
            let Outcome { hostile, said, frames, bytes, doubled, .. } = outcome;
            // The count includes the empty Write that began the stream.
            assert!(hostile.fpdus <= said.0 + 1 && hostile.placed <= said.1, "{flood:?}: {outcome:?}");
            assert!(frames[1] <= frames[0] && bytes[1] <= bytes[0], "{flood:?} is amplified: {outcome:?}");
            assert!(flood != Flood::Twice || *doubled >= hostile.placed, "{flood:?}: {outcome:?}");
        }
    }
}

/// The peer receives nothing, so its first Read is never answered completely. The peer may have as many Reads
/// pending as were granted, and no more. Another stream can use all of its own Reads at the same time.
// Proves SEC-036.
#[test]
fn pending_reads_take_their_own_streams_places_alone() {
    for more in [false, true] {
        let mut world = World::new(NOTHING_SHARED);
        let (end, mut framer) = world.connect_hostile();
        let granted = world.raw.context.usage().read_slots.used;
        let ird = u32::from(end.qp.query().ird.unwrap());
        let large = end.domain.reg_mr(8 << 20, ALL).unwrap();
        world.raw.deaf = true;
        for msn in 1..=ird + u32::from(more) {
            let read = read_request(msn, 8 << 20, large.rkey(), large.addr());
            let bytes = fpdu(&mut framer, &read);
            assert_eq!(world.raw.offer(&bytes), bytes.len());
        }
        world.raw.until(20_000, |_| false);
        let no_buffer = StreamError { layer: 1, etype: 2, code: 2, from_peer: false };
        assert_eq!(end.qp.error(), more.then_some(no_buffer), "{ird} may be pending");
        assert_eq!(world.raw.context.usage().read_slots.used, granted);
        let honest = &world.honest[0];
        let remote = remote_addr(&honest.end.region, 0);
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

/// A client sends segments of one byte, or Writes of no bytes. The counters of the client's connection show
/// this behaviour, and the application ends the connection. The counters of honest clients do not show such
/// behaviour.
// Proves SEC-154: the test uses segments and FPDUs with almost no data. Frames that TCP drops, because they
// are duplicates or fragments, are counted for the engine and not for a connection (`rx_duplicate_bytes`,
// `rx_slow`). `a_flood_leaves_honest_clients_their_share` tests that other streams keep their share.
#[test]
fn who_makes_work_without_data_is_seen_and_ended() {
    for crumbs in [false, true] {
        let mut world = World::new(NOTHING_SHARED);
        let (end, mut framer) = world.connect_hostile();
        let seen = |end: &End| end.id.as_ref().unwrap().activity().unwrap();
        world.raw.until(1_000, |_| false);
        let before = seen(&end);
        let bytes: Vec<u8> = (0..50).flat_map(|_| fpdu(&mut framer, &EMPTY_WRITE)).collect();
        let piece = if crumbs { 1 } else { bytes.len() };
        for piece in bytes.chunks(piece) {
            assert_eq!(world.raw.offer(piece), piece.len());
            world.raw.poll();
        }
        world.raw.until(5_000, |_| false);
        let after = seen(&end);
        let segments = if crumbs { bytes.len() as u64 } else { 1 };
        assert_eq!(after.rx_segments - before.rx_segments, segments);
        assert_eq!((after.rx_fpdus - before.rx_fpdus, after.rx_placed_bytes), (50, 0));
        let suspicious = |end: &End| {
            let seen = seen(end);
            seen.rx_segments > 8 * seen.rx_fpdus || seen.rx_fpdus * 16 > seen.rx_placed_bytes + 256
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
