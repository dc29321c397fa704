//! Requests that send nothing, but make STags valid or invalid when the send queue executes them in order.

use iwarp::memory::{Access, Base, WindowKind};
use iwarp::verbs::{BindWindow, FastRegister, SendOp, WcOpcode};

use super::super::memory::{Flow, Region, StreamEnd};
use super::super::names::{Binding, Grant, Name, Validity, Window, WindowId};
use super::super::streams::{Model, NewName, Semantics};
use super::{Drawn, FAULT_EVERY, drawn, meaning, pick};
use testkit::dice::Dice;

/// One local request in `LOCAL_FAULT_EVERY` cannot be executed.
const LOCAL_FAULT_EVERY: u64 = FAULT_EVERY / 3;

pub(super) fn invalidate(dice: &mut Dice, model: &Model, by: StreamEnd, op: u64) -> Option<Drawn> {
    let own = |name: Name| {
        let grant = model.memory.grant(name);
        let bound_here = matches!(name, Name::Region(_)) || grant.giver == Some(by);
        grant.host == by.1 && grant.is_there_for(by) && grant.revocable && bound_here
    };
    // The memory of the STag is sometimes the sink of an outstanding Read. A fence lets the Read finish
    // first.
    if let Some(name) = model.memory.awaited(by).map(Name::Region).filter(|&name| own(name))
        && dice.one_in(2)
    {
        return Some(invalidate_of(model, op, name, !dice.one_in(4)));
    }
    // Windows and fast registrations are preferred, since they can be used again.
    let again = |name: Name| own(name) && model.memory.grant(name).giver.is_some();
    let first = if dice.one_in(4) { None } else { pick(dice, model, again) };
    let name = first.or_else(|| pick(dice, model, own).filter(|_| dice.one_in(3)))?;
    Some(invalidate_of(model, op, name, false))
}

fn invalidate_of(model: &Model, op: u64, name: Name, fenced: bool) -> Drawn {
    let takes = Some(name);
    let meaning = Semantics { takes, fenced, ..meaning(Flow::Out, Vec::new(), WcOpcode::LocalInvalidate) };
    drawn(model, op, SendOp::LocalInvalidate { rkey: model.memory.grant(name).key }, meaning)
}

/// Binds a window of type 1, which ends the window's old binding. A length of 0 unbinds the window.
pub(super) fn bind_type_1(dice: &mut Dice, model: &Model, by: StreamEnd, op: u64) -> Option<Drawn> {
    let number = window(dice, model, by, WindowKind::Type1)?;
    let window = &model.memory.windows[number];
    let takes =
        window.bound.filter(|&old| model.memory.bindings[old].life != Validity::Gone).map(Name::Binding);
    let mut drawn = bind(dice, model, by, op, number)?;
    if let SendOp::BindWindow(bind) = &mut drawn.request.op
        && takes.is_some()
        && dice.one_in(2)
    {
        bind.length = 0;
        (drawn.meaning.gives, drawn.meaning.wrong) = (None, false);
    }
    let Drawn { request, meaning } = drawn;
    let takes = takes.filter(|_| !meaning.wrong);
    Some(Drawn { request, meaning: Semantics { takes, plain: true, ..meaning } })
}

/// Binds a window of type 2 that is not bound when the request is executed.
pub(super) fn bind_type_2(dice: &mut Dice, model: &Model, by: StreamEnd, op: u64) -> Option<Drawn> {
    let number = window(dice, model, by, WindowKind::Type2)?;
    bind(dice, model, by, op, number)
}

fn window(dice: &mut Dice, model: &Model, by: StreamEnd, kind: WindowKind) -> Option<WindowId> {
    let free = |old| {
        let grant = model.memory.grant(Name::Binding(old));
        // A window that another queue pair is about to bind or invalidate is excluded.
        let alone = match model.memory.bindings[old].life {
            Validity::Coming => grant.giver == Some(by),
            Validity::Ending => grant.taker == Some(by),
            Validity::Valid | Validity::Gone => true,
        };
        if kind == WindowKind::Type1 { alone } else { grant.is_free_for(by) }
    };
    let fits = |window: &Window| {
        window.host == by.1 && window.kind == kind && !window.freed && window.bound.is_none_or(free)
    };
    let windows = model.memory.windows.iter().enumerate();
    let fitting: Vec<WindowId> = windows.filter(|(_, window)| fits(window)).map(|(n, _)| n).collect();
    (!fitting.is_empty()).then(|| dice.pick(&fitting))
}

