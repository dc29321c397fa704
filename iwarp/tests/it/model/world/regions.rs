//! Memory of both hosts: registration, stores, invalidation and comparison.

use iwarp::memory::{Access, Base};
use iwarp::verbs::{FastOptions, FastRegion, MemoryRegion, MrOptions, VerbsError};

use super::super::memory::{Region, RegionId, Span, application};
use super::super::names::{Name, Validity};
use super::super::operations;
use super::{Done, World};
use testkit::dice::Dice;

/// A registration, or prepared memory.
pub(crate) enum Registered {
    Region(MemoryRegion),
    Fast(FastRegion),
}

impl Registered {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Region(region) => region.len(),
            Self::Fast(region) => region.memory().len(),
        }
    }

    pub(crate) fn is_valid(&self) -> bool {
        match self {
            Self::Region(region) => region.is_valid(),
            Self::Fast(region) => region.is_valid(),
        }
    }

    fn invalidate(&self) {
        match self {
            Self::Region(region) => region.invalidate(),
            Self::Fast(region) => region.invalidate(),
        }
    }

    pub(crate) fn read_at(&self, at: usize, out: &mut [u8]) -> Result<(), VerbsError> {
        match self {
            Self::Region(region) => region.read_at(at, out),
            Self::Fast(region) => region.memory().read_at(at, out).map_err(outside),
        }
    }

    pub(crate) fn write_at(&self, at: usize, bytes: &[u8]) -> Result<(), VerbsError> {
        match self {
            Self::Region(region) => region.write_at(at, bytes),
            Self::Fast(region) => region.memory().write_at(at, bytes).map_err(outside),
        }
    }
}

fn outside(error: impl std::fmt::Display) -> VerbsError {
    VerbsError::LocalProtection(error.to_string())
}

impl World {
    /// Adds a region, prepared memory or a window.
    pub(super) fn register(&mut self, dice: &mut Dice, slot: usize, side: usize) -> Done {
        match dice.index(4) {
            0 => self.allocate_window(dice, side),
            1 => self.prepare(dice, slot, side),
            _ => self.register_region(dice, slot, side),
        }
    }

    fn register_region(&mut self, dice: &mut Dice, slot: usize, side: usize) -> Done {
        let live = |region: &&Region| region.host == side && region.life != Validity::Gone;
        if self.model.memory.regions.iter().filter(live).count() >= 8 {
            return Ok(());
        }
        let len = 1 + dice.index(40_000);
        let all = Access::LOCAL_WRITE | Access::REMOTE;
        let bindable = all | Access::MW_BIND;
        let access = dice.pick(&[
            all,
            bindable,
            bindable,
            Access::LOCAL_WRITE | Access::MW_BIND,
            Access::LOCAL_WRITE | Access::REMOTE_READ,
            Access::LOCAL_WRITE,
        ]);
        let base =
            dice.pick(&[Base::VirtualAddress, Base::Zero, Base::Iova(3), Base::Iova(u64::MAX - 50_000)]);
        let stream = self.slots[slot].filter(|_| dice.one_in(2));
        let qp = stream.and_then(|stream| self.live_end((stream, side))?.qp.clone());
        let options = MrOptions { access, base, qp: qp.as_ref(), key: dice.number() as u8, keep: false };
        let region = self.host(side).pd.reg_mr_with(len, &options).map_err(|error| error.to_string())?;
        let bytes = dice.bytes(len);
        region.write_at(0, &bytes).map_err(|error| error.to_string())?;
        let number = self.memory.len();
        self.note(|| {
            format!("host {side} registers {number}: {len} bytes, {access:?}, {base:?}, for {stream:?}")
        });
        self.model.memory.regions.push(Region {
            host: side,
            at: 0,
            len,
            addr: region.addr(),
            key: region.rkey(),
            access,
            stream: stream.filter(|_| qp.is_some()),
            life: Validity::Valid,
            giver: None,
            taker: None,
            prepared: false,
            left: false,
            base: bytes.into_iter().map(Some).collect(),
        });
        self.memory.push(Some(Registered::Region(region)));
        Ok(())
    }

    /// Adds memory for fast registration, which no request has registered yet.
    fn prepare(&mut self, dice: &mut Dice, slot: usize, side: usize) -> Done {
        // After a stream has ended, its prepared memory cannot be used any more.
        let over = |stream: usize| self.model.streams[stream].is_over();
        let held = |region: &&Region| {
            let useful = !region.stream.is_some_and(over);
            region.host == side && region.prepared && !region.left && useful
        };
        if self.model.memory.regions.iter().filter(held).count() >= 4 {
            return Ok(());
        }
        let len = 1 + dice.index(20_000);
        let stream = self.slots[slot].filter(|_| !dice.one_in(4));
        let qp = stream.and_then(|stream| self.live_end((stream, side))?.qp.clone());
        let options = FastOptions { qp: qp.as_ref(), keep: false };
        let region = self.host(side).pd.alloc_fast_mr(len, &options).map_err(|error| error.to_string())?;
        let number = self.memory.len();
        self.note(|| format!("host {side} prepares {number}: {len} bytes, for {stream:?}"));
        self.model.memory.regions.push(Region {
            host: side,
            at: 0,
            len: 0,
            addr: 0,
            key: region.rkey(),
            access: Access::empty(),
            stream: stream.filter(|_| qp.is_some()),
            life: Validity::Gone,
            giver: None,
            taker: None,
            prepared: true,
            left: false,
            base: vec![Some(0); len],
        });
        self.memory.push(Some(Registered::Fast(region)));
        Ok(())
    }

