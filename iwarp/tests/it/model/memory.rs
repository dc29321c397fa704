//! The bytes that registered memory may have.
//!
//! For each byte the model has the value that it saw last, and the effects that are under way on the byte. An
//! effect (a Write, a Send into its receive buffer, a Read's response, a store of the application) may have
//! happened in part until it is *settled*: until an event was seen that the documents allow only after all of
//! it was placed. The one rule: **a value is gone once an effect that began after the value had settled has
//! itself settled.** Effects that overlap in time leave either value (RFC 5040 section 5.5 rule 3).

use iwarp::memory::Access;

use super::names::{Binding, BindingId, Name, Validity, Window};

/// A region's place in [`Memory::regions`]; never used again.
pub(crate) type RegionId = usize;

/// Bytes of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) region: RegionId,
    pub(crate) at: usize,
    pub(crate) len: usize,
}

impl Span {
    pub(crate) fn end(&self) -> usize {
        self.at + self.len
    }

    fn meets(&self, other: &Span) -> bool {
        self.region == other.region && self.at < other.end() && other.at < self.end()
    }
}

/// A registration. Prepared memory that is registered again is another one.
pub(crate) struct Region {
    pub(crate) host: usize,
    /// The bytes that it exposes: all, or a part of prepared memory.
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) addr: u64,
    pub(crate) key: u32,
    pub(crate) access: Access,
    /// The one stream that may use it.
    pub(crate) stream: Option<usize>,
    pub(crate) life: Validity,
    /// The end whose request registers it (fast registration).
    pub(crate) giver: Option<StreamEnd>,
    /// The end whose request invalidates it.
    pub(crate) taker: Option<StreamEnd>,
    /// It is for fast registration.
    pub(crate) prepared: bool,
    /// Its memory was registered again, or deregistered.
    pub(crate) left: bool,
    /// The bytes seen last, of all its memory. `None`: unknown.
    pub(crate) base: Vec<Option<u8>>,
}

/// One end of a stream: its number and its side.
pub(crate) type StreamEnd = (usize, usize);

/// Stores of the application of host 0 or 1, which are outside of streams.
pub(crate) fn application(host: usize) -> StreamEnd {
    (usize::MAX, host)
}

/// The direction of an effect, which decides its order within the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// From the poster's memory to the peer's.
    Out,
    /// From the peer's memory to the poster's, as the answer to a request.
    In,
    /// The change that an atomic makes to the peer's memory.
    Change,
}

/// Bytes on their way.
pub(crate) struct Effect {
    pub(crate) op: u64,
    pub(crate) by: StreamEnd,
    pub(crate) flow: Flow,
    /// It is placed in a receive buffer of the peer.
    pub(crate) message: bool,
    /// Waits for the Reads in front of it.
    pub(crate) fenced: bool,
    pub(crate) from: Vec<Span>,
    pub(crate) to: Vec<Span>,
    /// The peer's STag for the place.
    pub(crate) through: Option<Name>,
    /// The peer's STag for the source of its answer.
    pub(crate) asked: Option<Name>,
    /// `None`: the byte that was fetched is unknown.
    pub(crate) values: Vec<Option<u8>>,
    pub(crate) began: u64,
    pub(crate) settled: Option<u64>,
    /// Whether `from` may still be read.
    pub(crate) fetching: bool,
}

/// A reader of memory: requests before it in its stream have happened for it.
#[derive(Clone, Copy)]
pub(crate) struct View {
    pub(crate) by: StreamEnd,
    pub(crate) flow: Flow,
    pub(crate) fenced: bool,
}

impl View {
    /// The peer carries out a request after it has placed everything before it. A fenced request starts
    /// after the Reads before it have their bytes.
    fn follows(&self, effect: &Effect) -> bool {
        let before = match self.flow {
            Flow::In | Flow::Change => effect.flow != Flow::In,
            Flow::Out => self.fenced && effect.flow == Flow::In,
        };
        effect.by == self.by && before
    }
}

/// Bytes from `at` to `end` that the same effects reach, and which of their values are possible.
struct Run {
    at: usize,
    end: usize,
    base: bool,
    /// Effect, and the index of its first value.
    alive: Vec<(usize, usize)>,
}

