//! The extensions of RFC 7306 (atomics and Immediate Data), and connections whose peers agree on InfiniBand's
//! semantics.

mod acknowledged;
mod agreement;
mod atomics;
mod ib_semantics;
mod immediate;
mod interrupted;
mod lost_peer;
mod order;
mod outlives_peer;
mod peer_not_ready;
mod queue_4;
mod requester;
mod responder;
mod rnr_time;
mod threads;
mod wire;
