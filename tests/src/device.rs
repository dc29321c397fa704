//! The device of a program of this package: a DPDK device (EAL without hugepages, one pair of queues), or our
//! own port on an interface.

use clap::Args;
use dp::Port;
use dp::packet::PacketConfig;

use crate::lab::Result;
use crate::lab_error;

/// The options that choose a program's device, its IP address and its MTU. A program's options include this
/// struct by `#[command(flatten)]`. The name of the struct is also the name of the option group, so no other
/// group may have this name.
#[derive(Args, Debug)]
pub struct DeviceArgs {
    /// DPDK device.
    #[arg(long)]
    vdev: String,
    /// Our address with its prefix length.
    #[arg(long)]
    pub ip: String,
    /// MTU, bytes.
    #[arg(long, default_value_t = 1500)]
    mtu: u16,
}

impl DeviceArgs {
    /// Opens the device.
    ///
    /// # Errors
    /// The same errors as [`open`].
    pub fn open(&self) -> Result<Box<dyn Port>> {
        open(&self.vdev, self.mtu, 0)
    }
}

/// Returns the device string of DPDK's `net_af_packet` on `dev`. The device is device `number` of the
/// process. The rings of the packet socket hold frames of up to about `room` bytes. `room` is at most 61440,
/// since each frame has to fit into a packet buffer.
pub fn af_packet(number: usize, dev: &str, room: usize) -> String {
    let block = if room < 65_536 / 2 { 65_536 } else { room };
    format!("net_af_packet{number},iface={dev},blocksz={block},framesz={room},framecnt=512")
}

/// Opens our own port (by a packet socket) on an interface, with the address `ip` (`10.0.0.1/24`).
///
/// # Errors
/// If the device cannot be used.
pub fn open_packet(interface: &str, ip: &str, mtu: u16) -> Result<Box<dyn Port>> {
    let address = ip.split_once('/').and_then(|(address, _)| address.parse().ok());
    let address = address.ok_or_else(|| lab_error!("{ip} is not of the form ADDR/LEN"))?;
    let config = PacketConfig { mtu: Some(mtu), ..PacketConfig::new(interface, [address]) };
    let port = dp::packet::open(&config).map_err(|error| lab_error!("{error}"))?;
    Ok(Box::new(port))
}

/// Opens a virtual device by its DPDK string, with `mbufs` packet buffers (0: the default).
///
/// # Errors
/// If EAL or the device does not start, or the feature `dpdk` is off.
#[cfg(feature = "dpdk")]
pub fn open(vdev: &str, mtu: u16, mbufs: u32) -> Result<Box<dyn Port>> {
    use dp::dpdk::{DeviceConfig, PortSpec};
    use dp::eal::{Eal, EalConfig};

    let eal = Eal::start(&EalConfig::ordinary(512)).map_err(|error| lab_error!("{error}"))?;
    let config = DeviceConfig { mtu, mbufs: (mbufs > 0).then_some(mbufs), ..DeviceConfig::default() };
    let ports = dp::dpdk::open(eal, &PortSpec::Vdev(vdev.to_owned()), &config);
    let port = ports.map_err(|error| lab_error!("{error}"))?.into_iter().next();
    port.ok_or_else(|| lab_error!("{vdev} has no queue"))
}

/// Returns an error, since there are no devices without the DPDK backend.
///
/// # Errors
/// The function always returns an error.
#[cfg(not(feature = "dpdk"))]
pub fn open(vdev: &str, _mtu: u16, _mbufs: u32) -> Result<Box<dyn Port>> {
    Err(lab_error!("{vdev}: this program was built without the feature `dpdk`"))
}