/// All regions of both hosts.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) regions: Vec<Region>,
    pub(crate) windows: Vec<Window>,
    pub(crate) bindings: Vec<Binding>,
    pub(crate) effects: Vec<Effect>,
    now: u64,
    /// Bytes checked with exactly one allowed value, and all bytes checked.
    pub(crate) exact: u64,
    pub(crate) checked: u64,
}

impl Memory {
    /// Whether no effect over `span` is under way, and none reads it.
    pub(crate) fn is_calm(&self, span: &Span) -> bool {
        !self.effects.iter().any(|effect| {
            let placed = effect.settled.is_none() && effect.to.iter().any(|to| to.meets(span));
            placed || effect.fetching && effect.from.iter().any(|from| from.meets(span))
        })
    }

    /// The source of the youngest unanswered Read of `by`, if `by` may also write there.
    pub(crate) fn being_read(&self, by: StreamEnd) -> Option<Span> {
        let reads = |effect: &&Effect| effect.by == by && effect.flow == Flow::In && effect.fetching;
        let span = *self.effects.iter().rev().find(reads)?.from.first()?;
        let region = &self.regions[span.region];
        let granted = region.access.contains(Access::REMOTE_WRITE) && region.life == Validity::Valid;
        granted.then_some(span)
    }

    /// The sink of the youngest unanswered Read or atomic of `by`.
    pub(crate) fn awaited(&self, by: StreamEnd) -> Option<RegionId> {
        let open = |effect: &&Effect| effect.by == by && effect.flow == Flow::In && effect.settled.is_none();
        self.effects.iter().rev().find(open)?.to.first().map(|span| span.region)
    }

    /// The next point of the logical time.
    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// The bytes of `spans` as `view` sees them.
    pub(crate) fn fetch(&self, spans: &[Span], view: View) -> Vec<Option<u8>> {
        let mut values = Vec::new();
        for span in spans {
            for run in self.runs(span, Some(view)) {
                values.extend((run.at..run.end).map(|at| self.the_only(span.region, &run, at)));
            }
        }
        values
    }

    /// An effect begins. The bytes that others read there meanwhile become unknown.
    pub(crate) fn begin(&mut self, effect: Effect) {
        self.mix(&effect.to, |reader| effect.comes_after(reader));
        let began = self.tick();
        self.effects.push(Effect { began, ..effect });
    }

    /// The message of `op` has found its receive buffer.
    pub(crate) fn aim(&mut self, op: u64, to: &[Span]) {
        let began = self.tick();
        self.mix(to, |reader| reader.op == op);
        if let Some(effect) = self.effects.iter_mut().find(|effect| effect.op == op && effect.message) {
            (effect.to, effect.began) = (to.to_vec(), began);
        }
    }

    /// The application stores `bytes`.
    pub(crate) fn store(&mut self, span: Span, bytes: &[u8]) {
        self.mix(&[span], |_| false);
        let now = self.tick();
        let values = bytes.iter().copied().map(Some).collect();
        let application = Effect::of(0, application(0));
        let settled = Some(now);
        self.effects.push(Effect {
            to: vec![span],
            values,
            began: now,
            settled,
            fetching: false,
            ..application
        });
    }

    /// Buffer `op` is posted to a shared queue. Its bytes are unknown until a message has completed it.
    pub(crate) fn open(&mut self, op: u64, spans: &[Span]) {
        let values = vec![None; spans.iter().map(|span| span.len).sum()];
        self.begin(Effect { to: spans.to_vec(), values, fetching: false, ..Effect::of(op, application(0)) });
    }

    /// The message of `op` has completed buffer `buffer`, and takes `to` of it.
    pub(crate) fn fill(&mut self, op: u64, buffer: u64, to: &[Span]) {
        let Some(at) = self.effects.iter().position(|effect| effect.op == buffer) else { return };
        let began = self.effects.remove(at).began;
        if let Some(effect) = self.effects.iter_mut().find(|effect| effect.op == op && effect.message) {
            (effect.to, effect.began) = (to.to_vec(), began);
        }
    }

