//! Tests of frames that are lent: the reader gets views of the writer's pages.

use std::os::fd::AsFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::super::hello::{Heard, Kind, Message, hear, tell};
use super::super::memory::SharedMemory;
use super::super::pool::{PeerPool, PoolMemory};
use super::super::port::bulk_pool;
use super::*;
use crate::Page;

/// Maximum number of frames that a port lends to a peer.
const MOST: usize = 64;

/// A page of the pool for bulk sending, whose bytes depend on `number`.
fn page(port: &LocalPort, number: u8) -> Page {
    let mut page = Page::alloc(port.bulk_mempool().unwrap()).unwrap();
    let bytes = page.room().len();
    page.room().iter_mut().zip(0_u32..).for_each(|(byte, at)| *byte = (at * 7) as u8 ^ number);
    page.fill(bytes);
    page
}

/// Makes a TCP frame to `station`: a buffer with headers, and views of these ranges of `page`.
fn of_page(port: &LocalPort, station: u16, page: &Page, ranges: &[(usize, usize)]) -> Mbuf {
    let mut headers = frame(port, station, 0, 66);
    for (start, end) in ranges {
        headers.chain(page.view(*start..*end).unwrap()).unwrap();
    }
    headers.set_tx_offload(TxOffload {
        tcp_checksum: true,
        tso_segment_bytes: if headers.len() > 9018 { 8960 } else { 0 },
        ..headers.tx_offload()
    });
    headers
}

/// All bytes of a frame, which may be borrowed.
fn bytes(frame: &Mbuf) -> Vec<u8> {
    let mut bytes = vec![0; frame.len()];
    assert_eq!(frame.copy_to(0, &mut bytes), bytes.len());
    bytes
}

fn free_pages(port: &LocalPort) -> usize {
    port.bulk_mempool().unwrap().available()
}

#[test]
fn a_long_tcp_frame_is_read_in_the_pages_of_its_sender_until_nobody_uses_it() {
    let scratch = Scratch::new();
    let (mut a, mut b) = paired(&scratch);
    for ranges in [&[(0, 8900)][..], &[(0, 30_000), (30_000, 30_001), (100, 5000)], &[(5, 4096)]] {
        let page = page(&a, 3);
        let sent = of_page(&a, 2, &page, ranges);
        drop(page);
        let wanted = bytes(&sent);
        assert!(send(&mut a, sent));
        assert_eq!(free_pages(&a), 15, "the frame is kept");
        let [arrived] = receive(&mut [&mut a, &mut b], 1).try_into().unwrap();
        assert!(arrived.has_external() && arrived.head().len() == 192);
        assert_eq!((bytes(&arrived), arrived.rx_checksum()), (wanted, Checksum::Partial));
        for _ in 0..3 {
            assert!(poll_once(&mut b, 0).is_empty() && poll_once(&mut a, 0).is_empty());
            assert_eq!(free_pages(&a), 15, "the frame is in use");
        }
        drop(arrived);
        poll_once(&mut a, 0);
        assert_eq!(free_pages(&a), 15, "the frame is not returned");
        poll_once(&mut b, 0);
        poll_once(&mut a, 0);
        assert_eq!(free_pages(&a), 16);
    }
    assert_eq!((a.counters().tx_frames, b.counters().rx_frames), (4, 4));
    assert_eq!(a.counters().tx_bytes, b.counters().rx_bytes);
    let bytes = 8900 + 30_000 + 1 + 4900 + 4091 - 3 * (192 - 66);
    assert_eq!((a.counters().tx_lent_bytes, b.counters().rx_borrowed_bytes), (bytes, bytes));
}

/// The acknowledgement of a frame may wake the sender, which then needs the pages.
#[test]
fn a_frame_is_returned_before_the_next_frame_to_its_sender() {
    let scratch = Scratch::new();
    let (mut a, mut b) = paired(&scratch);
    let sent = of_page(&a, 2, &page(&a, 1), &[(0, 20_000)]);
    assert!(send(&mut a, sent));
    drop(receive(&mut [&mut b], 1));
    let acknowledgement = frame(&b, 1, 0, 66);
    assert!(send(&mut b, acknowledgement));
    assert_eq!((receive(&mut [&mut a], 1).len(), free_pages(&a)), (1, 16));
}

