//! Tests that the fast path and the general path have the same result.

use std::sync::Arc;

use dp::{ExtBuf, Mbuf, Mempool};
use testkit::dice::Dice;

use super::super::Inbound;
use super::*;
use crate::memory::Registration;
use crate::mpa::startup::{Rtr, RtrKinds};
use crate::queues::{RecvRequest, Sge};
use crate::stream::test_stream::TestStream;

/// Length of each region in bytes.
const BYTES: u8 = 96;

/// How a test passes a ULPDU.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Fast,
    General,
    /// To the general path, in a frame with borrowed memory.
    Borrowed,
}

/// A stream that receives, and two regions: the peer may write to the first region, but not to the second.
struct World {
    stream: TestStream,
    regions: [Registration; 2],
}

impl World {
    fn new(ib_semantics: bool, rtr: Rtr) -> Self {
        let stream = TestStream::new(ib_semantics, false, rtr);
        let regions = [Access::REMOTE_WRITE, Access::empty()]
            .map(|more| stream.register(BYTES, Access::LOCAL_WRITE | more));
        Self { stream, regions }
    }

    /// Passes a ULPDU to the general path. With [`Way::Fast`], the fast path is tried first, and the general
    /// path receives the ULPDU only if the fast path refuses it. Returns whether the fast path has accepted
    /// the ULPDU, and the result.
    fn deliver(&mut self, ulpdu: &[u8], way: Way) -> (bool, Result<bool, String>) {
        self.stream.call(|stream, context| {
            let mut delivery = stream.delivery(context);
            if way == Way::Fast && (delivery.write_whole(ulpdu) || delivery.send_whole(ulpdu)) {
                return (true, Ok(false));
            }
            let pool = Mempool::heap("frames", 4, 256);
            let mut frame = pool.alloc().unwrap();
            // The frame has bytes before and after the ULPDU, which is in three parts.
            frame.append(3).unwrap().fill(0xee);
            let (first, rest) = ulpdu.split_at(ulpdu.len() / 4);
            let (second, third) = rest.split_at(rest.len() / 2);
            assert!(frame.append_slice(first));
            for part in [second.to_vec(), [third, &[0xee; 5]].concat()] {
                frame.chain(Mbuf::external(&pool, ExtBuf::new(Arc::new(part))).unwrap()).unwrap();
            }
            let ulpdu = match way {
                Way::Fast | Way::General => Ulpdu::in_one_run(0, ulpdu),
                Way::Borrowed => Ulpdu::borrowed(0, &frame, 3, ulpdu.len()),
            };
            let result = delivery.deliver_any(Deframed::InOrder(ulpdu));
            (false, result.map_err(|failure| format!("{failure:?}")))
        })
    }

    /// Returns, as text, the state that a ULPDU may change: completions, memory, counters, the receive queue,
    /// queue 0, the owed limit and the right to send.
    fn seen(&mut self) -> String {
        let memory = self.regions.each_ref().map(|region| {
            let mut bytes = [0; BYTES as usize];
            region.memory().read_at(0, &mut bytes).unwrap();
            bytes
        });
        let completions = self.stream.completions();
        let taken = self.stream.qp.receives.taken();
        let counters = self.stream.counters;
        let stream = self.stream.stream();
        let Inbound { queue_0, next_send, .. } = &stream.inbound;
        let queue = (queue_0.first_msn(), queue_0.posted(), next_send, stream.owes_limit());
        format!("{completions:?} {memory:?} {counters:?} {taken:?} {queue:?} {}", stream.may_send)
    }

