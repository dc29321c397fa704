//! Opens and configures a device.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use dpdk_sys as sys;

use super::config::{DeviceConfig, PortSpec};
use super::filter::{self, GroupList};
use super::fit::TxLimits;
use super::handle::{DeviceHandle, find_pci, lock, make_vdev};
use super::interrupt::{self, RxInterrupt};
use super::link_events::LinkEvents;
use super::queues::{self, Refusal};
use super::rss::RssConfig;
use super::vhost_user::VhostUserBackend;
use super::{DeviceError, drivers, vdev};
use crate::eal::{self, Eal};
use crate::mempool::dpdk::{DpdkPool, MAX_DATA_BYTES};
use crate::{Offloads, PortInfo, Queue};

/// Number of bytes of an Ethernet header with a VLAN tag.
const L2_BYTES: usize = 18;

/// Drivers that report a maximum frame of 1518 bytes although their devices send and receive larger frames.
const UNDERSTATED_MTU: &[&str] = &["net_af_packet", "net_memif"];

const MIN_MBUF_BYTES: usize = 2048;

/// Minimum number of bytes of a packet buffer if frames of 64 KiB arrive in chains. Each boundary between two
/// buffers may split an FPDU, and a split FPDU costs more than a contiguous FPDU.
const MIN_LARGE_FRAME_MBUF_BYTES: usize = 4096;

/// The driver of the device side of a vhost-user socket.
const VHOST: &str = "net_vhost";

/// The drivers of the two sides of a vhost-user socket and of a memif socket. A device with such a driver has
/// one peer, and the device's link is up while the peer is connected.
const POINT_TO_POINT: &[&str] = &[VHOST, "net_virtio_user", "net_memif"];

/// Drivers that do not count how often a receive buffer was missing.
const NO_RX_NO_MBUF_COUNT: &[&str] = &[VHOST];

/// Drivers that always receive into chains of buffers, without reporting the offload.
const ALWAYS_SCATTER: &[&str] = &[VHOST];

/// The offloads that DPDK reports as bits, each with its bit: first for reception, and then for transmission.
const RX_OFFLOADS: &[(Offloads, u64)] = &[
    (Offloads::RX_IPV4_CHECKSUM, sys::K_RX_IPV4_CKSUM),
    (Offloads::RX_TCP_CHECKSUM, sys::K_RX_TCP_CKSUM),
    (Offloads::RX_LRO, sys::K_RX_TCP_LRO),
    (Offloads::RX_SCATTER, sys::K_RX_SCATTER),
];
const TX_OFFLOADS: &[(Offloads, u64)] = &[
    (Offloads::TX_IPV4_CHECKSUM, sys::K_TX_IPV4_CKSUM),
    (Offloads::TX_TCP_CHECKSUM, sys::K_TX_TCP_CKSUM),
    (Offloads::TX_MULTI_SEGMENT, sys::K_TX_MULTI_SEGS),
    (Offloads::TX_TSO, sys::K_TX_TCP_TSO),
];

/// Approximate number of bytes of a large buffer, unless the driver's limit for one descriptor is lower. NICs
/// support less than 64 KiB per descriptor.
const BULK_BYTES: usize = 32 << 10;

/// Minimum number of views of large buffers. With this number, each thread can have a cache of views.
const MIN_BULK_VIEWS: u32 = 4096;

/// A started device. The device is stopped and closed when its last port is dropped.
pub(super) struct Device {
    /// This field is dropped before the handle, since the registration must end before the handle closes the
    /// device.
    events: Option<LinkEvents>,
    /// This field is dropped before the pools, so that the device is closed before the pools are released.
    handle: DeviceHandle,
    pub(super) port_id: u16,
    pub(super) pools: Vec<QueuePools>,
    pub(super) limits: TxLimits,
    pub(super) stats_lock: Mutex<()>,
    /// `true` if the driver does not count missing receive buffers, so that only the port can notice a
    /// missing buffer.
    pub(super) lacks_rx_no_mbuf_count: bool,
    /// `true` if the driver at the other side of the device's vhost-user socket may accept large TCP frames
    /// uncut, and the configuration allows such frames.
    may_pass_large_frames: bool,
    /// `true` if the device was configured with an interrupt for each receive queue.
    has_rx_interrupts: bool,
    /// `None` if the device receives all multicast frames.
    pub(super) group_list: Option<GroupList>,
}

