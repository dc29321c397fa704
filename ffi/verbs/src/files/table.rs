//! The files of the device, with their contents. This module neither reads nor writes files.
//!
//! The folders and the contents are those of a device of Linux
//! (`Documentation/ABI/stable/sysfs-class-infiniband`). All values that `ibv_query_device`, `ibv_query_port`
//! and `ibv_query_gid_ex` return are taken from the structs of these calls. As for a software device of
//! Linux, the device's own folder is below `/sys/devices/virtual`.

use std::fmt::Write as _;

use super::place::{Node, Place};
use crate::ffi::sys;

/// What a device has in its files.
pub(super) struct Facts {
    /// The name of the device.
    pub(super) name: String,
    pub(super) node_type: sys::ibv_node_type,
    pub(super) device: sys::ibv_device_attr,
    pub(super) port: sys::ibv_port_attr,
    pub(super) gids: Vec<Gid>,
    /// The NUMA node of the device, or -1 if the device has none.
    pub(super) numa_node: i32,
    /// The CPUs near the device: numbers and ranges, as in `0-3,8`.
    pub(super) cpus: String,
}

/// A row of the table of GIDs.
pub(super) struct Gid {
    pub(super) gid: [u8; 16],
    pub(super) kind: sys::ibv_gid_type,
    /// The name of the network interface, or an empty text if there is none.
    pub(super) interface: String,
}

/// A path, without its first slash, and what is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) path: String,
    pub(super) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    Folder,
    File(String),
    /// A symbolic link to this path.
    Link(String),
    /// The node of a character device.
    Node,
}

/// The counters of a port. All are 0.
const COUNTERS: [&str; 17] = [
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "port_rcv_constraint_errors",
    "port_rcv_data",
    "port_rcv_errors",
    "port_rcv_packets",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_data",
    "port_xmit_discards",
    "port_xmit_packets",
    "port_xmit_wait",
    "symbol_error",
];

/// The version of the interface between the kernel and libibverbs, and of that between a driver and its
/// library.
const VERBS_ABI: u32 = 6;
const DRIVER_ABI: u32 = 1;

/// The files of a device. A folder comes before its entries.
pub(super) fn table(facts: &Facts) -> Vec<Entry> {
    let Facts { name, .. } = facts;
    let mut table = Table { entries: Vec::new() };
    table.folder(Place::Class.path());
    table.folder(Place::Verbs.path());
    table.folder(Place::Devices.path());
    table.folder(Place::Nodes.path());

    let device = format!("{}/{name}", Place::Devices.path());
    let uverbs = Node::Uverbs.name();
    let of_class = format!("../../devices/virtual/uwarp/{name}");
    table.link(&format!("{}/{name}", Place::Class.path()), format!("{of_class}/infiniband/{name}"));
    table.link(&format!("{}/{uverbs}", Place::Verbs.path()), format!("{of_class}/infiniband_verbs/{uverbs}"));
    table.file(&format!("{}/abi_version", Place::Verbs.path()), VERBS_ABI);
    for node in Node::ALL {
        table.add(&format!("{}/{}", Place::Nodes.path(), node.name()), What::Node);
    }

    table.folder(&device);
    add_parent(&mut table, &device, facts);
    let subsystem = |of: &str| format!("../../../../../../class/{of}");
    let infiniband = format!("{device}/infiniband");
    table.folder(&infiniband);
    let infiniband = format!("{infiniband}/{name}");
    table.folder(&infiniband);
    table.link(&format!("{infiniband}/device"), format!("../../../{name}"));
    table.link(&format!("{infiniband}/subsystem"), subsystem("infiniband"));
    add_device(&mut table, &infiniband, facts);
    let verbs = format!("{device}/infiniband_verbs");
    table.folder(&verbs);
    let verbs = format!("{verbs}/{uverbs}");
    table.folder(&verbs);
    table.link(&format!("{verbs}/device"), format!("../../../{name}"));
    table.link(&format!("{verbs}/subsystem"), subsystem("infiniband_verbs"));
    table.file(&format!("{verbs}/ibdev"), name);
    table.file(&format!("{verbs}/abi_version"), DRIVER_ABI);
    let (major, minor) = Node::Uverbs.numbers();
    table.file(&format!("{verbs}/dev"), format_args!("{major}:{minor}"));
    table.entries
}

