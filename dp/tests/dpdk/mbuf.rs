//! Tests of the guarantees of a packet buffer, with DPDK's mempools.

use std::sync::Arc;

use dp::mbuf::{HEADROOM, MAX_SEGMENTS};
use dp::{Checksum, ExtBuf, Mbuf, Mempool, TxOffload, dpdk};

use crate::support::{self, build, flat};

fn pool(count: u32, bytes: usize) -> Mempool {
    dpdk::mempool(support::eal(), "test", count, bytes).unwrap()
}

fn filled(pool: &Mempool, bytes: &[u8]) -> Mbuf {
    build(pool, bytes, 1)
}

#[test]
fn a_fresh_buffer_is_empty_behind_its_headroom() {
    let pool = pool(1, 2048);
    let mut mbuf = pool.alloc().unwrap();
    assert_eq!((mbuf.len(), mbuf.segment_count()), (0, 1));
    assert_eq!((mbuf.headroom(), mbuf.tailroom()), (HEADROOM, 2048));
    assert!(mbuf.is_empty() && !mbuf.is_shared());
    assert!(mbuf.append(2049).is_none() && mbuf.prepend(HEADROOM + 1).is_none());
    assert_eq!(mbuf.prepend(HEADROOM).unwrap().len(), HEADROOM);
    assert_eq!((mbuf.headroom(), mbuf.len()), (0, HEADROOM));
    assert_eq!((mbuf.rx_checksum(), mbuf.tx_offload()), (Checksum::Unknown, TxOffload::default()));
}

#[test]
fn views_are_independent_and_read_only_until_alone() {
    let pool = pool(2, 64);
    let mut a = filled(&pool, b"hello, world");
    let mut b = a.share().unwrap();
    assert!(a.is_shared() && b.is_shared());
    assert!(
        a.head_mut().is_none() && a.prepend(1).is_none() && a.append(1).is_none() && b.head_mut().is_none()
    );
    b.advance(7);
    b.truncate(3);
    let c = b.share().unwrap();
    assert_eq!((flat(&a), flat(&b), flat(&c)), (b"hello, world".to_vec(), b"wor".to_vec(), b"wor".to_vec()));
    drop((a, c));
    assert!(!b.is_shared());
    assert_eq!(pool.available(), 1);
    b.prepend(1).unwrap().copy_from_slice(b"_");
    b.append(1).unwrap().copy_from_slice(b"!");
    assert_eq!(flat(&b), b"_wor!");
    drop(b);
    assert_eq!(pool.available(), 2);
}

#[test]
fn chains_are_cut_at_both_ends_and_keep_their_metadata() {
    let pool = pool(8, 64);
    let offload = TxOffload {
        tcp_checksum: true,
        ipv6: true,
        l2_bytes: 14,
        l3_bytes: 40,
        l4_bytes: 32,
        ..TxOffload::default()
    };
    for front in 0..=15 {
        for kept in 0..=15 - front {
            let mut frame = build(&pool, b"abcdefghijklmno", 3);
            frame.set_tx_offload(offload);
            frame.set_rx_checksum(Checksum::Partial);
            let view = frame.share().unwrap();
            frame.advance(front);
            frame.truncate(kept);
            assert_eq!(flat(&frame), &b"abcdefghijklmno"[front..front + kept]);
            assert_eq!(frame.len(), kept);
            assert_eq!(frame.segments().count(), frame.segment_count());
            assert_eq!((frame.tx_offload(), frame.rx_checksum()), (offload, Checksum::Partial));
            assert_eq!((flat(&view), view.segment_count()), (b"abcdefghijklmno".to_vec(), 3));
            drop(view);
            assert!(!frame.is_shared());
        }
    }
    assert_eq!(pool.available(), 8);
}

#[test]
fn a_chain_has_an_end() {
    let pool = pool(MAX_SEGMENTS as u32 + 1, 64);
    let mut frame = filled(&pool, b"x");
    for _ in 1..MAX_SEGMENTS {
        frame.chain(filled(&pool, b"x")).unwrap();
    }
    let refused = frame.chain(filled(&pool, b"y")).unwrap_err();
    assert_eq!((flat(&refused), frame.len()), (b"y".to_vec(), MAX_SEGMENTS));
    let heap = Mempool::heap("other", 1, 64).alloc().unwrap();
    assert!(frame.chain(heap).is_err(), "heap buffers stay among themselves");
}