#[derive(Clone)]
pub(super) struct QueuePools {
    pub(super) pool: Arc<DpdkPool>,
    /// Large buffers for transmission. `None` if the port cannot send frames of several buffers, or if no
    /// large buffers are configured.
    pub(super) bulk: Option<Arc<DpdkPool>>,
}

/// Opens a device with `config.queues` pairs of queues, and starts the device. Returns the device, and the
/// description of its first port.
pub(super) fn open(
    eal: Eal,
    spec: &PortSpec,
    config: &DeviceConfig,
) -> Result<(Device, PortInfo), DeviceError> {
    if eal::is_forked() {
        return Err(DeviceError::Forked);
    }
    let (name, handle) = match spec {
        PortSpec::Pci(text) => find_pci(eal, text)?,
        PortSpec::Vdev(text) => make_vdev(text)?,
    };
    let least_mbuf_bytes = match spec {
        PortSpec::Pci(_) => 0,
        PortSpec::Vdev(text) => vdev::least_mbuf_bytes(text),
    };
    setup(eal, &name, handle, config, least_mbuf_bytes, interrupt::asks_for_interrupts(spec))
}

fn setup(
    eal: Eal,
    name: &str,
    handle: DeviceHandle,
    config: &DeviceConfig,
    least_mbuf_bytes: usize,
    with_interrupts: bool,
) -> Result<(Device, PortInfo), DeviceError> {
    let id = handle.port_id;
    let ok = |step, done: i32| if done < 0 { Err(DeviceError::setup(name, step, -done)) } else { Ok(()) };

    let mut about = MaybeUninit::<sys::rte_eth_dev_info>::zeroed();
    // SAFETY: `handle` keeps the port open, and `about` has room for its properties.
    ok("asking what it can do", unsafe { sys::rte_eth_dev_info_get(id, about.as_mut_ptr()) })?;
    // SAFETY: `about` was zeroed and then filled in. The fields of `about` are numbers and raw pointers, for
    // which any bits are valid.
    let about = unsafe { about.assume_init() };
    // SAFETY: the call above has succeeded, so `driver_name` points to a constant C string.
    let driver = unsafe { CStr::from_ptr(about.driver_name) }.to_string_lossy().into_owned();

    let most = about.max_rx_queues.min(about.max_tx_queues);
    let device_mtu = device_mtu(name, &driver, &about, config.mtu)?;
    let row = drivers::find(&driver);
    let frame_bytes = usize::from(config.mtu) + L2_BYTES;
    let rx_bytes = frame_bytes + row.rx_header_bytes;
    let least = if receives_large_frames(&about, &driver, config) {
        MIN_LARGE_FRAME_MBUF_BYTES
    } else {
        MIN_MBUF_BYTES
    };
    let mbuf_bytes = config
        .mbuf_bytes
        .unwrap_or(rx_bytes.max(least_mbuf_bytes).next_multiple_of(row.rx_unit.max(64)).max(least));
    let room = row.rx_room(mbuf_bytes);
    let offloads = choose_offloads(&about, &driver, config, rx_bytes > room);
    queues::check(config.queues, most, offloads, &row).map_err(|refusal| match refusal {
        Refusal::Most(most) => DeviceError::Queues { device: name.to_owned(), most, asked: config.queues },
        Refusal::Unspread => {
            let (device, driver) = (name.to_owned(), driver.clone());
            DeviceError::Unspread { device, driver, asked: config.queues }
        }
    })?;
    if rx_bytes > room && !offloads.contains(Offloads::RX_SCATTER) {
        let (frame_bytes, mbuf_bytes) = (rx_bytes, room);
        return Err(DeviceError::BufferTooSmall { device: name.to_owned(), frame_bytes, mbuf_bytes });
    }

    let mut limits = TxLimits { frame_bytes, driver: row.with_reported(&about.tx_desc_lim) };
    if !offloads.contains(Offloads::TX_MULTI_SEGMENT) {
        limits.driver.buffers = 1;
        limits.driver.tso_buffers = 1;
    }

    // SAFETY: all-zero bytes are valid for this C struct of numbers, enumerations with a zero, and raw
    // pointers. For DPDK, zeros mean the defaults.
    let mut conf: sys::rte_eth_conf = unsafe { std::mem::zeroed() };
    conf.rxmode.mtu = u32::from(row.mtu_with_tag(device_mtu, about.max_mtu));
    conf.rxmode.offloads = bits(RX_OFFLOADS, offloads) & about.rx_offload_capa;
    conf.txmode.offloads = bits(TX_OFFLOADS, offloads);
    if offloads.contains(Offloads::RX_LRO) {
        conf.rxmode.max_lro_pkt_size = about.max_lro_pkt_size.min(u32::from(u16::MAX));
    }
    let mut rss = RssConfig::new(&about).filter(|_| offloads.contains(Offloads::RX_RSS));
    if let Some(rss) = &mut rss {
        rss.fill(&mut conf);
    }
    let configure = |conf: &sys::rte_eth_conf| {
        // The first vhost device that is configured starts vhost's thread. DPDK has no lock for this step, so
        // two devices could start a thread each, and both threads would free the same connection.
        let _one_at_a_time = lock();
        // SAFETY: `handle` keeps the port open. The port is not started, and no other code uses it. The call
        // copies the configuration.
        unsafe { sys::rte_eth_dev_configure(id, config.queues, config.queues, conf) }
    };
    conf.intr_conf.set_rxq(u32::from(with_interrupts));
    let mut configured = configure(&conf);
    if configured < 0 && with_interrupts {
        // Some devices have no interrupts for their queues. The ports of such a device are polled.
        eal::log::mark();
        conf.intr_conf.set_rxq(0);
        configured = configure(&conf);
    }
    ok("configuring it", configured)?;

    let (mut rx_desc, mut tx_desc) = (config.rx_desc, config.tx_desc);
    // SAFETY: `handle` keeps the port open, and the port was configured above. `rx_desc` and `tx_desc` are
    // writable local variables.
    ok("sizing its rings", unsafe { sys::rte_eth_dev_adjust_nb_rx_tx_desc(id, &mut rx_desc, &mut tx_desc) })?;

    // SAFETY: the function accepts any port number, and only reads.
    let node_of_device = unsafe { sys::rte_eth_dev_socket_id(id) };
    let node = config.socket.and_then(|socket| i32::try_from(socket).ok()).unwrap_or(node_of_device);
    // Each queue has its own pool. So a queue does not use the buffers of another queue, and does not wait
    // for another queue's cache lines.
    let count = config.mbufs.unwrap_or((4 * (u32::from(rx_desc) + u32::from(tx_desc))).max(8192));
    let has_bulk = config.bulk_mbufs > 0 && offloads.contains(Offloads::TX_MULTI_SEGMENT);
    let pools = (0..config.queues).map(|_| {
        let pool = DpdkPool::new(eal, name, (count, count), mbuf_bytes, node)
            .map_err(|errno| DeviceError::memory(count, mbuf_bytes, errno))?;
        let bulk = || {
            let (count, bytes) = (config.bulk_mbufs, bulk_bytes(config.mtu, limits.driver.buffer_bytes));
            // Many frames in a ring may refer to parts of one buffer, and each frame has its own view of the
            // buffer. So the number of views also depends on the length of the ring.
            let views = count.max(2 * u32::from(tx_desc)).max(MIN_BULK_VIEWS);
            DpdkPool::new(eal, name, (count, views), bytes, node)
                .map_err(|errno| DeviceError::memory(count, bytes, errno))
        };
        Ok(QueuePools { pool, bulk: has_bulk.then(bulk).transpose()? })
    });
    let pools = pools.collect::<Result<Vec<_>, DeviceError>>()?;
    // From here on `device` owns the pools. `device` is closed before the pools are released.
    let mut device = Device {
        events: LinkEvents::listen(id),
        handle,
        port_id: id,
        pools,
        limits,
        stats_lock: Mutex::default(),
        lacks_rx_no_mbuf_count: NO_RX_NO_MBUF_COUNT.contains(&driver.as_str()),
        may_pass_large_frames: driver == VHOST
            && config.offloads.contains(Offloads::TX_TSO)
            && offloads.contains(Offloads::TX_TCP_CHECKSUM),
        has_rx_interrupts: conf.intr_conf.rxq() != 0,
        group_list: None,
    };
    let mut started = device.start(name, config.queues, (rx_desc, tx_desc), node);
    if started.is_err() && device.has_rx_interrupts {
        eal::log::mark();
        conf.intr_conf.set_rxq(0);
        device.has_rx_interrupts = false;
        ok("configuring it", configure(&conf))?;
        started = device.start(name, config.queues, (rx_desc, tx_desc), node);
    }
    started?;
    device.group_list = filter::open(id, config.promiscuous, &config.addresses)
        .map_err(|errno| DeviceError::setup(name, "telling it the multicast groups", errno))?;
    let mut address = sys::rte_ether_addr { addr_bytes: [0; 6] };
    // SAFETY: `device` keeps the port open, and `address` is a writable local variable.
    ok("asking for its address", unsafe { sys::rte_eth_macaddr_get(id, &mut address) })?;

    let info = PortInfo {
        tso: limits.driver.tso_limits(),
        queue: Queue { index: 0, rss: rss.and_then(|rss| rss.settle(id, config.queues)) },
        point_to_point: POINT_TO_POINT.contains(&driver.as_str()),
        ..PortInfo::new(name, address.addr_bytes, config.mtu, offloads)
    };
    Ok((device, info))
}

