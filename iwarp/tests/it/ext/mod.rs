//! The extensions of RFC 7306: atomics and Immediate Data.

mod atomics;
mod ib_semantics;
mod immediate;
mod interrupted;
mod order;
mod requester;
mod responder;
mod threads;
mod wire;
