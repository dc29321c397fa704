//! Sequences of verbs calls by two users, in any order and with arguments that are often wrong, over two
//! engines on a wire in memory. At the beginning, each user creates objects, and two queue pairs are
//! connected. The input decides everything else.
//!
//! Rules: no call panics; every limit is kept; every request that is not silent (`ledger.rs`) completes or is
//! flushed exactly once; after the users have dropped everything, no object is held. This target does not
//! check the contents of memory: the random runs of `iwarp/tests/it/model` do.

mod side;
mod work;

use iwarp::engine::{Engine, EngineConfig};
use iwarp::verbs::QpState;
use tcp_lite::Instant;

use self::side::Side;
use super::rig::{CHECK_EVERY, PORT, context, ports, small};
use crate::input::Input;

/// Maximum number of calls of one input.
const CALLS: usize = 96;

/// Number of polls after which an input makes no more calls, and maximum number of polls until engines
/// without objects are idle.
const POLLS: usize = 4000;
const REST_POLLS: usize = 30_000;

/// Time, in microseconds, after which all timeouts have passed.
const REST_US: i64 = 200_000_000;

struct Run {
    sides: [Side; 2],
    now_us: i64,
    polls: usize,
}

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut run = Run::open(&mut input);
    for _ in 0..CALLS {
        if input.is_empty() || run.polls > POLLS {
            break;
        }
        run.call(&mut input);
    }
    run.end();
}

impl Run {
    fn open(input: &mut Input<'_>) -> Self {
        let (port_a, port_b) = ports();
        let mut number = 0;
        let sides = [port_a, port_b].map(|port| {
            number += 1;
            let context = context(number);
            let address = format!("10.0.0.{number}/24");
            let mut config = EngineConfig::new(&*port, &[&address]).expect("an address");
            config.stack.seed = [number; 32];
            small(&mut config);
            let pool = port.mempool().clone();
            let engine = Box::new(Engine::new(&context, port, config).expect("an engine"));
            Side::new(engine, context, pool, ([10, 0, 0, number], PORT).into())
        });
        let mut run = Self { sides, now_us: 0, polls: 0 };
        // An input of zeros creates an object of each kind, which most inputs need.
        let mut plain = Input::new(&[]);
        for side in &mut run.sides {
            (0..7).for_each(|what| side.create(&mut plain, what));
            side.post_recv(&mut plain);
        }
        run.sides[1].listen();
        let remote = run.sides[1].address;
        run.sides[0].connect(input, remote);
        run.poll(12);
        let [a, b] = &mut run.sides;
        b.answer(&mut plain, a);
        run.poll(12);
        run
    }

    fn poll(&mut self, polls: usize) {
        for _ in 0..polls {
            self.turn_before(i64::MAX);
        }
        self.sides.iter_mut().for_each(Side::look);
    }

    /// Polls both sides, and advances the time, but not beyond `limit_us`. Returns whether both sides are
    /// idle without a deadline.
    fn turn_before(&mut self, limit_us: i64) -> bool {
        self.polls += 1;
        let now = Instant::from_micros(self.now_us);
        let busy = self.sides.iter_mut().fold(false, |busy, side| side.engine.poll_at(now) | busy);
        if self.polls.is_multiple_of(CHECK_EVERY) {
            self.assert_invariants();
        }
        let next = self.sides.iter_mut().filter_map(|side| side.engine.next_deadline(now)).min();
        let idle_until = next.map_or(self.now_us + 1000, |at| at.total_micros()).min(limit_us);
        self.now_us = if busy { self.now_us + 1 } else { idle_until.max(self.now_us + 1) };
        !busy && next.is_none()
    }

    fn assert_invariants(&self) {
        for side in &self.sides {
            side.engine.check_invariants().expect("invariants of the engine's stack");
        }
    }

    /// Polls at most `most` times, until `us` microseconds have passed or both sides are idle without a
    /// deadline.
    fn pass(&mut self, us: i64, most: usize) {
        let (end_us, end_turns) = (self.now_us + us, self.polls + most);
        while self.now_us < end_us && self.polls < end_turns && !self.turn_before(end_us) {}
    }

    fn call(&mut self, input: &mut Input<'_>) {
        let which = input.u8();
        let [a, b] = &mut self.sides;
        let (side, peer) = if which & 0x80 == 0 { (a, b) } else { (b, a) };
        match which & 0x1f {
            0..=8 => side.post_send(input, peer),
            9..=12 => side.post_recv(input),
            13 | 14 => {
                let what = input.below(7);
                side.create(input, what);
            }
            15 => side.destroy(input),
            16 | 17 => side.modify(input),
            18 => side.connect(input, peer.address),
            19 => side.answer(input, peer),
            20 => {
                let aborts = input.one_in(2);
                if !side.ids.is_empty() {
                    let id = &side.ids[input.below(side.ids.len())];
                    if aborts { id.abort() } else { id.disconnect() }
                }
            }
            21 => match side.listener.take() {
                None => side.listen(),
                Some(listener) => drop(listener),
            },
            22 | 23 => side.reap(),
            24 => self.pass(i64::from(input.size() % 10_000_000), 300),
            few => self.poll(usize::from(few - 23)),
        }
        self.sides.iter_mut().for_each(Side::look);
    }

    /// Ends everything: first requests, then objects.
    fn end(mut self) {
        self.pass(1000, 300);
        for queues in self.sides.iter().flat_map(|side| &side.qps) {
            let _over = queues.qp.modify(QpState::Error);
        }
        for _ in 0..10 {
            self.poll(3);
            self.sides.iter_mut().for_each(Side::reap);
        }
        for side in &mut self.sides {
            side.ledger.assert_settled();
            side.let_go();
        }
        let before = self.polls;
        self.pass(REST_US, REST_POLLS);
        assert!(self.polls - before < REST_POLLS, "{} polls with nothing to do", self.polls - before);
        self.sides.iter_mut().for_each(Side::look);
        self.sides.iter_mut().for_each(Side::let_go);
        self.pass(REST_US, REST_POLLS);
        self.assert_invariants();
        for side in &self.sides {
            for usage in side.context.usage().all() {
                assert!(usage.used == 0, "{usage:?}");
            }
            assert_eq!(side.pool.available(), side.pool.capacity(), "packet buffers are gone");
        }
    }
}