    /// Returns a ULPDU of a Write or Send. Some ULPDUs are truncated, or have an invalid field or a flipped
    /// bit.
    fn ulpdu(&mut self, dice: &mut Dice, fill: u8) -> Vec<u8> {
        let last = if dice.below(10) > 0 { TaggedHeader::LAST } else { 0 };
        let mut ulpdu = Vec::new();
        if dice.below(2) == 0 {
            let region = usize::from(dice.below(20) == 0);
            let stag = self.regions[region].stag().0 ^ u32::from(dice.below(20) == 0);
            ulpdu.extend([WRITE_CONTROL[0] | last, WRITE_CONTROL[1]]);
            ulpdu.extend(stag.to_be_bytes());
            let beyond = if dice.below(20) == 0 { 40 } else { 0 };
            ulpdu.extend((beyond + dice.below(58)).to_be_bytes());
        } else {
            let solicited = u8::from(dice.below(12) == 0) << 1;
            let apart = u8::from(dice.below(20) == 0);
            let wrong = u32::from(dice.below(20) == 0);
            let msn = self.stream.stream().inbound.queue_0.first_msn().wrapping_add(wrong);
            ulpdu.extend([SEND_CONTROL[0] & !TaggedHeader::LAST | last, SEND_CONTROL[1] ^ solicited]);
            ulpdu.extend((dice.below(4) as u32).to_be_bytes());
            ulpdu.extend([0; 4]);
            ulpdu.extend(msn.to_be_bytes());
            ulpdu.extend([0, 0, 0, apart]);
        }
        if dice.below(20) == 0 {
            let at = dice.below(ulpdu.len() as u64) as usize;
            ulpdu[at] ^= 1 << dice.below(8);
        }
        ulpdu.extend(vec![fill; dice.below(40) as usize]);
        if dice.below(40) == 0 {
            ulpdu.truncate(dice.below(ulpdu.len() as u64) as usize);
        }
        ulpdu
    }

    /// Returns a receive request with one or two elements.
    fn recv(&self, dice: &mut Dice, wr_id: u64) -> RecvRequest {
        let mut element = || {
            let lkey = self.regions[dice.below(2) as usize].stag().0;
            let length = if dice.below(12) == 0 { dice.below(40) } else { 40 };
            Sge { addr: dice.below(57), length: length as u32, lkey }
        };
        let elements = [element(), element()];
        let count = [2, 1, 1, 1, 1][wr_id as usize % 5];
        RecvRequest { wr_id, sg_list: elements.into_iter().take(count).collect() }
    }
}

/// Passes random ULPDUs, valid and invalid, to both paths, and to the general path in borrowed memory, until
/// the first failure. The completions, the memory, the counters, the queues and the failure are the same.
#[test]
fn both_paths_have_the_same_result() {
    let (mut usual, mut others, mut failures) = (0, 0, 0);
    for seed in 0..1500 {
        let rtr = if seed % 5 == 0 { Rtr::Expect(RtrKinds::SEND) } else { Rtr::None };
        let mut dice = Dice::xorshift(seed);
        let mut worlds = [(); 3].map(|()| World::new(seed % 2 == 0, rtr));
        for step in 0..40 {
            if dice.below(4) > 0 {
                let request = worlds[0].recv(&mut dice, step);
                let posted = worlds.each_ref().map(|world| world.stream.qp.queue_recv(&request).is_ok());
                assert_eq!(posted, [true; 3]);
            }
            let ulpdu = worlds[0].ulpdu(&mut dice, step as u8 + 100);
            let (is_usual, fast) = worlds[0].deliver(&ulpdu, Way::Fast);
            let (_, general) = worlds[1].deliver(&ulpdu, Way::General);
            let (_, borrowed) = worlds[2].deliver(&ulpdu, Way::Borrowed);
            let [one, two, three] = worlds.each_mut().map(World::seen);
            assert_eq!((&fast, &one), (&general, &two), "{seed} {step} {ulpdu:?}");
            assert_eq!((&fast, &one), (&borrowed, &three), "{seed} {step} {ulpdu:?}");
            usual += u32::from(is_usual);
            others += u32::from(!is_usual && fast.is_ok());
            if fast.is_err() {
                failures += 1;
                break;
            }
        }
    }
    assert!(usual > 2500 && others > 2500 && failures > 1000, "{usual} {others} {failures}");
}