    pub(super) fn store(&mut self, dice: &mut Dice, side: usize) -> Done {
        let len = operations::length(dice).max(1);
        let Some(spans) = operations::gather(dice, &self.model, application(side), len) else {
            return Ok(());
        };
        for span in spans {
            let bytes = dice.bytes(span.len);
            self.model.memory.store(span, &bytes);
            self.note(|| format!("host {side} stores {span:?}"));
            let region = self.memory[span.region].as_ref().ok_or("a valid region is there")?;
            region.write_at(span.at, &bytes).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Invalidates a region, deregisters it, or frees a window. The memory does not change after this call.
    pub(super) fn revoke(&mut self, dice: &mut Dice, side: usize) -> Done {
        if dice.one_in(4) {
            return self.free_window(dice, side);
        }
        let regions = &self.model.memory.regions;
        let live = |number: &RegionId| {
            let region = &regions[*number];
            // Memory that a posted request will register is excluded if an invalidation follows that request.
            let here = region.life == Validity::Valid
                || region.life == Validity::Ending && !self.model.is_to_come(Name::Region(*number));
            region.host == side && here && !region.left
        };
        let live: Vec<RegionId> = (0..regions.len()).filter(live).collect();
        if live.len() < 3 {
            return Ok(());
        }
        // A region to which a window is or was bound is preferred.
        let behind = |&number: &RegionId| {
            let has_window = self.model.memory.bindings.iter().any(|binding| binding.region == number);
            has_window && matches!(self.memory[number], Some(Registered::Region(_)))
        };
        let bound: Vec<RegionId> = live.iter().copied().filter(behind).collect();
        if !bound.is_empty() && !dice.one_in(3) {
            return self.deregister(dice.pick(&bound));
        }
        let number = dice.pick(&live);
        let deregister = dice.one_in(3);
        self.note(|| format!("host {side} revokes {number} (deregister: {deregister})"));
        self.model.ending(Name::Region(number), None);
        if let Some(region) = &self.memory[number] {
            region.invalidate();
        }
        self.gone(Name::Region(number))?;
        if deregister {
            self.memory[number] = None;
            self.model.memory.regions[number].left = true;
        }
        Ok(())
    }

    /// Deregisters a region. The call is refused while a window is bound to the region.
    fn deregister(&mut self, number: RegionId) -> Done {
        let (is_bound, may_be) = self.model.memory.is_bound(number);
        self.note(|| format!("deregisters {number}, bound to a window: {is_bound} (perhaps: {may_be})"));
        let (span, seen) = self.whole(number);
        let Some(Registered::Region(region)) = self.memory[number].take() else { return Ok(()) };
        match region.deregister() {
            Ok(()) if is_bound => Err(format!("region {number} was deregistered, with a window bound to it")),
            Ok(()) => {
                self.model.ending(Name::Region(number), None);
                self.model.memory.check(&span, &seen)?;
                self.model.memory.freeze(number, seen);
                self.model.memory.regions[number].left = true;
                self.windows_of_gone()
            }
            Err(_) if !may_be => Err(format!("region {number} is bound to no window, and not deregistered")),
            Err(bound) => {
                self.memory[number] = Some(Registered::Region(*bound.region));
                Ok(())
            }
        }
    }

    /// Records that the STag `name` is invalid: no more bytes are placed through it.
    pub(super) fn gone(&mut self, name: Name) -> Done {
        match name {
            Name::Region(region) => self.frozen(region),
            Name::Binding(binding) => self.unbound(binding),
        }
    }

    /// Records that region `number` is invalid. Checks that the region's bytes have allowed values, which
    /// they keep. If the memory has been registered again, only records that the region is gone.
    fn frozen(&mut self, number: RegionId) -> Done {
        let Some(region) = &self.memory[number] else {
            // A later request has registered the memory again.
            self.model.memory.regions[number].life = Validity::Gone;
            return Ok(());
        };
        if region.is_valid() {
            return Err(format!("region {number} was invalidated, and is valid"));
        }
        let (span, seen) = self.whole(number);
        self.model.memory.check(&span, &seen)?;
        self.model.memory.freeze(number, seen);
        self.windows_of_gone()
    }

    pub(super) fn whole(&self, number: RegionId) -> (Span, Vec<u8>) {
        let span = Span { region: number, at: 0, len: self.model.memory.regions[number].base.len() };
        (span, self.seen(&span))
    }

    pub(super) fn seen(&self, span: &Span) -> Vec<u8> {
        let mut bytes = vec![0; span.len];
        // Memory that was deregistered or registered again is no longer compared.
        if let Some(region) = &self.memory[span.region] {
            region.read_at(span.at, &mut bytes).expect("a span of the region");
        }
        bytes
    }
}
