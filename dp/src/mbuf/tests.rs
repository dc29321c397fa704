//! Tests of the guarantees of a packet buffer, with the heap backend.

use std::sync::Arc;

use super::*;
use crate::Page;

fn filled(pool: &Mempool, bytes: &[u8]) -> Mbuf {
    let mut mbuf = pool.alloc().unwrap();
    assert!(mbuf.append_slice(bytes));
    mbuf
}

fn flat(mbuf: &Mbuf) -> Vec<u8> {
    let mut bytes = vec![0; mbuf.len()];
    assert_eq!(mbuf.copy_to(0, &mut bytes), mbuf.len());
    bytes
}

#[test]
fn buffers_and_pools_go_from_thread_to_thread() {
    fn is_send<T: Send>() {}
    fn is_sync<T: Sync>() {}
    is_send::<Mbuf>();
    is_send::<ExtBuf>();
    is_send::<Mempool>();
    is_sync::<Mempool>();
}

/// DPDK counts a second view without an atomic read-modify-write. If two threads could share one `Mbuf`, DPDK
/// could lose a count, and the storage would be freed while a view exists. If `Mbuf` is `Sync`, this test
/// does not compile.
#[test]
fn threads_share_no_buffer_but_by_views() {
    trait IsNotSync<Way> {
        fn check() {}
    }
    impl<T> IsNotSync<()> for T {}
    // If `T` is `Sync`, two implementations match, so the call below is ambiguous.
    impl<T: Sync> IsNotSync<u8> for T {}
    <Mbuf as IsNotSync<_>>::check();
    <Page as IsNotSync<_>>::check();
}

#[test]
fn a_deep_copy_is_apart_and_takes_as_many_buffers_as_it_needs() {
    let (small, large) = (Mempool::heap("small", 4, 4), Mempool::heap("large", 4, 64));
    let mut original = filled(&large, b"hello, ");
    original.chain(filled(&large, b"world")).unwrap();
    original.set_rx_checksum(Checksum::Good);
    let mut copy = original.deep_copy(&small).unwrap();
    assert_eq!((flat(&copy), copy.segment_count()), (flat(&original), 3));
    assert_eq!(copy.rx_checksum(), Checksum::Good);
    copy.head_mut().unwrap()[0] = b'j';
    assert_eq!(original.head()[0], b'h');
    assert!(original.deep_copy(&small).is_none());
    assert_eq!(small.available(), 1, "what was taken in vain is back");
    assert_eq!(large.alloc().unwrap().deep_copy(&small).unwrap().len(), 0);
}

#[test]
fn a_fresh_buffer_is_empty_behind_its_headroom() {
    let pool = Mempool::heap("t", 1, 2048);
    let mbuf = pool.alloc().unwrap();
    assert_eq!((mbuf.len(), mbuf.segment_count()), (0, 1));
    assert_eq!((mbuf.headroom(), mbuf.tailroom()), (HEADROOM, 2048));
    assert!(mbuf.is_empty() && !mbuf.is_shared());
    assert_eq!(mbuf.rx_checksum(), Checksum::Unknown);
    assert_eq!(mbuf.tx_offload(), TxOffload::default());
}

#[test]
fn views_of_one_buffer_are_independent_and_read_only_until_alone() {
    let pool = Mempool::heap("t", 2, 64);
    let mut a = filled(&pool, b"hello, world");
    let mut b = a.share().unwrap();
    assert!(a.is_shared() && b.is_shared());
    assert!(a.head_mut().is_none() && a.prepend(1).is_none() && a.append(1).is_none());
    b.advance(7);
    b.truncate(3);
    assert_eq!((flat(&a), flat(&b)), (b"hello, world".to_vec(), b"wor".to_vec()));
    drop(a);
    assert!(!b.is_shared());
    assert_eq!(pool.available(), 1);
    b.prepend(1).unwrap().copy_from_slice(b"_");
    assert_eq!(flat(&b), b"_wor");
    drop(b);
    assert_eq!(pool.available(), 2);
}

