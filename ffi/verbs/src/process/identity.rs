//! The identity of the device: its name, type and GUID. The identity is known before the engine starts.

use crate::ffi::settings::{self, Key};
use crate::ffi::sys;

/// Maximum number of bytes of a name (`IBV_SYSFS_NAME_MAX`), including the terminating zero.
const NAME_BYTES: usize = 64;

/// Whether the device reports itself as an InfiniBand device (`UWARP_PRETEND=ib`).
pub(crate) fn pretends_ib() -> bool {
    settings::text(Key::Pretend).is_some_and(|value| value == "ib")
}

/// The type of the device, as programs see it.
pub(crate) fn node_type() -> sys::ibv_node_type {
    if pretends_ib() { sys::IBV_NODE_CA } else { sys::IBV_NODE_RNIC }
}

/// How the device has files (`UWARP_FILES`).
const FILES: [&str; 4] = ["auto", "mount", "interpose", "none"];

fn files() -> Result<Option<String>, String> {
    match settings::get(Key::Files)? {
        Some(files) if !FILES.contains(&files.text.as_str()) => {
            Err(files.refused("use auto, mount, interpose or none"))
        }
        files => Ok(files.map(|files| files.text)),
    }
}

/// Whether the launcher mounts the files.
///
/// # Errors
/// If the setting is wrong, returns one line that tells the user what to do.
pub(crate) fn mounts_files() -> Result<bool, String> {
    Ok(files()?.is_some_and(|files| files == "mount"))
}

/// Whether the calls of the program find the files of the device.
pub(crate) fn has_files() -> bool {
    files().is_ok_and(|files| files.is_none_or(|files| files != "none"))
}

/// The name of the device: the setting `UWARP_DEV`, or `uwarp0` if the setting is missing or not a valid
/// name.
pub(crate) fn device_name() -> String {
    settings::text(Key::Dev).filter(|name| is_name(name)).unwrap_or_else(|| "uwarp0".into())
}

fn is_name(name: &str) -> bool {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    is_plain && name.len() < NAME_BYTES && name != "." && name != ".."
}

pub(crate) fn check() -> Result<(), String> {
    if let Some(kind) = settings::get(Key::Pretend)?.filter(|kind| kind.text != "ib") {
        return Err(kind.refused("use ib"));
    }
    files()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_name_of_a_file() {
        assert!(["uwarp0", "mlx5_0", "a.b-c", "..."].into_iter().all(is_name));
        assert!(["a/b", ".", "..", "a b", &"x".repeat(64)].into_iter().all(|name| !is_name(name)));
    }
}
