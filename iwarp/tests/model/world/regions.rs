//! Memory of both hosts: registered, stored to, revoked, looked at.

use iwarp::memory::{Access, Base};
use iwarp::verbs::MrOptions;

use super::super::dice::Dice;
use super::super::memory::{Life, Region, RegionId, Span};
use super::super::operations;
use super::{Done, World};

impl World {
    pub(super) fn register(&mut self, dice: &mut Dice, slot: usize, side: usize) -> Done {
        let live = |region: &&Region| region.host == side && region.life != Life::Gone;
        if self.model.memory.regions.iter().filter(live).count() >= 8 {
            return Ok(());
        }
        let len = 1 + dice.below(40_000);
        let all = Access::LOCAL_WRITE | Access::REMOTE;
        let access =
            dice.pick(&[all, all, all, all, Access::LOCAL_WRITE | Access::REMOTE_READ, Access::LOCAL_WRITE]);
        let base =
            dice.pick(&[Base::VirtualAddress, Base::Zero, Base::Iova(3), Base::Iova(u64::MAX - 50_000)]);
        let stream = self.slots[slot].filter(|_| dice.one_in(3));
        let qp = stream.and_then(|stream| self.plug((stream, side))?.qp.clone());
        let options = MrOptions { access, base, qp: qp.as_ref(), key: dice.seed() as u8, keep: false };
        let region = self.host(side).pd.reg_mr_with(len, &options).map_err(|error| error.to_string())?;
        let octets = dice.octets(len);
        region.write_at(0, &octets).map_err(|error| error.to_string())?;
        let number = self.memory.len();
        self.say(|| {
            format!("host {side} registers {number}: {len} octets, {access:?}, {base:?}, for {stream:?}")
        });
        self.model.memory.regions.push(Region {
            host: side,
            addr: region.addr(),
            key: region.rkey(),
            access,
            stream: stream.filter(|_| qp.is_some()),
            life: Life::Valid,
            base: octets,
        });
        self.memory.push(Some(region));
        Ok(())
    }

    pub(super) fn store(&mut self, dice: &mut Dice, side: usize) -> Done {
        let len = dice.length().max(1);
        let Some(spans) = operations::gather(dice, &self.model, side, len) else { return Ok(()) };
        for span in spans {
            let octets = dice.octets(span.len);
            self.model.memory.store(span, &octets);
            self.say(|| format!("host {side} stores {span:?}"));
            let region = self.memory[span.region].as_ref().ok_or("a valid region is there")?;
            region.write_at(span.at, &octets).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Invalidates a region, or deregisters it: nothing changes it from then on.
    pub(super) fn revoke(&mut self, dice: &mut Dice, side: usize) -> Done {
        let regions = &self.model.memory.regions;
        let live: Vec<RegionId> = (0..regions.len())
            .filter(|&n| regions[n].host == side && regions[n].life != Life::Gone)
            .collect();
        if live.len() < 3 {
            return Ok(());
        }
        let number = dice.pick(&live);
        let deregister = dice.one_in(3);
        self.say(|| format!("host {side} revokes {number} (deregister: {deregister})"));
        self.model.ending(number, None);
        if let Some(region) = &self.memory[number] {
            region.invalidate();
        }
        self.frozen(number)?;
        if deregister {
            self.memory[number] = None;
        }
        Ok(())
    }

    /// `number` is invalid: what it holds must be allowed, and stays.
    pub(super) fn frozen(&mut self, number: RegionId) -> Done {
        let Some(region) = &self.memory[number] else { return Ok(()) };
        if region.is_valid() {
            return Err(format!("region {number} was invalidated, and is valid"));
        }
        let (span, seen) = self.whole(number);
        self.model.memory.check(&span, &seen)?;
        self.model.memory.freeze(number, seen);
        Ok(())
    }

    pub(super) fn whole(&self, number: RegionId) -> (Span, Vec<u8>) {
        let span = Span { region: number, at: 0, len: self.model.memory.regions[number].base.len() };
        (span, self.seen(&span))
    }

    pub(super) fn seen(&self, span: &Span) -> Vec<u8> {
        let mut octets = vec![0; span.len];
        match &self.memory[span.region] {
            Some(region) => region.read_at(span.at, &mut octets).expect("a span of the region"),
            // Deregistered: nobody can look any more.
            None => octets.copy_from_slice(&self.model.memory.regions[span.region].base[span.at..span.end()]),
        }
        octets
    }
}
