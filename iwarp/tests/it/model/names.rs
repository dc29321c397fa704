//! STags: what they reach, and whether they may be used.
//!
//! A [`Name`] is given once. Memory that is registered again and a window that is bound again have another
//! one, and the old one stays gone. A request that gives or takes a name does so in its turn: what stands
//! behind it in its send queue finds that done, all others once it has completed.

use iwarp::memory::{Access, WindowKind};

use super::memory::{By, Memory, RegionId};

/// A window's place in [`Memory::windows`].
pub(crate) type WindowId = usize;

/// A binding's place in [`Memory::bindings`]; never used again.
pub(crate) type BindingId = usize;

/// Whether a name may be used, from the best to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Life {
    Valid,
    /// The request that gives it is on its way.
    Coming,
    /// An invalidation is on its way.
    Ending,
    /// Invalid for ever.
    Gone,
}

/// What an STag names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Region(RegionId),
    Binding(BindingId),
}

/// A memory window.
pub(crate) struct Window {
    pub(crate) host: usize,
    pub(crate) kind: WindowKind,
    /// The STag given last.
    pub(crate) key: u32,
    /// What it was bound to last.
    pub(crate) bound: Option<BindingId>,
    /// It is not to be bound any more.
    pub(crate) freed: bool,
}

/// A window, bound to a part of a region.
#[derive(Clone, Debug)]
pub(crate) struct Binding {
    pub(crate) window: WindowId,
    pub(crate) kind: WindowKind,
    pub(crate) region: RegionId,
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) addr: u64,
    pub(crate) key: u32,
    pub(crate) access: Access,
    pub(crate) stream: Option<usize>,
    pub(crate) life: Life,
    /// Whose request gives it.
    pub(crate) giver: By,
    /// Whose request invalidates it.
    pub(crate) taker: Option<By>,
}

/// What a name gives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) host: usize,
    pub(crate) region: RegionId,
    /// Bytes of the region.
    pub(crate) at: usize,
    pub(crate) len: usize,
    /// The tagged offset of the first of them.
    pub(crate) addr: u64,
    pub(crate) key: u32,
    pub(crate) access: Access,
    /// The one stream that may use it.
    pub(crate) stream: Option<usize>,
    pub(crate) life: Life,
    /// Whose request gives it, where one does.
    pub(crate) giver: Option<By>,
    /// Whose request invalidates it, where one does.
    pub(crate) taker: Option<By>,
    /// Whether it goes by being invalidated: a window of type 1 goes by being bound again alone.
    pub(crate) revocable: bool,
}

impl Grant {
    pub(crate) fn end(&self) -> usize {
        self.at + self.len
    }

    /// Whether a request that `by` posts now finds it there: it is valid, or given by a request in front of
    /// it.
    pub(crate) fn is_there_for(&self, by: By) -> bool {
        self.life == Life::Valid || self.life == Life::Coming && self.giver == Some(by)
    }

    /// Whether a request that `by` posts now may give the same STag anew: it is invalid, or taken by a
    /// request in front.
    pub(crate) fn is_free_for(&self, by: By) -> bool {
        self.life == Life::Gone || self.is_taken_by(by)
    }

    /// Whether a request of `by`, in front of what it posts now, takes it.
    pub(crate) fn is_taken_by(&self, by: By) -> bool {
        self.life == Life::Ending && self.taker == Some(by)
    }

    /// The tagged offset of the region's byte `at`.
    pub(crate) fn offset_of(&self, at: usize) -> u64 {
        self.addr.wrapping_add(at as u64).wrapping_sub(self.at as u64)
    }
}

impl Memory {
    /// All names that there ever were.
    pub(crate) fn names(&self) -> impl Iterator<Item = Name> + use<> {
        let regions = (0..self.regions.len()).map(Name::Region);
        regions.chain((0..self.bindings.len()).map(Name::Binding))
    }

    pub(crate) fn grant(&self, name: Name) -> Grant {
        match name {
            Name::Region(region) => {
                let space = &self.regions[region];
                Grant {
                    host: space.host,
                    region,
                    at: space.at,
                    len: space.len,
                    addr: space.addr,
                    key: space.key,
                    access: space.access,
                    stream: space.stream,
                    life: space.life,
                    giver: space.giver,
                    taker: space.taker,
                    revocable: true,
                }
            }
            Name::Binding(binding) => {
                let Binding { kind, region, at, len, addr, key, access, stream, life, giver, taker, .. } =
                    self.bindings[binding];
                let behind = self.grant(Name::Region(region));
                // It ends with the region, and does not come before it.
                let life = life.max(behind.life);
                let (giver, revocable) = (Some(giver), kind == WindowKind::Type2);
                let host = behind.host;
                Grant { host, region, at, len, addr, key, access, stream, life, giver, taker, revocable }
            }
        }
    }

    /// Whether a window is bound to `region` for sure, and whether one may be.
    pub(crate) fn is_bound(&self, region: RegionId) -> (bool, bool) {
        let behind = self.bindings.iter().filter(|binding| binding.region == region);
        let best = behind.map(|binding| binding.life.max(self.regions[region].life)).min();
        (best == Some(Life::Valid), best.is_some_and(|life| life != Life::Gone))
    }

    pub(crate) fn life_mut(&mut self, name: Name) -> &mut Life {
        match name {
            Name::Region(region) => &mut self.regions[region].life,
            Name::Binding(binding) => &mut self.bindings[binding].life,
        }
    }

    pub(crate) fn take(&mut self, name: Name, by: By) {
        match name {
            Name::Region(region) => self.regions[region].taker = Some(by),
            Name::Binding(binding) => self.bindings[binding].taker = Some(by),
        }
    }

    /// Whether the end of `ended` is the end of `name`.
    pub(crate) fn ends_with(&self, name: Name, ended: Name) -> bool {
        name == ended || Name::Region(self.grant(name).region) == ended
    }
}
