//! The status of the processes of this user that run engines (feature `status`), which `uwarp status`
//! prints.
//!
//! The library opens a socket only if the program requests this. The program calls [`serve`], and keeps the
//! returned [`StatusSocket`]:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use iwarp::status;
//! use iwarp::verbs::{Context, ContextConfig};
//!
//! let context = Context::new(ContextConfig::default())?;
//! let _shown = status::serve(&context, &status::default_folder()?)?;
//! // ...
//! for process in status::processes(&status::default_folder()?)?.answered {
//!     println!("{} has {} queue pairs", process.program, process.queue_pairs.len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | file | what |
//! |---|---|
//! | `folder.rs` | the folder with a socket for each context, which only this user may use |
//! | `server.rs` | the socket of a context, and its thread |
//! | `client.rs` | asks all processes, and removes the sockets of dead processes |
//! | `report.rs` | the request, and the answer in JSON |
//!
//! The thread of the socket waits in the kernel for a client. For each request, this thread queries the
//! engines ([`Context::status`](crate::verbs::Context::status)), each of which answers in its next poll.

mod client;
mod folder;
mod report;
mod server;

pub use client::{Processes, processes};
pub use folder::default_folder;
pub use report::{ConnectionReport, EngineReport, ProcessReport, QpReport};
pub use server::{StatusSocket, serve, serve_while_idle};