#[test]
fn other_frames_are_copied() {
    let scratch = Scratch::new();
    let (mut a, mut b) = paired(&scratch);
    let page = page(&a, 9);
    let mut plain = of_page(&a, 2, &page, &[(0, 8900)]);
    plain.set_tx_offload(TxOffload::default());
    let mut elsewhere = of_page(&a, 2, &page, &[(0, 5000)]);
    elsewhere.chain(frame(&a, 2, 0, 3000)).unwrap();
    let pieces: Vec<_> = (0..9).map(|nr| (nr * 900, nr * 900 + 800)).collect();
    for (sent, why) in [
        (of_page(&a, 2, &page, &[(0, 4029)]), "a short frame"),
        (plain, "a frame whose checksum is computed"),
        (elsewhere, "a frame with bytes outside of the pages"),
        (of_page(&a, 2, &page, &pieces), "a frame of too many parts"),
        (frame(&a, 2, 7, 9000), "a frame without pages"),
    ] {
        let wanted = flat(&sent);
        assert!(send(&mut a, sent));
        let [arrived] = receive(&mut [&mut b], 1).try_into().unwrap();
        assert_eq!(flat(&arrived), wanted, "{why}");
    }
    let sent = of_page(&a, 2, &page, &[(0, 4030)]);
    assert!(send(&mut a, sent));
    assert!(receive(&mut [&mut b], 1)[0].has_external(), "the shortest frame that is lent");
    let sent = of_page(&a, 2, &page, &pieces[..8]);
    assert!(send(&mut a, sent));
    assert!(receive(&mut [&mut b], 1)[0].has_external(), "a frame of the most parts");
    let sent = frame(&a, 2, 7, 3000);
    let wanted = flat(&sent);
    assert!(send(&mut a, sent));
    assert_eq!(flat(&receive(&mut [&mut b], 1)[0]), wanted, "the record after the most references");
}

/// Opens a port with many buffers.
fn open_large(scratch: &Scratch, station: u16) -> LocalPort {
    open(&LocalConfig { station: Some(station), bulk_mbufs: 128, ..scratch.config() }).unwrap()
}

#[test]
fn a_reader_that_keeps_frames_gets_copies_of_further_frames() {
    let scratch = Scratch::new();
    let (mut a, mut b) = (open_large(&scratch, 1), open_large(&scratch, 2));
    pair_up(&mut a, &mut b);
    let page = page(&a, 5);
    let mut kept = Vec::new();
    for nr in 0..MOST + 10 {
        let sent = of_page(&a, 2, &page, &[(nr, nr + 4030)]);
        let wanted = bytes(&sent);
        assert!(send(&mut a, sent));
        let [arrived] = receive(&mut [&mut a, &mut b], 1).try_into().unwrap();
        assert_eq!((arrived.has_external(), bytes(&arrived)), (nr < MOST, wanted), "{nr}");
        kept.push(arrived);
    }
    // Frames are returned in the order in which they were lent.
    drop(kept.drain(1..));
    poll_once(&mut b, 0);
    poll_once(&mut a, 0);
    let sent = of_page(&a, 2, &page, &[(0, 4030)]);
    assert!(send(&mut a, sent));
    assert!(!receive(&mut [&mut b], 1)[0].has_external(), "the oldest frame is in use");
    kept.clear();
    poll_once(&mut b, 0);
    poll_once(&mut a, 0);
    let sent = of_page(&a, 2, &page, &[(0, 4030)]);
    assert!(send(&mut a, sent));
    assert!(receive(&mut [&mut b], 1)[0].has_external());
}

#[test]
fn a_quarter_of_the_pages_is_lent_to_a_peer() {
    let scratch = Scratch::new();
    let (mut a, mut b) = paired(&scratch);
    let pages = [page(&a, 5), page(&a, 6)];
    let mut kept = Vec::new();
    for nr in 0..8 {
        let mut sent = of_page(&a, 2, &pages[0], &[(0, 30_000)]);
        sent.chain(pages[1].view(0..15_000).unwrap()).unwrap();
        assert!(send(&mut a, sent));
        kept.extend(receive(&mut [&mut a, &mut b], 1));
        assert_eq!(kept[nr].has_external(), nr < 5, "five of these frames have 225 KB of 1 MiB / 4");
    }
}

