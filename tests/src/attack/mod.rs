//! Attacks, and what they cost. For each attack, this module checks the victim's answers and the memory that
//! the victim holds, and measures the goodput that honest connections of the same engine keep.
//!
//! Everything runs in one thread, in memory. There are three hosts. The victim is an engine with a server.
//! The honest client has its own engine; its Writes, Reads and Sends are checked byte by byte. The attacker
//! is behind a router. In the rounds that are measured, it sends at most as many frames as the client, and at
//! least nine tenths of this number. Other rounds of the same run, with another victim, have harmless frames
//! in place of the attacker's frames, with the same lengths (`harmless.rs`). The clock is the processor time
//! of the victim (`arena.rs`), or a nominal time (`counted.rs`).
//!
//! | file | what |
//! |---|---|
//! | `segment.rs`, `crafted_peer.rs`, `crafted_peers.rs` | handmade frames, TCP and MPA |
//! | `far_end.rs`, `victim.rs`, `honest.rs`, `arena.rs` | the three hosts and the clock |
//! | `scenario.rs` | the type of a scenario, and functions that most scenarios use |
//! | `harmless.rs`, `measure.rs` | the baseline, and rounds next to an attack and next to the baseline |
//! | `counted.rs` | rounds whose instructions are counted under callgrind |
//! | `reconnects.rs` | connections that are made, ended and made again |
//! | other files | one scenario each, or several scenarios of one kind |

pub mod ack_storm;
pub mod arena;
pub mod blind;
pub mod counted;
pub mod crafted_peer;
pub mod crafted_peers;
pub mod far_end;
pub mod harmless;
pub mod honest;
pub mod measure;
pub mod out_of_order;
pub mod packet_too_big;
pub mod read_flood;
pub mod reconnects;
pub mod sack_storm;
pub mod scenario;
pub mod segment;
pub mod slow_startup;
pub mod stag_guess;
pub mod syn_flood;
pub mod terminate_loop;
pub mod tiny_segments;
pub mod victim;
pub mod zero_window;

pub use scenario::{Attack, Scenario};
use scenario::{as_it_is, check, refusals};

impl Scenario {
    /// Returns the scenario of this name.
    pub fn find(name: &str) -> Option<Self> {
        SCENARIOS.iter().find(|scenario| scenario.name == name).copied()
    }
}

/// All scenarios of attacks.
pub const SCENARIOS: &[Scenario] = &[
    syn_flood::SCENARIO,
    blind::RESETS,
    blind::SYNS,
    blind::DATA,
    ack_storm::UNSENT,
    ack_storm::DUPLICATE,
    ack_storm::DIVISION,
    ack_storm::UNSENT_SACK,
    ack_storm::DUPLICATE_SACK,
    ack_storm::DIVISION_SACK,
    sack_storm::INSIDE,
    sack_storm::FRAGMENTS,
    sack_storm::GROWING,
    tiny_segments::IN_ORDER,
    tiny_segments::OUT_OF_ORDER,
    tiny_segments::FALLING,
    tiny_segments::SMALL_MSS,
    zero_window::SCENARIO,
    out_of_order::SCENARIO,
    packet_too_big::SCENARIO,
    slow_startup::SCENARIO,
    stag_guess::SCENARIO,
    read_flood::SCENARIO,
    terminate_loop::SCENARIO,
];
