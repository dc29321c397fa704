//! The wire of the process: its settings, the code that opens it, and the addresses on it.
//!
//! | file | contents |
//! |---|---|
//! | `wire_spec.rs` | the wire that the settings name |
//! | `address.rs` | addresses on a wire |
//! | `address_lease.rs` | addresses of our own that several processes of a host share |
//! | `gids.rs` | the GIDs of the device, and the addresses that GIDs stand for |
//! | `claim.rs` | the claims of bound identifiers, and which claims conflict |
//! | `port_space.rs` | the port spaces of identifiers |
//! | `kernel.rs` | the addresses of the kernel's interfaces |
//! | `local_names.rs`, `name_locks.rs` | the name service of a `local` wire, and its locks |
//! | `message.rs`, `name_server.rs`, `hosts.rs` | names and addresses between hosts |
//! | `end.rs` | this end of the wire, and the addresses under which programs see this end |
//! | `private_data.rs` | the data that two ends with this library exchange in MPA's private data |
//! | `hash.rs` | the hash in names and addresses |
//! | `open.rs` | opening a wire with the crate `iwarp_wire` |
//! | `list.rs` | the processes of this user on the wires of this host |
//! | `presence.rs` | processes on wires, and the announcement of processes on wires that have no folder |

mod address;
mod address_lease;
mod claim;
mod end;
mod gids;
mod hash;
mod hosts;
mod kernel;
mod list;
mod local_names;
mod message;
mod name_locks;
mod name_server;
mod open;
mod port_space;
mod presence;
mod private_data;
mod wire_spec;

pub(crate) use address::{Lookup, mapped};
pub(crate) use claim::{Claim, Conflict};
pub(crate) use end::{NameLease, Net};
pub(crate) use gids::{RoceVersion, version_of};
pub use hash::fnv1a;
pub use list::processes;
pub(crate) use name_locks::NameError;
pub(crate) use open::{before_start, open};
pub(crate) use port_space::{PerSpace, PortSpace};
pub use presence::WireProcess;
pub(crate) use private_data::{PrivateDataHeader, QpNumbers};
pub(crate) use wire_spec::files_folders;
pub use wire_spec::{status_folder, wire_spec};
