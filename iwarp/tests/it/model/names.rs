//! STags: the bytes that an STag refers to, and whether the STag is valid.
//!
//! A [`Name`] is one use of an STag: a registration, or one binding of a window. Memory that is registered
//! again and a window that is bound again get a new `Name`, and the old one stays invalid. A request that
//! makes an STag valid or invalid is executed in its order in the send queue. Later requests of this queue
//! see the result at once. For all other users of the STag, the result is certain when the request has
//! completed.

use iwarp::memory::{Access, WindowKind};

use super::memory::{Memory, RegionId, StreamEnd};

/// A window's index in [`Memory::windows`].
pub(crate) type WindowId = usize;

/// A binding's index in [`Memory::bindings`]. An index is never used again.
pub(crate) type BindingId = usize;

/// The validity of an STag. The variants are ordered from valid to invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Validity {
    Valid,
    /// The request that makes the STag valid has not completed yet.
    Coming,
    /// An invalidation of the STag has not completed.
    Ending,
    /// The STag is invalid for ever.
    Gone,
}

/// The object to which an STag refers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Region(RegionId),
    Binding(BindingId),
}

pub(crate) struct Window {
    pub(crate) host: usize,
    pub(crate) kind: WindowKind,
    /// The STag of the last binding.
    pub(crate) key: u32,
    /// The last binding of the window.
    pub(crate) bound: Option<BindingId>,
    /// Whether the window is freed, so it must not be bound any more.
    pub(crate) freed: bool,
}

/// The binding of a window to a part of a region.
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
    pub(crate) life: Validity,
    /// The endpoint whose request makes the binding valid.
    pub(crate) giver: StreamEnd,
    /// The endpoint whose request invalidates the binding.
    pub(crate) taker: Option<StreamEnd>,
}

/// The bytes and rights of an STag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) host: usize,
    pub(crate) region: RegionId,
    /// Offset in the region of the first byte that is granted.
    pub(crate) at: usize,
    pub(crate) len: usize,
    /// The tagged offset of the byte `at`.
    pub(crate) addr: u64,
    pub(crate) key: u32,
    pub(crate) access: Access,
    /// The only stream that may use the STag, if it is restricted to one stream.
    pub(crate) stream: Option<usize>,
    pub(crate) life: Validity,
    /// The endpoint whose request makes the STag valid, if a request does so.
    pub(crate) giver: Option<StreamEnd>,
    /// The endpoint whose request invalidates the STag, if a request does so.
    pub(crate) taker: Option<StreamEnd>,
    /// Whether an invalidation can end the STag. A window of type 1 cannot be invalidated.
    pub(crate) revocable: bool,
}

impl Grant {
    pub(crate) fn end(&self) -> usize {
        self.at + self.len
    }

    /// Whether the STag is valid for a request that `by` posts now. The STag is valid already, or an earlier
    /// request of `by` makes it valid.
    pub(crate) fn is_there_for(&self, by: StreamEnd) -> bool {
        self.life == Validity::Valid || self.life == Validity::Coming && self.giver == Some(by)
    }

    /// Whether a request that `by` posts now may use the same STag again. The STag is invalid, or an earlier
    /// request of `by` invalidates it.
    pub(crate) fn is_free_for(&self, by: StreamEnd) -> bool {
        self.life == Validity::Gone || self.is_taken_by(by)
    }

    /// Whether a posted request of `by` invalidates the STag.
    pub(crate) fn is_taken_by(&self, by: StreamEnd) -> bool {
        self.life == Validity::Ending && self.taker == Some(by)
    }

    /// Returns the tagged offset of the region's byte `at`.
    pub(crate) fn offset_of(&self, at: usize) -> u64 {
        self.addr.wrapping_add(at as u64).wrapping_sub(self.at as u64)
    }
}

impl Memory {
    /// Returns all STags, valid or not.
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
                // The binding ends with its region, and becomes valid only after its region.
                let life = life.max(behind.life);
                let (giver, revocable) = (Some(giver), kind == WindowKind::Type2);
                let host = behind.host;
                Grant { host, region, at, len, addr, key, access, stream, life, giver, taker, revocable }
            }
        }
    }

    /// Returns whether a window is certainly bound to `region`, and whether a window may be bound to it.
    pub(crate) fn is_bound(&self, region: RegionId) -> (bool, bool) {
        let behind = self.bindings.iter().filter(|binding| binding.region == region);
        let best = behind.map(|binding| binding.life.max(self.regions[region].life)).min();
        (best == Some(Validity::Valid), best.is_some_and(|life| life != Validity::Gone))
    }

    pub(crate) fn life_mut(&mut self, name: Name) -> &mut Validity {
        match name {
            Name::Region(region) => &mut self.regions[region].life,
            Name::Binding(binding) => &mut self.bindings[binding].life,
        }
    }

    pub(crate) fn take(&mut self, name: Name, by: StreamEnd) {
        match name {
            Name::Region(region) => self.regions[region].taker = Some(by),
            Name::Binding(binding) => self.bindings[binding].taker = Some(by),
        }
    }

    /// Whether the STag `name` ends if `ended` ends.
    pub(crate) fn ends_with(&self, name: Name, ended: Name) -> bool {
        name == ended || Name::Region(self.grant(name).region) == ended
    }
}