/// The content of the file at `path`, which has no symbolic link and no first slash.
pub(super) fn content<'a>(table: &'a [Entry], path: &str) -> Option<&'a str> {
    match table.iter().find(|entry| entry.path == path)?.what {
        What::File(ref content) => Some(content),
        _ => None,
    }
}

struct Table {
    entries: Vec<Entry>,
}

impl Table {
    fn add(&mut self, path: &str, what: What) {
        self.entries.push(Entry { path: path.trim_start_matches('/').to_owned(), what });
    }

    fn folder(&mut self, path: &str) {
        self.add(path, What::Folder);
    }

    fn link(&mut self, path: &str, target: String) {
        self.add(path, What::Link(target));
    }

    /// Adds a file with one line.
    fn file(&mut self, path: &str, line: impl std::fmt::Display) {
        self.add(path, What::File(format!("{line}\n")));
    }
}

/// Adds the files of the hardware, which a PCI device has.
fn add_parent(table: &mut Table, folder: &str, facts: &Facts) {
    // The IDs of PCI have 16 bits. The vendor has the low bits of the verbs' vendor ID.
    let (vendor, part) = (facts.device.vendor_id & 0xffff, facts.device.vendor_part_id & 0xffff);
    for (name, line) in [
        ("vendor", format!("{vendor:#06x}")),
        ("device", format!("{part:#06x}")),
        ("subsystem_vendor", format!("{vendor:#06x}")),
        ("subsystem_device", format!("{part:#06x}")),
        // An Ethernet controller.
        ("class", "0x020000".to_owned()),
        ("numa_node", facts.numa_node.to_string()),
        ("local_cpulist", facts.cpus.clone()),
        ("local_cpus", cpu_mask(&facts.cpus)),
    ] {
        table.file(&format!("{folder}/{name}"), line);
    }
}

fn add_device(table: &mut Table, folder: &str, facts: &Facts) {
    let Facts { name, device, port, gids, .. } = facts;
    let firmware = device.fw_ver.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0);
    for (file, line) in [
        ("node_type", numbered(facts.node_type as u32, &["", "CA", "switch", "router", "RNIC"])),
        ("node_guid", guid(device.node_guid)),
        ("sys_image_guid", guid(device.sys_image_guid)),
        ("fw_ver", firmware.map(char::from).collect()),
        ("hw_rev", format!("{:#x}", device.hw_ver)),
        ("hca_type", "uwarp".to_owned()),
        ("node_desc", name.clone()),
    ] {
        table.file(&format!("{folder}/{file}"), line);
    }
    let ports = format!("{folder}/ports");
    table.folder(&ports);
    let folder = format!("{ports}/1");
    table.folder(&folder);
    let link_layer = match u32::from(port.link_layer) {
        sys::IBV_LINK_LAYER_INFINIBAND => "InfiniBand",
        _ => "Ethernet",
    };
    for (file, line) in [
        ("state", numbered(port.state, &["NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"])),
        (
            "phys_state",
            numbered(u32::from(port.phys_state), &["", "Sleep", "Polling", "Disabled", "", "LinkUp"]),
        ),
        ("link_layer", link_layer.to_owned()),
        ("rate", rate(port)),
        ("lid", format!("{:#x}", port.lid)),
        ("lid_mask_count", port.lmc.to_string()),
        ("sm_lid", format!("{:#x}", port.sm_lid)),
        ("sm_sl", port.sm_sl.to_string()),
        ("cap_mask", format!("{:#010x}", port.port_cap_flags)),
    ] {
        table.file(&format!("{folder}/{file}"), line);
    }
    for sub in ["gids", "gid_attrs", "gid_attrs/types", "gid_attrs/ndevs", "pkeys", "counters"] {
        table.folder(&format!("{folder}/{sub}"));
    }
    for (index, Gid { gid, kind, interface }) in gids.iter().enumerate() {
        table.file(&format!("{folder}/gids/{index}"), words(gid));
        let kind = if *kind == sys::IBV_GID_TYPE_ROCE_V2 { "RoCE v2" } else { "IB/RoCE v1" };
        table.file(&format!("{folder}/gid_attrs/types/{index}"), kind);
        if !interface.is_empty() {
            table.file(&format!("{folder}/gid_attrs/ndevs/{index}"), interface);
        }
    }
    for index in 0..port.pkey_tbl_len {
        table.file(&format!("{folder}/pkeys/{index}"), "0xffff");
    }
    for counter in COUNTERS {
        table.file(&format!("{folder}/counters/{counter}"), 0);
    }
}

