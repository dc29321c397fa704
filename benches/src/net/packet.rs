//! Opens a packet socket on the interface that the options name.

use dp::Port;
use dp::packet::PacketConfig;

use crate::cli::NetArgs;
use crate::errors::Error;
use crate::lines::tell;

pub(super) fn open(args: &NetArgs, interface: &str) -> Result<Box<dyn Port>, Error> {
    let usual = PacketConfig::new(interface, args.addresses());
    let rx_slots = args.rx_desc.map_or(usual.rx_slots, usize::from);
    let offloads = args.offloads.unwrap_or(usual.offloads);
    let config = PacketConfig { mac: args.mac, mtu: args.mtu, rx_slots, offloads, ..usual };
    let port = dp::packet::open(&config).map_err(|error| Error::Port(error.to_string()))?;
    for hint in port.hints() {
        tell(&format!("iwperf: {hint}"));
    }
    Ok(Box::new(port))
}
