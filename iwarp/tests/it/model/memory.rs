//! The values that the bytes of registered memory may have.
//!
//! For each byte, the model stores the value that it saw last, and the effects that are under way on the
//! byte. An effect is, for example, a Write, a Send into its receive buffer, a Read's response, or a store of
//! the application. An effect is *settled* when an event was seen that the RFCs allow only after the whole
//! effect was placed. Until then a part of the effect may have happened. There is one rule: **a value is no
//! longer possible if an effect that began after this value had settled is itself settled.** Effects that
//! overlap in time may leave either value (RFC 5040 section 5.5 rule 3).

use iwarp::memory::Access;

use super::names::{Binding, BindingId, Name, Validity, Window};

/// A region's index in [`Memory::regions`]. An index is never used again.
pub(crate) type RegionId = usize;

/// A range of bytes of a region.
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

/// A registration. If prepared memory is registered again, the new registration is another `Region`.
pub(crate) struct Region {
    pub(crate) host: usize,
    /// Offset of the first exposed byte. A registration exposes all or a part of prepared memory.
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) addr: u64,
    pub(crate) key: u32,
    pub(crate) access: Access,
    /// The only stream that may use the region, if it is restricted to one stream.
    pub(crate) stream: Option<usize>,
    pub(crate) life: Validity,
    /// The endpoint whose request registers the region (fast registration).
    pub(crate) giver: Option<StreamEnd>,
    /// The endpoint whose request invalidates the region.
    pub(crate) taker: Option<StreamEnd>,
    /// Whether the memory is for fast registration.
    pub(crate) prepared: bool,
    /// Whether the memory was registered again, or deregistered.
    pub(crate) left: bool,
    /// The bytes of the whole memory that were seen last. `None` is an unknown byte.
    pub(crate) base: Vec<Option<u8>>,
}

/// One endpoint of a stream: the number of the stream and the side.
pub(crate) type StreamEnd = (usize, usize);

/// Returns the `StreamEnd` for stores of the application of host 0 or 1, which belong to no stream.
pub(crate) fn application(host: usize) -> StreamEnd {
    (usize::MAX, host)
}

/// The direction of an effect, which decides its order within the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// From the memory of the poster to the memory of the peer.
    Out,
    /// From the memory of the peer to the memory of the poster, as the answer to a request.
    In,
    /// The change that an atomic makes to the peer's memory.
    Change,
}

/// Bytes under way from one memory to another.
pub(crate) struct Effect {
    pub(crate) op: u64,
    pub(crate) by: StreamEnd,
    pub(crate) flow: Flow,
    /// Whether the bytes are placed in a receive buffer of the peer.
    pub(crate) message: bool,
    /// Whether the request waits for the responses to earlier Reads and atomics.
    pub(crate) fenced: bool,
    pub(crate) from: Vec<Span>,
    pub(crate) to: Vec<Span>,
    /// The STag of the peer's memory in which the bytes are placed.
    pub(crate) through: Option<Name>,
    /// The STag of the peer's memory from which the answer is read.
    pub(crate) asked: Option<Name>,
    /// The bytes. `None` is an unknown byte.
    pub(crate) values: Vec<Option<u8>>,
    pub(crate) began: u64,
    pub(crate) settled: Option<u64>,
    /// Whether `from` may still be read.
    pub(crate) fetching: bool,
}

/// A reader of memory. `follows` says which effects have happened for this reader.
#[derive(Clone, Copy)]
pub(crate) struct View {
    pub(crate) by: StreamEnd,
    pub(crate) flow: Flow,
    pub(crate) fenced: bool,
}

impl View {
    /// Whether this reader runs only after `effect` is placed. The peer executes a request after everything
    /// before the request is placed. A fenced request starts after earlier Reads have their bytes.
    fn follows(&self, effect: &Effect) -> bool {
        let before = match self.flow {
            Flow::In | Flow::Change => effect.flow != Flow::In,
            Flow::Out => self.fenced && effect.flow == Flow::In,
        };
        effect.by == self.by && before
    }
}