#[test]
fn an_empty_pool_gives_nothing_and_counts_it() {
    let pool = Mempool::heap("t", 1, 64);
    let a = pool.alloc().unwrap();
    assert!(pool.alloc().is_none());
    let b = a.share().unwrap();
    assert!(a.share().is_none(), "one spare descriptor for each buffer");
    assert_eq!(pool.exhausted(), 2);
    drop((a, b));
    assert!(pool.alloc().is_some());
}

#[test]
fn a_failed_share_gives_back_what_it_took() {
    let pool = Mempool::heap("t", 3, 64);
    let mut chain = filled(&pool, b"a");
    chain.chain(filled(&pool, b"b")).unwrap();
    let other = filled(&pool, b"c");
    let (x, y) = (other.share().unwrap(), other.share().unwrap());
    assert!(chain.share().is_none(), "two needed, one left");
    assert!(!chain.is_shared());
    drop((x, y));
    assert!(chain.share().is_some());
}

#[test]
fn buffers_outlive_the_name_of_their_pool() {
    let pool = Mempool::heap("t", 2, 64);
    let a = filled(&pool, b"still here");
    drop(pool);
    let b = a.share().unwrap();
    drop(a);
    assert_eq!(b.head(), b"still here");
}

#[test]
fn external_bytes_live_until_the_last_view_has_gone() {
    let pool = Mempool::heap("t", 4, 64);
    let owner = Arc::new(b"external bytes".to_vec());
    let memory = ExtBuf::new(Arc::clone(&owner)).slice(9..14).unwrap();
    assert!(memory.slice(0..6).is_none());
    let mut frame = filled(&pool, b"header ");
    frame.chain(Mbuf::external(&pool, memory).unwrap()).unwrap();
    assert_eq!(flat(&frame), b"header bytes");
    assert!(frame.is_shared() && frame.append(1).is_none() && frame.tailroom() == 0);
    assert!(frame.head_mut().is_some(), "the header's storage is ours alone");
    let mut view = frame.share().unwrap();
    drop(frame);
    view.advance(7);
    assert_eq!((view.segment_count(), flat(&view)), (1, b"bytes".to_vec()));
    let mut middle = [0; 3];
    assert_eq!((view.copy_to(1, &mut middle), &middle), (3, b"yte"));
    assert_eq!(view.copy_to(4, &mut middle), 1);
    assert!(view.head_mut().is_none() && view.prepend(1).is_none() && view.headroom() == 0);
    assert_eq!(Arc::strong_count(&owner), 2);
    drop(view);
    assert_eq!(Arc::strong_count(&owner), 1);
    assert_eq!(pool.available(), 4);
}

#[test]
#[should_panic(expected = "external memory has no slice")]
fn external_memory_is_not_shown_as_a_slice() {
    let pool = Mempool::heap("t", 1, 64);
    let frame = Mbuf::external(&pool, ExtBuf::new(Arc::new(vec![1]))).unwrap();
    let _ = frame.segments().count();
}

#[test]
fn a_chain_is_bounded_and_gives_the_rest_back() {
    let pool = Mempool::heap("t", MAX_SEGMENTS + 1, 8);
    let mut chain = filled(&pool, b"x");
    for _ in 1..MAX_SEGMENTS {
        chain.chain(filled(&pool, b"x")).unwrap();
    }
    let refused = chain.chain(filled(&pool, b"y")).unwrap_err();
    assert_eq!(refused.head(), b"y");
    assert_eq!((chain.len(), chain.segment_count()), (MAX_SEGMENTS, MAX_SEGMENTS));
}

