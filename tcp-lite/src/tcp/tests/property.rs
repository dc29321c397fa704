//! Tests of whole connections over a wire that loses, reorders, duplicates and cuts packets as a seed
//! decides.

use proptest::prelude::*;
use testkit::dice::Dice;

use super::wire::*;
use crate::tcp::State;
use crate::{Duration, PathMtuConfig, PathMtuProbing, TcpConfig};

/// An MSS with which segments, with or without timestamps, are shorter than most queued segments.
const NARROW_MSS: u16 = 412;

#[derive(Clone, Debug)]
struct Scenario {
    seed: u64,
    loss_percent: u64,
    jitter_us: u64,
    duplicate_percent: u64,
    /// Share of packets that the wire cuts in two, like a peer that cuts at other positions when it
    /// retransmits.
    split_percent: u64,
    sizes: Vec<usize>,
    back_sizes: Vec<usize>,
    sack: bool,
    timestamps: bool,
    window: u32,
    iss: u32,
    events_limit: usize,
    /// The round in which the MTU of the path falls; `None` if the MTU stays the same.
    narrow: Option<u64>,
}

fn scenarios() -> impl Strategy<Value = Scenario> {
    let sizes = || prop::collection::vec(1_usize..=EMSS, 0..150);
    let wire = (any::<u64>(), 0_u64..20, 0_u64..3000, 0_u64..5, 0_u64..30);
    let window = prop_oneof![Just(2000_u32), Just(20_000), Just(200_000)];
    let iss = prop_oneof![Just(0xffff_ff00_u32), Just(0x7fff_ff00), Just(u32::MAX), any::<u32>()];
    let narrow = prop_oneof![Just(None), (1_u64..20).prop_map(Some)];
    let options = (any::<bool>(), any::<bool>(), 1_usize..5, narrow);
    (wire, sizes(), sizes(), window, iss, options).prop_map(
        |(wire, sizes, back_sizes, window, iss, options)| {
            let (seed, loss_percent, jitter_us, duplicate_percent, split_percent) = wire;
            let (sack, timestamps, events_limit, narrow) = options;
            Scenario {
                seed,
                loss_percent,
                jitter_us,
                duplicate_percent,
                split_percent,
                sizes,
                back_sizes,
                sack,
                timestamps,
                window,
                iss,
                events_limit,
                narrow,
            }
        },
    )
}

/// Pushes the segments of the sizes `sizes[*next..]` until the send buffer is full. A size that the EMSS no
/// longer allows is pushed as several segments. When all segments are pushed, closes the connection.
fn feed(host: &mut Host, now: crate::Instant, sizes: &mut Vec<usize>, next: &mut usize, offset: &mut usize) {
    let emss = host.tcb().sending().emss() as usize;
    while let Some(&whole) = sizes.get(*next) {
        let len = whole.min(emss);
        if len < whole {
            sizes.splice(*next..=*next, [len, whole - len]);
        }
        if host.push(now, &pattern(*offset, len)).is_err() {
            return;
        }
        *next += 1;
        *offset += len;
    }
    if host.state() == State::Established || host.state() == State::CloseWait {
        host.close(now);
    }
}

