use std::sync::Arc;

use dp::Region;

use super::*;
use crate::memory::{Base, MemoryTable, RegisterOptions, Registration};
use crate::queues::{
    CompletionQueue, ContextLimits, CqOptions, PdShared, QpInit, RemoteAddr, Resources, test_objects,
};

const REMOTE: RemoteAddr = RemoteAddr { addr: 0, rkey: 1 };
const READ: SendOp = SendOp::Read { remote: REMOTE };
const WRITE: SendOp = SendOp::Write { remote: REMOTE };
const FETCH_ADD: SendOp = SendOp::Atomic { remote: REMOTE, op: AtomicOp::FetchAdd { add: 1, mask: 0 } };
const SWAP: SendOp = SendOp::Atomic { remote: REMOTE, op: AtomicOp::Swap { swap: 1 } };

/// Returns a region that starts at tagged offset 0 and contains the bytes 0, 1, 2, ...
fn region(pd: &PdShared, access: Access) -> Registration {
    let bytes: Vec<u8> = (0..64).collect();
    let options =
        RegisterOptions { pd: pd.id(), stream: None, access, base: Base::Zero, key: 0, keep: false };
    let region = pd.resources.memory.register(Arc::new(Region::new(64).unwrap()), &options).unwrap();
    region.memory().write_at(0, &bytes).unwrap();
    region
}

/// Returns a request whose elements are ranges of `region`, with these offsets and lengths.
fn request(op: SendOp, flags: SendFlags, region: &Registration, elements: &[(u64, u32)]) -> SendRequest {
    let lkey = region.stag().0;
    let sg_list = elements.iter().map(|&(addr, length)| Sge { addr, length, lkey }).collect();
    SendRequest { wr_id: 1, op, sg_list, flags }
}

/// `find_registered` looks up the element only for a Send or Write of one element that may start at once. The
/// memory of the element must be registered.
#[test]
fn one_registered_element_is_found() {
    let (_, pd, cq) = test_objects();
    let region = region(&pd, Access::LOCAL_WRITE);
    let config = QpConfig::new(&pd, &QpInit::new(&cq)).unwrap();
    let none = SendFlags::empty();
    for (op, flags, elements, is_found) in [
        (SendOp::Send, none, &[(8, 16)][..], true),
        (WRITE, SendFlags::SIGNALED | SendFlags::SOLICITED, &[(0, 64)], true),
        (SendOp::SendInvalidate { rkey: 1 }, none, &[(0, 1)], true),
        (SendOp::Send, SendFlags::FENCE, &[(8, 16)], false),
        (SendOp::Send, SendFlags::INLINE, &[(8, 16)], false),
        (SendOp::Send, none, &[(8, 16), (0, 4)], false),
        (SendOp::Send, none, &[], false),
        (SendOp::SendImmediate { data: [0; 4] }, none, &[(8, 16)], false),
        (READ, none, &[(8, 16)], false),
    ] {
        let found = config.find_registered(&request(op, flags, &region, elements)).unwrap();
        let expected = is_found.then(|| elements[0].1);
        assert_eq!(found.map(|(length, _)| length), expected, "{op:?} {flags:?}");
    }
    let beyond = config.find_registered(&request(SendOp::Send, none, &region, &[(60, 5)]));
    assert!(matches!(beyond, Err(VerbsError::LocalProtection(_))));
    let config = QpConfig::new(&pd, &QpInit { max_send_sge: 0, ..QpInit::new(&cq) }).unwrap();
    assert!(config.find_registered(&request(SendOp::Send, none, &region, &[(8, 16)])).unwrap().is_none());
}

