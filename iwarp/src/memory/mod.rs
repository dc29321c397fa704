//! Registered memory: STags, who may do what with the bytes behind them, and the one way to copy in or out.
//!
//! RFC 5040 section 8.1, RFC 5041 sections 6 and 8.3, RFC 5042. One [`MemoryTable`] serves a process; engines
//! read it without locks. The bytes are written by peers while the application looks, so nothing here ever
//! makes a reference to them: a [`Target`] is written and a [`Source`] is read by raw copies that can fail.
//!
//! # Revocation
//!
//! An engine brackets its work with an [`EpochGuard`]. Each copy checks again that its registration
//! is still the one that was checked, and then runs to its end within the turn. Whoever revokes an
//! STag marks its slot first and then waits until every turn that could have seen it unmarked is
//! over. So when [`Registration::deregister`] returns, no byte changes any more and none is read.
//! See [`quiescence`] for the argument.
//!
//! # What it is not
//!
//! No wire format (`crate::ddp`, `crate::rdmap`), and no memory of its own: regions come from [`dp::Region`]
//! or from the caller.

pub mod access;
mod admission;
pub mod atomic;
pub mod bytes;
mod copy;
pub mod fast;
pub mod fault;
mod guard;
mod handle;
mod index;
mod invalidation;
mod mapped;
mod origin;
mod overlap;
pub mod quiescence;
pub mod registration;
mod slot;
pub mod stag;
pub mod stride;
pub(crate) mod sum;
pub mod table;
pub mod transfer;
pub mod window;

pub use access::{Access, Accessor, Base, PdId, RegisterOptions, StreamId};
pub use atomic::Word;
pub use bytes::{AccessError, RawBytes};
pub use fast::{FastBind, FastRegistration, Prepare};
pub use fault::Fault;
pub use quiescence::{EpochGuard, Participant};
pub use registration::{RegisterError, Registration};
pub use stag::Stag;
pub use stride::{Runs, Stride};
pub use table::{MemoryTable, TableConfig, Usage, UserMemory};
pub use transfer::{Source, Target};
pub use window::{Bind, BindError, Window, WindowKind};
