//! A host on several queues of one device: a stack for each queue, and one address for all of them.
//!
//! Stacks share no state of connections. A connection belongs to the stack that began it, or to the one at
//! which its SYN arrived. Where the device sends its frames to that stack, nothing here is touched. Any other
//! frame is *handed over*: its stack looks up the owner in the flow table, and puts the frame into a ring to
//! it. So a device that spreads frames by another rule than expected, or changes the rule, costs time, and no
//! connection.
//!
//! One stack leads: the first that is still there. It alone answers ARP and neighbour discovery, defends our
//! addresses, answers echo requests and reassembles fragments, and gets such frames from all others. It tells
//! the others which neighbours it heard of, and which addresses may be used.
//!
//! | file | what |
//! |---|---|
//! | `flow_table.rs` | which stack has a connection |
//! | `member.rs` | the rings between the stacks |

mod atomic;
mod flow_table;
mod member;

pub(crate) use flow_table::ClaimError;
pub(crate) use member::Handed;
pub use member::Member;

/// Most stacks of a host: one bit of a word stands for each.
pub const MAX_MEMBERS: usize = 64;
