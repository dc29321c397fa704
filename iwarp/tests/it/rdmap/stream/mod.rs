//! RDMAP as a peer sees it that says and hears exact bytes (RFC 5040).
//!
//! | file | what |
//! |---|---|
//! | `peer.rs` | the engine, and the peer with its bytes |
//! | `sent.rs` | what posted requests look like, and when they leave |
//! | `answers.rs` | what the peer's Reads get |
//! | `received.rs` | what the peer's Sends and Writes do |
//! | `responses.rs` | what the answers to our Reads do |
//! | `order.rs` | what waits for a lost frame, and what does not |
//! | `changed.rs` | bytes that change where they should not matter |
//! | `ends.rs` | Terminates both ways |

mod answers;
mod changed;
mod ends;
mod order;
mod peer;
mod received;
mod responses;
mod sent;