/// A number with its name, as in `4: ACTIVE`.
fn numbered(number: u32, names: &[&str]) -> String {
    let name = names.get(number as usize).copied().unwrap_or_default();
    format!("{number}: {}", if name.is_empty() { "<unknown>" } else { name })
}

/// A GUID, which is in network byte order.
fn guid(guid: u64) -> String {
    words(&guid.to_ne_bytes())
}

/// Pairs of bytes in hexadecimal, as in GIDs and GUIDs.
fn words(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (at, byte) in bytes.iter().enumerate() {
        let separator = if at > 0 && at.is_multiple_of(2) { ":" } else { "" };
        // Writing to a `String` does not fail.
        let _ = write!(text, "{separator}{byte:02x}");
    }
    text
}

/// The bandwidth of a port, as in `100 Gb/sec (4X EDR)`.
fn rate(port: &sys::ibv_port_attr) -> String {
    let lanes = match port.active_width {
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 1,
    };
    // Tenths of Gb/s of one lane.
    let (of_lane, name) = match port.active_speed {
        2 => (50, " DDR"),
        4 => (100, " QDR"),
        8 => (100, " FDR10"),
        16 => (140, " FDR"),
        32 => (250, " EDR"),
        64 => (500, " HDR"),
        128 => (1000, " NDR"),
        _ => (25, ""),
    };
    let tenths = lanes * of_lane;
    let half = if tenths % 10 == 0 { "" } else { ".5" };
    format!("{}{half} Gb/sec ({lanes}X{name})", tenths / 10)
}