/// Bytes from `at` to `end` that the same effects reach, and the possible values of these bytes.
struct Run {
    at: usize,
    end: usize,
    base: bool,
    /// Index of each effect whose values are possible, and the index of its first value in this run.
    alive: Vec<(usize, usize)>,
}

/// The regions, windows and bindings of both hosts, and the effects on their bytes.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) regions: Vec<Region>,
    pub(crate) windows: Vec<Window>,
    pub(crate) bindings: Vec<Binding>,
    pub(crate) effects: Vec<Effect>,
    now: u64,
    /// Number of checked bytes that had exactly one allowed value. The field `checked` is the number of all
    /// checked bytes.
    pub(crate) exact: u64,
    pub(crate) checked: u64,
}

impl Memory {
    /// Whether no unsettled effect is placed in `span`, and no effect reads `span`.
    pub(crate) fn is_calm(&self, span: &Span) -> bool {
        !self.effects.iter().any(|effect| {
            let placed = effect.settled.is_none() && effect.to.iter().any(|to| to.meets(span));
            placed || effect.fetching && effect.from.iter().any(|from| from.meets(span))
        })
    }

    /// Returns the source of the latest unanswered Read of `by`, if `by` may also write to this source.
    pub(crate) fn being_read(&self, by: StreamEnd) -> Option<Span> {
        let reads = |effect: &&Effect| effect.by == by && effect.flow == Flow::In && effect.fetching;
        let span = *self.effects.iter().rev().find(reads)?.from.first()?;
        let region = &self.regions[span.region];
        let granted = region.access.contains(Access::REMOTE_WRITE) && region.life == Validity::Valid;
        granted.then_some(span)
    }

    /// Returns the sink of the latest unanswered Read or atomic of `by`.
    pub(crate) fn awaited(&self, by: StreamEnd) -> Option<RegionId> {
        let open = |effect: &&Effect| effect.by == by && effect.flow == Flow::In && effect.settled.is_none();
        self.effects.iter().rev().find(open)?.to.first().map(|span| span.region)
    }

    /// Advances the logical time, and returns it.
    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// Returns the bytes of `spans`, as the reader `view` sees them.
    pub(crate) fn fetch(&self, spans: &[Span], view: View) -> Vec<Option<u8>> {
        let mut values = Vec::new();
        for span in spans {
            for run in self.runs(span, Some(view)) {
                values.extend((run.at..run.end).map(|at| self.the_only(span.region, &run, at)));
            }
        }
        values
    }

    /// Begins `effect`. Bytes of the target that other effects read at this time become unknown.
    pub(crate) fn begin(&mut self, effect: Effect) {
        self.mix(&effect.to, |reader| effect.comes_after(reader));
        let began = self.tick();
        self.effects.push(Effect { began, ..effect });
    }

    /// Records that the message of `op` has found its receive buffer `to`.
    pub(crate) fn aim(&mut self, op: u64, to: &[Span]) {
        let began = self.tick();
        self.mix(to, |reader| reader.op == op);
        if let Some(effect) = self.effects.iter_mut().find(|effect| effect.op == op && effect.message) {
            (effect.to, effect.began) = (to.to_vec(), began);
        }
    }

    /// Records that the application stores `bytes`.
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

    /// Records that buffer `op` is posted to a shared receive queue. The buffer's bytes are unknown until a
    /// message has completed the buffer.
    pub(crate) fn open(&mut self, op: u64, spans: &[Span]) {
        let values = vec![None; spans.iter().map(|span| span.len).sum()];
        self.begin(Effect { to: spans.to_vec(), values, fetching: false, ..Effect::of(op, application(0)) });
    }

