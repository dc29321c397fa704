//! Tests [`Mbuf`] against a model: after any sequence of operations, each buffer has the same bytes as the
//! `Vec<u8>` that models the buffer.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const BUFFERS: usize = 12;
const DATA_BYTES: usize = 96;

#[derive(Clone, Debug)]
enum Op {
    Alloc(Vec<u8>),
    External(Vec<u8>),
    Prepend(usize, Vec<u8>),
    Append(usize, Vec<u8>),
    Advance(usize, usize),
    Truncate(usize, usize),
    Chain(usize, usize),
    Share(usize),
    Overwrite(usize, u8),
    CopyTo(usize, usize, usize),
    Drop(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let bytes = || vec(any::<u8>(), 0..40);
    let which = || any::<usize>();
    let op = prop_oneof![
        4 => bytes().prop_map(Op::Alloc),
        1 => bytes().prop_map(Op::External),
        2 => (which(), bytes()).prop_map(|(i, d)| Op::Prepend(i, d)),
        2 => (which(), bytes()).prop_map(|(i, d)| Op::Append(i, d)),
        3 => (which(), which()).prop_map(|(i, n)| Op::Advance(i, n)),
        3 => (which(), which()).prop_map(|(i, n)| Op::Truncate(i, n)),
        3 => (which(), which()).prop_map(|(i, j)| Op::Chain(i, j)),
        3 => which().prop_map(Op::Share),
        2 => (which(), any::<u8>()).prop_map(|(i, b)| Op::Overwrite(i, b)),
        2 => (which(), which(), 0..200_usize).prop_map(|(i, o, n)| Op::CopyTo(i, o, n)),
        2 => which().prop_map(Op::Drop),
    ];
    vec(op, 0..120)
}

struct Pair {
    mbuf: Mbuf,
    model: Vec<u8>,
}

fn run(pool: &Mempool, pairs: &mut Vec<Pair>, op: Op) -> Result<(), TestCaseError> {
    if !matches!(op, Op::Alloc(_) | Op::External(_)) && pairs.is_empty() {
        return Ok(());
    }
    let count = pairs.len().max(1);
    match op {
        Op::Alloc(bytes) => {
            if let Some(mut mbuf) = pool.alloc() {
                prop_assert!(mbuf.append_slice(&bytes));
                pairs.push(Pair { mbuf, model: bytes });
            } else {
                prop_assert_eq!(pool.available(), 0);
            }
        }
        Op::External(bytes) => {
            if let Some(mbuf) = Mbuf::external(pool, ExtBuf::new(Arc::new(bytes.clone()))) {
                pairs.push(Pair { mbuf, model: bytes });
            }
        }
        Op::Prepend(i, bytes) => {
            let Pair { mbuf, model } = &mut pairs[i % count];
            let fits = bytes.len() <= mbuf.headroom();
            if let Some(room) = mbuf.prepend(bytes.len()) {
                prop_assert!(fits);
                room.copy_from_slice(&bytes);
                model.splice(0..0, bytes);
            } else {
                prop_assert!(!fits || mbuf.head_mut().is_none());
            }
        }
        Op::Append(i, bytes) => {
            let Pair { mbuf, model } = &mut pairs[i % count];
            let fits = bytes.len() <= mbuf.tailroom();
            if mbuf.append_slice(&bytes) {
                prop_assert!(fits);
                model.extend(bytes);
            } else {
                prop_assert!(!fits || mbuf.is_shared());
            }
        }
        Op::Advance(i, n) => {
            let Pair { mbuf, model } = &mut pairs[i % count];
            let n = n % (model.len() + 1);
            mbuf.advance(n);
            model.drain(..n);
        }
        Op::Truncate(i, n) => {
            let Pair { mbuf, model } = &mut pairs[i % count];
            let n = n % (model.len() + 2);
            mbuf.truncate(n);
            model.truncate(n);
        }
        Op::Chain(i, j) => {
            let tail = pairs.swap_remove(j % count);
            if pairs.is_empty() {
                pairs.push(tail);
                return Ok(());
            }
            let head = i % pairs.len();
            match pairs[head].mbuf.chain(tail.mbuf) {
                Ok(()) => pairs[head].model.extend(tail.model),
                Err(mbuf) => {
                    prop_assert!(pairs[head].mbuf.segment_count() + mbuf.segment_count() > MAX_SEGMENTS);
                    pairs.push(Pair { mbuf, model: tail.model });
                }
            }
        }
        Op::Share(i) => {
            let Pair { mbuf, model } = &pairs[i % count];
            if let Some(mbuf) = mbuf.share() {
                let model = model.clone();
                prop_assert!(mbuf.is_shared());
                pairs.push(Pair { mbuf, model });
            }
        }
        Op::Overwrite(i, byte) => {
            let Pair { mbuf, model } = &mut pairs[i % count];
            if let Some(head) = mbuf.head_mut() {
                head.fill(byte);
                let n = head.len();
                model[..n].fill(byte);
            } else {
                prop_assert!(mbuf.is_shared());
            }
        }
        Op::CopyTo(i, offset, n) => {
            let Pair { mbuf, model } = &pairs[i % count];
            let offset = offset % (model.len() + 2);
            let mut out = vec![0; n];
            let copied = mbuf.copy_to(offset, &mut out);
            let expected = model.get(offset..).unwrap_or_default();
            prop_assert_eq!(copied, expected.len().min(n));
            prop_assert_eq!(&out[..copied], &expected[..copied]);
        }
        Op::Drop(i) => {
            pairs.swap_remove(i % count);
        }
    }
    Ok(())
}

fn check(pairs: &[Pair]) -> Result<(), TestCaseError> {
    for Pair { mbuf, model } in pairs {
        prop_assert_eq!(mbuf.len(), model.len());
        prop_assert!((1..=MAX_SEGMENTS).contains(&mbuf.segment_count()));
        let mut shown = vec![0; model.len()];
        prop_assert_eq!(mbuf.copy_to(0, &mut shown), model.len());
        prop_assert_eq!(&shown, model);
        if !mbuf.has_external() {
            let shown: Vec<u8> = mbuf.segments().flatten().copied().collect();
            prop_assert_eq!(&shown, model);
            prop_assert_eq!(mbuf.segments().count(), mbuf.segment_count());
            prop_assert_eq!(mbuf.head(), mbuf.segments().next().unwrap());
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_order_of_operations_shows_what_the_model_shows_and_refills_the_pool(ops in ops()) {
        let pool = Mempool::heap("model", BUFFERS, DATA_BYTES);
        let mut pairs = Vec::new();
        for op in ops {
            run(&pool, &mut pairs, op)?;
            check(&pairs)?;
        }
        drop(pairs);
        prop_assert_eq!(pool.available(), BUFFERS);
        // The test has also returned the descriptors: each buffer can be allocated and shared once.
        let all: Vec<_> = (0..BUFFERS).map(|_| pool.alloc().unwrap()).collect();
        prop_assert!(all.iter().map(Mbuf::share).collect::<Vec<_>>().iter().all(Option::is_some));
    }
}
