use super::*;
use crate::secrets::Secrets;

const MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 9]);
const OTHER: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 8]);

fn at(ms: i64) -> Instant {
    Instant::from_millis(ms)
}

fn ip(n: u8) -> IpAddress {
    IpAddress::v4(10, 0, 0, n)
}

fn table(limit: usize) -> Neighbors {
    Neighbors::new(limit, KnownNeighbors::default(), Secrets::new([0; 32]).table_state())
}

fn answer(n: u8, mac: EthernetAddress) -> Heard {
    Heard { ip: ip(n), mac: Some(mac), creates: false, overrides: true, confirms: true }
}

/// Removes all queries that wait to be sent, as if they were sent, and returns them.
fn queries(neighbors: &mut Neighbors) -> Vec<Query> {
    let mut all = Vec::new();
    while let Some(query) = neighbors.query() {
        neighbors.query_sent();
        all.push(query);
    }
    all
}

#[test]
fn a_derived_address_is_known_at_once_and_nobody_changes_it() {
    let known = KnownNeighbors { derived: Some([2, 7]), ..KnownNeighbors::default() };
    let mut n = Neighbors::new(8, known, Secrets::new([0; 32]).table_state());
    let derived = EthernetAddress([2, 7, 10, 0, 0, 1]);
    let lie = Heard { creates: true, ..answer(1, OTHER) };
    for ms in [0, 1, 60_000] {
        assert!(!n.heard(at(ms), &lie));
        n.doubt(at(ms), &ip(1));
        assert_eq!((n.resolve(at(ms), ip(1)), n.known(&ip(1))), (Resolution::Known(derived), Some(derived)));
    }
    assert_eq!((n.len(), n.next_deadline(), queries(&mut n)), (0, None, vec![]));
    // An IPv6 address is longer than an Ethernet address, so the table has to query it.
    let v6 = IpAddress::v6(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    assert_eq!((n.known(&v6), n.resolve(at(0), v6)), (None, Resolution::Pending));
}

#[test]
fn only_an_address_that_was_heard_is_known() {
    let mut n = table(8);
    assert_eq!(n.resolve(at(0), ip(1)), Resolution::Pending);
    assert_eq!((n.known(&ip(1)), n.known(&ip(2))), (None, None));
    n.heard(at(5), &answer(1, MAC));
    assert_eq!(n.known(&ip(1)), Some(MAC));
    assert_eq!(queries(&mut n).len(), 1, "looking asks nobody");
}

#[test]
fn an_unknown_address_is_asked_for_three_times_and_then_fails_for_a_second() {
    let mut n = table(8);
    assert_eq!(n.resolve(at(0), ip(1)), Resolution::Pending);
    assert_eq!(n.resolve(at(1), ip(1)), Resolution::Pending);
    assert_eq!(queries(&mut n), [Query { target: ip(1), to: None }]);
    for ms in [1000, 2000] {
        assert_eq!(n.next_deadline(), Some(at(ms)));
        assert!(!n.poll(at(ms)));
        assert_eq!(queries(&mut n).len(), 1);
    }
    assert!(n.poll(at(3000)));
    assert_eq!(n.resolve(at(3000), ip(1)), Resolution::Failed);
    assert!(n.poll(at(4000)));
    assert_eq!(n.resolve(at(4000), ip(1)), Resolution::Pending);
}

#[test]
fn an_answer_releases_waiting_packets_and_an_old_entry_in_use_is_confirmed() {
    let mut n = table(8);
    assert_eq!(n.resolve(at(0), ip(1)), Resolution::Pending);
    queries(&mut n);
    assert!(n.heard(at(5), &answer(1, MAC)));
    assert_eq!(n.resolve(at(6), ip(1)), Resolution::Known(MAC));
    assert_eq!(n.resolve(at(30_005), ip(1)), Resolution::Known(MAC));
    assert_eq!(queries(&mut n), [Query { target: ip(1), to: Some(MAC) }]);
    // The neighbour moved, so it answers no unicast query, and the next query is broadcast.
    n.poll(at(31_005));
    n.poll(at(32_005));
    n.poll(at(33_005));
    assert_eq!(queries(&mut n).last(), Some(&Query { target: ip(1), to: None }));
    assert_eq!(n.resolve(at(33_006), ip(1)), Resolution::Pending);
    assert!(n.heard(at(33_007), &answer(1, OTHER)));
    assert_eq!(n.resolve(at(33_008), ip(1)), Resolution::Known(OTHER));
}

#[test]
fn a_neighbour_that_tcp_doubts_is_asked_then_everybody_is() {
    let mut n = table(8);
    n.doubt(at(0), &ip(1));
    assert_eq!(n.resolve(at(0), ip(1)), Resolution::Pending);
    n.doubt(at(1), &ip(1));
    assert_eq!(queries(&mut n), [Query { target: ip(1), to: None }], "doubt asks for nobody");
    n.heard(at(5), &answer(1, OTHER));
    n.doubt(at(1004), &ip(1));
    assert_eq!(queries(&mut n), [], "it has just said so");
    for ms in [1005, 1006] {
        n.doubt(at(ms), &ip(1));
    }
    assert_eq!(n.resolve(at(1007), ip(1)), Resolution::Known(OTHER));
    for ms in [1005, 2005, 3005] {
        n.poll(at(ms));
        assert_eq!(queries(&mut n), [Query { target: ip(1), to: Some(OTHER) }]);
    }
    n.poll(at(4005));
    assert_eq!(n.resolve(at(4005), ip(1)), Resolution::Pending);
    assert_eq!(queries(&mut n), [Query { target: ip(1), to: None }]);
    // After an answer, the table no longer queries the neighbour.
    assert!(n.heard(at(4006), &answer(1, MAC)));
    assert_eq!(n.resolve(at(4007), ip(1)), Resolution::Known(MAC));
    n.poll(at(9000));
    assert_eq!((queries(&mut n), n.next_deadline()), (vec![], None));
}

#[test]
fn unsolicited_answers_create_and_override_only_as_the_rfcs_allow() {
    let mut n = table(8);
    n.heard(at(0), &answer(1, MAC));
    assert_eq!(n.resolve(at(0), ip(1)), Resolution::Pending);
    n.heard(at(0), &Heard { creates: true, ..answer(2, MAC) });
    assert_eq!(n.resolve(at(0), ip(2)), Resolution::Known(MAC));
    n.heard(at(0), &Heard { overrides: false, ..answer(2, OTHER) });
    assert_eq!(n.resolve(at(0), ip(2)), Resolution::Known(MAC));
}

#[test]
fn strangers_cannot_push_out_what_is_used() {
    let mut n = table(4);
    n.heard(at(0), &Heard { creates: true, ..answer(1, MAC) });
    for stranger in 10..200 {
        assert_eq!(n.resolve(at(0), ip(1)), Resolution::Known(MAC));
        n.heard(at(0), &Heard { creates: true, ..answer(stranger, OTHER) });
    }
    assert_eq!(n.resolve(at(0), ip(1)), Resolution::Known(MAC));
    assert!(n.entries.len() <= 4 && n.index.len() <= 4);
}

#[test]
fn who_is_being_asked_for_keeps_the_place_until_the_search_ends() {
    let mut n = table(2);
    n.heard(at(0), &Heard { creates: true, ..answer(1, MAC) });
    for wanted in [2, 3, 4] {
        assert_eq!(n.resolve(at(0), ip(wanted)), Resolution::Pending);
    }
    // The known neighbour was evicted for the second query. The third query waits until another query ends.
    assert_eq!(queries(&mut n), [2, 3].map(|n| Query { target: ip(n), to: None }));
    n.heard(at(0), &Heard { creates: true, ..answer(5, MAC) });
    assert!(n.heard(at(500), &answer(2, MAC)));
    assert_eq!(n.resolve(at(500), ip(4)), Resolution::Pending);
    assert_eq!(queries(&mut n), [Query { target: ip(4), to: None }]);
    assert!(n.heard(at(501), &answer(4, OTHER)) && n.heard(at(501), &answer(3, OTHER)));
    assert_eq!(n.resolve(at(502), ip(4)), Resolution::Known(OTHER));
}

#[test]
fn more_questions_than_wait_at_a_time_come_again() {
    let mut n = table(200);
    for wanted in 0..100 {
        assert_eq!(n.resolve(at(0), ip(wanted)), Resolution::Pending);
    }
    assert_eq!(queries(&mut n).len(), QUERY_QUEUE);
    n.poll(at(1000));
    assert_eq!(queries(&mut n).len(), QUERY_QUEUE);
}

#[test]
fn whoever_is_due_first_wakes() {
    let mut n = table(8);
    assert_eq!(n.resolve(at(0), ip(1)), Resolution::Pending);
    assert_eq!(n.resolve(at(500), ip(2)), Resolution::Pending);
    for (deadline, asked) in [(1000, 1), (1500, 2), (2000, 1), (2500, 2)] {
        queries(&mut n);
        assert_eq!(n.next_deadline(), Some(at(deadline)));
        n.poll(at(deadline));
        assert_eq!(queries(&mut n), [Query { target: ip(asked), to: None }]);
    }
}

#[test]
fn a_table_without_a_place_has_one() {
    let mut n = table(0);
    assert_eq!(n.resolve(at(0), ip(1)), Resolution::Pending);
    assert!(n.heard(at(1), &answer(1, MAC)));
    assert_eq!(n.resolve(at(2), ip(1)), Resolution::Known(MAC));
}

/// RFC 4861 section 7.2.5: an unsolicited packet does not change an entry with the same Ethernet address. If
/// the Ethernet address differs, the entry becomes STALE.
#[test]
fn unsolicited_answers_confirm_nothing() {
    let unasked = |mac| Heard { confirms: false, ..answer(1, mac) };
    let known = || {
        let mut n = table(8);
        n.heard(at(0), &Heard { creates: true, ..answer(1, MAC) });
        n
    };
    let mut n = known();
    n.heard(at(20_000), &unasked(MAC));
    assert_eq!(n.resolve(at(29_999), ip(1)), Resolution::Known(MAC));
    assert_eq!(queries(&mut n), []);
    assert_eq!(n.resolve(at(30_000), ip(1)), Resolution::Known(MAC));
    assert_eq!(queries(&mut n).len(), 1, "not younger either");
    n.heard(at(30_001), &unasked(MAC));
    n.poll(at(31_000));
    assert_eq!(queries(&mut n).len(), 1, "nor is it an answer");
    let mut n = known();
    n.heard(at(20_000), &unasked(OTHER));
    assert_eq!(n.resolve(at(20_001), ip(1)), Resolution::Known(OTHER));
    assert_eq!(queries(&mut n), [Query { target: ip(1), to: Some(OTHER) }]);
}

/// RFC 4861 section 7.2.5: an advertisement with each pair of flags (S and O) arrives in each state. The test
/// checks the known Ethernet address afterwards, and whether the next use sends a query.
#[test]
fn an_advertisement_does_what_its_flags_and_the_state_say() {
    const KEPT: (Option<EthernetAddress>, bool) = (Some(MAC), false);
    const STALE: (Option<EthernetAddress>, bool) = (Some(MAC), true);
    const MOVED: (Option<EthernetAddress>, bool) = (Some(OTHER), true);
    const MOVED_SURELY: (Option<EthernetAddress>, bool) = (Some(OTHER), false);
    type Known = (Option<EthernetAddress>, bool);
    // The columns: the address in the advertisement, S, O, and the result in REACHABLE, in STALE and in
    // PROBE. In PROBE a query is in progress, so no further query is sent unless the entry leaves that state.
    let cases: [(Option<EthernetAddress>, bool, bool, [Known; 3]); 12] = [
        (None, false, false, [KEPT, STALE, KEPT]),
        (None, false, true, [KEPT, STALE, KEPT]),
        (None, true, false, [KEPT, KEPT, KEPT]),
        (None, true, true, [KEPT, KEPT, KEPT]),
        (Some(MAC), false, false, [KEPT, STALE, KEPT]),
        (Some(MAC), false, true, [KEPT, STALE, KEPT]),
        (Some(MAC), true, false, [KEPT, KEPT, KEPT]),
        (Some(MAC), true, true, [KEPT, KEPT, KEPT]),
        (Some(OTHER), false, false, [STALE, STALE, KEPT]),
        (Some(OTHER), false, true, [MOVED, MOVED, MOVED]),
        (Some(OTHER), true, false, [STALE, STALE, KEPT]),
        (Some(OTHER), true, true, [MOVED_SURELY, MOVED_SURELY, MOVED_SURELY]),
    ];
    for (mac, confirms, overrides, expected) in cases {
        let heard = Heard { mac, confirms, overrides, ..answer(1, MAC) };
        for (state, (known, asks)) in expected.into_iter().enumerate() {
            let mut n = table(8);
            n.heard(at(0), &Heard { creates: true, ..answer(1, MAC) });
            let now = at(if state == 0 { 20_000 } else { 40_000 });
            if state == 2 {
                n.resolve(now, ip(1));
                assert_eq!(queries(&mut n), [Query { target: ip(1), to: Some(MAC) }]);
            }
            assert!(!n.heard(now, &heard), "nobody waits");
            assert_eq!(n.known(&ip(1)), known, "{heard:?} in {state}");
            n.resolve(now, ip(1));
            let query = known.filter(|_| asks).map(|mac| Query { target: ip(1), to: Some(mac) });
            assert_eq!(queries(&mut n), query.into_iter().collect::<Vec<_>>(), "{heard:?} in {state}");
            // In PROBE, an answer or a changed Ethernet address ends the queries.
            n.poll(now + QUERY_INTERVAL);
            let is_answer = confirms && (mac != Some(OTHER) || overrides) || known == Some(OTHER);
            let is_probed = asks || state == 2 && !is_answer;
            assert_eq!(queries(&mut n).len(), usize::from(is_probed), "{heard:?} in {state}");
        }
        // In INCOMPLETE and FAILED, an Ethernet address resolves the entry, whatever the flags are.
        for failed in [false, true] {
            let mut n = table(8);
            n.resolve(at(0), ip(1));
            let now = if failed { 3000 } else { 0 };
            [1000, 2000, 3000].into_iter().filter(|ms| *ms <= now).for_each(|ms| _ = n.poll(at(ms)));
            queries(&mut n);
            assert_eq!((n.heard(at(now), &heard), n.known(&ip(1))), (mac.is_some(), mac), "{heard:?}");
            if mac.is_some() {
                n.resolve(at(now), ip(1));
                assert_eq!(queries(&mut n).len(), usize::from(!confirms), "{heard:?}");
            }
        }
        let mut n = table(8);
        assert!(!n.heard(at(0), &heard));
        assert_eq!(n.len(), 0, "it creates nothing");
    }
}

#[test]
fn a_second_address_change_within_a_second_needs_a_query() {
    let mut n = table(8);
    assert_eq!(n.resolve(at(5000), ip(1)), Resolution::Pending);
    n.heard(at(5000), &answer(1, MAC));
    let known = |n: &mut Neighbors, now, mac| {
        n.heard(at(now), &answer(1, mac));
        n.resolve(at(now), ip(1))
    };
    assert_eq!(known(&mut n, 5999, OTHER), Resolution::Known(MAC));
    assert_eq!(known(&mut n, 6000, OTHER), Resolution::Known(OTHER));
    assert_eq!(known(&mut n, 6999, MAC), Resolution::Known(OTHER));
    assert_eq!(n.moves_refused(), 2);
    // While a query is in progress, the IP address belongs to the host that answers first.
    assert_eq!(known(&mut n, 7000, MAC), Resolution::Known(MAC));
    n.entries[0].state = NeighborState::Known { mac: MAC, confirmed: at(0), queries: 1 };
    n.heard(at(7100), &Heard { confirms: false, ..answer(1, OTHER) });
    assert_eq!((n.resolve(at(7100), ip(1)), n.moves_refused()), (Resolution::Known(MAC), 3));
    assert_eq!(known(&mut n, 7100, OTHER), Resolution::Known(OTHER));
}

#[test]
fn when_the_link_was_gone_everybody_is_asked() {
    let mut n = table(8);
    n.heard(at(0), &Heard { creates: true, ..answer(1, MAC) });
    assert_eq!(n.resolve(at(0), ip(2)), Resolution::Pending);
    for ms in [1000, 2000, 3000] {
        n.poll(at(ms));
    }
    assert_eq!(n.resolve(at(3000), ip(2)), Resolution::Failed);
    assert_eq!(n.resolve(at(3000), ip(3)), Resolution::Pending);
    queries(&mut n);
    n.doubt_all(at(3500));
    n.doubt_all(at(3500));
    let mut asked = queries(&mut n);
    asked.sort_by_key(|query| query.target);
    assert_eq!(asked, [2, 3].map(|n| Query { target: ip(n), to: None }));
    assert_eq!(n.resolve(at(3500), ip(2)), Resolution::Pending);
    assert_eq!(n.resolve(at(3500), ip(1)), Resolution::Known(MAC));
    assert_eq!(queries(&mut n), [Query { target: ip(1), to: Some(MAC) }], "the next time it is used");
    assert_eq!(n.next_deadline(), Some(at(4000)));
    n.poll(at(4499));
    assert_eq!(queries(&mut n), [], "a whole second for the answer");
    n.poll(at(4500));
    assert_eq!(queries(&mut n).len(), 3);
}
