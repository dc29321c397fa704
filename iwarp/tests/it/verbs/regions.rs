//! Tests regions of no bytes, and regions of the caller's memory whose tagged offsets do not start at their
//! address. Also tests that queue pair numbers are valid and are not reused soon.

use crate::common::{ALL, Pair};
use iwarp::memory::{Access, Base, WindowKind};
use iwarp::rdmap::AtomicOp;
use iwarp::verbs::{
    MemoryRegion, MrOptions, ProtectionDomain, QpGrants, QpInit, RecvRequest, RemoteAddr, SendFlags, SendOp,
    SendRequest, Sge, VerbsError, WcStatus,
};

/// Returns a region of no bytes at the address `addr`.
fn empty_at(pd: &ProtectionDomain, addr: usize, access: Access) -> MemoryRegion {
    // SAFETY: no byte is registered, so no memory has to stay mapped.
    unsafe { pd.reg_user_mr(std::ptr::without_provenance_mut(addr), 0, &MrOptions::new(access)) }.unwrap()
}

/// Sends, Reads and Writes of no bytes succeed with a region of no bytes. The address may be inside or
/// outside the region, and the key may belong to another region or be invalid.
#[test]
fn messages_of_no_bytes_need_no_memory() {
    let (mut pair, c) = Pair::connected();
    let (near, far) = (empty_at(&pair.a.pd, 0x1000, ALL), empty_at(&pair.b.pd, 0x2000, ALL));
    let (local, remote) = pair.regions(64);
    assert_eq!((near.len(), near.is_empty(), near.addr()), (0, true, 0x1000));
    assert!(near.is_valid() && near.rkey() != 0 && near.rkey() == near.lkey());
    let sources = [
        near.sge(0, 0),
        Sge { addr: 0x9999, ..near.sge(0, 0) },
        local.sge(0, 0),
        Sge { addr: local.addr() + 1000, length: 0, lkey: local.lkey() },
        Sge { addr: 1, length: 0, lkey: 0 },
    ];
    let targets = [
        RemoteAddr { addr: far.addr(), rkey: far.rkey() },
        RemoteAddr { addr: 0x9999, rkey: far.rkey() },
        RemoteAddr { addr: remote.addr() + 1000, rkey: remote.rkey() },
        RemoteAddr { addr: 0, rkey: 0 },
    ];
    let mut wr_id = 0;
    for sge in sources {
        for flags in [SendFlags::SIGNALED, SendFlags::SIGNALED | SendFlags::INLINE] {
            c.qp_b.post_recv(&RecvRequest::new(wr_id, far.sge(0, 0))).unwrap();
            c.qp_a.post_send(&SendRequest::new(wr_id, SendOp::Send, sge).flags(flags)).unwrap();
            assert_eq!((pair.wc_a().status, pair.wc_b().byte_len), (WcStatus::Success, 0));
            for remote in targets {
                for op in [SendOp::Write { remote }, SendOp::Read { remote }] {
                    wr_id += 1;
                    c.qp_a.post_send(&SendRequest::new(wr_id, op, sge).flags(flags)).unwrap();
                    let wc = pair.wc_a();
                    assert_eq!((wc.wr_id, wc.status, wc.byte_len), (wr_id, WcStatus::Success, 0));
                }
            }
        }
    }
    assert_eq!((c.qp_a.error(), c.qp_b.error()), (None, None));
    // An access with bytes is outside such a region. The post refuses local memory, and remote memory ends
    // the stream.
    let one = SendRequest::new(1, SendOp::Send, near.sge(0, 1));
    assert!(matches!(c.qp_a.post_send(&one), Err(VerbsError::LocalProtection(_))));
    let write = SendOp::Write { remote: targets[0] };
    c.qp_a.post_send(&SendRequest::new(2, write, local.sge(0, 1))).unwrap();
    let error = pair.until(|_| c.qp_b.error());
    assert_eq!((error.layer, error.etype, error.code), (1, 1, 1));
    near.deregister().unwrap();
}

