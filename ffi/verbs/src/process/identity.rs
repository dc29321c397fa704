//! The identity of the device: its name, type and GUID. The identity is known before the engine starts.

use crate::ffi::settings::{self, Key};

/// Maximum number of bytes of a name (`IBV_SYSFS_NAME_MAX`), including the terminating zero.
const NAME_BYTES: usize = 64;

/// Whether the device reports itself as an InfiniBand device (`UWARP_PRETEND=ib`).
pub(crate) fn pretends_ib() -> bool {
    settings::text(Key::Pretend).is_some_and(|value| value == "ib")
}

/// The name of the device: the setting `UWARP_DEV`, or `uwarp0` if the setting is missing or not a valid
/// name.
pub(crate) fn device_name() -> String {
    settings::text(Key::Dev).filter(|name| is_name(name)).unwrap_or_else(|| "uwarp0".into())
}

fn is_name(name: &str) -> bool {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    is_plain && name.len() < NAME_BYTES
}

pub(crate) fn check() -> Result<(), String> {
    if let Some(kind) = settings::get(Key::Pretend)?.filter(|kind| kind.text != "ib") {
        return Err(kind.refused("use ib"));
    }
    match settings::get(Key::Dev)?.filter(|name| !is_name(&name.text)) {
        Some(name) => Err(name.refused("use at most 63 letters, digits, '-', '_' and '.'")),
        None => Ok(()),
    }
}

/// The node GUID, in the byte order of this machine.
pub(crate) fn guid() -> u64 {
    // A locally administered identifier that contains the name `uwarp`.
    u64::from_be_bytes(*b"\x02uwarp\x00\x01")
}
