//! The wire that the settings name.

use std::path::{Path, PathBuf};

use dp::local;
use iwarp_wire::{Kind, Spec, SpecError};

use crate::ffi::settings::{self, Key};

/// Returns the wire that the settings name. `net` and `addr` override the settings.
///
/// # Errors
/// If a setting or an argument is wrong, returns one line that tells the user what to do.
pub fn wire_spec(net: Option<&str>, addr: Option<&str>) -> Result<Spec, String> {
    let mut origin = String::new();
    let mut spec = match (net, settings::get(Key::Net)?) {
        (Some(net), _) => net.parse().map_err(text)?,
        (None, Some(setting)) => {
            origin = setting.origin();
            setting.text.parse().map_err(|error| format!("{origin}{}", text(error)))?
        }
        (None, None) => Spec::default(),
    };
    match (addr, settings::get(Key::Addr)?) {
        (Some(addr), _) => {
            spec.set_address(addr).map_err(text)?;
            refuse_on_local(&spec, addr)?;
        }
        (None, Some(setting)) => {
            let failed = |error| format!("{}{}", setting.origin(), text(error));
            spec.set_address(&setting.text).map_err(failed)?;
            // An address in the settings file belongs to the wire in this file, which may differ from the
            // chosen wire. So this address is not refused.
            if setting.origin().is_empty() {
                refuse_on_local(&spec, &setting.text)?;
            }
        }
        (None, None) => {}
    }
    spec.check().map_err(|error| format!("{origin}{}", text(error)))?;
    Ok(spec)
}

/// Refuses an address for a `local` wire. Such a wire chooses the addresses, so a program would listen at an
/// address other than `addr`.
fn refuse_on_local(spec: &Spec, addr: &str) -> Result<(), String> {
    match spec.kind {
        Kind::Local { .. } => Err(format!(
            "UWARP_ADDR={addr}: a local wire chooses its addresses: leave it out, or name another wire by UWARP_NET"
        )),
        _ => Ok(()),
    }
}

fn text(error: SpecError) -> String {
    format!("UWARP_NET={error}")
}

/// The folder of the status sockets, beside the folders of the wires.
///
/// # Errors
/// Returns one line that tells the user what to do.
pub fn status_folder() -> Result<PathBuf, String> {
    Ok(folder("any")?.with_file_name(".status"))
}

/// The folders in which the files of the device may be, the preferred folder first. The second folder is for
/// users whose `UWARP_DIR` is a folder that other users can replace.
pub(crate) fn files_folders() -> Vec<PathBuf> {
    let of_user = PathBuf::from(format!("/tmp/uwarp-{}/any", rustix::process::geteuid().as_raw()));
    let wires = folder("any").ok().into_iter().chain([of_user]);
    wires.map(|wire| wire.with_file_name(".files")).collect()
}

/// The folder of a `local` wire.
pub(super) fn folder(name: &str) -> Result<PathBuf, String> {
    let usual = local::default_folder(name).map_err(|error| error.to_string())?;
    match settings::get(Key::Dir)? {
        None => Ok(usual),
        Some(setting) if Path::new(&setting.text).is_absolute() => Ok(Path::new(&setting.text).join(name)),
        Some(setting) => Err(setting.refused("use an absolute path")),
    }
}
