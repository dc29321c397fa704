//! The boundary to C, and to the process into which the library is loaded.
//!
//! | file | contents |
//! |---|---|
//! | `sys.rs` | the structs and constants of rdma-core's headers |
//! | `abi.rs` | error numbers, panics, lines for the user |
//! | `settings.rs` | the settings: variables of the environment, and a file |
//! | `c_str.rs`, `sockaddr.rs` | strings and addresses in structs of C |
//! | `event_fd.rs`, `unwritten.rs` | a queue with a descriptor that programs poll, and events that the descriptor does not count yet |
//! | `cancel.rs` | calls in which a waiting thread can be cancelled |
//! | `live_handles.rs`, `use_count.rs`, `pending_acks.rs` | when an object may be used, and destroyed |
//! | `resources.rs`, `exhaustion.rs` | checks that memory and descriptors are available, and errors of exhausted resources |
//! | `fork.rs`, `ending.rs`, `signals.rs`, `shared_objects.rs` | the process of the program: its children, its end, its signals, another libibverbs in it |
//! | `waits.rs`, `fd_marks.rs`, `registrations.rs` | waits of the program that serve the engine, and the descriptors of such waits |
//! | `next.rs` | the functions of libc under names that this library also exports |

pub(crate) mod abi;
pub(crate) mod c_str;
pub(crate) mod cancel;
pub(crate) mod ending;
pub(crate) mod event_fd;
pub(crate) mod exhaustion;
pub(crate) mod fd_marks;
pub(crate) mod fork;
pub(crate) mod live_handles;
pub(crate) mod next;
pub(crate) mod pending_acks;
pub(crate) mod registrations;
pub(crate) mod resources;
pub(crate) mod settings;
pub(crate) mod shared_objects;
pub(crate) mod signals;
pub(crate) mod sockaddr;
pub(crate) mod sys;
pub(crate) mod unwritten;
pub(crate) mod use_count;
pub(crate) mod waits;