/// If `find_registered` accepts a request, `prepare` accepts it with the same length. If `find_registered`
/// refuses a request, `prepare` refuses it with the same error.
#[test]
fn both_checks_have_the_same_result() {
    let (_, pd, cq) = test_objects();
    let regions = [Access::LOCAL_WRITE, Access::empty()].map(|access| region(&pd, access));
    let other_pd = PdShared::new(&pd.resources).unwrap();
    let foreign = region(&other_pd, Access::LOCAL_WRITE);
    let config = QpConfig::new(&pd, &QpInit::new(&cq)).unwrap();
    let attributes = Attributes::new();
    let (mut found, mut refused, mut others) = (0, 0, 0);
    let mut dice = testkit::dice::Dice::xorshift(1);
    for _ in 0..20_000 {
        let op = match dice.below(6) {
            0 => SendOp::SendInvalidate { rkey: 1 },
            1 => READ,
            2 | 3 => SendOp::Send,
            _ => WRITE,
        };
        let flags = SendFlags::from_bits_truncate(dice.number() as u8 & dice.number() as u8);
        let region = if dice.below(8) == 0 { &foreign } else { &regions[dice.below(2) as usize] };
        let elements = [(); 2].map(|()| (dice.below(66), dice.below(66) as u32));
        let mut request = request(op, flags, region, &elements[..[1, 1, 1, 0, 2][dice.below(5) as usize]]);
        if let Some(sge) = request.sg_list.first_mut()
            && dice.below(16) == 0
        {
            sge.lkey ^= 1 << dice.below(32);
        }
        let general = config.prepare(&request, &attributes);
        match config.find_registered(&request) {
            Ok(None) => others += 1,
            Ok(Some((length, _))) => {
                found += 1;
                assert!(matches!(general, Ok((len, _, None)) if len == length), "{request:?}");
            }
            Err(error) => {
                refused += 1;
                assert_eq!(format!("{:?}", general.map(drop)), format!("{:?}", Err::<(), _>(error)));
            }
        }
    }
    assert!(found > 1000 && refused > 1000 && others > 1000, "{found} {refused} {others}");
}

/// The bytes of an inline request are copied when the request is posted, element by element. The request is
/// ready unless it is fenced or consists of more than one message.
#[test]
fn inline_bytes_are_copied() {
    let (_, pd, cq) = test_objects();
    let region = region(&pd, Access::LOCAL_WRITE);
    let config = QpConfig::new(&pd, &QpInit { max_inline: 6, ..QpInit::new(&cq) }).unwrap();
    let attributes = Attributes::new();
    for (op, flags, is_ready) in [
        (SendOp::Send, SendFlags::INLINE, true),
        (WRITE, SendFlags::INLINE, true),
        (SendOp::Send, SendFlags::INLINE | SendFlags::FENCE, false),
        (SendOp::SendImmediate { data: [0; 4] }, SendFlags::INLINE, false),
    ] {
        let request = request(op, flags, &region, &[(8, 2), (40, 4)]);
        let (length, prepared, inline) = config.prepare(&request, &attributes).unwrap();
        assert_eq!((length, prepared.is_ready()), (6, is_ready), "{op:?} {flags:?}");
        assert_eq!(inline.unwrap()[..], [8, 9, 40, 41, 42, 43]);
    }
    let too_long = request(SendOp::Send, SendFlags::INLINE, &region, &[(8, 7)]);
    assert!(matches!(config.prepare(&too_long, &attributes), Err(VerbsError::TooLong { got: 7, max: 6 })));
    let (length, prepared, inline) =
        config.prepare(&request(SendOp::Send, SendFlags::empty(), &region, &[(8, 7)]), &attributes).unwrap();
    assert!(length == 7 && !prepared.is_ready() && inline.is_none());
}

/// The caller may provide the bytes only for a Send or Write without elements.
#[test]
fn bytes_of_the_caller_are_checked() {
    let (_, pd, cq) = test_objects();
    let region = region(&pd, Access::LOCAL_WRITE);
    let config = QpConfig::new(&pd, &QpInit { max_inline: 6, ..QpInit::new(&cq) }).unwrap();
    let attributes = Attributes::new();
    let check = |op, elements: &[(u64, u32)], length| {
        config.check_bytes(&request(op, SendFlags::empty(), &region, elements), length, &attributes)
    };
    assert!(check(SendOp::Send, &[], 6).is_ok() && check(WRITE, &[], 0).is_ok());
    assert!(matches!(check(SendOp::Send, &[], 7), Err(VerbsError::TooLong { got: 7, max: 6 })));
    assert!(matches!(check(SendOp::Send, &[(0, 1)], 6), Err(VerbsError::Invalid(_))));
    assert!(matches!(check(READ, &[], 6), Err(VerbsError::Invalid(_))));
}

