//! Listening ports, and how many connections each has that are not established yet.

use crate::ListenError;
use crate::stack::ListenerId;

struct Listener {
    port: u16,
    half_open: usize,
}

struct Slot {
    generation: u32,
    listener: Option<Listener>,
}

/// The listeners of a stack. Few, and asked only for segments that belong to no connection.
pub(crate) struct Listeners {
    slots: Vec<Slot>,
    limit: usize,
    backlog: usize,
}

impl Listeners {
    /// None yet; `limit` of them, each with at most `backlog` half-open connections.
    pub(crate) fn new(limit: usize, backlog: usize) -> Self {
        Self { slots: Vec::new(), limit, backlog }
    }

    /// See [`Stack::listen`](crate::Stack::listen).
    pub(crate) fn add(&mut self, port: u16) -> Result<ListenerId, ListenError> {
        if self.find(port).is_some() {
            return Err(ListenError::InUse(port));
        }
        let free = self.slots.iter().position(|s| s.listener.is_none());
        let slot = match free {
            Some(slot) => slot,
            None if self.slots.len() < self.limit => {
                self.slots.push(Slot { generation: 0, listener: None });
                self.slots.len() - 1
            }
            None => return Err(ListenError::NoListener(self.limit)),
        };
        self.slots[slot].listener = Some(Listener { port, half_open: 0 });
        Ok(ListenerId { slot: slot as u32, generation: self.slots[slot].generation })
    }

    /// Removes a listener; `false` for a dead id.
    pub(crate) fn remove(&mut self, id: ListenerId) -> bool {
        let Some(slot) = self.slots.get_mut(id.slot as usize).filter(|s| s.generation == id.generation)
        else {
            return false;
        };
        slot.generation = slot.generation.wrapping_add(1);
        slot.listener.take().is_some()
    }

    /// Who listens on `port`.
    pub(crate) fn find(&self, port: u16) -> Option<ListenerId> {
        let at = self.slots.iter().position(|s| s.listener.as_ref().is_some_and(|l| l.port == port))?;
        Some(ListenerId { slot: at as u32, generation: self.slots[at].generation })
    }

    /// Counts one more half-open connection, unless the backlog is full.
    #[must_use]
    pub(crate) fn try_half_open(&mut self, id: ListenerId) -> bool {
        let backlog = self.backlog;
        match self.get_mut(id) {
            Some(listener) if listener.half_open < backlog => {
                listener.half_open += 1;
                true
            }
            _ => false,
        }
    }

    /// A half-open connection got established or is gone.
    pub(crate) fn settle_half_open(&mut self, id: ListenerId) {
        if let Some(listener) = self.get_mut(id) {
            debug_assert!(listener.half_open > 0);
            listener.half_open = listener.half_open.saturating_sub(1);
        }
    }

    fn get_mut(&mut self, id: ListenerId) -> Option<&mut Listener> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        slot.listener.as_mut().filter(|_| slot.generation == id.generation)
    }
}
