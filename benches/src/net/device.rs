//! Opens the DPDK device that the options name: starts EAL, and then opens a port for each queue.

use dp::Port;
use dp::dpdk::{DeviceConfig, PortSpec};
use dp::eal::{Cores, Eal, EalConfig, Memory};

use crate::cli::NetArgs;
use crate::errors::Error;

/// MiB of DPDK's memory for at most [`MEMORY_QUEUES`] queues. The memory contains pools of several thousand
/// jumbo buffers, and the rings.
const MEMORY_MIB: u32 = 512;
const MEMORY_QUEUES: u16 = 4;
/// MiB of DPDK's memory for each queue beyond [`MEMORY_QUEUES`].
const MEMORY_MIB_FOR_QUEUE: u32 = 128;

/// Opens the device of the options, with as many queues as cores.
pub(super) fn open(args: &NetArgs) -> Result<Vec<Box<dyn Port>>, Error> {
    let further = u32::from(args.cores.saturating_sub(MEMORY_QUEUES));
    let mib = MEMORY_MIB + MEMORY_MIB_FOR_QUEUE * further;
    let eal_config = EalConfig {
        memory: if args.no_huge { Memory::Ordinary { mib } } else { Memory::Auto { mib } },
        cores: args.cpu.map_or(Cores::Floating, Cores::Pinned),
        pci: args.pci.iter().cloned().collect(),
        extra: args.eal_args(),
        ..EalConfig::default()
    };
    let port_error = |text: String| Error::Port(text);
    let eal = Eal::start(&eal_config).map_err(|error| port_error(error.to_string()))?;
    let spec = match (&args.pci, &args.vdev) {
        (Some(address), _) => PortSpec::Pci(address.clone()),
        (None, Some(text)) => PortSpec::Vdev(text.clone()),
        (None, None) => return Err(Error::Usage("no device: give --vdev STRING or --pci ADDR".into())),
    };
    let usual = DeviceConfig::default();
    let rx_desc = args.rx_desc.unwrap_or(usual.rx_desc);
    let (mtu, offloads) = (args.mtu.unwrap_or(1500), args.offloads.unwrap_or(usual.offloads));
    let (queues, addresses) = (args.cores, args.addresses());
    let config = DeviceConfig { queues, mtu, rx_desc, offloads, addresses, socket: args.socket, ..usual };
    dp::dpdk::open(eal, &spec, &config).map_err(|error| port_error(error.to_string()))
}
