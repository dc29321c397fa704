//! The wire of the process: what the environment asks for, how it is opened, and the addresses on it.
//!
//! | file | contents |
//! |---|---|
//! | `wanted.rs` | the wire that the settings ask for |
//! | `address.rs` | addresses on a wire |
//! | `claim.rs` | what is bound to a port, and what excludes what |
//! | `kernel.rs` | the addresses of the kernel's interfaces |
//! | `names.rs`, `ports.rs` | the name service of a `local` wire, and its locks |
//! | `message.rs`, `desk.rs`, `hosts.rs` | names and addresses between hosts |
//! | `end.rs` | this end of the wire, and how programs see it |
//! | `hello.rs` | what two ends of this library tell each other in MPA's private data |
//! | `open.rs` | opening a wire, by `iwarp_wire`, for programs |
//! | `list.rs` | the processes of this user on the wires of this host |
//! | `present.rs` | processes on wires, and those on wires that have no folder |

mod address;
mod claim;
mod desk;
mod end;
mod hello;
mod hosts;
mod kernel;
mod list;
mod message;
mod names;
mod open;
mod ports;
mod present;
mod wanted;

pub(crate) use address::{Peer, mapped, of_gid};
pub(crate) use claim::{Claim, Conflict};
pub(crate) use end::{Name, Net};
pub(crate) use hello::{Hello, Pair};
pub use list::processes;
pub(crate) use open::open;
pub(crate) use ports::NameError;
pub use present::Process;
pub use wanted::{status_folder, wanted};
