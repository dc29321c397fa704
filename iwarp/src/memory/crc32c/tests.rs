use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::prelude::*;
use testkit::dice::Dice;

use super::{Front, Library, Method, append, best, copy, fetch_behind};
#[cfg(target_arch = "x86_64")]
use super::{fold512, lanes};

/// Computes the CRC with a table of 256 entries, which is the usual implementation of the CRC in RFC 3720
/// appendix B.4.
fn reference(crc: u32, bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut i = 0;
        while i < 256 {
            let (mut value, mut bit) = (i as u32, 0);
            while bit < 8 {
                value = value >> 1 ^ if value & 1 == 1 { 0x82f6_3b78 } else { 0 };
                bit += 1;
            }
            table[i] = value;
            i += 1;
        }
        table
    };
    !bytes.iter().fold(!crc, |state, byte| state >> 8 ^ TABLE[(state as u8 ^ byte) as usize])
}

/// Returns pseudo-random bytes with a period that is too long to hide an error of a CRC method.
fn noise(len: usize) -> Vec<u8> {
    Dice::split_mix(0).bytes(len)
}

/// Returns all methods that this CPU supports.
fn methods_here() -> impl Iterator<Item = Method> {
    [
        #[cfg(target_arch = "x86_64")]
        (Method::Fold512, fold512::is_supported()),
        #[cfg(target_arch = "x86_64")]
        (Method::Lanes, lanes::is_supported()),
        (Method::Library, true),
    ]
    .into_iter()
    .filter_map(|(method, is_here)| is_here.then_some(method))
}

/// Number of bytes before and after a copy that are checked to be unchanged.
const MARGIN: usize = 80;

/// Copies the `len` bytes at offset `from` of `source` to offset `MARGIN + to` of `room`. Checks the copied
/// bytes, the bytes around them, and the CRC. Also checks the CRC of these bytes without a copy.
#[track_caller]
fn check(method: Method, source: &[u8], room: &mut [u8], from: usize, to: usize, len: usize) {
    const BEFORE: u32 = 0x1234_5678;
    let bytes = &source[from..from + len];
    let out = MARGIN + to..MARGIN + to + len;
    room[..out.end + MARGIN].fill(0xa5);
    let expected = reference(BEFORE, bytes);
    // SAFETY: `bytes` is a slice with the length of the copy, so its bytes are readable and no other code
    // writes them. The callers take `method` from `methods_here`, which has only methods that this CPU
    // supports.
    let got = unsafe { method.fetch(BEFORE, bytes.as_ptr(), &mut room[out.clone()]) };
    let what = format!("{method:?}, {len} bytes, from {from} to {to}");
    assert_eq!(got, expected, "CRC of the copy: {what}");
    assert!(room[out.clone()] == *bytes, "copy: {what}");
    let around = room[..out.start].iter().chain(&room[out.end..out.end + MARGIN]);
    assert!(around.clone().all(|byte| *byte == 0xa5), "beside the copy: {what}");
    // SAFETY: the callers take `method` from `methods_here`, which has only methods that this CPU supports.
    assert_eq!(unsafe { method.append(BEFORE, bytes) }, expected, "CRC alone: {what}");
}

#[test]
fn every_length_is_copied_with_its_crc() {
    let source = noise(70_000);
    let mut room = vec![0; 70_000];
    for method in methods_here() {
        for len in
            (0..=600).chain(1020..1030).chain(1420..1470).chain([3327, 3328, 8191, 8192, 8193, 8932, 65_535])
        {
            for (from, to) in [(0, 0), (len % 61, len % 7), (63 - len % 11, 64 - len % 13)] {
                check(method, &source, &mut room, from, to, len);
            }
        }
    }
}

#[test]
fn every_alignment_of_either_side_is_copied_with_its_crc() {
    let source = noise(2000);
    let mut room = vec![0; 2000];
    for method in methods_here() {
        for from in 0..64 {
            for to in 0..64 {
                for len in [7, 40, 129, 200, 333, 1460] {
                    check(method, &source, &mut room, from, to, len);
                }
            }
        }
    }
}

/// Fetches `source` to `out`. Checks the CRC and the Internet checksum of the front, these bytes and the
/// zeros. The bytes are fetched by the function that the library uses, and by `lanes` if this CPU supports
/// `lanes`.
#[track_caller]
fn check_tally(source: &[u8], out: &mut [u8], front: &Front, zeros: usize) {
    let mut room = [0; Front::MAX_BYTES];
    let all = [&*front.store(&mut room).0, source, &[0; 3][..zeros]].concat();
    let what = format!("{} bytes behind {front:?}, {zeros} zeros", source.len());
    let check = |(crc, checksum): (u32, u64), out: &[u8]| {
        assert!(out == source, "copy: {what}");
        assert_eq!(crc, reference(0, &all), "CRC: {what}");
        assert_eq!(checksum % 0xffff, dp::checksum::partial(&all) % 0xffff, "checksum: {what}");
    };
    // SAFETY: `source` is a slice as long as `out`, so its bytes are readable and no other code writes them.
    check(unsafe { fetch_behind(front, source.as_ptr(), out, (zeros, true)) }, out);
    #[cfg(target_arch = "x86_64")]
    if lanes::is_supported() {
        out.fill(0);
        // SAFETY: `source` is a slice as long as `out`, so its bytes are readable and no other code writes
        // them. `is_supported` has just said that this CPU supports the method.
        check(unsafe { lanes::fetch_behind::<true>(front, source.as_ptr(), out, zeros) }, out);
    }
}