    /// The targets of the effects under way through `binding`.
    pub(crate) fn through(&self, binding: BindingId) -> Vec<Span> {
        let open = self
            .effects
            .iter()
            .filter(|effect| effect.settled.is_none() && effect.through == Some(Name::Binding(binding)));
        open.flat_map(|effect| effect.to.iter().copied()).collect()
    }

    /// No more bytes are placed through `binding`. The bytes `seen` there stay, but for other effects.
    pub(crate) fn close(&mut self, binding: BindingId, seen: &[(Span, Vec<u8>)]) {
        self.bindings[binding].life = Validity::Gone;
        self.settle(|effect| effect.through == Some(Name::Binding(binding)));
        for (span, bytes) in seen {
            self.store(*span, bytes);
        }
    }

    /// The source of `op` has been read.
    pub(crate) fn fetched(&mut self, op: u64) {
        self.effects.iter_mut().filter(|effect| effect.op == op).for_each(|effect| effect.fetching = false);
    }

    /// Settles the effects that `which` selects. Returns their targets.
    pub(crate) fn settle(&mut self, which: impl Fn(&Effect) -> bool) -> Vec<Span> {
        let now = self.tick();
        let mut spans = Vec::new();
        for effect in self.effects.iter_mut().filter(|effect| effect.settled.is_none() && which(effect)) {
            effect.settled = Some(now);
            effect.fetching = false;
            spans.extend(&effect.to);
        }
        spans
    }

    /// Whether `span` may have the bytes `seen`.
    pub(crate) fn check(&mut self, span: &Span, seen: &[u8]) -> Result<(), String> {
        if self.regions[span.region].left {
            return Ok(());
        }
        for run in self.runs(span, None) {
            self.checked += (run.end - run.at) as u64;
            let exact = (run.at..run.end).filter(|&at| self.the_only(span.region, &run, at).is_some());
            self.exact += exact.count() as u64;
            let base = &self.regions[span.region].base;
            for at in run.at..run.end {
                let byte = seen[at - span.at];
                let allowed = (run.base && base[at].is_none_or(|value| value == byte))
                    || run.alive.iter().any(|&(effect, first)| {
                        self.effects[effect].values[first + at - run.at].is_none_or(|value| value == byte)
                    });
                if !allowed {
                    let from: Vec<u64> =
                        run.alive.iter().map(|&(effect, _)| self.effects[effect].op).collect();
                    let region = span.region;
                    return Err(format!(
                        "byte {at} of region {region} is {byte:#04x}: neither the old one ({}, {:02x?}) nor of {from:?}",
                        if run.base { "allowed" } else { "overwritten" },
                        base[at],
                    ));
                }
            }
        }
        Ok(())
    }

    /// `region` is invalid: its bytes stay as they were seen.
    pub(crate) fn freeze(&mut self, region: RegionId, seen: Vec<u8>) {
        self.regions[region].life = Validity::Gone;
        self.regions[region].base = seen.into_iter().map(Some).collect();
    }

    /// Cuts `span` where the effects over it change.
    fn runs(&self, span: &Span, view: Option<View>) -> Vec<Run> {
        let region = &self.regions[span.region];
        if span.len == 0 {
            return Vec::new();
        }
        if region.life == Validity::Gone {
            return vec![Run { at: span.at, end: span.end(), base: true, alive: Vec::new() }];
        }
        // (effect, first byte of the region, end, index of the first value)
        let mut pieces = Vec::new();
        for (index, effect) in self.effects.iter().enumerate() {
            let mut first = 0;
            for to in &effect.to {
                if to.meets(span) {
                    pieces.push((index, to.at, to.end(), first));
                }
                first += to.len;
            }
        }
        let mut cuts: Vec<usize> = pieces.iter().flat_map(|&(_, at, end, _)| [at, end]).collect();
        cuts.retain(|&cut| cut > span.at && cut < span.end());
        cuts.extend([span.at, span.end()]);
        cuts.sort_unstable();
        cuts.dedup();
        let settled = |effect: &Effect| {
            effect.settled.or_else(|| view.filter(|view| view.follows(effect)).map(|_| self.now + 1))
        };
        let run = |at: usize, end: usize| {
            let over: Vec<_> = pieces.iter().filter(|&&(_, from, to, _)| from <= at && end <= to).collect();
            let outdated = |since: u64| {
                over.iter().any(|&&(index, ..)| {
                    let effect = &self.effects[index];
                    settled(effect).is_some() && effect.began >= since
                })
            };
            let alive = over
                .iter()
                .filter(|&&&(index, ..)| {
                    let effect = &self.effects[index];
                    // An effect does not outdate itself: it began before it settled. A store begins and
                    // settles at the same time.
                    !settled(effect).is_some_and(|since| {
                        over.iter().any(|&&(other, ..)| {
                            let other_effect = &self.effects[other];
                            other != index && settled(other_effect).is_some() && other_effect.began >= since
                        })
                    })
                })
                .map(|&&(index, from, _, first)| (index, first + at - from))
                .collect();
            Run { at, end, base: !outdated(0), alive }
        };
        cuts.windows(2).map(|cut| run(cut[0], cut[1])).collect()
    }

