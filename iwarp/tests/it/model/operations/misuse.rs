//! Requests that may use the peer's memory without the right to do so. A request without the right ends its
//! stream.

use iwarp::memory::Access;
use iwarp::verbs::RemoteAddr;

use super::super::memory::{Span, StreamEnd};
use super::super::names::{Name, Validity};
use super::super::streams::{Model, Remote};
use super::{FAULT_EVERY, pick};
use testkit::dice::Dice;

/// Sometimes returns an STag that `by` must not use although the memory is registered: a former STag of a
/// window, an STag of another stream, or an STag without the necessary right.
pub(super) fn name(
    dice: &mut Dice,
    model: &Model,
    by: StreamEnd,
    len: usize,
    right: Access,
) -> Option<(Name, Span)> {
    if !dice.one_in(FAULT_EVERY / 10) {
        return None;
    }
    let memory = &model.memory;
    // An atomic needs eight aligned bytes. Other requests are shortened to the length of the memory.
    let is_atomic = right == Access::REMOTE_ATOMIC;
    let least = if is_atomic { len + 7 } else { 1 };
    let there = |name: Name| {
        let grant = memory.grant(name);
        grant.host != by.1 && grant.len >= least && memory.regions[grant.region].life == Validity::Valid
    };
    // The last STag of a window that has not been bound again yet.
    let gone = |name: Name| match name {
        Name::Region(_) => false,
        Name::Binding(number) => {
            let binding = &memory.bindings[number];
            let is_last = memory.windows[binding.window].bound == Some(number);
            there(name) && binding.life == Validity::Gone && is_last
        }
    };
    let of_another = |name: Name| there(name) && memory.grant(name).stream.is_some_and(|only| only != by.0);
    // STags that a work request has made valid, and not a verbs call.
    let given = |name: Name| memory.grant(name).giver.is_some();
    let poor = |name: Name| there(name) && given(name) && !memory.grant(name).access.contains(right);
    let first = dice.index(4);
    let name = (first..first + 4).find_map(|which| match which % 4 {
        0 => pick(dice, model, gone),
        1 => pick(dice, model, |name| of_another(name) && given(name)),
        2 => pick(dice, model, of_another),
        _ => pick(dice, model, poor),
    })?;
    let grant = memory.grant(name);
    let at = if is_atomic { grant.at.next_multiple_of(8) } else { grant.at };
    Some((name, Span { region: grant.region, at, len: len.min(grant.len) }))
}

/// Returns any STag of `host`, valid or not, with any rights, or sometimes a random key. The range may extend
/// beyond the end of the memory.
pub(super) fn trespass(
    dice: &mut Dice,
    model: &Model,
    host: usize,
    len: usize,
    right: Access,
) -> Option<(Remote, RemoteAddr)> {
    let settled = |name: Name| {
        let grant = model.memory.grant(name);
        // An STag is excluded if its memory has another STag that is ending: it is unknown which of the two
        // ends first.
        grant.host == host && !(model.memory.regions[grant.region].left && grant.life != Validity::Gone)
    };
    let name = pick(dice, model, settled)?;
    let grant = model.memory.grant(name);
    let at = grant.at + dice.index(grant.len + 100);
    let addr = RemoteAddr { addr: grant.offset_of(at), rkey: grant.key };
    if dice.one_in(4) {
        let rkey = dice.number() as u32;
        return Some((Remote { name: None, at, len, right }, RemoteAddr { rkey, ..addr }));
    }
    Some((Remote { name: Some(name), at, len, right }, addr))
}