/// A request is refused, for example, if its message is not enabled, if the ORD is 0, if the buffer gives no
/// right to write, or if a grant is missing.
#[test]
fn a_request_that_is_not_allowed_is_refused() {
    let (_, pd, cq) = test_objects();
    let [writable, constant] = [Access::LOCAL_WRITE, Access::empty()].map(|access| region(&pd, access));
    let init = QpInit { extensions: Extensions::ATOMICS, max_send_sge: 2, ..QpInit::new(&cq) };
    let config = QpConfig::new(&pd, &init).unwrap();
    let unconnected = Attributes::new();
    let [connected, without_reads] = [1, 0].map(|ord| {
        let attributes = Attributes::new();
        attributes.agree((ord, 0), false, false);
        attributes
    });
    let check = |op, region, elements: &[(u64, u32)], attributes| {
        config.prepare(&request(op, SendFlags::empty(), region, elements), attributes).map(drop)
    };
    for op in [READ, FETCH_ADD] {
        assert!(check(op, &writable, &[(0, 8)], &connected).is_ok());
        assert!(check(op, &writable, &[(0, 8)], &unconnected).is_ok(), "the stream looks again");
        assert!(matches!(check(op, &writable, &[(0, 8)], &without_reads), Err(VerbsError::Invalid(_))));
        let constant = check(op, &constant, &[(0, 8)], &connected);
        assert!(matches!(constant, Err(VerbsError::LocalProtection(_))));
    }
    assert!(check(SendOp::Send, &constant, &[(0, 8)], &without_reads).is_ok());
    for elements in [&[][..], &[(0, 4)], &[(0, 16)]] {
        let length = check(FETCH_ADD, &writable, elements, &connected);
        assert!(matches!(length, Err(VerbsError::AtomicLength { .. })));
    }
    let two = &[(0, 4), (8, 4)][..];
    assert!(check(READ, &writable, two, &connected).is_ok());
    let atomic = check(FETCH_ADD, &writable, two, &connected);
    assert!(matches!(atomic, Err(VerbsError::TooManySge { got: 2, max: 1 })));
    let three = check(READ, &writable, &[(0, 4); 3], &connected);
    assert!(matches!(three, Err(VerbsError::TooManySge { got: 3, max: 2 })));
    for op in [SWAP, SendOp::Immediate { data: [0; 8] }, SendOp::SendImmediate { data: [0; 4] }] {
        let elements = if matches!(op, SendOp::Atomic { .. }) { &[(0, 8)][..] } else { &[] };
        assert!(matches!(check(op, &writable, elements, &connected), Err(VerbsError::Invalid(_))), "{op:?}");
    }
    let config = QpConfig::new(&pd, &QpInit { grants: QpGrants::BIND_WINDOWS, ..init }).unwrap();
    assert!(config.check_grant(QpGrants::BIND_WINDOWS).is_ok());
    assert!(config.check_grant(QpGrants::FAST_REGISTER).is_err());
}

/// A Send with Immediate is allowed only if the endpoints have agreed on InfiniBand's semantics. Immediate
/// Data whose last four bytes are 0xFF is allowed only if they have not agreed. Before the connection is
/// established, both may be posted.
#[test]
fn messages_of_infinibands_semantics_need_their_agreement() {
    let (_, pd, cq) = test_objects();
    let region = region(&pd, Access::empty());
    let config = QpConfig::new(&pd, &QpInit::new(&cq)).unwrap();
    for (agreed, with_send, all_ones) in
        [(None, true, true), (Some(false), false, true), (Some(true), true, false)]
    {
        let attributes = Attributes::new();
        agreed.into_iter().for_each(|agreed| attributes.agree((1, 1), agreed, false));
        let check = |op| config.prepare(&request(op, SendFlags::empty(), &region, &[]), &attributes).is_ok();
        assert_eq!(check(SendOp::SendImmediate { data: [0; 4] }), with_send, "{agreed:?}");
        assert_eq!(check(SendOp::Immediate { data: [0xFF; 8] }), all_ones, "{agreed:?}");
    }
}

/// If memory is checked late, a request with invalid memory or a wrong length is accepted. Every other fault
/// is refused.
#[test]
fn a_fault_is_accepted_where_memory_is_checked_late() {
    for late in [false, true] {
        let memory = MemoryTable::new(16, [1; 32]);
        let resources = Resources::new(ContextLimits::default(), memory, late, None).unwrap();
        let pd = PdShared::new(&resources).unwrap();
        let cq = CompletionQueue::new(Arc::clone(&resources), &CqOptions::new(16)).unwrap();
        let region = region(&pd, Access::empty());
        let config = QpConfig::new(&pd, &QpInit::new(&cq)).unwrap();
        let request = request(SendOp::Send, SendFlags::empty(), &region, &[(0, 9)]);
        let accept = |error| config.accept_fault(&request, error);
        let memory = accept(VerbsError::LocalProtection(String::new()));
        let length = accept(VerbsError::AtomicLength { got: 9 });
        if late {
            assert!(matches!(memory, Ok((9, PreparedPayload::InvalidMemory, None))));
            assert!(matches!(length, Ok((9, PreparedPayload::InvalidLength, None))));
        } else {
            assert!(matches!(memory, Err(VerbsError::LocalProtection(_))));
            assert!(matches!(length, Err(VerbsError::AtomicLength { got: 9 })));
        }
        assert!(matches!(accept(VerbsError::QueueFull("send")), Err(VerbsError::QueueFull(_))));
    }
}
