//! The trust models of RFC 5042 appendix C. In each model, a hostile client sends the whole catalogue of
//! attacks, and honest clients use the same engine. The only effect is the end of the hostile client's
//! connections.

use crate::common::world::{NOTHING_SHARED, REGION, SHARED_TRUSTED, SHARED_UNTRUSTED, World, next};
use crate::common::{ALL, remote_addr};
use iwarp::verbs::{MrOptions, QpInit, SendOp, SendRequest, VerbsError, WcStatus};

/// Streams share nothing, which is the default. The test covers the models with an untrusted and with a
/// partially trusted peer, since the engine treats both peers alike.
// Proves SEC-007, SEC-010, SEC-192, SEC-193.
#[test]
fn nothing_shared() {
    let mut world = World::new(NOTHING_SHARED);
    let init = QpInit::new(&world.set.cq);
    assert!(init.srq.is_none() && init.grants.is_empty());
    assert!(MrOptions::new(ALL).qp.is_none());
    world.attack_all();
}

/// Clients that do not trust each other, including the hostile client, share a domain, a receive queue and a
/// completion queue. Each client may hold one buffer, an STag is valid on one stream, and the completion
/// queue has space for all completions.
// Proves SEC-194, SEC-191: each property of this trust model is an option of the API.
#[test]
fn shared_by_clients_nobody_trusts() {
    World::new(SHARED_UNTRUSTED).attack_all();
}

/// A group of streams that trust each other share all objects. The hostile client, which belongs to another
/// group, cannot access these objects.
// Proves SEC-195.
#[test]
fn shared_within_a_bundle() {
    let mut world = World::new(SHARED_TRUSTED);
    // A stream of the group may use memory that another stream of the group exposes.
    let (from, to) = (&world.honest[0], &world.honest[1].end.region);
    let remote = remote_addr(to, 0);
    from.qp
        .post_send(&SendRequest::new(1, SendOp::Read { remote }, world.local.sge(REGION, REGION)))
        .unwrap();
    assert_eq!(next(&mut world.raw, &world.clients_cq).status, WcStatus::Success);
    world.attack_all();
}

/// Streams share all objects, and each stream may hold all shared buffers. The streams are as fast as without
/// sharing, and a stream of another domain cannot access the shared objects.
// Proves SEC-196: the test measures simulated time, in which waiting for another stream would show. The
// processor time of sharing is not measured.
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
