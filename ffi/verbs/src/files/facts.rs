//! What the device's files say, in this process.
//!
//! Each process has its own address on the wire, and so its own GID and LID. Before a process has started the
//! engine, its files have the part of these values that the settings determine, and 0 in place of the rest.

use std::ffi::{CStr, c_char};
use std::fs;

use super::table::{Facts, Gid};
use crate::ibverbs::device::gid_entry;
use crate::net::{self, Net};
use crate::process::{self, identity, limits};

/// What is known before the engine starts.
pub(super) fn before_start() -> Facts {
    // If the settings have a mistake, the program cannot open the device, and another call reports the
    // mistake.
    let spec = net::wire_spec(None, None).unwrap_or_default();
    of(&net::before_start(&spec))
}

/// What queries return now, or `None` if this process has not started the engine.
pub(super) fn now() -> Option<Facts> {
    process::started().map(|process| of(&process.net))
}

fn of(net: &Net) -> Facts {
    let port = limits::port(net);
    let entries = (0..port.gid_tbl_len).filter_map(|index| gid_entry(net, index as u32).ok());
    let gids = entries.map(|entry| {
        // SAFETY: `raw` is an array of bytes, which has no invalid values.
        let gid = unsafe { entry.gid.raw };
        Gid { gid, kind: entry.gid_type, interface: interface_name(entry.ndev_ifindex) }
    });
    let line = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned());
    let cpus = line("/sys/devices/system/cpu/online").ok().filter(|cpus| !cpus.is_empty());
    Facts {
        name: identity::device_name(),
        node_type: identity::node_type(),
        device: limits::device(),
        gids: gids.collect(),
        port,
        // All memory is equally near to a device that is software, so several nodes have no nearest node.
        numa_node: if line("/sys/devices/system/node/online").is_ok_and(|nodes| nodes == "0") {
            0
        } else {
            -1
        },
        cpus: cpus.unwrap_or_else(|| "0".into()),
    }
}

/// The name of a network interface, or an empty text if there is none with this index.
fn interface_name(index: u32) -> String {
    let mut name: [c_char; libc::IF_NAMESIZE] = [0; libc::IF_NAMESIZE];
    // SAFETY: the array has the size that the function needs.
    if unsafe { libc::if_indextoname(index, name.as_mut_ptr()) }.is_null() {
        return String::new();
    }
    // SAFETY: the function has written a C string.
    unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned()
}