#[test]
fn a_private_copy_needs_no_page() {
    let scratch = Scratch::new();
    let (mut a, mut b) = paired(&scratch);
    for nr in 0..200 {
        let sent = of_page(&a, 2, &page(&a, nr), &[(0, 30_000), (0, 30_000)]);
        let wanted = bytes(&sent);
        assert!(send(&mut a, sent));
        let [arrived] = receive(&mut [&mut a, &mut b], 1).try_into().unwrap();
        assert!(arrived.has_external());
        let private = arrived.into_private().unwrap();
        assert!(!private.has_external() && private.rx_checksum() == Checksum::Partial);
        poll_once(&mut b, 0);
        poll_once(&mut a, 0);
        assert_eq!(free_pages(&a), 16);
        assert_eq!(flat(&private), wanted);
    }
}

/// For each borrowed frame, the port keeps a free buffer for a private copy. If there is none, the port
/// copies the frame itself.
#[test]
fn each_borrowed_frame_can_be_copied() {
    let scratch = Scratch::new();
    let (mut a, mut b) = paired(&scratch);
    let page = page(&a, 5);
    let mut kept = Vec::new();
    for _ in 0..40 {
        for _ in 0..2 {
            let sent = of_page(&a, 2, &page, &[(0, 4030)]);
            assert!(send(&mut a, sent));
        }
        let arrived = receive(&mut [&mut a, &mut b], 2);
        kept.extend(arrived.into_iter().map(|frame| frame.into_private().unwrap()));
        poll_once(&mut b, 0);
        poll_once(&mut a, 0);
    }
    assert!(kept.iter().all(|frame| bytes(frame)[66..] == page.filled()[..4030]));
}

#[test]
fn copies_leave_a_buffer_for_each_borrowed_frame() {
    let scratch = Scratch::new();
    let mut a = scratch.open(1);
    let mut b = open(&LocalConfig { station: Some(2), bulk_mbufs: 8, ..scratch.config() }).unwrap();
    pair_up(&mut a, &mut b);
    let page = page(&a, 5);
    let mut borrowed = Vec::new();
    for _ in 0..3 {
        let sent = of_page(&a, 2, &page, &[(0, 5000)]);
        assert!(send(&mut a, sent));
        borrowed.extend(receive(&mut [&mut a, &mut b], 1));
    }
    let mut copies = Vec::new();
    for nr in 0..10 {
        let sent = frame(&a, 2, nr, 30_000);
        assert!(send(&mut a, sent));
        copies.extend(receive(&mut [&mut a, &mut b], 1));
    }
    assert!(borrowed.iter().all(Mbuf::has_external) && copies.iter().all(|copy| copy.len() == 30_000));
    let private: Vec<_> = borrowed.into_iter().map(|frame| frame.into_private().unwrap()).collect();
    assert!(private.iter().all(|frame| flat(frame)[66..] == page.filled()[..5000]));
}

/// Makes a peer with station number 9 that lends frames, and has a pair with station 1. Returns the memory of
/// the rings, and a mapping of the peer's pool.
fn lending_peer(scratch: &Scratch, a: &mut LocalPort, pool: &PoolMemory) -> (OwnedFd, SharedMemory) {
    let (socket, memfd) = (dial(scratch), ring_memory());
    let memory = SharedMemory::map(&memfd, memory_bytes(RING).unwrap()).unwrap();
    let hello = Message {
        kind: Kind::Hello,
        station: 9,
        ring_bytes: RING,
        instance: 7,
        serial: 1,
        pool_bytes: pool.len() as u64,
    };
    tell(&socket, &hello, &[memfd.as_fd(), pool.memfd().as_fd()]).unwrap();
    for _ in 0..1000 {
        poll_once(a, 0);
        if let Heard::Message(message, descriptors) = hear(&socket) {
            assert_eq!((message.kind, message.station), (Kind::Welcome, 1));
            assert!(message.pool_bytes > 0 && descriptors.pool.is_some());
            return (socket, memory);
        }
    }
    panic!("no welcome");
}

/// The word in front of a lent frame with `bytes` bytes in the ring.
fn header(bytes: u64, references: u64) -> u64 {
    (1 | 4 | references << 8) << 32 | bytes
}

fn reference(offset: u64, bytes: u64) -> u64 {
    bytes << 32 | offset
}