fn run(scenario: &Scenario) {
    let Scenario { seed, loss_percent, jitter_us, duplicate_percent, split_percent, .. } = *scenario;
    let config = TcpConfig {
        sack: scenario.sack,
        timestamps: scenario.timestamps,
        recv_window_bytes: scenario.window,
        user_timeout: Duration::from_secs(600),
        syn_retries: 20,
        rto_max: Duration::from_secs(2),
        time_wait: Duration::from_secs(30),
        send_buffer_bytes: 16_000,
        // The wire of these tests loses many packets, which would sometimes look like a path MTU black hole.
        path_mtu: PathMtuConfig { probing: PathMtuProbing::Never, ..PathMtuConfig::default() },
        ..config()
    };
    let mut pair = Pair::new(config, config);
    pair.b.events_limit = scenario.events_limit;
    pair.a.params.iss = crate::facade::TcpSeqNumber(scenario.iss as i32);
    let mut dice = Dice::linear(seed);
    pair.plan = Box::new(move |_, _| {
        let copies = if dice.below(100) < loss_percent {
            0
        } else {
            1 + u64::from(dice.below(100) < duplicate_percent)
        };
        (0..copies).map(|_| DELAY + Duration::from_micros(dice.below(jitter_us + 1))).collect()
    });
    let mut cut = Dice::linear(!seed);
    pair.cut = Box::new(move |len| (cut.below(100) < split_percent).then(|| cut.index(len)));
    pair.a.connect(pair.now);
    let (mut sizes, mut back_sizes) = (scenario.sizes.clone(), scenario.back_sizes.clone());
    let (mut a_next, mut b_next, mut a_offset, mut b_offset) = (0, 0, 0, 0);
    let mut rounds = 0;
    loop {
        pair.run_for(Duration::from_millis(20));
        let now = pair.now;
        if pair.a.state() == State::Established || pair.a.state() == State::CloseWait {
            feed(&mut pair.a, now, &mut sizes, &mut a_next, &mut a_offset);
        }
        if pair.b.tcb.is_some() && matches!(pair.b.state(), State::Established | State::CloseWait) {
            feed(&mut pair.b, now, &mut back_sizes, &mut b_next, &mut b_offset);
        }
        let over = |host: &Host| host.tcb.as_ref().is_some_and(crate::tcp::Tcb::is_closed_for_user);
        if over(&pair.a) && over(&pair.b) {
            break;
        }
        rounds += 1;
        if scenario.narrow == Some(rounds) && pair.a.state() == State::Established {
            pair.a.with(now, |tcb, ctx| tcb.sending_mut().set_path_mss(ctx, NARROW_MSS));
        }
        assert!(rounds < 50_000, "no end: {:?} {:?}", pair.a.tcb(), pair.b.tcb());
    }
    assert_eq!(pair.b.read(), pattern(0, scenario.sizes.iter().sum()));
    assert_eq!(pair.a.read(), pattern(0, scenario.back_sizes.iter().sum()));
    check_boundaries(&pair, Side::A, &sizes);
    assert!(scenario.narrow.is_some() || pair.a.counters.tx_cut_by_emss == 0);
    check_boundaries(&pair, Side::B, &back_sizes);
    assert!(pair.a.holds_nothing() && pair.b.holds_nothing());
    pair.a.segments.free_spare_page();
    assert_eq!(pair.a.pool.available(), pair.a.pool.capacity());
}

/// Checks that every transmission was a whole segment, with the boundaries with which the test pushed the
/// segment, or a part of a segment whose cut was counted.
fn check_boundaries(pair: &Pair, side: Side, sizes: &[usize]) {
    let mut starts = std::collections::BTreeMap::new();
    let mut at = 0;
    for &len in sizes {
        starts.insert(at, len);
        at += len as u32;
    }
    let host = if side == Side::A { &pair.a } else { &pair.b };
    let mut pieces: Vec<_> = pair.data_sent(side);
    pieces.sort_unstable();
    pieces.dedup();
    let strange = pieces.iter().filter(|(start, len)| starts.get(start) != Some(len)).count() as u64;
    // Each cut makes two pieces. A second cut of the second piece makes one more piece.
    let cuts = host.counters.tx_cut_by_persist + host.counters.tx_cut_by_emss;
    assert!(strange <= 2 * cuts, "{strange} {:?}", host.counters);
    // Without cuts, no byte was ever sent with two different boundaries.
    if cuts == 0 {
        assert!(pieces.windows(2).all(|pair| pair[0].0 + pair[0].1 as u32 <= pair[1].0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn streams_arrive_whole_and_segments_keep_their_boundaries(scenario in scenarios()) {
        run(&scenario);
    }
}