#[test]
fn offloads_are_kept_as_asked_for() {
    let pool = pool(1, 64);
    let mut mbuf = filled(&pool, b"x");
    let offload = TxOffload {
        ipv4_checksum: true,
        tcp_checksum: true,
        ipv6: false,
        tso_segment_bytes: 1460,
        l2_bytes: 18,
        l3_bytes: 60,
        l4_bytes: 60,
    };
    mbuf.set_tx_offload(offload);
    assert_eq!(mbuf.tx_offload(), offload);
    for state in [Checksum::Good, Checksum::Bad, Checksum::Partial, Checksum::Unknown] {
        mbuf.set_rx_checksum(state);
        assert_eq!((mbuf.rx_checksum(), mbuf.tx_offload()), (state, offload));
    }
    mbuf.set_tx_offload(TxOffload::default());
    assert_eq!(mbuf.tx_offload(), TxOffload::default());
}

#[test]
fn external_memory_is_kept_until_dpdk_has_freed_the_last_view() {
    let pool = pool(8, 64);
    let owner: Arc<Vec<u8>> = Arc::new((0..100_000).map(|i| (i % 251) as u8).collect());
    let memory = ExtBuf::new(Arc::clone(&owner));
    let copied = |mbuf: &Mbuf| {
        let mut bytes = vec![0; mbuf.len()];
        assert_eq!(mbuf.copy_to(0, &mut bytes), mbuf.len());
        bytes
    };
    let mut frame = filled(&pool, b"header");
    frame.chain(Mbuf::external(&pool, memory.slice(50..90_000).unwrap()).unwrap()).unwrap();
    assert_eq!((frame.segment_count(), frame.len()), (3, 6 + 89_950), "an mbuf holds 65,535 bytes");
    assert!(frame.has_external() && frame.is_shared() && frame.append(1).is_none() && frame.tailroom() == 0);
    assert_eq!(copied(&frame), [b"header", &owner[50..90_000]].concat());
    let mut view = frame.share().unwrap();
    let copy = frame.deep_copy(&dpdk::mempool(support::eal(), "copy", 2, 60_000).unwrap()).unwrap();
    assert!(!copy.has_external() && copied(&copy) == copied(&frame));
    drop((frame, memory));
    view.advance(70_006);
    view.truncate(1000);
    assert_eq!((view.segment_count(), copied(&view)), (1, owner[70_050..71_050].to_vec()));
    assert_eq!(Arc::strong_count(&owner), 2, "the last view keeps it");
    drop(view);
    assert_eq!(Arc::strong_count(&owner), 1);
    assert_eq!(pool.available(), 8);
}

#[test]
fn external_memory_goes_with_its_handle_if_that_is_the_last() {
    let pool = pool(2, 64);
    let owner = Arc::new(vec![7; 100]);
    let memory = ExtBuf::new(Arc::clone(&owner));
    let views: Vec<_> = (0..2).map(|_| Mbuf::external(&pool, memory.clone()).unwrap()).collect();
    assert!(Mbuf::external(&pool, memory.clone()).is_none(), "no descriptor is left");
    std::thread::spawn(move || drop(views)).join().unwrap();
    assert_eq!(Arc::strong_count(&owner), 2);
    drop(memory);
    assert_eq!(Arc::strong_count(&owner), 1);
}

#[test]
#[should_panic(expected = "external memory has no slice")]
fn external_memory_is_not_shown_as_a_slice() {
    let pool = pool(1, 64);
    let frame = Mbuf::external(&pool, ExtBuf::new(Arc::new(vec![1]))).unwrap();
    let _ = frame.head();
}

#[test]
fn buffers_outlive_the_name_of_their_pool_and_change_threads() {
    let pool = pool(4, 64);
    let a = filled(&pool, b"still here");
    drop(pool);
    let b = a.share().unwrap();
    std::thread::spawn(move || drop(a)).join().unwrap();
    assert_eq!(b.head(), b"still here");
    drop(b);
    // When a pool is made, all pools without a handle and without buffers in use are freed.
    drop(self::pool(1, 64));
}

#[test]
fn an_empty_pool_gives_nothing_and_counts_it() {
    let pool = pool(1, 64);
    let a = pool.alloc().unwrap();
    assert!(pool.alloc().is_none());
    let b = a.share().unwrap();
    assert!(a.share().is_none(), "one spare descriptor for each buffer");
    assert_eq!(pool.exhausted(), 2);
    drop((a, b));
    assert!(pool.alloc().is_some());
}
