//! An engine with small limits, and a bare TCP peer on the same wire. The source of the peer is included by
//! path from the tests of `iwarp`, since tests cannot be a dependency.

use std::cell::Cell;
use std::sync::OnceLock;

use dp::link::{LinkConfig, pair_over};
use dp::{Mempool, Port};
pub(super) use hosts::PORT;
use iwarp::engine::EngineConfig;
use iwarp::verbs::{CompletionQueue, Context, ContextConfig, ContextLimits, QpInit};
use tcp_lite::Limits;

use super::gate::{GateControl, gated};

thread_local! {
    static GENERAL_WAY: Cell<bool> = const { Cell::new(false) };
}

/// Disables header prediction in the stacks that this thread creates from now on.
pub fn take_general_way() {
    GENERAL_WAY.set(true);
}

/// Whether the stacks predict headers. The environment variable `UWARP_GENERAL_WAY` disables header
/// prediction in all threads.
pub(super) fn predicts() -> bool {
    static OFF: OnceLock<bool> = OnceLock::new();
    !GENERAL_WAY.get() && !OFF.get_or_init(|| std::env::var_os("UWARP_GENERAL_WAY").is_some())
}

#[path = "../../../../iwarp/tests/it/common/raw.rs"]
#[allow(dead_code, reason = "each of its users needs a part")]
pub(super) mod raw;

use raw::RawPair;

/// Number of packet buffers of each port.
const BUFFERS: usize = 32;

/// Number of polls or calls between two checks of the invariants. With a check after every poll or call, the
/// checks took a third of the time.
pub(super) const CHECK_EVERY: usize = 8;

/// Maximum number of polls until an unused engine is idle.
const REST_POLLS: usize = 30_000;

fn wire() -> LinkConfig {
    LinkConfig { mbufs: BUFFERS, ring_frames: 128, ..LinkConfig::default() }
}

thread_local! {
    /// The packet buffers of both endpoints. They are kept between executions; each execution has to return
    /// all of them. A buffer keeps its old contents, and no code may read a buffer before writing it.
    static POOLS: [Mempool; 2] = wire().pools();
}

/// Returns the two ports of the wire.
pub(super) fn ports() -> (Box<dyn Port>, Box<dyn Port>) {
    POOLS.with(|pools| {
        assert_whole(pools);
        pair_over(&wire(), pools)
    })
}

fn assert_whole(pools: &[Mempool; 2]) {
    for pool in pools {
        assert_eq!(pool.available(), pool.capacity(), "packet buffers are gone");
    }
}

/// Returns a context with small limits.
pub(super) fn context(seed: u8) -> Context {
    let limits = ContextLimits {
        max_pd: 8,
        max_mr: 32,
        max_mw: 32,
        max_qp: 16,
        max_cq: 8,
        max_cqe: 512,
        max_cqe_total: 1024,
        max_qp_wr: 64,
        max_srq: 4,
        max_srq_wr: 64,
        max_read_slots: 2048,
        max_async_events: 32,
        max_cm_events: 32,
    };
    Context::new(ContextConfig { seed: Some([seed; 32]), limits, ..ContextConfig::default() })
        .expect("a context")
}

/// Returns the parameters of a queue pair with short queues.
pub(super) fn queues(cq: &CompletionQueue) -> QpInit<'_> {
    QpInit { max_send_wr: 16, max_recv_wr: 16, ..QpInit::new(cq) }
}

/// Limits of the stack: small, so that they are reached.
pub(super) const LIMITS: Limits = Limits {
    connections: 8,
    listeners: 2,
    backlog: 4,
    syn_cookies: true,
    neighbors: 4,
    path_mtu_searches: 2,
    tx_segments: 64,
    out_of_order_bytes: 1 << 20,
    events: 64,
};

/// Sets small limits of the engine, and whether its stack predicts headers.
pub(super) fn small(config: &mut EngineConfig) {
    config.stack.limits = LIMITS;
    config.stack.tcp.recv_window_bytes = 1 << 16;
    config.stack.tcp.send_buffer_bytes = 1 << 16;
    config.stack.tcp.header_prediction = predicts();
}

/// Returns an engine and its peer. `crc`: whether the engine asks for CRCs.
pub(super) fn rig(crc: bool) -> Box<RawPair> {
    rig_over(ports(), crc)
}

/// Returns an engine and a peer whose frames may be held. `crc`: whether the engine asks for CRCs.
pub(super) fn gated_rig(crc: bool) -> (Box<RawPair>, GateControl) {
    let (engine, peer) = ports();
    let (peer, hand) = gated(peer);
    (rig_over((engine, peer), crc), hand)
}

fn rig_over(ports: (Box<dyn Port>, Box<dyn Port>), crc: bool) -> Box<RawPair> {
    let mut raw = RawPair::over(context(3), ports, Limits { connections: 64, ..LIMITS }, |config| {
        small(config);
        config.crc = crc;
    });
    raw.check_every = CHECK_EVERY;
    Box::new(raw)
}

/// Advances the time by `us` microseconds, in one step if neither side has a deadline.
pub(super) fn pass(raw: &mut RawPair, us: i64) {
    let end_us = raw.now_us + us;
    raw.rest(us);
    raw.now_us = raw.now_us.max(end_us);
}

/// Waits at most `us` microseconds until both sides are idle. Checks that no objects (except events) and no
/// packet buffers are still in use, drops the engine and its peer, and checks that all packet buffers are
/// free. The caller has dropped its objects before.
pub(super) fn assert_all_given_back(mut raw: Box<RawPair>, us: i64) {
    let polls = raw.rest(us);
    assert!(polls < REST_POLLS, "{polls} polls until {} us", raw.now_us);
    raw.engine.check_invariants().expect("invariants of the engine's stack");
    for usage in raw.context.usage().all() {
        assert!(usage.used == 0 || usage.name.contains("event"), "{usage:?}");
    }
    assert_eq!(raw.pool.available(), raw.pool.capacity(), "packet buffers are gone");
    drop(raw);
    POOLS.with(assert_whole);
}