fn bind(dice: &mut Dice, model: &Model, by: StreamEnd, op: u64, window: WindowId) -> Option<Drawn> {
    let Window { kind, key, .. } = model.memory.windows[window];
    let wrong = dice.one_in(LOCAL_FAULT_EVERY);
    let memory = |name: Name| {
        let Name::Region(region) = name else { return false };
        let Region { prepared, left, .. } = model.memory.regions[region];
        let grant = model.memory.grant(name);
        // The verb for windows of type 1 accepts only memory that is already registered.
        let known = kind == WindowKind::Type2 || !prepared;
        let associated = grant.stream.is_none_or(|stream| stream == by.0);
        let bindable = grant.access.contains(Access::MW_BIND);
        grant.host == by.1 && grant.is_there_for(by) && !left && known && associated && bindable != wrong
    };
    // Sometimes the memory is valid on this stream only: the window then gives access to no other stream.
    let narrow = |name: Name| memory(name) && model.memory.grant(name).stream.is_some();
    let first = if dice.one_in(2) { None } else { pick(dice, model, narrow) };
    let name = first.or_else(|| pick(dice, model, memory))?;
    let grant = model.memory.grant(name);
    let (at, len) = part_of(dice, grant.at, grant.len);
    let access = rights(dice);
    let wrong = wrong || access.allows_writing() && !grant.access.contains(Access::LOCAL_WRITE);
    let zero_based = kind == WindowKind::Type2 && dice.one_in(3);
    let (rkey, addr) = (next(key), grant.offset_of(at));
    let request = BindWindow { rkey, lkey: grant.key, addr, length: len as u64, access, zero_based };
    let binding = Binding {
        window,
        kind,
        region: grant.region,
        at,
        len,
        addr: if zero_based { 0 } else { addr },
        key: rkey,
        access,
        // The window is never valid on more streams than the region.
        stream: if kind == WindowKind::Type1 { grant.stream } else { Some(by.0) },
        life: Validity::Coming,
        giver: by,
        taker: None,
    };
    let gives = (!wrong).then_some(NewName::Binding(binding));
    let meaning = Semantics { gives, wrong, ..meaning(Flow::Out, Vec::new(), WcOpcode::BindWindow) };
    Some(drawn(model, op, SendOp::BindWindow(request), meaning))
}

/// Registers prepared memory that is not registered when the request is executed.
pub(super) fn fast_register(dice: &mut Dice, model: &Model, by: StreamEnd, op: u64) -> Option<Drawn> {
    let free = |name: Name| {
        let Name::Region(region) = name else { return false };
        let Region { prepared, left, .. } = model.memory.regions[region];
        let grant = model.memory.grant(name);
        // Other streams may use the old STag until the model has seen that it is invalid, unless the STag
        // belongs to the stream of `by`.
        let alone = grant.life == Validity::Gone || grant.stream == Some(by.0);
        let associated = grant.stream.is_none_or(|stream| stream == by.0);
        grant.host == by.1 && prepared && !left && alone && associated && grant.is_free_for(by)
    };
    let name = pick(dice, model, free)?;
    let Grant { region: old, key, .. } = model.memory.grant(name);
    let whole = model.memory.regions[old].base.len();
    let (at, len) = part_of(dice, 0, whole);
    let wrong = dice.one_in(LOCAL_FAULT_EVERY);
    let length = if wrong { (whole - at + 1) as u64 } else { len as u64 };
    let access = dice.pick(&[
        Access::LOCAL_WRITE | Access::REMOTE | Access::MW_BIND,
        Access::LOCAL_WRITE | Access::REMOTE,
        Access::LOCAL_WRITE,
        Access::REMOTE_READ,
    ]);
    let (base, addr) = dice.pick(&[(Base::Zero, 0), (Base::Iova(12_345), 12_345)]);
    let rkey = next(key);
    let request = FastRegister { rkey, offset: at as u64, length, access, base };
    let gives = (!wrong).then_some(NewName::Region { old, at, len, addr, key: rkey, access });
    let meaning = Semantics { gives, wrong, ..meaning(Flow::Out, Vec::new(), WcOpcode::FastRegister) };
    Some(drawn(model, op, SendOp::FastRegister(request), meaning))
}

/// Returns the first byte and the length of all or a part of the `len` bytes from `at` on.
fn part_of(dice: &mut Dice, at: usize, len: usize) -> (usize, usize) {
    if dice.one_in(3) {
        return (at, len);
    }
    let first = dice.index(len);
    (at + first, 1 + dice.index(len - first))
}

fn rights(dice: &mut Dice) -> Access {
    dice.pick(&[Access::REMOTE, Access::REMOTE, Access::REMOTE_READ, Access::REMOTE_WRITE])
}

/// Returns the STag with the next key value.
fn next(stag: u32) -> u32 {
    stag & !0xff | u32::from((stag as u8).wrapping_add(1))
}
