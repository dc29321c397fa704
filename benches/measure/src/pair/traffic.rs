//! Writes of one size on the active queue pairs of a lane, each with a few in flight, and their check.

use std::time::Duration;

use benches::errors::Error;
use iwarp::engine::EngineCounters;
use iwarp::verbs::{RemoteAddr, SendOp, SendRequest, WorkCompletion};

use crate::pair::alternate::{Rate, timed};
use crate::pair::host::Lane;
use crate::pair::pattern::{self, SplitMix};

/// Most completions polled at a time.
const BATCH: usize = 64;

/// Polls of the engines between two reads of the clock.
const POLLS: usize = 16;

/// The parameters of the traffic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Bytes of a Write.
    pub(crate) bytes: usize,
    /// Writes in flight on an active queue pair.
    pub(crate) depth: usize,
    /// Active queue pairs at a time.
    pub(crate) active: usize,
    /// Time between two draws of the active queue pairs; `None`: they stay.
    pub(crate) redraw: Option<Duration>,
    /// Seed of the draws.
    pub(crate) seed: u64,
}

/// A load on a lane.
///
/// Each index among the active ones has its own part of the regions, whichever queue pair uses it. So the
/// same memory is read and written however many queue pairs are open.
pub(crate) struct Traffic {
    lane: Lane,
    load: Load,
    dice: SplitMix,
    /// All queue pairs, the active ones first.
    order: Vec<u32>,
    /// By queue pair: its index among the active ones.
    place: Vec<Option<u32>>,
    /// By queue pair: Writes in flight.
    open: Vec<u32>,
    /// Bytes of all Writes so far.
    posted_bytes: u64,
    drawn_us: u64,
    /// When the lane's time stopped.
    stopped_us: u64,
    batch: Vec<WorkCompletion>,
}

impl Traffic {
    /// Bytes that `load` needs of each region.
    pub(crate) fn region_bytes(load: &Load) -> usize {
        load.bytes * load.active
    }

    /// The load on a connected lane with regions of at least [`region_bytes`](Self::region_bytes).
    pub(crate) fn new(lane: Lane, load: Load) -> Self {
        let qps = lane.qps.len();
        let drawn_us = lane.now_us();
        Self {
            load,
            dice: SplitMix::new(load.seed),
            order: (0..qps as u32).collect(),
            place: vec![None; qps],
            open: vec![0; qps],
            posted_bytes: 0,
            drawn_us,
            stopped_us: drawn_us,
            batch: vec![WorkCompletion::default(); BATCH],
            lane,
        }
    }

    /// Draws the active queue pairs.
    ///
    /// # Errors
    /// [`Error::Verbs`].
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

    /// Posts as many Writes on `qp` as it may have in flight, if it is active.
    fn post(&mut self, qp: usize) -> Result<(), Error> {
        let Some(place) = self.place[qp] else { return Ok(()) };
        let at = place as usize * self.load.bytes;
        while (self.open[qp] as usize) < self.load.depth {
            let remote =
                RemoteAddr { addr: self.lane.target.addr() + at as u64, rkey: self.lane.target.rkey() };
            let local = self.lane.source.sge(at, self.load.bytes);
            self.lane.qps[qp].post_send(&SendRequest::new(qp as u64, SendOp::Write { remote }, local))?;
            self.open[qp] += 1;
            self.posted_bytes += self.load.bytes as u64;
        }
        Ok(())
    }

    /// Polls completions and posts as many Writes again.
    fn reap(&mut self) -> Result<(), Error> {
        let mut batch = std::mem::take(&mut self.batch);
        loop {
            let completions = self.lane.completions(&mut batch)?;
            for completion in completions {
                let qp = completion.wr_id as usize;
                self.open[qp] -= 1;
                self.post(qp)?;
            }
            if completions.len() < BATCH {
                break;
            }
        }
        self.batch = batch;
        Ok(())
    }

    /// Polls the engines a few times and handles completions. Returns the bytes that were placed.
    fn step(&mut self) -> Result<u64, Error> {
        let before = self.lane.placed_bytes();
        for _ in 0..POLLS {
            if let Some(redraw) = self.load.redraw
                && self.lane.now_us() - self.drawn_us >= redraw.as_micros() as u64
            {
                self.drawn_us = self.lane.now_us();
                self.draw()?;
            }
            self.lane.poll();
            self.reap()?;
        }
        Ok(self.lane.placed_bytes() - before)
    }

    /// Continues for a time slice. Returns the bytes placed meanwhile.
    ///
    /// # Errors
    /// [`Error::Verbs`], [`Error::Completion`].
    pub(crate) fn run(&mut self, slice: Duration) -> Result<Rate, Error> {
        self.lane.resume(self.stopped_us);
        if self.place.iter().all(Option::is_none) {
            self.draw()?;
        }
        let rate = timed(slice, || self.step())?;
        self.stopped_us = self.lane.now_us();
        Ok(rate)
    }

    /// The counters of both engines.
    pub(crate) fn counters(&self) -> [EngineCounters; 2] {
        self.lane.counters()
    }

    /// The separate check: lets all Writes finish, then checks every byte of a Write of new bytes on each
    /// active queue pair, for this many draws.
    ///
    /// # Errors
    /// [`Error::Validation`], [`Error::Silent`], [`Error::Verbs`], [`Error::Completion`].
    pub(crate) fn validate(mut self, draws: u64) -> Result<(), Error> {
        self.lane.resume(self.stopped_us);
        let depth = std::mem::replace(&mut self.load.depth, 0);
        for draw in 0..draws {
            self.settle()?;
            let expected = pattern::bytes(self.load.seed + draw, self.lane.source.len());
            self.lane.source.write_at(0, &expected)?;
            self.lane.target.write_at(0, &vec![0; expected.len()])?;
            self.load.depth = 1;
            self.draw()?;
            self.load.depth = 0;
            self.settle()?;
            let whole = self.load.bytes * self.load.active.min(self.order.len());
            let mut got = vec![0; whole];
            self.lane.target.read_at(0, &mut got)?;
            if let Some(at) = pattern::difference(&expected[..whole], &got) {
                return Err(Error::Validation(format!("byte {at} of {whole} differs from the byte sent")));
            }
        }
        self.load.depth = depth;
        Ok(())
    }

    /// Waits until nothing is in flight and everything is placed.
    fn settle(&mut self) -> Result<(), Error> {
        let start = std::time::Instant::now();
        while self.open.iter().any(|&open| open > 0) {
            self.lane.poll();
            self.reap()?;
            if start.elapsed() > crate::pair::host::TIME_LIMIT {
                return Err(Error::Silent { doing: "finishing", after: crate::pair::host::TIME_LIMIT });
            }
        }
        let posted = self.posted_bytes;
        self.lane.until("finishing", |lane| Ok(lane.placed_bytes() == posted))
    }
}
