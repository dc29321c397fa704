//! Tests of a full queue, of objects that keep their events, and of handlers.

use AsyncEventKind::{
    AddressConflict, CqError, LastWqeReached, PortActive, PortError, QpAccessError, QpFatal, QpRequestError,
    SqDrained, SrqLimitReached,
};

use super::*;

fn queue(limit: usize) -> AsyncEvents {
    AsyncEvents::new(limit).unwrap()
}

/// Returns objects with the numbers 1, 2, 3, and so on.
fn sources<const N: usize>(events: &AsyncEvents) -> [EventSource; N] {
    std::array::from_fn(|index| EventSource::new(events, index as u32 + 1))
}

fn told(events: &AsyncEvents) -> Vec<(AsyncEventKind, u32)> {
    let all: Vec<_> = std::iter::from_fn(|| {
        let (was_empty, was_readable) = (events.is_empty(), is_readable(events));
        let event = events.poll().unwrap();
        assert_eq!((event.is_none(), event.is_some()), (was_empty, was_readable));
        event
    })
    .collect();
    assert!(!is_readable(events));
    all.iter().map(|event| (event.kind, event.number)).collect()
}

fn is_readable(events: &AsyncEvents) -> bool {
    events.shared.notifier.wait(Some(Duration::ZERO)).unwrap()
}

const CAUSE: ConnectionError = ConnectionError::PeerClosed;

#[test]
fn objects_keep_what_finds_the_queue_full() {
    for limit in 1..8 {
        let events = queue(limit);
        let all: [EventSource; 6] = sources(&events);
        let expected: Vec<_> = (1..7).map(|number| (LastWqeReached, number)).collect();
        for _ in 0..3 {
            all.iter().for_each(|source| source.push(LastWqeReached, None));
            let usage = events.usage();
            assert_eq!((usage.limit, usage.used, usage.refused), (limit, limit.min(6), 0));
            assert_eq!(told(&events), expected, "with room for {limit}");
        }
        assert_eq!(events.lost(), 0);
    }
}

/// An object reports an error, with its cause, before `LastWqeReached`, whatever the order of the events.
#[test]
fn an_object_keeps_one_event_of_each_kind() {
    let events = queue(1);
    let [first, second]: [EventSource; 2] = sources(&events);
    first.push(CqError, None);
    for _ in 0..3 {
        second.push(LastWqeReached, None);
        second.push(SqDrained, None);
        second.push(QpFatal, Some(CAUSE));
    }
    first.push(SrqLimitReached, None);
    second.push(QpRequestError, None);
    second.push(QpAccessError, None);
    let all: Vec<_> = std::iter::from_fn(|| events.poll().unwrap()).collect();
    let causes: Vec<_> = all.iter().map(|event| (event.kind, event.number, event.cause)).collect();
    let expected = [
        (CqError, 1, None),
        (QpFatal, 2, Some(CAUSE)),
        (QpRequestError, 2, Some(CAUSE)),
        (QpAccessError, 2, Some(CAUSE)),
        (SqDrained, 2, None),
        (LastWqeReached, 2, None),
        (SrqLimitReached, 1, None),
    ];
    assert_eq!(causes, expected);
    // All events have been reported, so both objects can report the same kinds of events again.
    second.push(QpFatal, None);
    first.push(CqError, None);
    assert_eq!(told(&events), [(QpFatal, 2), (CqError, 1)]);
}

/// The last link event (`PortActive` or `PortError`) that a port reports shows the current state of the link.
#[test]
fn a_port_that_is_back_is_not_told_to_be_lost() {
    for last in [PortActive, PortError] {
        let other = if last == PortActive { PortError } else { PortActive };
        let events = queue(1);
        let [port]: [EventSource; 1] = sources(&events);
        port.push(last, None);
        for kind in [other, AddressConflict, last, other, last] {
            port.push(kind, None);
        }
        assert_eq!(told(&events), [(last, 1), (last, 1), (AddressConflict, 1)]);
    }
}

/// When an object is destroyed, its kept events are lost and counted, and its events in the queue stay there.
#[test]
fn what_a_gone_object_has_kept_is_lost() {
    let events = queue(2);
    let [first, second, third, fourth]: [EventSource; 4] = sources(&events);
    for source in [&first, &second, &third, &fourth] {
        source.push(LastWqeReached, None);
        source.push(QpFatal, None);
    }
    drop((first, third));
    assert_eq!(events.lost(), 2);
    assert_eq!(events.usage().refused, 2);
    let expected = [
        (LastWqeReached, 1),
        (QpFatal, 1),
        (QpFatal, 2),
        (LastWqeReached, 2),
        (QpFatal, 4),
        (LastWqeReached, 4),
    ];
    assert_eq!(told(&events), expected);
    drop((second, fourth));
    assert_eq!(events.lost(), 2, "these were told");
    let kept = &events.shared.waiting().kept;
    assert!(kept.places.is_empty() && kept.line.is_none());
}

/// Returns the numbers of the objects in the line.
fn line(events: &AsyncEvents) -> Vec<u32> {
    let kept = &events.shared.waiting().kept;
    let mut line = Vec::new();
    let Some((mut at, last)) = kept.line else { return line };
    // The number of places limits the walk, in case an object is in the line twice.
    while let Some(place) = kept.places.get(at as usize)
        && line.len() < kept.places.len()
    {
        line.push(place.number);
        if at == last {
            break;
        }
        at = place.next;
    }
    line
}

