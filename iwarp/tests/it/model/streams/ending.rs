//! Models an STag that becomes invalid: requests that use the STag may fail. This module also handles the
//! results of requests that make STags valid or invalid.

use iwarp::verbs::WcOpcode;

use super::super::cause::{Cause, PossibleEnd};
use super::super::memory::{Flow, Span, StreamEnd};
use super::super::names::{Name, Validity};
use super::{Model, NewName, Sent};

/// A request that invalidates an STag of its poster or of the peer.
#[derive(Clone, Copy)]
pub(crate) struct Asker {
    pub(crate) op: u64,
    pub(crate) by: StreamEnd,
    /// Whether the request waits for the Reads before it.
    pub(crate) fenced: bool,
}

impl Model {
    /// Records that the STag `name` begins to end because of the request `asker`. Requests that use the STag
    /// may fail. Reads before a fenced `asker` do not fail, because `asker` is executed after the Reads have
    /// their bytes.
    pub(crate) fn ending(&mut self, name: Name, asker: Option<Asker>) {
        let except = asker.map(|asker| asker.op);
        let waited_for = |by: StreamEnd, flow: Flow| {
            asker.is_some_and(|asker| asker.fenced && asker.by == by) && flow != Flow::Out
        };
        let life = self.memory.life_mut(name);
        *life = (*life).max(Validity::Ending);
        let memory = &self.memory;
        let ends = |used: Name| memory.ends_with(used, name);
        let uses = |spans: &[Span]| spans.iter().any(|span| Name::Region(span.region) == name);
        for (number, stream) in self.streams.iter_mut().enumerate() {
            let mut possible_ends = Vec::new();
            for (side, end) in stream.ends.iter().enumerate() {
                for Sent { op, meaning, late, .. } in &end.sent {
                    if *late || Some(*op) == except || waited_for((number, side), meaning.flow) {
                        continue;
                    }
                    let invalidates = meaning.completes == WcOpcode::LocalInvalidate;
                    if uses(&meaning.local) || invalidates && meaning.takes.is_some_and(ends) {
                        let local = meaning.flow == Flow::Out;
                        possible_ends.push((if local { Cause::Local } else { Cause::Sink }, side));
                    }
                    if meaning.remote.is_some_and(|remote| remote.name.is_some_and(ends)) {
                        let write = meaning.flow == Flow::Out;
                        possible_ends.push((if write { Cause::Write } else { Cause::Read }, 1 - side));
                    }
                    if let Some(NewName::Binding(binding)) = &meaning.gives
                        && Name::Region(binding.region) == name
                    {
                        possible_ends.push((Cause::Bind, side));
                    }
                }
                for received in end.received.iter().filter(|received| uses(&received.spans)) {
                    possible_ends.extend((!received.late).then_some((Cause::Receive, side)));
                }
                for arriving in &end.arriving {
                    let named =
                        arriving.message.invalidates.is_some_and(|(_, named)| named.is_some_and(ends));
                    possible_ends
                        .extend((named && Some(arriving.op) != except).then_some((Cause::Invalidate, side)));
                }
            }
            let possible_ends =
                possible_ends.into_iter().map(|(cause, finder)| PossibleEnd { cause, finder, sure: false });
            stream.possible_ends.extend(possible_ends);
        }
        // Writes that have completed may still be under way.
        for effect in self.memory.effects.iter().filter(|effect| effect.settled.is_none()) {
            let (stream, side) = effect.by;
            if waited_for(effect.by, effect.flow) {
                continue;
            }
            // A Read that was flushed at this side may still be under way to the peer.
            if effect.asked.is_some_and(ends)
                && let Some(stream) = self.streams.get_mut(stream)
            {
                stream.possible_ends.push(PossibleEnd { cause: Cause::Read, finder: 1 - side, sure: false });
            }
            let there = match effect.through {
                Some(through) => ends(through),
                None => uses(&effect.to),
            };
            let Some(stream) = self.streams.get_mut(stream).filter(|_| there) else { continue };
            let (cause, finder) = match effect.flow {
                Flow::Out => (Cause::Write, 1 - side),
                Flow::In => (Cause::Sink, side),
                Flow::Change => (Cause::Read, 1 - side),
            };
            stream.possible_ends.push(PossibleEnd { cause, finder, sure: false });
        }
        self.note_shared_ends(0);
        self.note_shared_ends(1);
    }

    /// Records that a request was executed. Returns the STag that the request invalidated.
    pub(super) fn done(&mut self, sent: &Sent) -> Option<Name> {
        if sent.late {
            return None;
        }
        if let Some(life) = sent.gives.map(|name| self.memory.life_mut(name))
            && *life == Validity::Coming
        {
            *life = Validity::Valid;
        }
        sent.meaning.takes
    }

    /// Records that a request was not executed. Returns the STag that never became valid.
    pub(super) fn undone(&mut self, sent: &Sent) -> Option<Name> {
        if let Some(Name::Binding(binding)) = sent.gives {
            // It is unknown whether the window's old binding has ended.
            let window = self.memory.bindings[binding].window;
            self.memory.windows[window].freed = true;
        }
        sent.gives
    }
}