/// The bits of a list of CPUs: groups of 32 bits in hexadecimal, the highest group first.
fn cpu_mask(list: &str) -> String {
    let mut groups = vec![0u32];
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(first), Ok(last)) = (first.parse::<u16>(), last.parse::<u16>()) else { continue };
        for cpu in first..=last {
            let (group, bit) = (usize::from(cpu / 32), cpu % 32);
            groups.resize(groups.len().max(group + 1), 0);
            groups[group] |= 1 << bit;
        }
    }
    let mut highest_first = groups.iter().rev();
    let highest = format!("{:x}", highest_first.next().unwrap_or(&0));
    highest_first.fold(highest, |text, group| format!("{text},{group:08x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        let mut device = sys::ibv_device_attr {
            node_guid: 0x0275_7761_7270_0001_u64.to_be(),
            vendor_id: 0x02_7577,
            ..Default::default()
        };
        crate::ffi::c_str::copy_str(&mut device.fw_ver, "1.2.3");
        let port = sys::ibv_port_attr {
            state: sys::IBV_PORT_ACTIVE,
            phys_state: 5,
            lid: 0x4007,
            pkey_tbl_len: 1,
            active_width: 2,
            active_speed: 32,
            port_cap_flags: 0x1_0000,
            link_layer: sys::IBV_LINK_LAYER_ETHERNET as u8,
            ..Default::default()
        };
        let row = |last: u8, kind, interface: &str| {
            let mut gid = [0; 16];
            gid[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, last]);
            Gid { gid, kind, interface: interface.to_owned() }
        };
        let gids = vec![row(1, sys::IBV_GID_TYPE_IB, "eth0"), row(2, sys::IBV_GID_TYPE_ROCE_V2, "")];
        let (name, cpus) = ("u1".to_owned(), "0-1".to_owned());
        Facts { name, node_type: sys::IBV_NODE_RNIC, device, port, gids, numa_node: 0, cpus }
    }

    #[test]
    fn each_file_has_the_value_of_its_struct() {
        let table = table(&facts());
        let device = "sys/devices/virtual/uwarp/u1";
        for (path, wanted) in [
            ("vendor", Some("0x7577\n")),
            ("device", Some("0x0000\n")),
            ("numa_node", Some("0\n")),
            ("local_cpus", Some("3\n")),
            ("infiniband_verbs/uverbs0/ibdev", Some("u1\n")),
            ("infiniband_verbs/uverbs0/dev", Some("231:192\n")),
            ("infiniband/u1/node_type", Some("4: RNIC\n")),
            ("infiniband/u1/node_guid", Some("0275:7761:7270:0001\n")),
            ("infiniband/u1/fw_ver", Some("1.2.3\n")),
            ("infiniband/u1/ports/1/state", Some("4: ACTIVE\n")),
            ("infiniband/u1/ports/1/phys_state", Some("5: LinkUp\n")),
            ("infiniband/u1/ports/1/link_layer", Some("Ethernet\n")),
            ("infiniband/u1/ports/1/rate", Some("100 Gb/sec (4X EDR)\n")),
            ("infiniband/u1/ports/1/lid", Some("0x4007\n")),
            ("infiniband/u1/ports/1/cap_mask", Some("0x00010000\n")),
            ("infiniband/u1/ports/1/gids/0", Some("0000:0000:0000:0000:0000:ffff:0a00:0001\n")),
            ("infiniband/u1/ports/1/gids/1", Some("0000:0000:0000:0000:0000:ffff:0a00:0002\n")),
            ("infiniband/u1/ports/1/gids/2", None),
            ("infiniband/u1/ports/1/gid_attrs/types/0", Some("IB/RoCE v1\n")),
            ("infiniband/u1/ports/1/gid_attrs/types/1", Some("RoCE v2\n")),
            ("infiniband/u1/ports/1/gid_attrs/ndevs/0", Some("eth0\n")),
            ("infiniband/u1/ports/1/gid_attrs/ndevs/1", None),
            ("infiniband/u1/ports/1/pkeys/0", Some("0xffff\n")),
            ("infiniband/u1/ports/1/counters/port_xmit_data", Some("0\n")),
            ("infiniband/u1", None),
        ] {
            assert_eq!(content(&table, &format!("{device}/{path}")), wanted, "{path}");
        }
        assert_eq!(content(&table, "sys/class/infiniband_verbs/abi_version"), Some("6\n"));
    }

    #[test]
    fn each_entry_is_in_a_folder_of_the_table_and_each_link_leads_to_an_entry() {
        let table = table(&facts());
        let kind = |path: &str| table.iter().find(|entry| entry.path == path).map(|entry| &entry.what);
        for (at, Entry { path, what }) in table.iter().enumerate() {
            assert!(table[..at].iter().all(|before| before.path != *path), "{path} is there twice");
            let (folder, _) = path.rsplit_once('/').unwrap();
            let is_root = Place::ALL.iter().any(|place| place.path()[1..] == **path);
            let is_below =
                table[..at].iter().any(|before| before.path == folder && before.what == What::Folder);
            assert!(is_root != is_below, "{path}");
            if let What::Link(target) = what {
                let mut way: Vec<&str> = folder.split('/').collect();
                for part in target.split('/') {
                    if part == ".." { assert!(way.pop().is_some(), "{path}") } else { way.push(part) }
                }
                assert_eq!(kind(&way.join("/")), Some(&What::Folder), "{path} leads to {target}");
            }
        }
    }

    #[test]
    fn rates_and_masks_are_those_of_the_kernel() {
        let of = |active_width, active_speed| {
            rate(&sys::ibv_port_attr { active_width, active_speed, ..Default::default() })
        };
        assert_eq!(
            [of(1, 1), of(2, 1), of(8, 64)],
            ["2.5 Gb/sec (1X)", "10 Gb/sec (4X)", "600 Gb/sec (12X HDR)"]
        );
        let masks = ["0", "0-3", "0,2,31", "0-32,63", "64", "x"].map(cpu_mask);
        assert_eq!(masks, ["1", "f", "80000005", "80000001,ffffffff", "1,00000000,00000000", "0"]);
    }
}