#[test]
fn wrong_references_end_their_pair_and_no_other() {
    const POOL: usize = 1 << 20;
    let end = POOL as u64;
    let good = (header(66, 1), vec![reference(4096, 5000)]);
    let broken = [
        (header(66, 1), vec![reference(end - 4999, 5000)]),
        (header(66, 1), vec![reference(end, 1)]),
        (header(66, 1), vec![reference(u64::from(u32::MAX), 1)]),
        (header(66, 1), vec![reference(0, 0)]),
        (header(66, 2), vec![reference(0, 40_000), reference(0, 40_000)]),
        (header(66, 0), vec![]),
        (header(66, 9), vec![reference(0, 100); 9]),
        (header(13, 1), vec![reference(0, 100)]),
        (header(193, 1), vec![reference(0, 100)]),
        (header(66, 1) | 2 << 32, vec![reference(0, 100)]),
        // Only TCP frames without a checksum are lent.
        (header(66, 1) & !(1 << 32), vec![reference(0, 100)]),
        (header(66, 1) | 1 << 63, vec![reference(0, 100)]),
    ];
    for (nr, (header, references)) in std::iter::once(good).chain(broken).enumerate() {
        let scratch = Scratch::new();
        let (mut a, mut b) = paired(&scratch);
        let pool = PoolMemory::create(POOL).unwrap();
        let (_socket, memory) = lending_peer(&scratch, &mut a, &pool);
        memory.word(4096).store(header, Ordering::Relaxed);
        for (nr, reference) in references.iter().enumerate() {
            memory.word(4096 + 8 + nr * 8).store(*reference, Ordering::Relaxed);
        }
        memory.word(0).store(5 * 64, Ordering::Release);
        let (mut arrived, mut is_departed) = (0, false);
        for _ in 0..1000 {
            arrived += poll_once(&mut a, 0).len();
            is_departed |= a.next_departed().is_some();
        }
        match nr {
            // After the first record, the ring has only zeros, which are no record either.
            0 => assert_eq!((arrived, is_departed), (1, true)),
            _ => assert_eq!((arrived, is_departed, a.local_counters().broken), (0, true, 1), "case {nr}"),
        }
        let sent = frame(&a, 2, 1, 3000);
        assert!(send(&mut a, sent));
        assert_eq!(receive(&mut [&mut b], 1).len(), 1);
    }
}

/// The record of a lent frame is published only in part.
#[test]
fn half_a_record_ends_the_pair() {
    for (lines, broken) in [(1, 1), (2, 0)] {
        let scratch = Scratch::new();
        let mut a = scratch.open(1);
        let pool = PoolMemory::create(1 << 20).unwrap();
        let (_socket, memory) = lending_peer(&scratch, &mut a, &pool);
        memory.word(4096).store(header(66, 1), Ordering::Relaxed);
        memory.word(4096 + 8).store(reference(0, 5000), Ordering::Relaxed);
        memory.word(0).store(lines * 64, Ordering::Release);
        let arrived = poll_once(&mut a, 0).len();
        assert_eq!((arrived, a.local_counters().broken), (1 - broken as usize, broken));
    }
}

/// A burst of borrowed frames has as many bytes as a burst of copies.
#[test]
fn the_bytes_of_a_burst_are_limited() {
    let scratch = Scratch::new();
    let mut a = scratch.open(1);
    let pool = PoolMemory::create(1 << 20).unwrap();
    let (_socket, memory) = lending_peer(&scratch, &mut a, &pool);
    for nr in 0..8 {
        let at = 4096 + nr * 128;
        memory.word(at).store(header(66, 1), Ordering::Relaxed);
        memory.word(at + 8).store(reference(0, 60_000), Ordering::Relaxed);
    }
    memory.word(0).store(8 * 128, Ordering::Release);
    let bursts = [(); 3].map(|()| poll_once(&mut a, 0).len());
    assert_eq!(bursts, [5, 3, 0], "256 KiB, and the rest of a frame");
}

#[test]
fn more_lent_frames_than_allowed_end_the_pair() {
    for lent in [MOST, MOST + 1] {
        let scratch = Scratch::new();
        let mut a = open_large(&scratch, 1);
        let pool = PoolMemory::create(1 << 20).unwrap();
        let (_socket, memory) = lending_peer(&scratch, &mut a, &pool);
        for nr in 0..lent {
            let at = 4096 + nr * 128;
            memory.word(at).store(header(66, 1), Ordering::Relaxed);
            memory.word(at + 8).store(reference(0, 5000), Ordering::Relaxed);
        }
        memory.word(0).store(lent as u64 * 128, Ordering::Release);
        let mut kept = Vec::new();
        for _ in 0..1000 {
            kept.extend(poll_once(&mut a, 0));
        }
        assert!(kept.len() == MOST && kept.iter().all(Mbuf::has_external));
        assert_eq!(a.local_counters().broken, u64::from(lent > MOST));
    }
}

