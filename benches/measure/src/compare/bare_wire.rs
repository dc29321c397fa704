//! One end of a wire on a DPDK device. Frames without a protocol are sent over the wire, to measure the limit
//! of the wire.

use std::process::ExitCode;
use std::time::Duration;

use crate::compare::limits::NOT_OFFERED;
use crate::compare::limits::frames::{self, Sent};
use clap::{Args, Subcommand};
use dp::Port;
use testing::lab::Result;
use testing::lab_error;

/// One end of a wire. The source exits with status 3 if the device does not accept frames of the given
/// length. The sink prints one line of JSON.
#[derive(Debug, Subcommand)]
pub(crate) enum BareWireEnd {
    /// Sends frames of one length as fast as the device accepts them.
    Source {
        #[command(flatten)]
        device: Device,
        /// Number of bytes of a frame.
        #[arg(long)]
        bytes: usize,
        /// Duration in milliseconds.
        #[arg(long, default_value_t = 500)]
        ms: u64,
    },
    /// Counts frames until no frame has arrived for a while.
    Sink {
        #[command(flatten)]
        device: Device,
    },
    /// Sends frames one at a time, and waits for the return of each frame. Prints the median round trip in
    /// microseconds.
    Ping {
        #[command(flatten)]
        device: Device,
        /// Number of bytes of a frame.
        #[arg(long)]
        bytes: usize,
        /// Number of round trips.
        #[arg(long, default_value_t = 100_000)]
        count: usize,
    },
    /// Sends every frame back until no frame has arrived for a while.
    Pong {
        #[command(flatten)]
        device: Device,
    },
}

/// The device of this side.
#[derive(Debug, Args)]
pub(crate) struct Device {
    /// DPDK device.
    #[arg(long)]
    vdev: String,
    /// MTU in bytes.
    #[arg(long)]
    mtu: u16,
    /// CPU to run on.
    #[arg(long)]
    cpu: usize,
    /// Run without hugepages.
    #[arg(long)]
    no_huge: bool,
}

pub(crate) fn run(end: BareWireEnd) -> ExitCode {
    match work(end) {
        Ok(Sent::Frames) => ExitCode::SUCCESS,
        Ok(Sent::NotOffered) => ExitCode::from(NOT_OFFERED),
        Err(error) => {
            eprintln!("measure bare-wire: {error}");
            ExitCode::FAILURE
        }
    }
}

fn work(end: BareWireEnd) -> Result<Sent> {
    match end {
        BareWireEnd::Source { device, bytes, ms } => {
            return frames::source(&mut *open(&device)?, bytes, Duration::from_millis(ms));
        }
        BareWireEnd::Sink { device } => {
            let passed = frames::sink(&mut *open(&device)?)?;
            println!("{}", serde_json::to_string(&passed).map_err(|error| lab_error!("{error}"))?);
        }
        BareWireEnd::Ping { device, bytes, count } => {
            println!("{}", frames::ping(&mut *open(&device)?, bytes, count)?);
        }
        BareWireEnd::Pong { device } => frames::pong(&mut *open(&device)?)?,
    }
    Ok(Sent::Frames)
}

/// Opens the device and pins this thread to its CPU.
#[cfg(feature = "dpdk")]
pub(crate) fn open(device: &Device) -> Result<Box<dyn Port>> {
    use dp::dpdk::{DeviceConfig, PortSpec};
    use dp::eal::{Cores, Eal, EalConfig, Memory};

    /// MiB of DPDK's memory, as in `iwperf`.
    const MEMORY_MIB: u32 = 512;

    let memory = match device.no_huge {
        true => Memory::Ordinary { mib: MEMORY_MIB },
        false => Memory::Auto { mib: MEMORY_MIB },
    };
    let config = EalConfig { memory, cores: Cores::Pinned(device.cpu), ..EalConfig::default() };
    let eal = Eal::start(&config).map_err(|error| lab_error!("{error}"))?;
    let config = DeviceConfig { mtu: device.mtu, ..DeviceConfig::default() };
    let ports = dp::dpdk::open(eal, &PortSpec::Vdev(device.vdev.clone()), &config);
    let port = ports.map_err(|error| lab_error!("{error}"))?.into_iter().next();
    port.ok_or_else(|| lab_error!("{} has no queue: check the device string", device.vdev))
}

#[cfg(not(feature = "dpdk"))]
pub(crate) fn open(device: &Device) -> Result<Box<dyn Port>> {
    let Device { vdev, mtu, cpu, no_huge } = device;
    Err(lab_error!(
        "{vdev} (MTU {mtu}, CPU {cpu}, no hugepages {no_huge}): this program was built without the feature `dpdk`"
    ))
}