/// Number of bytes of a large buffer. The buffer has room for a whole number of segments. It is at most as
/// long as the driver's limit for one descriptor, unless a single segment is longer.
fn bulk_bytes(mtu: u16, buffer_bytes: usize) -> usize {
    let mtu = usize::from(mtu);
    (BULK_BYTES.min(buffer_bytes) / mtu * mtu).clamp(mtu, MAX_DATA_BYTES)
}

/// Returns the MTU to configure on the device. If the driver is in [`UNDERSTATED_MTU`], the result is at most
/// the maximum that the device reports. For any other driver, an MTU outside the reported range is an error.
fn device_mtu(
    name: &str,
    driver: &str,
    about: &sys::rte_eth_dev_info,
    asked: u16,
) -> Result<u16, DeviceError> {
    // The overhead of a frame, computed as ethdev computes it.
    let overhead = if about.max_mtu != u16::MAX && about.max_rx_pktlen > u32::from(about.max_mtu) {
        about.max_rx_pktlen - u32::from(about.max_mtu)
    } else {
        L2_BYTES as u32
    };
    let most = about.max_rx_pktlen.saturating_sub(overhead).min(u32::from(about.max_mtu)) as u16;
    if UNDERSTATED_MTU.contains(&driver) {
        return Ok(asked.min(most));
    }
    if asked < about.min_mtu || asked > most {
        return Err(DeviceError::Mtu { device: name.to_owned(), least: about.min_mtu, most, asked });
    }
    Ok(asked)
}

