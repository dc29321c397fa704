//! The receive filter of a device. The device receives frames to its own address, and broadcasts. If
//! `promiscuous` is set and the driver can receive all frames, the device receives all frames. Otherwise, as
//! far as the driver allows, the device receives all multicast frames, or at least the multicast groups of
//! its IP addresses.
//!
//! VLAN filters and VLAN stripping are never enabled, so tagged frames arrive unchanged.

use std::net::IpAddr;

use dpdk_sys as sys;

/// `ff02::1`, all nodes, as an Ethernet address (RFC 2464 section 7).
const ALL_NODES: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];

/// Returns the multicast groups that a host with these addresses must receive. A host with IPv6 addresses
/// needs the group of all nodes, and the solicited-node group of each address (RFC 4291 section 2.7.1). IPv4
/// needs only broadcasts and no groups.
fn groups(addresses: &[IpAddr]) -> Vec<[u8; 6]> {
    let six = addresses.iter().filter_map(|address| match address {
        IpAddr::V6(address) => Some(address.octets()),
        IpAddr::V4(_) => None,
    });
    let mut groups: Vec<[u8; 6]> = six.map(|[.., a, b, c]| [0x33, 0x33, 0xff, a, b, c]).collect();
    if !groups.is_empty() {
        groups.push(ALL_NODES);
    }
    groups.sort_unstable();
    groups.dedup();
    groups
}

/// Sets the receive filter of a started port: all frames if `promiscuous`, and all multicast frames. If the
/// device supports neither filter, sets the groups of `addresses`.
///
/// # Errors
/// The error number if the device has a list of groups and refuses the new list. It is no error if the device
/// has no such list: then the device does not filter, or its filter cannot be changed.
pub(super) fn open(port_id: u16, promiscuous: bool, addresses: &[IpAddr]) -> Result<(), i32> {
    // SAFETY: the caller keeps the port open.
    let takes_all = promiscuous && unsafe { sys::rte_eth_promiscuous_enable(port_id) } == 0;
    // SAFETY: the caller keeps the port open.
    let takes_groups = unsafe { sys::rte_eth_allmulticast_enable(port_id) } == 0;
    if takes_all || takes_groups {
        return Ok(());
    }
    let mut groups: Vec<_> =
        groups(addresses).into_iter().map(|addr_bytes| sys::rte_ether_addr { addr_bytes }).collect();
    if groups.is_empty() {
        return Ok(());
    }
    // SAFETY: the caller keeps the port open. The last argument is the number of elements of `groups`, and
    // the call copies the elements.
    let done =
        unsafe { sys::rte_eth_dev_set_mc_addr_list(port_id, groups.as_mut_ptr(), groups.len() as u32) };
    match -done {
        0 => Ok(()),
        errno if errno == rustix::io::Errno::NOTSUP.raw_os_error() => Ok(()),
        errno => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_hears_all_nodes_and_those_who_look_for_its_addresses() {
        let of = |texts: &[&str]| groups(&texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>());
        assert_eq!(of(&["10.0.0.1"]), Vec::<[u8; 6]>::new());
        let solicited = [0x33, 0x33, 0xff, 0x12, 0x34, 0x56];
        assert_eq!(of(&["fd00::a12:3456"]), [ALL_NODES, solicited]);
        // The two IPv6 addresses have the same group.
        assert_eq!(of(&["fe80::12:3456", "10.0.0.1", "fd00::a12:3456"]), [ALL_NODES, solicited]);
    }
}
