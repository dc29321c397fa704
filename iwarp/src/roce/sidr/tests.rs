use proptest::prelude::*;

use super::*;

/// Returns bytes that are all different, from `first` on.
fn counted<const N: usize>(first: u8) -> [u8; N] {
    std::array::from_fn(|at| first.wrapping_add(at as u8))
}

fn request() -> SidrRequest {
    SidrRequest {
        transaction: 0x1112_1314_1516_1718,
        request_id: 0x2122_2324,
        pkey: 0x3132,
        service: 0x4142_4344_4546_4748,
        private_data: counted(0x60),
    }
}

fn reply() -> SidrReply {
    SidrReply {
        transaction: 0x1112_1314_1516_1718,
        request_id: 0x2122_2324,
        status: 0x31,
        qpn: Qpn::new(0x0051_5253).unwrap(),
        service: 0x4142_4344_4546_4748,
        qkey: 0x6162_6364,
        private_data: counted(0x70),
    }
}

/// The positions are those of Linux's `ib_mad.h` and `ibta_vol1_c12.h`. Each field has different bytes.
#[test]
fn each_field_of_a_request_is_in_its_place() {
    let mut expected = vec![1, 7, 2, 3, 0, 0, 0, 0, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18];
    expected.extend([0, 0x17, 0, 0, 0, 0, 0, 0]);
    expected.extend([0x21, 0x22, 0x23, 0x24, 0x31, 0x32, 0, 0]);
    expected.extend([0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48]);
    expected.extend(counted::<216>(0x60));
    assert_eq!(request().to_bytes()[..], expected);
    assert_eq!(SidrMessage::parse(&expected), Ok(SidrMessage::Request(request())));
}

#[test]
fn each_field_of_a_reply_is_in_its_place() {
    let mut expected = vec![1, 7, 2, 3, 0, 0, 0, 0, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18];
    expected.extend([0, 0x18, 0, 0, 0, 0, 0, 0]);
    expected.extend([0x21, 0x22, 0x23, 0x24, 0x31, 0, 0, 0]);
    expected.extend([0x51, 0x52, 0x53, 0, 0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48]);
    expected.extend([0x61, 0x62, 0x63, 0x64]);
    expected.extend([0; 72]);
    expected.extend(counted::<136>(0x70));
    assert_eq!(reply().to_bytes()[..], expected);
    assert_eq!(SidrMessage::parse(&expected), Ok(SidrMessage::Reply(reply())));
    // Additional information, its length, and reserved fields are not read.
    for at in [4, 7, 18, 23, 29, 31, 35, 48, 119] {
        let mut with = expected.clone();
        with[at] = 0xff;
        assert_eq!(SidrMessage::parse(&with), Ok(SidrMessage::Reply(reply())), "{at}");
    }
}

#[test]
fn other_management_datagrams_are_told_from_these() {
    let whole = request().to_bytes();
    for (at, value, fault) in [
        (0, 2, MadFault::Version { base: 2, class: 2 }),
        (1, 4, MadFault::Class(4)),
        (2, 1, MadFault::Version { base: 1, class: 1 }),
        (3, 0x83, MadFault::Method(0x83)),
        (16, 1, MadFault::Attribute(0x0117)),
        (17, 0x10, MadFault::Attribute(0x0010)),
    ] {
        let mut other = whole;
        other[at] = value;
        assert_eq!(SidrMessage::parse(&other), Err(fault));
    }
    assert_eq!(SidrMessage::parse(&whole[..255]), Err(MadFault::Length(255)));
    assert_eq!(SidrMessage::parse(&[&whole[..], &[0]].concat()), Err(MadFault::Length(257)));
}

#[test]
fn a_port_is_a_service_of_the_port_space_of_datagrams() {
    let request = SidrRequest::of_port(7471);
    assert_eq!((request.service, request.pkey), (0x0111_1d2f, 0xffff));
    assert_eq!(request.port(), Some(7471));
    for service in [0x0106_1d2f, 0x1_0111_1d2f, 0x1d2f, 0x013f_1d2f] {
        assert_eq!(SidrRequest { service, ..request }.port(), None, "{service:#x}");
    }
}

#[test]
fn a_refusal_answers_its_request() {
    let refusal = request().refusal(SidrReply::REJECTED);
    let SidrReply { transaction, request_id, status, qpn, service, qkey, private_data } = refusal;
    assert_eq!((transaction, request_id), (request().transaction, request().request_id));
    assert_eq!((status, qpn.get(), service, qkey), (2, 0, request().service, 0));
    assert_eq!(private_data, [0; 136]);
}

proptest! {
    #[test]
    fn a_message_comes_back_as_it_was(
        (transaction, request_id, service) in any::<(u64, u32, u64)>(),
        (pkey, status, qkey, number) in (any::<u16>(), any::<u8>(), any::<u32>(), 0..=0xff_ffff_u32),
        data in prop::collection::vec(any::<u8>(), 216),
    ) {
        let request = SidrRequest {
            transaction,
            request_id,
            pkey,
            service,
            private_data: data[..].try_into().unwrap(),
        };
        let reply = SidrReply {
            transaction,
            request_id,
            status,
            qpn: Qpn::new(number).unwrap(),
            service,
            qkey,
            private_data: data[..136].try_into().unwrap(),
        };
        for message in [SidrMessage::Request(request), SidrMessage::Reply(reply)] {
            prop_assert_eq!(SidrMessage::parse(&message.to_bytes()), Ok(message));
        }
    }

    #[test]
    fn what_is_accepted_is_the_message_that_is_sent(bytes in prop::collection::vec(any::<u8>(), 256)) {
        let mut bytes = bytes;
        bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
        let attribute = 0x17 + (bytes[17] & 1);
        bytes[16..18].copy_from_slice(&[0, attribute]);
        let message = SidrMessage::parse(&bytes).unwrap();
        prop_assert_eq!(SidrMessage::parse(&message.to_bytes()), Ok(message));
    }
}