/// Whether the device may deliver frames that are larger than the MTU.
fn receives_large_frames(about: &sys::rte_eth_dev_info, driver: &str, config: &DeviceConfig) -> bool {
    let joins = about.rx_offload_capa & sys::K_RX_TCP_LRO != 0 && drivers::find(driver).joins;
    ALWAYS_SCATTER.contains(&driver) || joins && config.offloads.contains(Offloads::RX_LRO)
}

/// Returns the offloads that the device has and the configuration allows, except offloads that would not
/// work, and except scatter if no frame needs it.
fn choose_offloads(
    about: &sys::rte_eth_dev_info,
    driver: &str,
    config: &DeviceConfig,
    frames_need_scatter: bool,
) -> Offloads {
    let mut offloads = Offloads::empty();
    for (table, capable) in [(RX_OFFLOADS, about.rx_offload_capa), (TX_OFFLOADS, about.tx_offload_capa)] {
        for &(offload, bit) in table {
            offloads.set(offload, capable & bit != 0);
        }
    }
    if ALWAYS_SCATTER.contains(&driver) {
        offloads.insert(Offloads::RX_SCATTER);
    }
    let hashes = about.flow_type_rss_offloads & (sys::K_RSS_IP | sys::K_RSS_TCP) != 0;
    offloads.set(Offloads::RX_RSS, hashes && config.queues > 1);
    offloads.set(Offloads::TX_EXTERNAL, drivers::find(driver).copies);
    offloads &= config.offloads;
    if !drivers::find(driver).joins {
        offloads.remove(Offloads::RX_LRO);
    }
    // TSO is not used if the device does not compute the checksum of each piece, or if the driver's TSO does
    // not work.
    if !offloads.contains(Offloads::TX_TCP_CHECKSUM) || !drivers::find(driver).tso {
        offloads.remove(Offloads::TX_TSO);
    }
    // Scatter may disable a driver's fast path, so scatter is enabled only if frames can be longer than a
    // buffer.
    if !frames_need_scatter && !offloads.contains(Offloads::RX_LRO) {
        offloads.remove(Offloads::RX_SCATTER);
    }
    offloads
}

