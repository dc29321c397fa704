//! What the device calls itself. It is known before anything starts.

/// `UWARP_PRETEND=ib`: the device says that it is an InfiniBand one.
pub(crate) fn pretends_ib() -> bool {
    std::env::var("UWARP_PRETEND").is_ok_and(|value| value == "ib")
}

/// `UWARP_DEV`, or `uwarp0`.
pub(crate) fn device_name() -> String {
    std::env::var("UWARP_DEV").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "uwarp0".into())
}

/// The GUID of the node, in the byte order of this machine. It is known before anything starts.
pub(crate) fn guid() -> u64 {
    // A locally administered identifier with our name in it.
    u64::from_be_bytes(*b"\x02uwarp\x00\x01")
}
