//! Streams, mostly from the view of a peer that sends and checks exact bytes (RFC 5040).
//!
//! | file | what |
//! |---|---|
//! | `peer.rs` | the engine, and the peer with its bytes |
//! | `sent.rs` | posted requests: their bytes, and when they are sent |
//! | `answers.rs` | the Read Responses to the peer's Reads |
//! | `received.rs` | the effects of the peer's Sends and Writes |
//! | `responses.rs` | the effects of the Read Responses to our Reads |
//! | `order.rs` | which messages wait for a lost frame, and which do not |
//! | `changed.rs` | bytes that change in repeated segments, or in buffers that are in use |
//! | `ends.rs` | Terminates in both directions, and other ends by an error |
//! | `revoked.rs` | memory that our user revokes while a peer uses it |
//! | `unreadable.rs` | a Terminate in which no error can be read |

mod answers;
mod changed;
mod ends;
mod order;
mod peer;
mod received;
mod responses;
mod revoked;
mod sent;
mod unreadable;
