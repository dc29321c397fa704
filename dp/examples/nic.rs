//! Opens a NIC several times in one process. Each time, the program sends broadcast frames and prints how
//! many frames were sent and received.
//!
//! `nic ADDRESS [TIMES [SECONDS [unnamed]]]`: `ADDRESS` is the PCI address of a NIC that is bound for example
//! to `vfio-pci` or `uio_pci_generic`. With `unnamed`, EAL starts without the NIC in [`EalConfig::pci`]. Such
//! a NIC can be opened only behind an IOMMU.

use std::error::Error;
use std::time::{Duration, Instant};

use dp::dpdk::{self, DeviceConfig, PortSpec};
use dp::eal::{Eal, EalConfig};
use dp::{Burst, LinkState, Port};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let address = arguments.first().ok_or("usage: nic ADDRESS [TIMES [SECONDS [unnamed]]]")?;
    let times: u32 = arguments.get(1).map_or(Ok(2), |text| text.parse())?;
    let seconds: u64 = arguments.get(2).map_or(Ok(1), |text| text.parse())?;
    let is_named = arguments.get(3).is_none_or(|text| text != "unnamed");

    let named = is_named.then(|| address.clone());
    let eal = Eal::start(&EalConfig { pci: named.into_iter().collect(), ..EalConfig::default() })?;
    for nr in 1..=times {
        let config = DeviceConfig { rx_desc: 256, tx_desc: 256, ..DeviceConfig::default() };
        let mut ports = dpdk::open(eal, &PortSpec::Pci(address.clone()), &config)?;
        println!("{nr}: {:?}", ports[0].info());
        run(&mut *ports[0], Duration::from_secs(seconds))?;
    }
    Ok(())
}

/// Sends a broadcast frame every millisecond for `time`, and prints the numbers of sent and received frames.
/// Fails if the link does not come up.
fn run(port: &mut dyn Port, time: Duration) -> Result<(), Box<dyn Error>> {
    let (start, mut received) = (Instant::now(), 0);
    while port.link_state() == LinkState::Down {
        if start.elapsed() > Duration::from_secs(10) {
            return Err("the link stays down".into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("   the link is up after {:?}", start.elapsed());
    let (start, mut frames) = (Instant::now(), Burst::new());
    let mut next = Duration::ZERO;
    while start.elapsed() < time && port.link_state() != LinkState::Gone {
        received += port.rx_burst(0, &mut frames);
        frames.clear();
        if start.elapsed() < next {
            continue;
        }
        next += Duration::from_millis(1);
        let mut frame = port.mempool().alloc().ok_or("no buffer is free")?;
        let bytes = frame.append(60).ok_or("a buffer has no room for a frame")?;
        bytes.fill(0);
        bytes[..6].fill(0xff);
        bytes[6..12].copy_from_slice(&port.info().mac);
        // An EtherType for local experiments (IEEE 802), to which no host answers.
        bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
        frames.push(frame);
        port.tx_burst(0, &mut frames);
        frames.clear();
    }
    let counters = port.counters();
    println!("   {:?}, sent {}, received {received}", port.link_state(), counters.tx_frames);
    Ok(())
}