fn bits(table: &[(Offloads, u64)], offloads: Offloads) -> u64 {
    table.iter().filter(|(offload, _)| offloads.contains(*offload)).fold(0, |bits, (_, bit)| bits | bit)
}

impl Device {
    /// Sets up the queues, whose rings have the lengths `rings`, and starts the device.
    fn start(&mut self, name: &str, queues: u16, rings: (u16, u16), node: i32) -> Result<(), DeviceError> {
        let (id, (rx_desc, tx_desc)) = (self.port_id, rings);
        let ok = |step, done: i32| if done < 0 { Err(DeviceError::setup(name, step, -done)) } else { Ok(()) };
        for queue in 0..queues {
            let defaults = std::ptr::null();
            // SAFETY: `setup` has configured the port with this queue, and the port is not started. The pool
            // is released after the queue: `Device` drops its handle, which closes the port, before its
            // pools.
            let rx = unsafe {
                let pool = self.pools[usize::from(queue)].pool.raw();
                sys::rte_eth_rx_queue_setup(id, queue, rx_desc, node as u32, defaults, pool)
            };
            ok("setting up a receive queue", rx)?;
            // SAFETY: `setup` has configured the port with this queue, and the port is not started.
            let tx =
                unsafe { sys::rte_eth_tx_queue_setup(id, queue, tx_desc, node as u32, std::ptr::null()) };
            ok("setting up a transmit queue", tx)?;
        }
        // SAFETY: `setup` has configured the port, and all its queues were set up.
        ok("starting it", unsafe { sys::rte_eth_dev_start(id) })?;
        self.handle.started = true;
        Ok(())
    }

    /// Makes the interrupt of a receive queue, if the device has an interrupt for the queue. The device must
    /// be started.
    pub(super) fn interrupt(&self, queue: u16) -> Option<RxInterrupt> {
        let (probed, listener) = (self.handle.probed.of_queue(queue), self.events.as_ref()?.listener());
        // The interrupts of virtual devices are known to work, since tests cover these interrupts.
        let is_proven = self.handle.is_virtual();
        RxInterrupt::of(self.port_id, queue, probed, self.has_rx_interrupts, is_proven, listener)
    }

    /// Whether the driver at the other side of a vhost-user socket has negotiated that it accepts large TCP
    /// frames uncut.
    ///
    /// DPDK's vhost device has no flag for this property, since the answer is unknown until a driver
    /// connects. Once a driver is connected, the device describes large frames as virtio requires.
    ///
    /// The answer is not stored, since no event reports a change of the answer. The vhost callbacks of the
    /// connection belong to the port's driver, and a second registration for the socket would replace these
    /// callbacks. A peer may connect between the configuration of the port and the configuration of its
    /// queues. Then the link event comes too early: the connection has no number yet, and no later event
    /// follows.
    pub(super) fn passes_large_frames(&self) -> bool {
        const NEEDED: u64 = sys::K_GUEST_CSUM | sys::K_GUEST_TSO4 | sys::K_GUEST_TSO6 | sys::K_MRG_RXBUF;
        let Some(events) = self.events.as_ref().filter(|_| self.may_pass_large_frames) else { return false };
        let _held = events.listener().hold_connection();
        let Some(connection) = self.vhost_connection() else { return false };
        let mut features = 0;
        // SAFETY: `features` is a writable local variable. `_held` was locked before the connection was
        // found. Vhost first removes the connection's number, then reports that the link is down, and frees
        // the connection only after `on_event` has returned. `on_event` waits for `_held`, so the connection
        // is not freed during the call.
        let done = unsafe { sys::rte_vhost_get_negotiated_features(connection, &mut features) };
        done == 0 && features & NEEDED == NEEDED
    }

