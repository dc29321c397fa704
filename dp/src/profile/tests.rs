use super::*;
use crate::Clock;

fn spend(cycles: u64) {
    let end = Clock::cycles() + cycles;
    while Clock::cycles() < end {}
}

#[test]
fn layers_are_in_their_places() {
    for (index, layer) in Layer::ALL.into_iter().enumerate() {
        assert_eq!(layer as usize, index);
        assert_eq!(Layer::ALL.iter().filter(|other| other.name() == layer.name()).count(), 1);
    }
}

#[cfg(not(feature = "profile"))]
#[test]
fn without_the_feature_nothing_is_counted() {
    start();
    within(Layer::TcpIn, || spend(1000));
    mark(true);
    assert_eq!(stop(), Profile::default());
    assert_eq!(size_of::<Scope>(), 0);
}

#[cfg(feature = "profile")]
mod counting {
    use super::*;

    /// Number of cycles to spend. The number is more than a time stamp takes, and less than a time slice of
    /// the scheduler.
    const STEP: u64 = 20_000;

    #[test]
    fn an_inner_scope_takes_its_time_from_the_outer_one() {
        let from = Clock::cycles();
        start();
        within(Layer::Engine, || {
            spend(STEP);
            within(Layer::TcpIn, || {
                spend(STEP);
                within(Layer::Deframe, || spend(3 * STEP));
                // The outer scope continues.
                spend(STEP);
            });
            within(Layer::TcpIn, || spend(STEP));
        });
        let profile = stop();
        let all = Clock::cycles() - from;
        let [engine, tcp, deframe] =
            [Layer::Engine, Layer::TcpIn, Layer::Deframe].map(|layer| profile.cost(layer));
        assert_eq!([engine.scopes, tcp.scopes, deframe.scopes], [1, 2, 1]);
        // The cycles that are used directly in a scope count for the scope. The cycles of inner scopes do not
        // count for the scope, since otherwise the sum would exceed the total.
        assert!(engine.cycles >= STEP && tcp.cycles >= 3 * STEP && deframe.cycles >= 3 * STEP, "{profile:?}");
        assert!(profile.busy().cycles <= all && profile.busy().cycles >= 7 * STEP, "{profile:?} of {all}");
    }

    #[test]
    fn an_idle_poll_is_charged_to_no_layer() {
        let from = Clock::cycles();
        start();
        within(Layer::PortRx, || spend(STEP));
        mark(false);
        within(Layer::PortRx, || spend(5 * STEP));
        mark(true);
        let profile = stop();
        // The idle poll is subtracted from the cycles and from the number of scopes of its layer.
        let (rx, idle) = (profile.cost(Layer::PortRx), profile.cost(Layer::Idle));
        assert!(rx.scopes == 1 && rx.cycles >= STEP && idle.cycles >= 5 * STEP, "{profile:?}");
        assert!(profile.busy().cycles + idle.cycles <= Clock::cycles() - from, "{profile:?}");
    }

    #[test]
    fn a_thread_that_has_not_started_counts_nothing() {
        within(Layer::TcpIn, || spend(STEP));
        assert_eq!(stop(), Profile::default());
        start();
        let other = std::thread::spawn(|| within(Layer::TcpIn, || spend(STEP)));
        other.join().unwrap();
        assert_eq!(stop().cost(Layer::TcpIn), Cost::default());
    }

    #[test]
    fn starting_again_is_starting_from_zero() {
        start();
        within(Layer::TcpIn, || spend(STEP));
        start();
        assert_eq!(stop().cost(Layer::TcpIn), Cost::default());
    }

    #[test]
    fn a_scope_costs_something_and_little() {
        let cycles = scope_cycles();
        assert!(0.0 < cycles && cycles < 10_000.0, "{cycles}");
    }
}
