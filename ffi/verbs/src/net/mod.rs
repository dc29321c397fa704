//! The wire of the process: what the environment asks for, how it is opened, and the addresses on it.
//!
//! | file | contents |
//! |---|---|
//! | `spec.rs` | the specification: `UWARP_NET` |
//! | `wanted.rs` | the wire that the settings ask for |
//! | `address.rs` | addresses on a wire |
//! | `kernel.rs` | the addresses of the kernel's interfaces |
//! | `names.rs` | the name service of a `local` wire |
//! | `message.rs`, `desk.rs`, `hosts.rs` | names and addresses between hosts |
//! | `end.rs` | this end of the wire, and how programs see it |
//! | `open.rs` | opening a wire |
//! | `dpdk.rs` | the devices of DPDK, in a build with the feature `dpdk` |
//! | `list.rs` | the processes of this user on the wires of this host |
//! | `present.rs` | processes on wires, and those on wires that have no folder |

mod address;
mod desk;
#[cfg(feature = "dpdk")]
mod dpdk;
mod end;
mod hosts;
mod kernel;
mod list;
mod message;
mod names;
mod open;
mod present;
mod spec;
mod wanted;

pub(crate) use address::{Peer, mapped, of_gid};
pub(crate) use end::{Name, Net};
pub use list::processes;
pub(crate) use names::NameError;
pub(crate) use open::open;
pub use present::Process;
pub use spec::{Kind, Spec, SpecError};
pub use wanted::{status_folder, wanted};
