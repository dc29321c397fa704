//! The trust models of RFC 5042 appendix C: in each, a hostile client sends the whole catalogue beside
//! honest ones on the same engine. The only effect is the end of its own connections.

use crate::common::world::{NOTHING_SHARED, REGION, SHARED_TRUSTED, SHARED_UNTRUSTED, World, next};
use crate::common::{ALL, remote_addr};
use iwarp::verbs::{MrOptions, QpInit, SendOp, SendRequest, VerbsError, WcStatus};

/// Streams share nothing, as is the default. It makes no difference whether the peer is partially trusted.
// Proves SEC-007, SEC-010, SEC-192, SEC-193.
#[test]
fn nothing_shared() {
    let mut world = World::new(NOTHING_SHARED);
    let init = QpInit::new(&world.set.cq);
    assert!(init.srq.is_none() && init.grants.is_empty());
    assert!(MrOptions::new(ALL).qp.is_none());
    world.attack_all();
}

/// One domain, receive queue and completion queue for clients that do not trust each other, the hostile one
/// among them: each may hold one buffer, an STag is valid on one stream, the completion queue has space for
/// everything.
// Proves SEC-194, SEC-191: each trait of the model is an option.
#[test]
fn shared_by_clients_nobody_trusts() {
    World::new(SHARED_UNTRUSTED).attack_all();
}

/// A bundle of streams that trust each other share everything. The hostile client of another bundle has no
/// access to it.
// Proves SEC-195.
#[test]
fn shared_within_a_bundle() {
    let mut world = World::new(SHARED_TRUSTED);
    // A stream of the bundle may use memory that another stream exposes.
    let (from, to) = (&world.honest[0], &world.honest[1].end.region);
    let remote = remote_addr(to, 0);
    from.qp
        .post_send(&SendRequest::new(1, SendOp::Read { remote }, world.local.sge(REGION, REGION)))
        .unwrap();
    assert_eq!(next(&mut world.raw, &world.clients_cq).status, WcStatus::Success);
    world.attack_all();
}

/// Everything is shared without caps: it is as fast as with nothing shared, and a stream of another domain
/// has no access to the shared objects.
// Proves SEC-196: in simulated time, so that a wait for others would show; what sharing costs a processor is
// not measured.
#[test]
fn shared_by_a_cluster() {
    let (mut shared, mut alone) = (World::new(SHARED_TRUSTED), World::new(NOTHING_SHARED));
    let (with, without) = (shared.speed(), alone.speed());
    assert!(with * 100 <= without * 105, "{with} us, alone {without} us");
    let outside = shared.raw.context.alloc_pd().unwrap();
    let init = QpInit { srq: Some(&shared.set.srq), ..QpInit::new(&shared.set.cq) };
    assert!(matches!(outside.create_qp(&init), Err(VerbsError::Invalid(_))));
    shared.attack_all();
}
