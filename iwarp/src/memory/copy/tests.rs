use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use super::{Stride, place, place_raw};

/// # Safety
/// `from..from + out.len()` is mapped and readable, and other threads access it only through atomics and raw
/// copies.
unsafe fn fetch(from: *const u8, out: &mut [u8]) {
    // SAFETY: without gaps all of `out` is content, and the caller promises `out.len()` readable bytes at
    // `from`.
    unsafe { super::fetch(from, out, Stride::NONE) }
}

/// Copies of all lengths below 140, and of some longer lengths, copy all bytes and change no other byte. Each
/// length is copied at several alignments of source and destination.
#[test]
fn every_length_and_alignment_copies_exactly() {
    let source: Vec<u8> = (0..400_u32).map(|i| (i * 7 + 1) as u8 | 1).collect();
    for len in (0..140).chain([191, 192, 193, 255, 256, 300]) {
        for align in 0..18 {
            let from = (align * 5) % 17;
            let mut memory = vec![0_u8; 400];
            let to = memory[align..align + len].as_mut_ptr();
            // SAFETY: `to` has room for `len` bytes, and no other code uses the vector.
            unsafe { place(to, &source[from..from + len]) };
            assert_eq!(&memory[align..align + len], &source[from..from + len], "len {len}, align {align}");
            assert!(memory[..align].iter().chain(&memory[align + len..]).all(|&b| b == 0));

            let mut raw = vec![0_u8; 400];
            let to = raw[align..align + len].as_mut_ptr();
            // SAFETY: `to` has room for `len` bytes, the source has `len` bytes at `from`, and no other code
            // uses the vectors.
            unsafe { place_raw(to, source[from..from + len].as_ptr(), len) };
            assert_eq!(raw, memory, "len {len}, align {align}");

            let mut out = vec![0_u8; 400];
            let placed = memory[align..align + len].as_ptr();
            // SAFETY: `placed` points to `len` bytes, which no other code writes.
            unsafe { fetch(placed, &mut out[from..from + len]) };
            assert_eq!(&out[from..from + len], &source[from..from + len]);
            assert!(out[..from].iter().chain(&out[from + len..]).all(|&b| b == 0));
        }
    }
}

/// Copies with gaps copy all content, change no byte outside of the destination, and do not read beyond the
/// end of the source.
#[test]
fn copies_go_around_gaps_wherever_these_are() {
    let bytes: Vec<u8> = (0..1700_u32).map(|i| (i * 7 + i / 251) as u8 | 1).collect();
    for stride in [0, 1, 4, 15, 16, 17, 60, 100, 508].map(Stride::new) {
        for len in (0..140).chain([507, 508, 509, 511, 512, 513, 516, 520, 1024, 1029, 1600]) {
            for align in [0, 1, 4, 8, 12, 15] {
                let content: Vec<u8> = stride.runs(&bytes[..len]).flatten().copied().collect();
                let mut memory = vec![0_u8; 2000];
                let end = align + content.len();
                let to = memory[align..end].as_mut_ptr();
                // SAFETY: `to` has room for all content of the runs, and no other code uses the vector.
                unsafe { super::place_runs(to, stride.runs(&bytes[..len])) };
                assert_eq!(memory[align..end], content, "{stride:?}, len {len}, align {align}");
                assert!(
                    memory[..align].iter().chain(&memory[end..]).all(|&b| b == 0),
                    "{stride:?}, len {len}"
                );

                // All bytes of the content are odd numbers, so the content does not contain this byte.
                const BEHIND: u8 = 2;
                memory[end..].fill(BEHIND);
                let mut out = vec![0_u8; 2000];
                let placed = memory[align..end].as_ptr();
                // SAFETY: `placed` points to `content.len()` bytes, the number of content bytes in `out`, and
                // nobody writes them.
                unsafe { super::fetch(placed, &mut out[align..align + len], stride) };
                assert!(
                    stride.runs(&out[align..align + len]).flatten().eq(&content),
                    "{stride:?}, len {len}, align {align}"
                );
                assert!(out.iter().all(|&b| b != BEHIND), "{stride:?}, len {len}, align {align}");
                assert!(
                    out[..align].iter().chain(&out[align + len..]).all(|&b| b == 0),
                    "{stride:?}, len {len}"
                );
            }
        }
    }
}

