//! Events for the crate `tracing`. Other crates of this workspace use the same macro. Without the feature
//! `tracing`, no events are emitted.

/// Defines functions that emit events. The functions are cold, since no event is emitted per frame. If the
/// crate that uses the macro is built without its feature `tracing`, the functions are empty.
#[doc(hidden)]
#[macro_export]
macro_rules! events {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        #[cfg(feature = "tracing")]
        #[cold]
        #[inline(never)]
        pub(crate) fn $name($($arg: $type),*) $body

        $(#[$meta])*
        #[cfg(not(feature = "tracing"))]
        #[inline(always)]
        pub(crate) fn $name($(_: $type),*) {}
    )*};
}

#[cfg(feature = "dpdk")]
events! {
    fn eal_started(config: &dyn std::fmt::Debug) {
        tracing::info!(?config, "EAL started");
    }
}

events! {
    fn port_opened(info: &dyn std::fmt::Debug) {
        tracing::info!(?info, "port opened");
    }

    /// A port loses or delays frames on purpose. With the seed, a run can be repeated.
    fn port_impaired(port: &str, impairment: &dyn std::fmt::Debug) {
        tracing::info!(port, ?impairment, "port loses or delays frames on purpose");
    }
}

#[cfg(target_os = "linux")]
events! {
    /// A station of a local wire has ended, or cannot be reached.
    fn station_left(station: u16, lost_frames: usize) {
        tracing::debug!(station, lost_frames, "station left the wire");
    }
}