    /// Records that the message of `op` has completed buffer `buffer`, and fills the part `to` of this
    /// buffer.
    pub(crate) fn fill(&mut self, op: u64, buffer: u64, to: &[Span]) {
        let Some(at) = self.effects.iter().position(|effect| effect.op == buffer) else { return };
        let began = self.effects.remove(at).began;
        if let Some(effect) = self.effects.iter_mut().find(|effect| effect.op == op && effect.message) {
            (effect.to, effect.began) = (to.to_vec(), began);
        }
    }

    /// Returns the targets of the unsettled effects that use `binding`.
    pub(crate) fn through(&self, binding: BindingId) -> Vec<Span> {
        let open = self
            .effects
            .iter()
            .filter(|effect| effect.settled.is_none() && effect.through == Some(Name::Binding(binding)));
        open.flat_map(|effect| effect.to.iter().copied()).collect()
    }

    /// Records that no more bytes are placed through `binding`. The bytes `seen` can only be changed by other
    /// effects.
    pub(crate) fn close(&mut self, binding: BindingId, seen: &[(Span, Vec<u8>)]) {
        self.bindings[binding].life = Validity::Gone;
        self.settle(|effect| effect.through == Some(Name::Binding(binding)));
        for (span, bytes) in seen {
            self.store(*span, bytes);
        }
    }

    /// Records that the source of `op` has been read.
    pub(crate) fn fetched(&mut self, op: u64) {
        self.effects.iter_mut().filter(|effect| effect.op == op).for_each(|effect| effect.fetching = false);
    }

    /// Settles the effects that `which` selects. Returns the targets of these effects.
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

    /// Checks that `span` may have the bytes `seen`.
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

    /// Records that `region` is invalid: its bytes keep the values that were seen.
    pub(crate) fn freeze(&mut self, region: RegionId, seen: Vec<u8>) {
        self.regions[region].life = Validity::Gone;
        self.regions[region].base = seen.into_iter().map(Some).collect();
    }

    /// Cuts `span` at each position where the set of effects changes.
    fn runs(&self, span: &Span, view: Option<View>) -> Vec<Run> {
        let region = &self.regions[span.region];
        if span.len == 0 {
            return Vec::new();
        }
        if region.life == Validity::Gone {
            return vec![Run { at: span.at, end: span.end(), base: true, alive: Vec::new() }];
        }
        // Each piece: effect, first byte in the region, end in the region, and index of the first value.
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
                    // The values of an effect are outdated only by another effect. An effect cannot outdate
                    // its own values, although the application's stores begin and settle at the same time.
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

    /// Returns the value of the byte at `at` if exactly one value is possible.
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

    /// Records that the bytes of `spans` change. An effect that reads these bytes may get old or new values,
    /// unless `spared` selects the effect. The targets of such effects change in the same way.
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
    /// Returns an effect of request `op` without source and target.
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

    /// Whether this effect happens only after `reader` has fetched its bytes. This is so if both effects
    /// belong to the same request, or if this effect is later in the same stream for one of three reasons.
    /// Either the effect is fenced behind an answered request, or it is the answer to a request that was sent
    /// after `reader`'s payload, or it is the change of a request that is executed after `reader` was
    /// answered.
    fn comes_after(&self, reader: &Effect) -> bool {
        let ordered = match self.flow {
            Flow::Out => self.fenced && reader.flow != Flow::Out,
            Flow::In => reader.flow == Flow::Out,
            Flow::Change => reader.flow != Flow::Out,
        };
        self.by == reader.by && ordered || self.op == reader.op
    }

    /// Marks the bytes that this effect fetches from `span` as unknown. If the effect is an atomic, all bytes
    /// of the result become unknown. Returns the targets of the bytes that were known before.
    fn make_unknown(&mut self, span: &Span) -> Vec<Span> {
        let mut news = Vec::new();
        let mut first = 0;
        for from in &self.from {
            if from.meets(span) {
                let mut start = first + from.at.max(span.at) - from.at;
                let mut end = first + from.end().min(span.end()) - from.at;
                if self.flow == Flow::Change {
                    // The result is a number. Each of its bytes depends on all bytes that were read.
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

/// Returns the part `start..end` of the concatenated `spans`.
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
