use std::cell::RefCell;

use super::*;

const PEER: &str = "10.0.0.2";
const OTHER: &str = "10.0.0.3";
const PORT: u16 = 7471;

thread_local! {
    /// What the handlers were told: the identifier, and the event.
    static TOLD: RefCell<Vec<(usize, String)>> = const { RefCell::new(Vec::new()) };
}

fn told() -> Vec<(usize, String)> {
    TOLD.take()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Makes a new identifier for each request, whose number is that of the listener and 100.
fn handler(id: usize, event: SidrEvent<'_>) -> Option<usize> {
    let text = match event {
        SidrEvent::Request { addresses, private_data, .. } => {
            assert_eq!(private_data.len(), SidrRequest::PRIVATE_BYTES - CmAddresses::LEN);
            format!("request of {} {}", addresses.source, private_data[0])
        }
        SidrEvent::Reply(reply, from) => format!("{} by {from}", reply.status),
        SidrEvent::TimedOut => "timed out".into(),
    };
    TOLD.with_borrow_mut(|told| told.push((id, text)));
    Some(id + 100)
}

/// A handler that makes no identifier.
fn unable(_id: usize, _event: SidrEvent<'_>) -> Option<usize> {
    None
}

fn claim(address: &str) -> Claim {
    Claim::new(ip(address), None, false)
}

/// Returns request `number` for the service at a port of 10.0.0.1.
fn request(port: u16, number: u32) -> SidrRequest {
    let addresses =
        CmAddresses { source: format!("{PEER}:{number}").parse().unwrap(), destination: ip("10.0.0.1") };
    let mut request = SidrRequest {
        request_id: number,
        transaction: 1000 + u64::from(number),
        ..SidrRequest::of_port(port)
    };
    request.private_data[..CmAddresses::LEN].copy_from_slice(&addresses.to_bytes());
    request.private_data[CmAddresses::LEN] = number as u8;
    request
}

impl Sidr {
    /// Returns the messages that were sent since the last call.
    fn sent(&self) -> Vec<(IpAddr, SidrMessage)> {
        let sent = std::mem::take(&mut *self.sent.lock().unwrap());
        sent.into_iter().map(|(to, mad)| (to, SidrMessage::parse(&mad).unwrap())).collect()
    }

    /// Returns the statuses of the replies that were sent since the last call, with their request IDs.
    fn replies(&self) -> Vec<(u32, u8)> {
        let of = |(to, message)| match message {
            SidrMessage::Reply(reply) => {
                assert_eq!((to, reply.transaction), (ip(PEER), 1000 + u64::from(reply.request_id)));
                (reply.request_id, reply.status)
            }
            SidrMessage::Request(_) => panic!("a request"),
        };
        self.sent().into_iter().map(of).collect()
    }

    /// Asks the peer, and returns the question.
    fn asks(&self, id: usize) -> SidrRequest {
        self.ask(id, ip(PEER), SidrRequest::of_port(PORT), handler);
        match self.sent()[..] {
            [(to, SidrMessage::Request(request))] if to == ip(PEER) => request,
            ref other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_question_is_repeated_and_then_given_up() {
    let sidr = Sidr::default();
    let question = sidr.asks(1);
    let begun = Instant::now();
    let mut at = begun;
    let mut pauses = Vec::new();
    let mut last = begun;
    for _ in 0..10_000 {
        at += Duration::from_millis(10);
        sidr.sweep(at);
        for (to, message) in sidr.sent() {
            assert_eq!((to, message), (ip(PEER), SidrMessage::Request(question)));
            pauses.push((at - last).as_millis() / 50 * 50);
            last = at;
        }
        if !TOLD.with_borrow(Vec::is_empty) {
            break;
        }
    }
    let mut expected = vec![250, 500, 1000, 2000];
    expected.resize(REPETITIONS as usize, 4000);
    assert_eq!(pauses, expected);
    assert_eq!(told(), [(1, "timed out".to_owned())]);
    assert_eq!((at - begun).as_secs(), 51);
    assert!(!sidr.waits());
    // An answer that comes too late reaches nobody.
    sidr.on_reply(ip(PEER), &question.refusal(SidrReply::REJECTED));
    assert!(told().is_empty());
}

#[test]
fn only_the_host_that_was_asked_answers_and_only_once() {
    let sidr = Sidr::default();
    let [first, second] = [sidr.asks(1), sidr.asks(2)];
    assert_ne!(first.request_id, second.request_id);
    assert_ne!(first.transaction, second.transaction);
    let answer = second.refusal(SidrReply::REJECTED);
    sidr.on_reply(ip(OTHER), &answer);
    sidr.on_reply(ip(PEER), &SidrReply { request_id: second.request_id.wrapping_add(7), ..answer });
    assert!(told().is_empty() && sidr.waits());
    sidr.on_reply(ip(PEER), &answer);
    sidr.on_reply(ip(PEER), &answer);
    assert_eq!(told(), [(2, format!("2 by {PEER}"))]);
    // An identifier that is destroyed waits for nothing.
    sidr.forget(1);
    sidr.on_reply(ip(PEER), &first.refusal(SidrReply::VALID));
    sidr.sweep(Instant::now() + Duration::from_secs(100));
    assert!(told().is_empty() && sidr.sent().is_empty() && !sidr.waits());
}

#[test]
fn a_request_id_in_use_is_not_given_again() {
    let sidr = Sidr::default();
    let first = sidr.asks(1);
    sidr.table().next_request_id = first.request_id;
    assert_eq!(sidr.asks(2).request_id, first.request_id.wrapping_add(1));
}

#[test]
fn a_request_goes_to_the_listener_of_its_port_and_address() {
    let sidr = Sidr::default();
    sidr.listen(1, PORT, claim("10.0.0.9"), 0, handler);
    sidr.listen(2, PORT, claim("10.0.0.1"), 0, handler);
    sidr.listen(3, PORT + 1, claim("0.0.0.0"), 0, handler);
    sidr.listen(4, PORT + 2, claim("10.0.0.9"), 0, handler);
    sidr.listen(5, PORT + 3, Claim::new(ip("::"), Some(true), false), 0, handler);
    sidr.listen(6, PORT + 4, Claim::new(ip("::"), Some(false), false), 0, handler);
    for (port, id) in [(PORT, 2), (PORT + 1, 3), (PORT + 4, 6)] {
        sidr.on_request(ip(PEER), &request(port, port.into()));
        assert_eq!(told(), [(id, format!("request of {PEER}:{port} {}", port as u8))]);
    }
    assert!(sidr.sent().is_empty());
    // No listener of the port has the address, or nobody listens at the port.
    for (port, status) in
        [(PORT + 2, SidrReply::REJECTED), (PORT + 3, SidrReply::REJECTED), (PORT + 9, SidrReply::UNSUPPORTED)]
    {
        sidr.on_request(ip(PEER), &request(port, port.into()));
        assert_eq!(sidr.replies(), [(port.into(), status)]);
    }
    // Another port space, and a request without addresses.
    let foreign = SidrRequest { service: 0x0106_0000 | u64::from(PORT), ..request(PORT, 8) };
    sidr.on_request(ip(PEER), &foreign);
    assert_eq!(sidr.replies(), [(8, SidrReply::UNSUPPORTED)]);
    let mut nameless = request(PORT, 9);
    nameless.private_data[1] = 0;
    sidr.on_request(ip(PEER), &nameless);
    assert_eq!(sidr.replies(), [(9, SidrReply::REJECTED)]);
    assert!(told().is_empty());
    sidr.forget(2);
    sidr.on_request(ip(PEER), &request(PORT, 10));
    assert_eq!(sidr.replies(), [(10, SidrReply::REJECTED)]);
    sidr.forget(1);
    sidr.on_request(ip(PEER), &request(PORT, 11));
    assert_eq!(sidr.replies(), [(11, SidrReply::UNSUPPORTED)]);
}

#[test]
fn a_repeated_request_is_one_request_and_gets_the_same_answer() {
    let sidr = Sidr::default();
    sidr.listen(1, PORT, claim("0.0.0.0"), 0, handler);
    let question = request(PORT, 5);
    let origin = Origin::of(ip(PEER), &question);
    for _ in 0..3 {
        sidr.on_request(ip(PEER), &question);
    }
    assert_eq!(told().len(), 1);
    assert!(sidr.sent().is_empty());
    let answer = SidrReply { private_data: [7; 136], ..origin.answer(SidrReply::VALID) };
    assert!(sidr.answer(&origin, &answer));
    assert_eq!(sidr.sent(), [(ip(PEER), SidrMessage::Reply(answer))]);
    assert!(!sidr.answer(&origin, &origin.answer(SidrReply::REJECTED)), "it is decided");
    assert!(sidr.sent().is_empty());
    sidr.on_request(ip(PEER), &question);
    assert_eq!(sidr.sent(), [(ip(PEER), SidrMessage::Reply(answer))]);
    assert!(told().is_empty());
    // The same numbers from another host, and other numbers from the same host, are other requests.
    sidr.on_request(ip(OTHER), &question);
    sidr.on_request(ip(PEER), &SidrRequest { transaction: 1, ..question });
    assert_eq!(told().len(), 2);
    // An answer is kept for a while only.
    sidr.table().answers[0].kept_until = Instant::now();
    sidr.on_request(ip(PEER), &question);
    assert_eq!(told().len(), 1);
}

#[test]
fn a_listener_has_a_limited_number_of_undecided_requests() {
    let sidr = Sidr::default();
    sidr.listen(1, PORT, claim("0.0.0.0"), 3, handler);
    sidr.listen(2, PORT + 1, claim("0.0.0.0"), usize::MAX, handler);
    let origin = |number| Origin::of(ip(PEER), &request(PORT, number));
    for number in 0..BACKLOG as u32 + 10 {
        sidr.on_request(ip(PEER), &request(PORT, number));
    }
    assert_eq!(told().len(), BACKLOG);
    assert!(sidr.sent().is_empty(), "the others ask again");
    assert!(sidr.answer(&origin(3), &origin(3).answer(SidrReply::REJECTED)));
    sidr.on_request(ip(PEER), &request(PORT, 5000));
    sidr.on_request(ip(PEER), &request(PORT, 5001));
    assert_eq!(told().len(), 1);
    assert_eq!(sidr.table().listeners[&(PORT + 1)][0].backlog, MAX_BACKLOG);
    // The number of kept answers is limited, too.
    for number in (0..BACKLOG as u32).filter(|number| *number != 3).chain([5000]) {
        assert!(sidr.answer(&origin(number), &origin(number).answer(SidrReply::VALID)));
    }
    assert_eq!(sidr.table().answers.len(), MAX_ANSWERS);
    assert!(sidr.table().undecided.is_empty() && sidr.table().listeners[&PORT][0].undecided == 0);
}

#[test]
fn a_request_for_which_no_identifier_can_be_made_is_rejected() {
    let sidr = Sidr::default();
    sidr.listen(1, PORT, claim("0.0.0.0"), 0, unable);
    sidr.on_request(ip(PEER), &request(PORT, 5));
    assert_eq!(sidr.replies(), [(5, SidrReply::REJECTED)]);
    assert!(sidr.table().undecided.is_empty());
}

/// A listener may have the address of an identifier that was destroyed. The undecided requests of that
/// identifier do not count for the listener.
#[test]
fn requests_of_an_earlier_identifier_do_not_count() {
    let sidr = Sidr::default();
    sidr.listen(1, PORT, claim("0.0.0.0"), 0, handler);
    let early = request(PORT, 5);
    sidr.on_request(ip(PEER), &early);
    sidr.forget(1);
    sidr.listen(1, PORT, claim("0.0.0.0"), 0, handler);
    let origin = Origin::of(ip(PEER), &early);
    assert!(sidr.answer(&origin, &origin.answer(SidrReply::REJECTED)));
    assert_eq!(told().len(), 1);
    sidr.on_request(ip(PEER), &request(PORT, 6));
    assert_eq!(told().len(), 1, "the listener still takes requests");
}