    /// The value of the byte, if only one is possible.
    fn the_only(&self, region: RegionId, run: &Run, at: usize) -> Option<u8> {
        let base = run.base.then(|| self.regions[region].base[at]);
        let mut values = run
            .alive
            .iter()
            .map(|&(effect, first)| self.effects[effect].values[first + at - run.at])
            .chain(base);
        let value = values.next()??;
        values.all(|other| other == Some(value)).then_some(value)
    }

    /// The bytes of `spans` change. Effects that read there may get old or new bytes, except those that
    /// `spared` selects, and so on with their targets.
    fn mix(&mut self, spans: &[Span], spared: impl Fn(&Effect) -> bool) {
        let mut open: Vec<(Span, bool)> = spans.iter().map(|&span| (span, true)).collect();
        while let Some((span, direct)) = open.pop() {
            for reader in &mut self.effects {
                if reader.fetching && !(direct && spared(reader)) {
                    open.extend(reader.make_unknown(&span).into_iter().map(|span| (span, false)));
                }
            }
        }
    }
}

impl Effect {
    /// An effect of request `op` without source and target.
    pub(crate) fn of(op: u64, by: StreamEnd) -> Self {
        Self {
            op,
            by,
            flow: Flow::Out,
            message: false,
            fenced: false,
            from: Vec::new(),
            to: Vec::new(),
            through: None,
            asked: None,
            values: Vec::new(),
            began: 0,
            settled: None,
            fetching: true,
        }
    }

    /// Whether it happens only after `reader` has fetched its bytes. It is later in the same stream, and one
    /// of: fenced behind an answered request; the answer to a request that left behind `reader`'s payload;
    /// the change of a request that is carried out after `reader` was answered. Or it belongs to the same
    /// request as `reader`.
    fn comes_after(&self, reader: &Effect) -> bool {
        let ordered = match self.flow {
            Flow::Out => self.fenced && reader.flow != Flow::Out,
            Flow::In => reader.flow == Flow::Out,
            Flow::Change => reader.flow != Flow::Out,
        };
        self.by == reader.by && ordered || self.op == reader.op
    }

    /// The bytes that it fetches from `span` become unknown. Returns their targets, if they were known.
    fn make_unknown(&mut self, span: &Span) -> Vec<Span> {
        let mut news = Vec::new();
        let mut first = 0;
        for from in &self.from {
            if from.meets(span) {
                let mut start = first + from.at.max(span.at) - from.at;
                let mut end = first + from.end().min(span.end()) - from.at;
                if self.flow == Flow::Change {
                    // The result is a number: each of its bytes depends on all bytes that were read.
                    (start, end) = (0, self.values.len());
                }
                let values = &mut self.values[start..end];
                if values.iter().any(Option::is_some) {
                    values.fill(None);
                    news.extend(cut(&self.to, start, end));
                }
            }
            first += from.len;
        }
        news
    }
}

/// Bytes `start..end` of the concatenated `spans`.
pub(crate) fn cut(spans: &[Span], start: usize, end: usize) -> Vec<Span> {
    let mut first = 0;
    let mut pieces = Vec::new();
    for span in spans {
        let (from, to) = (start.max(first), end.min(first + span.len));
        if from < to {
            pieces.push(Span { region: span.region, at: span.at + from - first, len: to - from });
        }
        first += span.len;
    }
    pieces
}