/// The tagged offsets of a region may start at 0 or at any other value. Local elements, the peer's requests,
/// atomics, inline bytes and windows use these offsets, and not the region's address.
#[test]
fn a_region_is_addressed_where_its_user_says() {
    for base in [Base::Zero, Base::Iova(0x7_0000_0000), Base::Iova(u64::MAX - 4096), Base::VirtualAddress] {
        let (mut pair, _listener) = Pair::listening();
        let init = QpInit { grants: QpGrants::BIND_WINDOWS, ..QpInit::new(&pair.a.cq) };
        let (qp_a, qp_b) = (pair.a.pd.create_qp(&init).unwrap(), pair.b.qp());
        let c = pair.connect_qps(qp_a, qp_b, &Default::default(), &Default::default());
        let all = ALL | Access::REMOTE_ATOMIC | Access::MW_BIND;
        let mut memory = [vec![0_u64; 512], vec![0_u64; 512]];
        let starts = memory.each_mut().map(|bytes| bytes.as_mut_ptr().cast::<u8>());
        let options = MrOptions { base, ..MrOptions::new(all) };
        // SAFETY: the vector stays allocated until the end of the block and is dropped after the region.
        // Nobody accesses the vector's bytes except through the region.
        let near = unsafe { pair.a.pd.reg_user_mr(starts[0], 4096, &options) }.unwrap();
        // SAFETY: as for `near`.
        let far = unsafe { pair.b.pd.reg_user_mr(starts[1], 4096, &options) }.unwrap();
        let start = match base {
            Base::Zero => [0; 2],
            Base::Iova(iova) => [iova; 2],
            Base::VirtualAddress => starts.map(|start| start.addr() as u64),
        };
        assert_eq!([near.addr(), far.addr()], start);
        near.write_at(0, b"to be sent").unwrap();
        far.write_at(8, &7_u64.to_ne_bytes()).unwrap();
        let own = |at: u64, length| Sge { addr: start[0] + at, length, lkey: near.lkey() };
        let theirs = |at: u64| RemoteAddr { addr: start[1] + at, rkey: far.rkey() };
        let recv = Sge { addr: start[1] + 100, length: 16, lkey: far.lkey() };
        c.qp_b.post_recv(&RecvRequest::new(1, recv)).unwrap();
        c.qp_b.post_recv(&RecvRequest::new(2, Sge { addr: start[1] + 120, ..recv })).unwrap();
        let add = AtomicOp::FetchAdd { add: 1, mask: 0 };
        let inline = SendFlags::SIGNALED | SendFlags::INLINE;
        let window = pair.a.pd.alloc_mw(WindowKind::Type1).unwrap();
        c.qp_a
            .post_send_list(&[
                SendRequest::new(1, SendOp::Write { remote: theirs(200) }, own(0, 10)),
                SendRequest::new(2, SendOp::Send, own(0, 10)),
                SendRequest::new(3, SendOp::Send, own(6, 4)).flags(inline),
                SendRequest::new(4, SendOp::Atomic { remote: theirs(8), op: add }, own(32, 8)),
                SendRequest::new(5, SendOp::Read { remote: theirs(200) }, own(64, 10)),
            ])
            .unwrap();
        let rkey = c.qp_a.bind_mw(6, &window, (&near, 0, 64), Access::REMOTE_READ).unwrap();
        for wr_id in 1..7 {
            let wc = pair.wc_a();
            assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success), "{base:?}");
        }
        assert_eq!((pair.wc_b().byte_len, pair.wc_b().byte_len), (10, 4));
        let read = |region: &MemoryRegion, at| crate::common::read_bytes(region, at, 10);
        assert_eq!((read(&far, 200), read(&far, 100), read(&near, 64)), {
            let sent = b"to be sent".to_vec();
            (sent.clone(), sent.clone(), sent)
        });
        assert_eq!(&read(&far, 120)[..4], b"sent");
        assert_eq!(
            (&read(&near, 32)[..8], &read(&far, 8)[..8]),
            (&7_u64.to_ne_bytes()[..], &8_u64.to_ne_bytes()[..])
        );
        // The peer reads through the window, at the same offsets.
        let from = SendOp::Read { remote: RemoteAddr { addr: start[0], rkey } };
        c.qp_b.post_send(&SendRequest::new(7, from, far.sge(300, 10))).unwrap();
        assert_eq!((pair.wc_b().status, read(&far, 300)), (WcStatus::Success, b"to be sent".to_vec()));
        // The address of the bytes is no valid offset, unless the offsets start at that address.
        let by_address = Sge { addr: starts[0].addr() as u64, length: 10, lkey: near.lkey() };
        let posted = c.qp_a.post_send(&SendRequest::new(8, SendOp::Write { remote: theirs(0) }, by_address));
        assert_eq!(posted.is_ok(), base == Base::VirtualAddress, "{base:?}");
        pair.run_us(1000);
        drop((near, far, c));
    }
}

/// Numbers of queue pairs fit into 24 bits, are not 0, and differ from the numbers of queue pairs that were
/// dropped recently.
#[test]
fn numbers_of_queue_pairs_are_not_used_again_soon() {
    let pair = Pair::new(&Default::default());
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..1000 {
        let num = pair.a.qp().qp_num();
        assert!(num != 0 && num < 1 << 24 && seen.insert(num));
    }
}
