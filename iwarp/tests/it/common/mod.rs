//! Helpers of the tests, above all engines that are joined by a wire in memory and polled by the test.
//! Connections between them need no threads and no clock. Most tests begin with a [`Testbed`].

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) mod apart;
pub(crate) mod catalogue;
pub(crate) mod counting;
pub(crate) mod ext;
pub(crate) mod hub;
pub(crate) mod initiator;
pub(crate) mod oracle;
pub(crate) mod raw;
pub(crate) mod responder;
pub(crate) mod served;
pub(crate) mod testbed;
pub(crate) mod ulpdu;
pub(crate) mod world;

use iwarp::verbs::{MemoryRegion, RemoteAddr};
use testkit::dice::Dice;

pub(crate) use hosts::{ALL, Connected, Host, PORT, Pair, agreeing, connect_error, expect_terminate, hooked};
pub(crate) use testbed::Testbed;

/// Evaluates to the event `$event`. Panics if the event is not of the kind `$kind`.
macro_rules! told {
    ($event:expr, $kind:ident $($rest:tt)*) => {{
        let event = $event;
        assert!(matches!(event.kind, iwarp::verbs::CmEventKind::$kind $($rest)*), "{event:?}");
        event
    }};
}

/// Returns `len` pseudo-random bytes, in which a test notices a lost, repeated or moved piece.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    Dice::xorshift(seed).bytes(len)
}

/// Returns the remote address of byte `at` of `region`.
pub(crate) fn remote_addr(region: &MemoryRegion, at: usize) -> RemoteAddr {
    RemoteAddr { addr: region.addr() + at as u64, rkey: region.rkey() }
}

pub(crate) fn read_bytes(region: &MemoryRegion, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    region.read_at(at, &mut bytes).unwrap();
    bytes
}
