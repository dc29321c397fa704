//! Receive side scaling of a device. The device hashes with a key of this module, and the device's
//! redirection table lists all queues in turn. So [`Rss`] can compute the queue of a flow.
//!
//! If a device does not report its key or functions, or if the table cannot be set, the queue of a flow is
//! unknown. The queues still work: if a frame arrives at another queue than expected, the user of the ports
//! passes the frame on.

use std::mem::MaybeUninit;

use dpdk_sys as sys;
use rustix::rand::GetRandomFlags;

use crate::rss::{Rss, RssFields};

/// Key length in bytes for a device that reports no length (rte_ethdev.h: "40 bytes by default").
const USUAL_KEY_BYTES: u8 = 40;

/// Number of entries of the table in one `rte_eth_rss_reta_entry64`.
const GROUP: usize = sys::RTE_ETH_RETA_GROUP_SIZE as usize;

pub(super) struct RssConfig {
    /// The key of the hash. The key is random, so that no peer can choose flows that all go to one queue.
    /// Empty if the device uses the default key of its driver.
    key: Vec<u8>,
    /// Length of the device's key.
    key_bytes: u8,
    /// The types of packets that are hashed (`rss_hf`).
    functions: u64,
    table_entries: u16,
}

impl RssConfig {
    /// Makes the configuration for a device with these properties. Returns `None` if the device hashes
    /// neither IP nor TCP.
    pub(super) fn new(about: &sys::rte_eth_dev_info) -> Option<Self> {
        let functions = about.flow_type_rss_offloads & (sys::K_RSS_IP | sys::K_RSS_TCP);
        if functions == 0 {
            return None;
        }
        let key_bytes = if about.hash_key_size == 0 { USUAL_KEY_BYTES } else { about.hash_key_size };
        let mut key = vec![0; usize::from(key_bytes)];
        // If the system has no random bytes, the device uses the default key of the device's driver.
        if rustix::rand::getrandom(&mut key[..], GetRandomFlags::empty()) != Ok(key.len()) {
            key.clear();
        }
        Some(Self { key, key_bytes, functions, table_entries: about.reta_size })
    }

    /// Writes the key and the types of packets into `conf`. Afterwards `conf` points to the key of `self`, so
    /// `conf` must not be used after `self` is dropped.
    pub(super) fn fill(&mut self, conf: &mut sys::rte_eth_conf) {
        conf.rxmode.mq_mode = sys::RTE_ETH_MQ_RX_RSS;
        let rss = &mut conf.rx_adv_conf.rss_conf;
        rss.rss_hf = self.functions;
        if !self.key.is_empty() {
            (rss.rss_key, rss.rss_key_len) = (self.key.as_mut_ptr(), self.key.len() as u8);
        }
    }

    /// Fills the redirection table of a started device with all `queues` in turn. Returns the rule by which
    /// the device chooses queues. Returns `None` if the device does not report its key or does not accept the
    /// table, or if the length of the table is not a power of two.
    pub(super) fn settle(&self, port_id: u16, queues: u16) -> Option<Rss> {
        let (key, functions) = self.in_use(port_id)?;
        let table = self.set_table(port_id, queues)?;
        let fields = |ports, addresses| match functions {
            functions if functions & ports != 0 => RssFields::Ports,
            functions if functions & addresses != 0 => RssFields::Addresses,
            _ => RssFields::None,
        };
        let ipv4 = fields(sys::K_RSS_IPV4_TCP, sys::K_RSS_IPV4);
        let ipv6 = fields(sys::K_RSS_IPV6_TCP, sys::K_RSS_IPV6);
        Rss::new(&key, &table, ipv4, ipv6)
    }

    /// Returns the key and the types of packets that the device uses, or `None` if the device does not report
    /// them.
    fn in_use(&self, port_id: u16) -> Option<(Vec<u8>, u64)> {
        let mut key = self.key_buffer();
        // SAFETY: all-zero bytes are valid for this C struct of numbers and a pointer.
        let mut conf: sys::rte_eth_rss_conf = unsafe { MaybeUninit::zeroed().assume_init() };
        (conf.rss_key, conf.rss_key_len) = (key.as_mut_ptr(), key.len() as u8);
        // SAFETY: the caller has the port open. `conf` is a local variable. The key of `conf` has
        // `rss_key_len` writable bytes, which is at least the length of the device's key.
        let done = unsafe { sys::rte_eth_dev_rss_hash_conf_get(port_id, &mut conf) };
        (done == 0).then_some((key, conf.rss_hf))
    }

    /// Returns a buffer for the key that the device reports, also if `self` has no key. A driver may write
    /// the whole key, and at least [`USUAL_KEY_BYTES`] bytes.
    fn key_buffer(&self) -> Vec<u8> {
        vec![0; usize::from(self.key_bytes.max(USUAL_KEY_BYTES))]
    }

    fn set_table(&self, port_id: u16, queues: u16) -> Option<Vec<u16>> {
        let table = round_robin(self.table_entries, queues)?;
        let mut groups: Vec<sys::rte_eth_rss_reta_entry64> = table
            .chunks(GROUP)
            .map(|chunk| {
                let mut reta = [0; GROUP];
                reta[..chunk.len()].copy_from_slice(chunk);
                sys::rte_eth_rss_reta_entry64 { mask: u64::MAX >> (GROUP - chunk.len()), reta }
            })
            .collect();
        // SAFETY: the caller has the port open. The groups have `table_entries` entries, the table length
        // that the device reports.
        let done =
            unsafe { sys::rte_eth_dev_rss_reta_update(port_id, groups.as_mut_ptr(), self.table_entries) };
        (done == 0).then_some(table)
    }
}

/// Makes a table of all queues in turn. Returns `None` if `entries` is not a power of two.
fn round_robin(entries: u16, queues: u16) -> Option<Vec<u16>> {
    entries.is_power_of_two().then(|| (0..entries).map(|entry| entry % queues).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(functions: u64, key: u8, table: u16) -> sys::rte_eth_dev_info {
        // SAFETY: all-zero bytes are valid for this C struct of numbers and raw pointers.
        let mut about: sys::rte_eth_dev_info = unsafe { std::mem::zeroed() };
        (about.flow_type_rss_offloads, about.hash_key_size, about.reta_size) = (functions, key, table);
        about
    }

    #[test]
    fn a_device_that_hashes_gets_a_key_of_its_length_that_is_another_each_time() {
        let key = |bytes| RssConfig::new(&about(sys::K_RSS_IPV4_TCP, bytes, 128)).unwrap().key;
        assert_eq!([0, 40, 52].map(|bytes| key(bytes).len()), [40, 40, 52]);
        assert_ne!(key(40), key(40));
    }

    #[test]
    fn the_buffer_of_the_reported_key_has_the_length_of_the_devices_key() {
        for (reported, expected) in [(0, 40), (10, 40), (40, 40), (52, 52)] {
            let mut config = RssConfig::new(&about(sys::K_RSS_IPV4_TCP, reported, 128)).unwrap();
            assert_eq!(config.key_buffer().len(), expected);
            config.key.clear();
            assert_eq!(config.key_buffer().len(), expected, "with the default key of the driver");
        }
    }

    #[test]
    fn a_device_without_a_hash_of_ip_or_tcp_has_no_rss() {
        assert!(RssConfig::new(&about(0, 40, 128)).is_none());
    }

    #[test]
    fn the_table_has_all_queues_in_turn() {
        assert_eq!(round_robin(8, 3), Some(vec![0, 1, 2, 0, 1, 2, 0, 1]));
        assert_eq!([0, 100].map(|entries| round_robin(entries, 2)), [None, None]);
    }
}
