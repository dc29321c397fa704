//! Several stacks with the same addresses: a host that uses several queues of one device has one stack for
//! each queue.
//!
//! Apart from the flow table, the stacks share no state of connections. A connection belongs to the stack
//! that opened it, or to the stack at which its SYN arrived. If the device puts a connection's frames into
//! the queue of that stack, this module does nothing for these frames. Any other frame is *handed over*: the
//! stack that received the frame looks up the owner in the flow table, and puts the frame into a ring to the
//! owner. If a device distributes frames by another rule than expected, or changes the rule, processing these
//! frames takes longer, but no connection is lost.
//!
//! The first of the stacks that still exist is the *leader*. Only the leader answers ARP and neighbour
//! discovery, defends our addresses, answers echo requests and reassembles fragments. All other stacks hand
//! such frames to the leader. The leader reports the neighbours that it has found to the other stacks, and
//! publishes which addresses may be used. Each stack publishes its open UDP ports, so that the other stacks
//! can hand over datagrams to these ports.
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

/// Maximum number of stacks of a host: a mask has one bit for each stack.
pub const MAX_MEMBERS: usize = 64;