    /// Whether the device was removed. A removed device can be closed, but not used.
    #[inline]
    pub(super) fn is_gone(&self) -> bool {
        self.handle.gone().load(Ordering::Relaxed)
    }

    /// Whether the device can send frames while the driver reports that the link is up. The vhost driver
    /// reports that the link is up before the queues know the number of the connection, and drops frames
    /// until then. For a device that may not pass large frames, the result is `true`.
    pub(super) fn is_connected(&self) -> bool {
        !self.may_pass_large_frames || self.vhost_connection().is_some()
    }

    /// The number of the connection of a vhost-user socket. `None` if there is no connection, or if the
    /// device may not pass large frames (only a `net_vhost` may pass them).
    fn vhost_connection(&self) -> Option<i32> {
        if !self.may_pass_large_frames {
            return None;
        }
        // SAFETY: `may_pass_large_frames` is `true` only for a port of `net_vhost`, and `self` keeps the port
        // open.
        let connection = unsafe { sys::rte_eth_vhost_get_vid_from_port_id(self.port_id) };
        (connection >= 0).then_some(connection)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // A forked child must not use the driver's socket, which the child shares with its parent.
        if eal::is_forked() {
            return;
        }
        let silent = |backend: &VhostUserBackend| !backend.lets_go();
        if !self.handle.backend.as_ref().is_some_and(silent) && !self.handle.lacks_registers() {
            return;
        }
        // The backend may still write to the rings and their buffers, or the driver still uses the rings and
        // buffers. So this process keeps the rings and buffers until it ends.
        self.handle.abandoned = true;
        std::mem::forget(self.pools.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_buffer_is_of_whole_segments_and_no_longer_than_the_driver_takes() {
        for mtu in 576..=9698 {
            for (driver, most) in
                [("net_vmxnet3", 16_383), ("net_of_tomorrow", 16_383), ("net_vhost", BULK_BYTES)]
            {
                let bytes = bulk_bytes(mtu, drivers::find(driver).buffer_bytes);
                assert!(
                    bytes <= most && bytes.is_multiple_of(usize::from(mtu)) && bytes > 0,
                    "{driver} {mtu}: {bytes}"
                );
            }
        }
        assert_eq!([1500, 9000].map(|mtu| bulk_bytes(mtu, 16_383)), [15_000, 9000]);
        assert_eq!([1500, 9000].map(|mtu| bulk_bytes(mtu, usize::from(u16::MAX))), [31_500, 27_000]);
    }

    #[test]
    fn tags_of_vlans_are_neither_filtered_nor_removed() {
        let asked = bits(RX_OFFLOADS, Offloads::all()) | bits(TX_OFFLOADS, Offloads::all());
        assert_eq!(asked & (sys::K_RX_VLAN_FILTER | sys::K_RX_VLAN_STRIP), 0);
    }

    #[test]
    fn frames_are_joined_by_drivers_alone_that_deliver_them() {
        // SAFETY: all-zero bytes are valid for this C struct of numbers and raw pointers.
        let mut about: sys::rte_eth_dev_info = unsafe { std::mem::zeroed() };
        about.rx_offload_capa = sys::K_RX_TCP_LRO | sys::K_RX_SCATTER;
        let config = DeviceConfig::default();
        for (driver, joins) in [("net_vmxnet3", false), ("net_virtio", true)] {
            let offloads = choose_offloads(&about, driver, &config, false);
            assert_eq!(offloads.contains(Offloads::RX_LRO), joins, "{driver}");
            assert_eq!(receives_large_frames(&about, driver, &config), joins, "{driver}");
        }
    }
}
