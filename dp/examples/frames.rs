//! Sends, echoes or counts frames on one DPDK device, as fast as possible.
//!
//! `frames VDEV send|echo|sink [BYTES] [SECONDS]`, in two processes whose devices are connected:
//!
//! ```text
//! frames net_vhost0,iface=/tmp/wire.sock sink &
//! frames net_virtio_user0,path=/tmp/wire.sock send 1514
//! ```

use std::error::Error;
use std::time::{Duration, Instant};

use dp::dpdk::{self, DeviceConfig, PortSpec};
use dp::eal::{Eal, EalConfig};
use dp::{Burst, LinkState, Port};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (Some(vdev), Some(mode)) = (arguments.first(), arguments.get(1)) else {
        return Err("usage: frames VDEV send|echo|sink [BYTES] [SECONDS]".into());
    };
    let bytes: usize = arguments.get(2).map_or(Ok(64), |text| text.parse())?;
    let seconds: u64 = arguments.get(3).map_or(Ok(3), |text| text.parse())?;

    let eal = Eal::start(&EalConfig::default())?;
    let config = DeviceConfig { mtu: bytes.saturating_sub(14).max(1500) as u16, ..DeviceConfig::default() };
    let mut port = dpdk::open(eal, &PortSpec::Vdev(vdev.clone()), &config)?.remove(0);
    println!("{:?}", port.info());
    let patience = Instant::now() + Duration::from_secs(30);
    while port.link_state() == LinkState::Down {
        if Instant::now() > patience {
            return Err("no link after 30 seconds".into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(seconds) {
        // The clock is read only once per thousand iterations, since reading the clock costs more than one
        // iteration.
        for _ in 0..1000 {
            poll(&mut *port, mode, bytes);
        }
    }
    let took = start.elapsed().as_secs_f64();
    let counters = port.counters();
    println!("{counters:?}");
    for (what, frames, bytes) in
        [("received", counters.rx_frames, counters.rx_bytes), ("sent", counters.tx_frames, counters.tx_bytes)]
    {
        println!(
            "{what} {:.3} Mframe/s, {:.2} Gbit/s",
            frames as f64 / took / 1e6,
            bytes as f64 * 8.0 / took / 1e9
        );
    }
    Ok(())
}

fn poll(port: &mut dyn Port, mode: &str, bytes: usize) {
    let mut frames = Burst::new();
    match mode {
        "send" => {
            while !frames.is_full()
                && let Some(mut frame) = port.mempool().alloc()
                && frame.append(bytes).is_some()
            {
                frames.push(frame);
            }
            port.tx_burst(0, &mut frames);
        }
        "echo" => {
            port.rx_burst(0, &mut frames);
            port.tx_burst(0, &mut frames);
        }
        _ => {
            port.rx_burst(0, &mut frames);
        }
    }
}
