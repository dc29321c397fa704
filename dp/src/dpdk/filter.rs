//! The receive filter of a device. The device receives frames to its own address, and broadcasts. If
//! `promiscuous` is set and the driver can receive all frames, the device receives all frames. Otherwise, as
//! far as the driver allows, the device receives all multicast frames, or at least the multicast groups of
//! its IP addresses.
//!
//! VLAN filters and VLAN stripping are never enabled, so tagged frames arrive unchanged.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use dpdk_sys as sys;

/// `ff02::1`, all nodes, as an Ethernet address (RFC 2464 section 7).
const ALL_NODES: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];

/// `224.0.0.1`, all hosts, as an Ethernet address (RFC 1112 section 6.4). Routers send their queries for
/// groups there.
const ALL_HOSTS: [u8; 6] = [0x01, 0, 0x5e, 0, 0, 1];

/// Returns the multicast groups that a host with these addresses must receive. A host with IPv6 addresses
/// needs the group of all nodes, and the solicited-node group of each address (RFC 4291 section 2.7.1). IPv4
/// needs only broadcasts and no groups. The host also receives the groups `joined`, and the queries of
/// routers for them.
fn groups(addresses: &[IpAddr], joined: &[IpAddr]) -> Vec<[u8; 6]> {
    let six = addresses.iter().filter_map(|address| match address {
        IpAddr::V6(address) => Some(address.octets()),
        IpAddr::V4(_) => None,
    });
    let mut groups: Vec<[u8; 6]> = six.map(|[.., a, b, c]| [0x33, 0x33, 0xff, a, b, c]).collect();
    if !groups.is_empty() {
        groups.push(ALL_NODES);
    }
    for group in joined {
        groups.extend(match group {
            IpAddr::V4(group) => {
                let [_, b, c, d] = group.octets();
                [ALL_HOSTS, [0x01, 0, 0x5e, b & 0x7f, c, d]]
            }
            IpAddr::V6(group) => {
                let [.., a, b, c, d] = group.octets();
                [ALL_NODES, [0x33, 0x33, a, b, c, d]]
            }
        });
    }
    groups.sort_unstable();
    groups.dedup();
    groups
}

/// The list of multicast groups of a device that can receive neither all frames nor all multicast frames.
pub(super) struct GroupList {
    /// The host's IP addresses.
    addresses: Vec<IpAddr>,
    /// The groups that the users of the device's queues have joined, by queue.
    joined: Mutex<BTreeMap<u16, Vec<IpAddr>>>,
}

impl GroupList {
    /// Sets the groups that the user of a queue has joined.
    ///
    /// # Errors
    /// The error number if the device refuses the new list. The former list stays.
    pub(super) fn set_joined(&self, port_id: u16, queue: u16, groups: &[IpAddr]) -> Result<(), i32> {
        let mut joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        let former = joined.insert(queue, groups.to_vec());
        let done = set_list(port_id, &self.all(&joined));
        if done.is_err() {
            joined.insert(queue, former.unwrap_or_default());
        }
        done
    }

    /// All groups that the device must receive.
    fn all(&self, joined: &BTreeMap<u16, Vec<IpAddr>>) -> Vec<[u8; 6]> {
        let joined: Vec<IpAddr> = joined.values().flatten().copied().collect();
        groups(&self.addresses, &joined)
    }
}

/// Sets the receive filter of a started port: all frames if `promiscuous`, and all multicast frames. If the
/// device supports neither filter, sets the groups of `addresses`, and returns the list, which can be
/// changed.
///
/// # Errors
/// The error number if the device has a list of groups and refuses the new list. It is no error if the device
/// has no such list: then the device does not filter, or its filter cannot be changed.
pub(super) fn open(port_id: u16, promiscuous: bool, addresses: &[IpAddr]) -> Result<Option<GroupList>, i32> {
    // SAFETY: the caller keeps the port open.
    let takes_all = promiscuous && unsafe { sys::rte_eth_promiscuous_enable(port_id) } == 0;
    // SAFETY: the caller keeps the port open.
    let takes_groups = unsafe { sys::rte_eth_allmulticast_enable(port_id) } == 0;
    if takes_all || takes_groups {
        return Ok(None);
    }
    let groups = groups(addresses, &[]);
    if !groups.is_empty() {
        set_list(port_id, &groups)?;
    }
    Ok(Some(GroupList { addresses: addresses.to_vec(), joined: Mutex::default() }))
}

/// Sets the list of multicast groups of a port that the caller keeps open.
fn set_list(port_id: u16, groups: &[[u8; 6]]) -> Result<(), i32> {
    let mut groups: Vec<_> =
        groups.iter().map(|addr_bytes| sys::rte_ether_addr { addr_bytes: *addr_bytes }).collect();
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

    fn parsed(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_device_has_the_groups_of_all_its_queues_and_of_its_addresses() {
        let list = GroupList { addresses: parsed(&["fd00::a12:3456", "10.0.0.1"]), joined: Mutex::default() };
        let joined = BTreeMap::from([(0, parsed(&["239.193.2.3"])), (2, parsed(&["ff15::7", "239.65.2.3"]))]);
        let solicited = [0x33, 0x33, 0xff, 0x12, 0x34, 0x56];
        let joined_6 = [0x33, 0x33, 0, 0, 0, 7];
        let joined_4 = [0x01, 0, 0x5e, 0x41, 2, 3];
        assert_eq!(list.all(&joined), [ALL_HOSTS, joined_4, ALL_NODES, joined_6, solicited]);
        assert_eq!(list.all(&BTreeMap::new()), [ALL_NODES, solicited]);
    }

    #[test]
    fn a_host_hears_all_nodes_and_those_who_look_for_its_addresses() {
        let of = |texts: &[&str]| groups(&parsed(texts), &[]);
        assert_eq!(of(&["10.0.0.1"]), Vec::<[u8; 6]>::new());
        let solicited = [0x33, 0x33, 0xff, 0x12, 0x34, 0x56];
        assert_eq!(of(&["fd00::a12:3456"]), [ALL_NODES, solicited]);
        // The two IPv6 addresses have the same group.
        assert_eq!(of(&["fe80::12:3456", "10.0.0.1", "fd00::a12:3456"]), [ALL_NODES, solicited]);
    }
}
