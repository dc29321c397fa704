//! Sends or receives one TCP stream and checks it. The stream uses our stack on a DPDK device with `--vdev`,
//! our stack on an interface with `--packet`, and otherwise the kernel's TCP.
//!
//! Prints `started` when its device exists (or at once, if the program needs no device), and `ready` when a
//! peer may connect. At the end it prints the number of bytes with their CRC32C, the time in seconds, and the
//! counters of our stack; with `--witness` it also prints what the captured segments of both sides showed. On
//! any error it prints the error, and exits with status 1.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use dp::Port;
use tests::lab::Result;
use tests::stream::{Direction, EndOptions, Opener, Report, Task, kernel, lite};
use tests::witness::Watched;
use tests::{device, ensure, lab_error};

/// Sends or receives one TCP stream and checks it.
#[derive(Parser)]
struct Options {
    /// DPDK device for our stack. Without `--vdev` or `--packet`, the kernel's TCP is used.
    #[arg(long, requires = "ip")]
    vdev: Option<String>,
    /// Interface for our stack, used by a packet socket.
    #[arg(long, requires = "ip", conflicts_with = "vdev")]
    packet: Option<String>,
    /// Our address with its prefix length.
    #[arg(long)]
    ip: Option<String>,
    /// MTU, bytes.
    #[arg(long, default_value_t = 1500)]
    mtu: u16,
    /// Port to listen on.
    #[arg(long, conflicts_with = "connect")]
    listen: Option<u16>,
    /// Peer to connect to.
    #[arg(long, required_unless_present = "listen")]
    connect: Option<SocketAddr>,
    /// Length of the stream, bytes.
    #[arg(long, default_value_t = 1 << 20)]
    bytes: u64,
    /// Seed of the stream's pattern.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Maximum duration of the run, seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// File to wait for between `started` and opening the connection.
    #[arg(long)]
    wait_for: Option<PathBuf>,
    /// With our stack: print what the frames showed.
    #[arg(long, requires = "ip")]
    witness: bool,
    /// Number of packet buffers of the device; 0: the default.
    #[arg(long, default_value_t = 0)]
    mbufs: u32,
    #[command(flatten)]
    behaviour: EndOptions,
    /// The direction.
    direction: Direction,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(report) => {
            println!("{report}\nseconds {:.6}", report.elapsed.as_secs_f64());
            if let Some(counters) = report.counters {
                println!("counters {counters:?}");
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("tcp-stream: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<Report> {
    let opener = match (options.listen, options.connect) {
        (Some(port), _) => Opener::Passive(port),
        (None, Some(peer)) => Opener::Active(peer),
        (None, None) => unreachable!("clap requires one of --listen and --connect"),
    };
    let task = Task {
        opener,
        direction: options.direction,
        bytes: options.bytes,
        seed: options.seed,
        limit: Duration::from_secs(options.seconds),
        options: options.behaviour,
    };
    let port = match (&options.vdev, &options.packet, &options.ip) {
        (Some(vdev), _, Some(_)) => device::open(vdev, options.mtu, options.mbufs)?,
        (_, Some(interface), Some(ip)) => device::open_packet(interface, ip, options.mtu)?,
        _ => {
            options.start()?;
            return kernel::run(&task, || println!("ready"));
        }
    };
    over_port(options, &task, port)
}

fn over_port(options: &Options, task: &Task, mut port: Box<dyn Port>) -> Result<Report> {
    let ip = options.ip.as_deref().unwrap_or_default();
    let address = ip.parse().map_err(|()| lab_error!("{ip} is not of the form ADDR/LEN"))?;
    options.start()?;
    if !options.witness {
        return lite::run(port.as_mut(), address, task, || println!("ready"));
    }
    let mut watched = Watched::new(port.as_mut());
    let report = lite::run(&mut watched, address, task, || println!("ready"))?;
    let [ours, theirs] = watched.witness().seen();
    println!("ours {ours}\ntheirs {theirs}");
    Ok(report)
}

impl Options {
    /// Prints that the device exists (or that none is needed), and waits until the program may continue.
    fn start(&self) -> Result<()> {
        println!("started");
        let (started, limit) = (Instant::now(), Duration::from_secs(self.seconds));
        while let Some(file) = self.wait_for.as_ref().filter(|file| !file.exists()) {
            ensure!(started.elapsed() < limit, "{} has not appeared", file.display());
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}
