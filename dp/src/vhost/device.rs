//! The state of the device that the frontend sets: features, memory and rings.

use std::fs::File;
use std::os::fd::OwnedFd;

use super::features;
use super::memory::{GuestMemory, RegionPlace, Unfit};
use super::ring::{Addresses, MAX_SIZE, Ring};

/// The queue to which the device writes: the driver receives from it.
pub(super) const TO_DRIVER: usize = 0;
/// The queue from which the device reads: the driver sends on it.
pub(super) const FROM_DRIVER: usize = 1;
/// Number of queues.
pub(super) const QUEUES: usize = 2;

/// A message of the frontend was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused;

impl From<Unfit> for Refused {
    fn from(_: Unfit) -> Self {
        Self
    }
}

/// A queue, which has a ring while it is started.
#[derive(Debug, Default)]
pub(super) struct Queue {
    size: u16,
    addresses: Option<Addresses>,
    /// The index at which the ring starts.
    base: u16,
    is_enabled: bool,
    pub(super) ring: Option<Ring>,
    /// The eventfd that notifies the driver. `None`: the driver polls.
    pub(super) call: Option<OwnedFd>,
}

impl Queue {
    fn start(&mut self, memory: &GuestMemory, features: u64) -> Result<(), Refused> {
        let addresses = self.addresses.ok_or(Refused)?;
        let has_event_index = features & features::EVENT_IDX != 0;
        let ring = Ring::new(memory, self.size, addresses, self.base, has_event_index);
        self.ring = Some(ring.ok_or(Refused)?);
        Ok(())
    }

    fn stop(&mut self) {
        if let Some(ring) = self.ring.take() {
            self.base = ring.base();
        }
    }
}

/// The state of the device.
#[derive(Debug)]
pub(super) struct Device {
    offered: u64,
    needs_seals: bool,
    features: u64,
    memory: GuestMemory,
    queues: [Queue; QUEUES],
    /// Number of times that a ring was started.
    starts: u32,
}

impl Device {
    pub(super) fn new(offered: u64, needs_seals: bool) -> Self {
        Self {
            offered,
            needs_seals,
            features: 0,
            memory: GuestMemory::default(),
            queues: std::array::from_fn(|_| Queue::default()),
            starts: 0,
        }
    }

    pub(super) fn offered(&self) -> u64 {
        self.offered
    }

    /// Whether each file of the memory needs a seal against shrinking.
    pub(super) fn needs_seals(&self) -> bool {
        self.needs_seals
    }

    /// The features that the driver has accepted.
    pub(super) fn features(&self) -> u64 {
        self.features
    }

    /// Whether both rings may be used.
    pub(super) fn is_up(&self) -> bool {
        self.queues.iter().all(|queue| self.is_active(queue))
    }

    fn is_active(&self, queue: &Queue) -> bool {
        let is_enabled = queue.is_enabled || self.features & features::PROTOCOL_FEATURES == 0;
        queue.ring.is_some() && is_enabled
    }

    /// The memory and a queue.
    #[inline]
    pub(super) fn parts(&mut self, nr: usize) -> (&GuestMemory, &mut Queue) {
        (&self.memory, &mut self.queues[nr])
    }

    /// Number of times that a ring was started.
    pub(super) fn starts(&self) -> u32 {
        self.starts
    }

    /// Forgets all that the frontend has set.
    pub(super) fn reset(&mut self) {
        *self = Self { starts: self.starts, ..Self::new(self.offered, self.needs_seals) };
    }

    /// Stops both rings.
    pub(super) fn stop(&mut self) {
        self.queues.iter_mut().for_each(Queue::stop);
    }

    pub(super) fn set_features(&mut self, features: u64) -> Result<(), Refused> {
        if features & !self.offered != 0 {
            return Err(Refused);
        }
        self.features = features;
        self.restart()
    }

    /// Replaces the memory. Returns the previous memory.
    pub(super) fn set_memory(&mut self, memory: GuestMemory) -> Result<GuestMemory, Refused> {
        let previous = std::mem::replace(&mut self.memory, memory);
        self.restart().map(|()| previous)
    }

    pub(super) fn add_memory(&mut self, place: RegionPlace, file: File) -> Result<(), Refused> {
        self.memory = self.memory.with(place, file, self.needs_seals)?;
        self.restart()
    }

    pub(super) fn remove_memory(&mut self, guest: u64, user: u64, bytes: u64) -> Result<(), Refused> {
        self.memory = self.memory.without(guest, user, bytes)?;
        self.restart()
    }

    /// Makes the rings of started queues again, with the present memory, features and addresses.
    fn restart(&mut self) -> Result<(), Refused> {
        let Self { queues, memory, features, starts, .. } = self;
        for queue in queues.iter_mut().filter(|queue| queue.ring.is_some()) {
            queue.stop();
            queue.start(memory, *features)?;
            *starts = starts.wrapping_add(1);
        }
        Ok(())
    }

    pub(super) fn queue(&mut self, nr: u32) -> Result<&mut Queue, Refused> {
        self.queues.get_mut(nr as usize).ok_or(Refused)
    }

    pub(super) fn set_size(&mut self, nr: u32, size: u32) -> Result<(), Refused> {
        let size = u16::try_from(size).map_err(|_| Refused)?;
        if !size.is_power_of_two() || size > MAX_SIZE {
            return Err(Refused);
        }
        self.queue(nr)?.size = size;
        Ok(())
    }

    pub(super) fn set_addresses(&mut self, nr: u32, addresses: Addresses) -> Result<(), Refused> {
        self.queue(nr)?.addresses = Some(addresses);
        self.restart()
    }

    pub(super) fn set_base(&mut self, nr: u32, base: u32) -> Result<(), Refused> {
        let queue = self.queue(nr)?;
        if queue.ring.is_some() {
            return Err(Refused);
        }
        queue.base = u16::try_from(base).map_err(|_| Refused)?;
        Ok(())
    }

    /// Stops a ring. Returns the index at which the ring can be started again.
    pub(super) fn stop_queue(&mut self, nr: u32) -> Result<u16, Refused> {
        let queue = self.queue(nr)?;
        queue.stop();
        Ok(queue.base)
    }

    /// Starts a ring, or changes nothing if the ring is started.
    pub(super) fn start_queue(&mut self, nr: u32) -> Result<(), Refused> {
        let Self { queues, memory, features, starts, .. } = self;
        let queue = queues.get_mut(nr as usize).ok_or(Refused)?;
        if queue.ring.is_none() {
            queue.start(memory, *features)?;
            *starts = starts.wrapping_add(1);
        }
        Ok(())
    }

    pub(super) fn enable(&mut self, nr: u32, enable: bool) -> Result<(), Refused> {
        self.queue(nr)?.is_enabled = enable;
        Ok(())
    }
}
