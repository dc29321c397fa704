//! A load of Writes of one size from host A to host B, with a few Writes in flight on each active queue pair.
//! The module also checks that all bytes arrive.

use std::time::{Duration, Instant};

use benches::endpoint::checked;
use benches::errors::Error;
use benches::two_hosts::{Config, TwoHosts};
use dp::link::{LinkConfig, LinkSteering};
use iwarp::engine::EngineCounters;
use iwarp::verbs::{RemoteAddr, SendOp, SendRequest, WorkCompletion};

use crate::pair::alternate::{Rate, TIME_LIMIT, timed};
use crate::pattern;
use testkit::dice::Dice;

/// Maximum number of requests of each work queue.
const DEPTH: usize = 16;

/// Maximum number of completions polled at a time.
const BATCH: usize = 64;

/// Number of polls of the engines between two reads of the clock.
const POLLS: usize = 16;

/// Number of rounds of Writes on each queue pair before a measurement.
const WARM_UP_ROUNDS: usize = 2;

/// The parameters of the traffic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Number of bytes of a Write.
    pub(crate) bytes: usize,
    /// Number of Writes in flight on an active queue pair.
    pub(crate) depth: usize,
    /// Number of queue pairs that are active at a time.
    pub(crate) active: usize,
    /// Time after which the active queue pairs are drawn again. `None` means that the active queue pairs
    /// never change.
    pub(crate) redraw: Option<Duration>,
    /// Seed of the draws.
    pub(crate) seed: u64,
}

/// A load on two hosts, in which A writes to B.
///
/// An active queue pair uses the part of the regions that belongs to its index among the active queue pairs.
/// So the number of open queue pairs does not change which memory is read and written.
pub(crate) struct Traffic {
    hosts: TwoHosts,
    load: Load,
    dice: Dice,
    /// All queue pairs. The active queue pairs are first.
    order: Vec<u32>,
    /// For each queue pair, its index among the active queue pairs, or `None` if the queue pair is not
    /// active.
    place: Vec<Option<u32>>,
    /// For each queue pair, the number of Writes in flight.
    open: Vec<u32>,
    /// Number of bytes of all Writes so far.
    posted_bytes: u64,
    drawn_us: u64,
    batch: Vec<WorkCompletion>,
}

impl Traffic {
    /// Makes the load on a wire with `qps` queue pairs.
    ///
    /// # Errors
    /// Returns [`Error::Verbs`] if a verbs call fails, or [`Error::Connect`] if a connection is not
    /// established.
    pub(crate) fn new(link: LinkConfig, qps: usize, load: Load) -> Result<Self, Error> {
        let config = Config { qps, depth: DEPTH, ..Config::new(link, load.bytes * load.active) };
        Self::between(TwoHosts::new(config)?, qps, load)
    }

    /// Makes an equal load on another wire between the same hosts.
    ///
    /// # Errors
    /// Returns [`Error::Verbs`] if a verbs call fails, or [`Error::Connect`] if a connection is not
    /// established.
    pub(crate) fn on_another_wire(&self) -> Result<Self, Error> {
        Self::between(self.hosts.another_wire()?, self.open.len(), self.load)
    }

    /// Makes the load with `qps` queue pairs on each of several engines, which are on the queues of one link.
    ///
    /// # Errors
    /// Returns [`Error::Verbs`] if a verbs call fails, or [`Error::Connect`] if a connection is not
    /// established.
    pub(crate) fn on_queues(
        link: LinkConfig,
        queues: usize,
        steering: LinkSteering,
        qps: usize,
        load: Load,
    ) -> Result<Vec<Self>, Error> {
        let config = Config { qps, depth: DEPTH, ..Config::new(link, load.bytes * load.active) };
        let mut all = TwoHosts::on_queues(&config, queues, steering)?;
        TwoHosts::connect_all(&mut all, qps)?;
        Ok(all.into_iter().map(|hosts| Self::over(hosts, qps, load)).collect())
    }

    fn between(mut hosts: TwoHosts, qps: usize, load: Load) -> Result<Self, Error> {
        hosts.connect(qps)?;
        Ok(Self::over(hosts, qps, load))
    }

    /// Makes the load on connected hosts.
    fn over(hosts: TwoHosts, qps: usize, load: Load) -> Self {
        Self {
            load,
            dice: Dice::split_mix(load.seed),
            order: (0..qps as u32).collect(),
            place: vec![None; qps],
            open: vec![0; qps],
            posted_bytes: 0,
            drawn_us: hosts.now_us(),
            batch: vec![WorkCompletion::default(); BATCH],
            hosts,
        }
    }

    /// Draws the active queue pairs.
    ///
    /// # Errors
    /// Returns [`Error::Verbs`] if a verbs call fails.
    fn draw(&mut self) -> Result<(), Error> {
        let active = self.load.active.min(self.order.len());
        for &qp in &self.order[..active] {
            self.place[qp as usize] = None;
        }
        self.dice.draw(&mut self.order, active);
        for place in 0..active {
            let qp = self.order[place] as usize;
            self.place[qp] = Some(place as u32);
            self.post(qp)?;
        }
        Ok(())
    }