#[test]
fn a_tally_is_the_checksum_of_the_copy() {
    let source = noise(2000);
    let mut out = vec![0; 2000];
    let short = Front { words: [0x0123_4567_89ab_cdef, !0], rest: None };
    for len in (0..=330).chain(1420..1470) {
        for (from, zeros, rest) in
            [(0, 0, None), (len % 64, len % 4, Some(0xffff_fffe)), (1, 3, Some(len as u32))]
        {
            check_tally(&source[from..from + len], &mut out[..len], &Front { rest, ..short }, zeros);
        }
    }
    // The longest ULPDU has this number of bytes. All bits are set, so the sum of the words is as large as
    // possible.
    check_tally(&[0xff; 64_768], &mut [0; 64_768], &short, 0);
}

/// Stops the writer even if the test fails, since the scope waits for the writer.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// While another thread changes the memory, the CRC matches the copied bytes.
#[test]
fn the_crc_fits_the_copy_while_others_write() {
    const WORDS: usize = 1200;
    let words: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    let mut mixed = 0;
    std::thread::scope(|scope| {
        let (stop, words) = (&stop, &words);
        let _stop = StopOnDrop(stop);
        scope.spawn(move || {
            for round in 0_u64.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                words.iter().for_each(|word| {
                    word.store(round.wrapping_mul(0x0101_0101_0101_0101), Ordering::Relaxed)
                });
            }
        });
        let mut out = vec![0; WORDS * 8];
        for round in 0..6000 {
            for method in methods_here() {
                let (from, len) = (round % 64, [150, 1460, 9000][round % 3]);
                let out = &mut out[..len];
                let source = words.as_ptr().cast::<u8>().wrapping_add(from);
                // SAFETY: the words exist longer than the threads of the scope, and the writer writes them
                // only as atomics. The words have 9600 bytes, and the copy ends before byte 9064. `method`
                // comes from `methods_here`, which has only methods that this CPU supports.
                let crc = unsafe { method.fetch(0, source, out) };
                assert_eq!(crc, reference(0, out), "{method:?}, {len} bytes");
                #[cfg(target_arch = "x86_64")]
                if lanes::is_supported() {
                    let front = Front { words: [0; 2], rest: None };
                    // SAFETY: the words exist longer than the threads of the scope, and the writer writes
                    // them only as atomics. The words have 9600 bytes, and the copy ends before byte 9064.
                    // `is_supported` has just returned that this CPU supports the method.
                    let (_, checksum) = unsafe { lanes::fetch_behind::<true>(&front, source, out, 0) };
                    assert_eq!(
                        checksum % 0xffff,
                        dp::checksum::partial(out) % 0xffff,
                        "tallied, {len} bytes"
                    );
                }
                mixed += u32::from(out.iter().any(|byte| *byte != out[0]));
            }
            // On a machine with one core, the copy would otherwise never run while the writer is in the
            // middle of its writes.
            if round % 64 == 0 {
                std::thread::yield_now();
            }
        }
    });
    println!("copies that caught the writer at work: {mixed}");
}

#[test]
fn a_cpu_uses_its_own_method_before_a_library() {
    assert_eq!((best(), Some(best())), (Method::here(), methods_here().next()));
}

/// Each of the two crates computes the correct CRC, whichever of them the library uses on this CPU.
#[test]
fn both_libraries_agree_at_every_length() {
    let source = noise(70_000);
    for library in [Library::Crc32c, Library::CrcFast] {
        for len in (0..=600).chain([1023, 1024, 1025, 1460, 8191, 8192, 8193, 65_535]) {
            for from in [0, len % 61, 63 - len % 11] {
                let bytes = &source[from..from + len];
                let got = library.append(0x1234_5678, bytes);
                assert_eq!(got, reference(0x1234_5678, bytes), "{library:?}, {len} bytes from {from}");
            }
        }
    }
}

/// The library uses `crc32c` on a CPU with the CRC instruction of x86-64, and `crc-fast` on a CPU without
/// this instruction.
#[test]
#[cfg(target_arch = "x86_64")]
fn the_library_follows_the_crc_instruction() {
    let expected = if is_x86_feature_detected!("sse4.2") { Library::Crc32c } else { Library::CrcFast };
    assert_eq!(Library::here(), expected);
}

#[test]
#[should_panic(expected = "different length")]
fn a_copy_between_different_lengths_is_refused() {
    copy(0, &mut [0; 3], &[0; 4]);
}

proptest! {
    // Shrinking a failing case takes long and gives little more information.
    #![proptest_config(ProptestConfig { max_shrink_iters: 100, ..Default::default() })]

    #[test]
    fn a_crc_goes_on_wherever_it_was_cut(
        len in 0_usize..12_000,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let bytes = noise(len);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(len + 1)).collect();
        cuts.sort_unstable();
        for method in methods_here() {
            let (mut copied, mut alone, mut out, mut from) = (0, 0, vec![0; len], 0);
            for to in cuts.iter().copied().chain([len]) {
                // SAFETY: the source is a slice of the same length, so its bytes are readable and no other
                // code writes them. `method` comes from `methods_here`, which has only methods that this CPU
                // supports.
                copied = unsafe { method.fetch(copied, bytes[from..to].as_ptr(), &mut out[from..to]) };
                // SAFETY: `method` comes from `methods_here`, which has only methods that this CPU supports.
                alone = unsafe { method.append(alone, &bytes[from..to]) };
                from = to;
            }
            prop_assert_eq!(copied, reference(0, &bytes));
            prop_assert_eq!(alone, reference(0, &bytes));
            prop_assert_eq!(append(0, &bytes), reference(0, &bytes));
            prop_assert!(out == bytes);
        }
    }
}
