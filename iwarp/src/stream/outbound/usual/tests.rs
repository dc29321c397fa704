//! Tests that the fast path and the general path have the same result.

use testkit::dice::Dice;

use super::super::{MAX_LOCAL, SendContext};
use super::*;
use crate::memory::{Access, Registration};
use crate::mpa::startup::Rtr;
use crate::queues::{RemoteAddr, SendRequest, Sge};
use crate::stream::test_stream::TestStream;
use crate::stream::{Stream, StreamContext};

/// Length of the registered memory in bytes.
const BYTES: u8 = 200;

struct World {
    stream: TestStream,
    region: Option<Registration>,
    /// The bytes of all segments.
    sent: Vec<u8>,
}

impl World {
    fn new(ib_semantics: bool) -> Self {
        let stream = TestStream::new(ib_semantics, true, Rtr::None);
        let region = Some(stream.register(BYTES, Access::LOCAL_WRITE));
        Self { stream, region, sent: Vec::new() }
    }

    /// Fills a segment of at most `capacity` bytes as `Outbound::fill` does. If `fast` is set, uses the fast
    /// path where possible. Returns the number of FPDUs that the fast path has written, and the result.
    fn fill(&mut self, capacity: usize, fast: bool) -> (u64, Result<usize, String>) {
        let (mut room, mut used, mut usual) = (vec![0; capacity], 0, 0);
        let offset = self.sent.len() as u64;
        let result = self.stream.call(|stream, StreamContext { guard, counters, pool }| {
            let Stream { state, framer, outbound, .. } = stream;
            let limit = framer.ulpdu_limit(capacity) as u32;
            let mut cx = SendContext { state, framer, guard, counters, pool, found: None, offset };
            outbound.local_left = MAX_LOCAL;
            loop {
                if outbound.current.is_some() {
                    if !outbound.write_fpdu(&mut cx, &mut room, &mut used, limit)? {
                        return Ok(());
                    }
                    continue;
                }
                if fast && outbound.allows_usual(cx.state) {
                    let before = cx.counters.tx_fpdus;
                    let outcome = outbound.write_usual(&mut cx, &mut room, &mut used, limit);
                    usual += cx.counters.tx_fpdus - before;
                    match outcome {
                        FillOutcome::Empty | FillOutcome::Full => return Ok(()),
                        FillOutcome::Enough => continue,
                        FillOutcome::Other => {}
                    }
                }
                if !outbound.prepare(&mut cx)? {
                    return Ok(());
                }
            }
        });
        self.sent.extend_from_slice(&room[..used]);
        (usual, result.map(|()| used).map_err(|failure: crate::stream::Failure| format!("{failure:?}")))
    }

    /// Returns, as text, the state that sending may change: for example completions, counters, queues and
    /// sent bytes. (The MSN of a message is chosen when the message is started, and the MSN of a usual
    /// request when the request is written.)
    fn seen(&mut self) -> String {
        let completions = self.stream.completions();
        let counters = self.stream.counters;
        let Stream { state, outbound, .. } = self.stream.stream();
        let waits = (state.pending.len(), state.consumer.count_sends(), state.progress);
        format!("{completions:?} {counters:?} {waits:?} {} {:?}", outbound.response_next, self.sent)
    }
}

/// Returns a random request. Most of these requests are usual.
fn request(dice: &mut Dice, lkey: u32, wr_id: u64) -> SendRequest {
    let remote = RemoteAddr { addr: dice.number(), rkey: dice.number() as u32 };
    let op = match dice.below(12) {
        0 => SendOp::SendInvalidate { rkey: 7 },
        1 => SendOp::WriteImmediate { remote, data: [3; 8] },
        2..7 => SendOp::Send,
        _ => SendOp::Write { remote },
    };
    let flag = |flag, is_on| if is_on { flag } else { SendFlags::empty() };
    let flags = flag(SendFlags::SIGNALED, dice.below(2) == 0)
        | flag(SendFlags::SOLICITED, dice.below(4) == 0)
        | flag(SendFlags::FENCE, dice.below(12) == 0)
        | flag(SendFlags::INLINE, dice.below(5) == 0);
    let most = if flags.contains(SendFlags::INLINE) { 30 } else { 90 };
    let mut element = || Sge { addr: dice.below(100), length: dice.below(most) as u32, lkey };
    let elements = [element(), element()];
    let count = [1, 1, 1, 2, 1, 0][wr_id as usize % 6];
    SendRequest { wr_id, op, sg_list: elements.into_iter().take(count).collect(), flags }
}

/// Sends random requests on both paths; some of their memory is revoked before it is sent. The segments, the
/// completions, the counters, the queues and the failure are the same on both paths.
#[test]
fn both_paths_send_the_same() {
    let (mut usual, mut failures) = (0, 0);
    for seed in 0..500 {
        let mut dice = Dice::xorshift(seed);
        let mut worlds = [true, false].map(|_| World::new(seed % 2 == 0));
        let lkey = worlds[0].region.as_ref().unwrap().stag().0;
        for step in 0..12 {
            for nr in 0..dice.below(6) {
                let request = request(&mut dice, lkey, step * 6 + nr);
                let posted = worlds.each_ref().map(|world| world.stream.qp.queue_send(&request).is_ok());
                assert_eq!(posted[0], posted[1], "{seed} {request:?}");
            }
            if dice.below(30) == 0 {
                worlds.iter_mut().for_each(|world| world.region = None);
            }
            let capacity = 64 + dice.below(400) as usize;
            let (written, fast) = worlds[0].fill(capacity, true);
            let (_, general) = worlds[1].fill(capacity, false);
            let [one, two] = worlds.each_mut().map(World::seen);
            assert_eq!((&fast, one), (&general, two), "{seed} {step}");
            usual += written;
            if fast.is_err() {
                failures += 1;
                break;
            }
        }
    }
    assert!(usual > 4000 && failures > 20, "{usual} {failures}");
}
