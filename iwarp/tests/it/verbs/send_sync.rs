//! The objects of the API may move to another thread, and objects whose methods take `&self` may be shared.
//! The compiler checks both properties here. Another test checks the file descriptors of the channels.

use iwarp::engine::{Engine, EngineConfig, EngineCounters, EngineThread, SharedEngine};
use iwarp::verbs::*;

const fn send<T: Send>() {}
const fn shared<T: Send + Sync>() {}
const fn error<T: std::error::Error + Send + Sync + 'static>() {}

const _: () = {
    shared::<Context>();
    shared::<ContextConfig>();
    shared::<ProtectionDomain>();
    shared::<MemoryRegion>();
    shared::<MemoryWindow>();
    shared::<BoundRegion>();
    shared::<FastRegion>();
    shared::<CompletionQueue>();
    shared::<CompletionChannel>();
    shared::<SharedReceiveQueue>();
    shared::<QueuePair>();
    shared::<CmId>();
    shared::<CmEvent>();
    shared::<EventChannel>();
    shared::<AsyncEvents>();
    shared::<AsyncEvent>();
    shared::<WorkCompletion>();
    shared::<SendRequest>();
    shared::<RecvRequest>();
    shared::<ConnParam>();
    shared::<ListenOptions>();
    shared::<ListenerStats>();
    shared::<TerminateReport>();
    shared::<QpAttr>();
    shared::<EngineConfig>();
    shared::<EngineCounters>();
    shared::<EngineThread>();
    shared::<SharedEngine>();
    // An engine may move to another thread, but only one thread at a time may poll it.
    send::<Engine>();
    send::<tcp_lite::Stack>();
    send::<Box<dyn dp::Port>>();
    shared::<dp::Mempool>();
    error::<VerbsError>();
    error::<ConnectionError>();
    error::<StreamError>();
    error::<tcp_lite::CloseReason>();
    error::<dp::region::RegionError>();
};

#[cfg(target_os = "linux")]
const _: () = {
    error::<dp::local::LocalError>();
    error::<dp::packet::PacketError>();
};

/// Each channel implements both `AsFd` and `AsRawFd`, with the same descriptor.
#[test]
fn the_channels_have_a_descriptor() {
    use std::os::fd::{AsFd, AsRawFd};
    let context = Context::new(ContextConfig::default()).unwrap();
    let completions = context.create_comp_channel().unwrap();
    let events = context.create_event_channel().unwrap();
    let changes = context.async_events();
    let raw = [completions.as_raw_fd(), events.as_raw_fd(), changes.as_raw_fd()];
    let borrowed = [completions.as_fd(), events.as_fd(), changes.as_fd()].map(|fd| fd.as_raw_fd());
    assert_eq!(raw, borrowed);
    assert!(raw[0] != raw[1] && raw[1] != raw[2] && raw[0] > 2);
}