#[test]
fn a_reader_that_returns_frames_that_were_not_lent_ends_its_pair() {
    for (lent, returned) in [(1, 2), (1, u64::MAX), (2, 3)] {
        let scratch = Scratch::new();
        let (mut a, mut b) = paired(&scratch);
        let pool = PoolMemory::create(1 << 20).unwrap();
        let (_socket, memory) = lending_peer(&scratch, &mut a, &pool);
        let page = page(&a, 0);
        for _ in 0..lent {
            let sent = of_page(&a, 9, &page, &[(0, 5000)]);
            assert!(send(&mut a, sent));
        }
        // The words of the ring to which station 1 writes begin at 512.
        memory.word(512 + 128 + 8).store(returned, Ordering::Release);
        assert_eq!(departed(&mut a), (9, vec![]));
        assert_eq!(a.local_counters().broken, 1);
        drop(page);
        assert_eq!(free_pages(&a), 16, "lent frames are freed with their pair");
        let sent = frame(&a, 2, 1, 3000);
        assert!(send(&mut a, sent));
        assert_eq!(receive(&mut [&mut b], 1).len(), 1);
    }
}

#[test]
fn a_pool_that_is_none_is_refused() {
    let sealed = |bytes: u64| {
        let memfd = memfd_create("pool", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&memfd, bytes).unwrap();
        fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        memfd
    };
    let unsealed = memfd_create("pool", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&unsealed, 8192).unwrap();
    for (pool, pool_bytes, fits) in [
        (Some(sealed(8192)), 8192, true),
        (Some(sealed(8192)), 4096, false),
        (Some(sealed(8192)), u64::MAX, false),
        (Some(unsealed), 8192, false),
        (None, 8192, false),
    ] {
        let scratch = Scratch::new();
        let mut a = scratch.open(1);
        let (socket, memfd) = (dial(&scratch), ring_memory());
        let said =
            Message { kind: Kind::Hello, station: 9, ring_bytes: RING, instance: 7, serial: 1, pool_bytes };
        let descriptors: Vec<_> =
            std::iter::once(memfd.as_fd()).chain(pool.as_ref().map(AsFd::as_fd)).collect();
        tell(&socket, &said, &descriptors).unwrap();
        (0..1000).for_each(|_| drop(poll_once(&mut a, 0)));
        assert_eq!((a.local_counters().pairs, a.local_counters().refused), (fits.into(), (!fits).into()));
    }
}

/// A forked child that wrote to a page would change a message of its parent, or of a peer.
#[test]
fn pages_are_not_inherited() {
    let pool = PoolMemory::create(8192).unwrap();
    let mapped = PeerPool::map(pool.memfd(), 8192).unwrap();
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    for start in [crate::mempool::slab::Backing::start(&pool), mapped.start()] {
        let start = format!("{:x}-", start.addr());
        let mut lines = maps.lines().skip_while(|line| !line.starts_with(&start));
        let flags = lines.find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
        assert!(flags.split_whitespace().any(|flag| flag == "dc"), "{flags}");
    }
}

/// Memory for pages is allocated when the pages are used for the first time.
#[test]
fn unused_pages_take_no_memory() {
    let (pool, memory) = bulk_pool("pages", 128, 64 << 10);
    let memory = memory.unwrap();
    let blocks = || (pool.available(), rustix::fs::fstat(memory.memfd()).unwrap().st_blocks * 512);
    assert_eq!(blocks(), (128, 0));
    let pages = [(); 2].map(|()| Page::alloc(&pool).unwrap());
    let (free, bytes) = blocks();
    assert!(free == 126 && (128 << 10..256 << 10).contains(&bytes), "{free} {bytes}");
    drop(pages);
}

/// Another process of the same user gets the descriptor, and cannot change a page by it.
#[test]
fn only_the_port_writes_to_its_pages() {
    let pool = PoolMemory::create(8192).unwrap();
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses an unused address, and the mapping is not used.
    let mapped = unsafe { mmap(std::ptr::null_mut(), 8192, both, MapFlags::SHARED, pool.memfd(), 0) };
    assert_eq!(mapped.err(), Some(Errno::PERM));
    assert_eq!(rustix::io::pwrite(pool.memfd(), b"changed", 0), Err(Errno::PERM));
    assert_eq!(ftruncate(pool.memfd(), 4096), Err(Errno::PERM));
    assert!(PeerPool::map(pool.memfd(), 8192).is_ok());
}
