//! The wire of the process: what the environment asks for, how it is opened, and the addresses on it.
//!
//! | file | contents |
//! |---|---|
//! | `spec.rs` | the specification: `UWARP_NET` |
//! | `address.rs` | addresses on a wire |
//! | `names.rs` | the name service of a `local` wire |
//! | `end.rs` | this end of the wire, and how programs see it |
//! | `open.rs` | opening a wire |
//! | `list.rs` | the processes on the `local` wires of this user |

mod address;
mod end;
mod list;
mod names;
mod open;
mod spec;

pub(crate) use address::{Peer, mapped, of_gid};
pub(crate) use end::Net;
pub use list::{Process, processes};
pub(crate) use names::Listening;
pub(crate) use open::open;
pub use spec::{Kind, Spec, SpecError};
