//! Registered memory: STags, their access rights, and all copies from and to registered bytes.
//!
//! This module implements the memory protection of RFC 5040 section 8.1, RFC 5041 sections 8.2 and 8.3, and
//! RFC 5042. Each context has one [`MemoryTable`], in which the engines of the context look up STags without
//! locks. Peers may write registered bytes while the application reads the same bytes. So this module never
//! makes a reference to registered bytes, except as atomics: a [`Target`] is written and a [`Source`] is read
//! by raw copies that can fail.
//!
//! | file | contents |
//! |---|---|
//! | `admission.rs` | the checks of the data path: from an STag to a [`Target`] or a [`Source`] |
//! | `transfer.rs`, `atomic.rs` | the accesses that a passed check allows: writes, reads, atomic operations |
//! | `copy.rs`, `crc32c/`, `guard/` | raw copies, copies that compute a CRC, and accesses to memory that may be unmapped during the access |
//! | `stag.rs`, `index.rs`, `slot.rs` | an STag, the slot that the STag names, and one registration as engines read it |
//! | `table.rs`, `handle.rs`, `registration.rs` | all registrations, and how an owner changes a registration |
//! | `window.rs`, `fast.rs`, `invalidation.rs` | registrations that requests in a send queue make and end: windows, fast registration |
//! | `epoch.rs`, `quiescence.rs` | the epochs of engines, and how a revocation waits for them |
//! | `access.rs`, `fault.rs` | rights, options and errors |
//! | `mapped.rs`, `overlap.rs`, `process.rs` | checks when memory is registered; the process that may use a table |
//! | `bytes.rs`, `stride.rs`, `external.rs` | reads and writes of the owner, bytes with gaps, and regions that are sent without a copy |
//!
//! # Revocation
//!
//! An engine copies from or to memory only during an epoch, which an [`EpochGuard`] keeps open. Each copy
//! first checks that its registration is still valid and unchanged, and ends within the epoch. A thread that
//! revokes an STag first marks the slot of the STag as invalid. Then the thread waits for the end of every
//! epoch whose engine may have seen the slot valid. So when [`Registration::deregister`] returns, no engine
//! writes the memory or copies bytes from it any more. (Packet buffers may still refer to bytes that are sent
//! without a copy. These packet buffers keep the region mapped: `external.rs`.) See [`quiescence`] for the
//! proof.
//!
//! # What it is not
//!
//! This module does not depend on a wire format (`crate::ddp` and `crate::rdmap` do), and does not allocate
//! registered memory. The memory is a [`dp::Region`] or belongs to the caller.

pub mod access;
mod admission;
pub mod atomic;
pub mod bytes;
mod copy;
pub(crate) mod crc32c;
mod epoch;
mod external;
pub mod fast;
pub mod fault;
mod guard;
mod handle;
mod index;
mod invalidation;
mod mapped;
mod overlap;
mod process;
pub mod quiescence;
pub mod registration;
mod slot;
pub mod stag;
pub mod stride;
pub mod table;
pub mod transfer;
pub mod window;

pub use self::crc32c::Front;
pub use access::{Access, Accessor, Base, PdId, RegisterError, RegisterOptions, StreamId, WindowKind};
pub use atomic::Word;
pub use bytes::{AccessError, RawBytes};
pub use epoch::{EpochGuard, Participant};
pub use fast::{FastBind, FastRegistration, Prepare};
pub use fault::Fault;
pub use registration::{ADDRESS_SPACE, Registration};
pub(crate) use slot::Found;
pub use stag::Stag;
pub use stride::{Runs, Stride};
pub use table::{MemoryTable, TableConfig, TableUsage, UserMemory};
pub use transfer::{Source, Target};
pub use window::{Bind, BindError, Window};