    /// If `qp` is active, posts Writes on `qp` until the allowed number of Writes is in flight.
    fn post(&mut self, qp: usize) -> Result<(), Error> {
        let Some(place) = self.place[qp] else { return Ok(()) };
        let at = place as usize * self.load.bytes;
        while (self.open[qp] as usize) < self.load.depth {
            let TwoHosts { a, b, .. } = &self.hosts;
            let remote = RemoteAddr { addr: b.memory.addr() + at as u64, rkey: b.memory.rkey() };
            let local = a.memory.sge(at, self.load.bytes);
            a.qps[qp].post_send(&SendRequest::new(qp as u64, SendOp::Write { remote }, local))?;
            self.open[qp] += 1;
            self.posted_bytes += self.load.bytes as u64;
        }
        Ok(())
    }

    /// Polls completions, and posts a new Write for each completed Write.
    fn reap(&mut self) -> Result<(), Error> {
        let mut batch = std::mem::take(&mut self.batch);
        loop {
            let count = self.hosts.a.cq.poll(&mut batch);
            for completion in &batch[..count] {
                checked(completion, "Write")?;
                let qp = completion.wr_id as usize;
                self.open[qp] -= 1;
                self.post(qp)?;
            }
            if count < BATCH {
                break;
            }
        }
        self.batch = batch;
        Ok(())
    }

    /// Polls the engines a few times, and handles completions. Returns the number of bytes that were placed.
    ///
    /// # Errors
    /// Returns the errors of [`run`](Self::run).
    pub(crate) fn step(&mut self) -> Result<u64, Error> {
        let before = self.placed_bytes();
        for _ in 0..POLLS {
            if let Some(redraw) = self.load.redraw
                && self.hosts.now_us() - self.drawn_us >= redraw.as_micros() as u64
            {
                self.drawn_us = self.hosts.now_us();
                self.draw()?;
            }
            self.hosts.poll_by_clock();
            self.reap()?;
        }
        Ok(self.placed_bytes() - before)
    }

    /// Continues for a time slice. Returns the number of bytes placed during the slice, and the duration of
    /// the slice.
    ///
    /// # Errors
    /// Returns [`Error::Verbs`] if a verbs call fails, or [`Error::Completion`] if a Write fails.
    pub(crate) fn run(&mut self, slice: Duration) -> Result<Rate, Error> {
        self.start()?;
        timed(slice, || self.step())
    }

    /// Begins a time slice: starts the clock and, if no queue pair is active, draws the active queue pairs.
    ///
    /// # Errors
    /// Returns the errors of [`run`](Self::run).
    pub(crate) fn start(&mut self) -> Result<(), Error> {
        self.hosts.start_clock();
        if self.place.iter().all(Option::is_none) {
            self.draw()?;
        }
        Ok(())
    }

    /// Writes on every queue pair, some queue pairs at a time, until each queue pair has had a few round
    /// trips.
    ///
    /// # Errors
    /// Returns the errors of [`run`](Self::run).
    pub(crate) fn warm_up(&mut self) -> Result<(), Error> {
        self.hosts.start_clock();
        for first in (0..self.open.len()).step_by(self.load.active) {
            let last = self.open.len().min(first + self.load.active);
            for _ in 0..WARM_UP_ROUNDS {
                for qp in first..last {
                    self.place[qp] = Some((qp - first) as u32);
                    self.post(qp)?;
                    self.place[qp] = None;
                }
                self.settle()?;
            }
        }
        Ok(())
    }

    pub(crate) fn counters(&self) -> [EngineCounters; 2] {
        [&self.hosts.a, &self.hosts.b].map(|host| host.engine.counters())
    }

    /// Returns the number of bytes placed into B's memory so far.
    fn placed_bytes(&self) -> u64 {
        self.hosts.b.engine.counters().rx_placed_bytes
    }

    /// Checks the data apart from the measurement: lets all Writes finish, and then writes new bytes on each
    /// active queue pair and checks every byte. Repeats this for `draws` draws.
    ///
    /// # Errors
    /// Returns [`Error::Validation`] if a byte is wrong, [`Error::Silent`] if the Writes do not finish within
    /// the time limit, [`Error::Verbs`] if a verbs call fails, or [`Error::Completion`] if a Write fails.
    pub(crate) fn validate(mut self, draws: u64) -> Result<(), Error> {
        self.hosts.start_clock();
        let depth = std::mem::replace(&mut self.load.depth, 0);
        for draw in 0..draws {
            self.settle()?;
            let expected = pattern::bytes(self.load.seed + draw, self.hosts.a.memory.len());
            self.hosts.a.memory.write_at(0, &expected)?;
            self.hosts.b.memory.write_at(0, &vec![0; expected.len()])?;
            self.load.depth = 1;
            self.draw()?;
            self.load.depth = 0;
            self.settle()?;
            let whole = self.load.bytes * self.load.active.min(self.order.len());
            let mut got = vec![0; whole];
            self.hosts.b.memory.read_at(0, &mut got)?;
            if let Some(at) = pattern::difference(&expected[..whole], &got) {
                return Err(Error::Validation(format!("byte {at} of {whole} differs from the byte sent")));
            }
        }
        self.load.depth = depth;
        Ok(())
    }

    /// Waits until no Write is in flight and all bytes are placed.
    fn settle(&mut self) -> Result<(), Error> {
        let start = Instant::now();
        while self.open.iter().any(|&open| open > 0) || self.placed_bytes() != self.posted_bytes {
            self.hosts.poll_by_clock();
            self.reap()?;
            if start.elapsed() > TIME_LIMIT {
                return Err(Error::Silent { doing: "finishing", after: TIME_LIMIT });
            }
        }
        Ok(())
    }
}