/// Each object always has a place, so a thread that adds an event allocates nothing.
#[test]
fn there_is_a_place_for_each_object() {
    let events = queue(1);
    let mut all: Vec<EventSource> = Vec::new();
    for round in 0..200 {
        all.extend((0..7).map(|number| EventSource::new(&events, number)));
        let room = events.shared.waiting().kept.places.capacity();
        assert!(room >= all.len() && room <= all.len().max(8) * 9 / 8 + 8, "{room} for {}", all.len());
        all.iter().for_each(|source| source.push(LastWqeReached, None));
        assert_eq!(events.shared.waiting().kept.places.capacity(), room);
        let waiting = events.usage().used + line(&events).len();
        assert!(waiting >= all.len(), "{waiting}");
        if round % 3 == 0 {
            while events.poll().unwrap().is_some() {}
        }
        all.drain(..5);
    }
}

/// If an object at the front, in the middle or at the end of the line is removed, the other objects keep
/// their order, and a new object enters at the end.
#[test]
fn the_line_closes_behind_an_object_that_is_gone() {
    for gone in 1..5 {
        let events = queue(1);
        let [first, all @ ..]: [EventSource; 5] = sources(&events);
        let mut all = Vec::from(all);
        first.push(CqError, None);
        all.iter().for_each(|source| source.push(LastWqeReached, None));
        assert_eq!(line(&events), [2, 3, 4, 5]);
        drop(all.remove(gone - 1));
        let mut expected: Vec<u32> = all.iter().map(|source| source.number).collect();
        assert_eq!(line(&events), expected);
        let later = EventSource::new(&events, 9);
        later.push(LastWqeReached, None);
        first.push(CqError, None);
        expected.extend([9, 1]);
        assert_eq!(line(&events), expected);
        let told: Vec<u32> = told(&events).into_iter().map(|(_, number)| number).collect();
        assert_eq!(told, [&[1], &expected[..]].concat());
        assert_eq!((line(&events), events.lost()), (Vec::new(), 1));
    }
}

#[test]
fn a_handler_gets_what_waits_and_then_all_others() {
    let events = queue(2);
    let [first, second]: [EventSource; 2] = sources(&events);
    for source in [&first, &second] {
        source.push(QpFatal, Some(CAUSE));
        source.push(LastWqeReached, None);
    }
    let seen = Arc::<Mutex<Vec<_>>>::default();
    let of_handler = Arc::clone(&seen);
    let handler = move |event: &AsyncEvent| of_handler.lock().unwrap().push((event.kind, event.number));
    events.set_handler(Box::new(handler)).unwrap();
    let waited = [(QpFatal, 1), (LastWqeReached, 1), (QpFatal, 2), (LastWqeReached, 2)];
    assert_eq!(std::mem::take(&mut *seen.lock().unwrap()), waited);
    assert!(events.is_empty() && told(&events).is_empty());
    for _ in 0..5 {
        second.push(LastWqeReached, None);
    }
    assert_eq!(*seen.lock().unwrap(), [(LastWqeReached, 2); 5], "none is put together");
    assert!(told(&events).is_empty());
    assert!(matches!(events.set_handler(Box::new(|_| ())), Err(VerbsError::Invalid(_))));
    drop((first, second));
    assert_eq!(events.lost(), 0);
}

/// A handler that is set while threads add events receives each event exactly once, including events that
/// already waited.
#[test]
fn no_event_is_missed_while_a_handler_is_set() {
    for _ in 0..200 {
        let events = queue(4);
        let all: [EventSource; 3] = sources(&events);
        let seen = Arc::<AtomicUsize>::default();
        std::thread::scope(|scope| {
            for source in &all {
                scope.spawn(|| {
                    for kind in AsyncEventKind::ALL {
                        if !matches!(kind, PortActive | PortError) {
                            source.push(kind, None);
                        }
                    }
                });
            }
            let count = Arc::clone(&seen);
            let handler = move |_: &AsyncEvent| {
                count.fetch_add(1, Ordering::Relaxed);
            };
            events.set_handler(Box::new(handler)).unwrap();
        });
        assert_eq!(seen.load(Ordering::Relaxed), 3 * 10);
        assert!(events.poll().unwrap().is_none() && !is_readable(&events));
    }
}

/// A thread that first found no handler checks again when it has the lock, and finds a handler that was set
/// in between.
#[test]
fn an_event_that_waits_for_the_lock_gets_to_the_handler() {
    let events = queue(4);
    let [source]: [EventSource; 1] = sources(&events);
    let seen = Arc::<AtomicUsize>::default();
    std::thread::scope(|scope| {
        let locked = events.shared.waiting();
        let adding = scope.spawn(|| source.push(LastWqeReached, None));
        // The sleep gives the other thread time to wait for the lock. If the other thread needs longer, it
        // finds the handler at its first check.
        std::thread::sleep(Duration::from_millis(200));
        let count = Arc::clone(&seen);
        let handler: AsyncEventHandler = Box::new(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert!(events.shared.handler.set(handler).is_ok());
        drop(locked);
        adding.join().unwrap();
    });
    assert_eq!((seen.load(Ordering::Relaxed), events.is_empty()), (1, true));
}

#[test]
fn each_kind_has_a_bit_of_its_own() {
    let bits = AsyncEventKind::ALL.iter().fold(0, |bits, kind| {
        assert_eq!(bits & kind.bit(), 0, "{kind:?}");
        bits | kind.bit()
    });
    assert_eq!(bits, (1 << AsyncEventKind::ALL.len()) - 1);
}
