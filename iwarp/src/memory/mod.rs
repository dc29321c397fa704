//! Registered memory: STags, their access rights, and all copies to and from the bytes behind them.
//!
//! RFC 5040 section 8.1, RFC 5041 sections 8.2 and 8.3, RFC 5042. One [`MemoryTable`] serves a context;
//! its engines read it without locks. Peers write the bytes while the application reads them. So nothing here
//! ever makes a reference to them: a [`Target`] is written and a [`Source`] is read by raw copies that can
//! fail.
//!
//! The items of RFC 5040 section 8.1.1 are enforced in `slot.rs` (domain, stream, range and rights),
//! `quiescence.rs` (revocation), `invalidation.rs` and `index.rs`. `crate::queues` enforces the items about
//! completion queues and limits.
//!
//! # Revocation
//!
//! An engine accesses memory inside an epoch, which an [`EpochGuard`] keeps open. Each copy first checks that
//! its registration is still valid and unchanged, and ends within the epoch. A thread that revokes an STag
//! first marks its slot as invalid, and then waits until every epoch has ended that may have seen the slot
//! valid. So when [`Registration::deregister`] returns, no byte changes or is read any more. See
//! [`quiescence`] for the proof.
//!
//! # What it is not
//!
//! This module knows no wire format (`crate::ddp`, `crate::rdmap`) and owns no memory: regions come from
//! [`dp::Region`] or from the caller.

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
pub use registration::Registration;
pub(crate) use slot::Found;
pub use stag::Stag;
pub use stride::{Runs, Stride};
pub use table::{MemoryTable, TableConfig, TableUsage, UserMemory};
pub use transfer::{Source, Target};
pub use window::{Bind, BindError, Window};