/// A reader that has seen the last byte of a copy sees every byte of that copy, whatever its length.
#[test]
fn the_last_byte_is_seen_last() {
    const LEN: usize = 1024;
    let words: Vec<AtomicU64> = (0..LEN / 8 + 2).map(|_| AtomicU64::new(0)).collect();
    let base = words.as_ptr().cast::<u8>().cast_mut();
    let stop = AtomicBool::new(false);
    // The round that the writer may write next. The reader starts one round at a time.
    let round = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (stop, round, words) = (&stop, &round, &words);
        scope.spawn(move || {
            let to = words.as_ptr().cast::<u8>().cast_mut();
            let mut done = 0;
            while !stop.load(Ordering::Acquire) {
                let now = round.load(Ordering::Acquire);
                if now == done {
                    std::hint::spin_loop();
                    continue;
                }
                done = now;
                let (offset, len) = span(now);
                let stride = if now % 2 == 0 { Stride::NONE } else { Stride::new(now as usize % 600) };
                let mut bytes = [now as u8; 2 * LEN];
                let bytes = &mut bytes[..stride.span(len)];
                stride.gaps(bytes.len()).for_each(|gap| bytes[gap..gap + Stride::GAP].fill(0));
                let to = to.wrapping_add(offset);
                if now % 4 == 0 {
                    // SAFETY: `span` ends inside the words, which exist longer than the scope, and all
                    // threads access the words as atomics or by raw copies. Without gaps, `bytes` has `len`
                    // bytes, which only this thread uses.
                    unsafe { place_raw(to, bytes.as_ptr(), len) };
                } else {
                    // SAFETY: `span` ends inside the words, which exist longer than the scope, and all
                    // threads access the words as atomics or by raw copies. The runs have `len` bytes of
                    // content.
                    unsafe { super::place_runs(to, stride.runs(bytes)) };
                }
            }
        });
        for now in 1..4000_u64 {
            let (offset, len) = span(now);
            // The words may still contain bytes of the round 256 rounds ago, which have the value of this
            // round's bytes. Clearing the words is safe, since the writer waits for the next round.
            words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            let now = if now as u8 == 0 { continue } else { now };
            round.store(now, Ordering::Release);
            let mut byte = [0];
            let mut out = [0_u8; LEN];
            loop {
                // SAFETY: `span` ends inside the words, which exist longer than the scope, and all threads
                // access the words as atomics or by raw copies.
                unsafe { fetch(base.wrapping_add(offset + len - 1), &mut byte) };
                if byte[0] == now as u8 {
                    break;
                }
                std::hint::spin_loop();
            }
            fence(Ordering::Acquire);
            // SAFETY: `span` ends inside the words, which exist longer than the scope, and all threads access
            // the words as atomics or by raw copies.
            unsafe { fetch(base.wrapping_add(offset), &mut out[..len]) };
            assert!(out[..len].iter().all(|&b| b == now as u8), "round {now}, offset {offset}, len {len}");
        }
        stop.store(true, Ordering::Release);
    });

    fn span(round: u64) -> (usize, usize) {
        let offset = (round % 16) as usize;
        (offset, 1 + (round * 37 % (LEN as u64 - 16)) as usize)
    }
}

/// `fetch_sse` and `fetch_avx` copy whole blocks correctly from every alignment with which the library calls
/// them.
#[cfg(target_arch = "x86_64")]
#[test]
fn vectors_of_either_length_fetch_whole_blocks() {
    use super::bulk::{BLOCK, fetch_avx, fetch_sse};
    let source: Vec<u8> = (0..2048_u32).map(|i| (i * 7 + 1) as u8 | 1).collect();
    for len in (BLOCK..=1024).step_by(BLOCK) {
        for from in (0..64).step_by(8) {
            for to in 0..33 {
                let at = source[from..from + len].as_ptr().cast_mut();
                let check = |out: &[u8]| {
                    assert_eq!(out[to..to + len], source[from..from + len], "{len} bytes, {from} to {to}");
                    assert!(out[..to].iter().chain(&out[to + len..]).all(|&byte| byte == 0));
                };
                let mut out = vec![0; 1100];
                // SAFETY: `at` points to `len` bytes of a slice that nobody writes. `len` is a multiple of
                // 64.
                unsafe { fetch_sse(at, &mut out[to..to + len]) };
                check(&out);
                if is_x86_feature_detected!("avx") {
                    let mut out = vec![0; 1100];
                    // SAFETY: the CPU has AVX. `at` points to `len` bytes of a slice that nobody writes.
                    // `len` is a multiple of 64.
                    unsafe { fetch_avx(at, &mut out[to..to + len]) };
                    check(&out);
                }
            }
        }
    }
}
