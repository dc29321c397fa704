//! Tries every interleaving of two stacks that claim one flow, and of a stack that claims a flow while
//! another stack releases it (`steering/flow_table.rs`).
//!
//! The crate's source file is compiled here with loom's atomics. The last test runs a copy of the claim that
//! lacks the memory fence, and expects loom to find two owners. Otherwise the first test would prove nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

/// The module that the crate's source file imports.
mod atomic {
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering, fence};
}

#[allow(dead_code, reason = "a stack uses more of it")]
#[path = "../src/steering/flow_table.rs"]
mod flow_table;

use flow_table::{ClaimError, FlowHash, FlowTable};

#[test]
fn of_two_stacks_that_claim_a_flow_at_most_one_gets_it_and_then_has_it() {
    loom::model(|| {
        let table = Arc::new(FlowTable::new(1));
        let flow = FlowHash::new(0x1234_5678_9abc_de00);
        let other = Arc::clone(&table);
        let second = thread::spawn(move || other.claim(flow, 2));
        let first = table.claim(flow, 1);
        let second = second.join().unwrap();
        let owner = match (first, second) {
            (Ok(()), Err(ClaimError::Taken)) => Some(1),
            (Err(ClaimError::Taken), Ok(())) => Some(2),
            (Err(ClaimError::Taken), Err(ClaimError::Taken)) => None,
            both => panic!("{both:?}"),
        };
        assert_eq!(table.owner(flow), owner);
    });
}

#[test]
fn a_flow_that_was_released_can_be_claimed_by_another_stack() {
    loom::model(|| {
        let table = Arc::new(FlowTable::new(1));
        let flow = FlowHash::new(0x1234_5678_9abc_de00);
        table.claim(flow, 1).unwrap();
        let other = Arc::clone(&table);
        let second = thread::spawn(move || other.claim(flow, 2));
        table.release(flow, 1);
        match second.join().unwrap() {
            Ok(()) => assert_eq!(table.owner(flow), Some(2)),
            Err(refused) => assert_eq!((refused, table.owner(flow)), (ClaimError::Taken, None)),
        }
    });
}

/// Claims one of two places, as the table does, but without the memory fence between storing one place and
/// reading the other place. Returns whether the claim succeeded.
fn claim_without_fence(places: &[AtomicU64; 2], mine: usize) -> bool {
    places[mine].store(1, Ordering::Release);
    places[1 - mine].load(Ordering::Acquire) == 0
}

#[test]
fn loom_finds_two_owners_without_the_fence() {
    let found = catch_unwind(AssertUnwindSafe(|| {
        loom::model(|| {
            let places = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
            let others = Arc::clone(&places);
            let second = thread::spawn(move || claim_without_fence(&others, 1));
            let first = claim_without_fence(&places, 0);
            assert!(!(first && second.join().unwrap()), "both have it");
        });
    }));
    assert!(found.is_err());
}