#[test]
fn metadata_belongs_to_the_chain_and_is_fresh_in_a_fresh_buffer() {
    let pool = Mempool::heap("t", 2, 64);
    let mut a = filled(&pool, b"ab");
    a.set_rx_checksum(Checksum::Partial);
    a.set_tx_offload(TxOffload { tcp_checksum: true, ..TxOffload::default() });
    let mut b = filled(&pool, b"cd");
    b.set_rx_checksum(Checksum::Bad);
    a.chain(b).unwrap();
    a.advance(3);
    assert_eq!((a.segment_count(), a.head()), (1, b"d".as_slice()));
    assert_eq!(a.rx_checksum(), Checksum::Partial);
    assert!(a.share().unwrap().tx_offload().tcp_checksum);
    drop(a);
    for _ in 0..2 {
        let fresh = pool.alloc().unwrap();
        assert_eq!((fresh.rx_checksum(), fresh.tx_offload()), (Checksum::Unknown, TxOffload::default()));
    }
}

#[test]
fn advance_to_the_end_leaves_one_empty_segment() {
    let pool = Mempool::heap("t", 2, 64);
    let mut a = filled(&pool, b"ab");
    a.chain(filled(&pool, b"cd")).unwrap();
    a.advance(4);
    assert_eq!((a.len(), a.segment_count()), (0, 1));
    a.append(1).unwrap()[0] = b'z';
    assert_eq!(flat(&a), b"z");
}

#[test]
#[should_panic(expected = "advance by 3 of 2 bytes")]
fn advance_past_the_end_panics() {
    filled(&Mempool::heap("t", 1, 64), b"ab").advance(3);
}

#[test]
fn threads_share_a_pool_and_views_without_losing_any() {
    let pool = Mempool::heap("t", 32, 64);
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::sync_channel::<Mbuf>(8);
        let producer = pool.clone();
        scope.spawn(move || {
            for i in 0..20_000_u32 {
                let Some(mut mbuf) = producer.alloc() else { continue };
                assert!(mbuf.append_slice(&i.to_be_bytes()));
                let Some(view) = mbuf.share() else { continue };
                sender.send(view).unwrap();
                assert_eq!(mbuf.head(), i.to_be_bytes());
                // Either this thread or the other thread may drop the last view.
            }
        });
        scope.spawn(move || {
            for mut view in receiver {
                let before = flat(&view);
                if let Some(bytes) = view.head_mut() {
                    bytes.fill(0xff);
                } else {
                    assert_eq!(flat(&view), before);
                }
            }
        });
    });
    assert_eq!(pool.available(), 32);
    let all: Vec<_> = (0..32).map(|_| filled(&pool, b"x")).collect();
    assert!(all.iter().all(|mbuf| mbuf.share().is_some()), "no descriptor went missing");
}

/// The parts of any range of a frame are the bytes of this range.
#[test]
fn parts_are_the_bytes_of_a_range() {
    let pool = Mempool::heap("parts", 4, 64);
    let bytes: Vec<u8> = (0..30).collect();
    let mut frame = pool.alloc().unwrap();
    assert!(frame.append_slice(&bytes[..10]));
    for part in [&bytes[10..17], &bytes[17..]] {
        frame.chain(Mbuf::external(&pool, ExtBuf::new(Arc::new(part.to_vec()))).unwrap()).unwrap();
    }
    for offset in 0..34 {
        for len in (0..34).chain([usize::MAX]) {
            let mut found = Vec::<u8>::new();
            let Ok(()) = frame.try_each_part(offset, len, |part| {
                assert!(!part.is_empty());
                // SAFETY: the frame is borrowed, and nobody writes its bytes.
                found.extend(unsafe { std::slice::from_raw_parts(part.as_ptr(), part.len()) });
                Ok::<_, std::convert::Infallible>(())
            });
            let wanted = bytes.iter().skip(offset).take(len);
            assert!(found.iter().eq(wanted), "{offset} {len}: {found:?}");
        }
    }
    let mut parts = 0;
    let stopped = frame.try_each_part(5, 20, |_| {
        parts += 1;
        if parts == 2 { Err("enough") } else { Ok(()) }
    });
    assert_eq!((stopped, parts), (Err("enough"), 2));
}
