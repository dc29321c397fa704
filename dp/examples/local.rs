//! Measures two polling processes on a local wire: the rate of frames of 64 KiB, and the round trip time of
//! frames of 64 bytes. (`scripts/compare --only local_wake` measures processes that sleep.)
//!
//! `cargo run --release -p uwarp-dp --no-default-features --example local [RING_KIB]...`

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    linux::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("a local wire needs Linux");
}

#[cfg(target_os = "linux")]
mod linux {
    use std::error::Error;
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    use dp::local::{self, LocalConfig, LocalPort};
    use dp::{Burst, Clock, Link, Mbuf, Page, Port, TxOffload};

    type Outcome<T> = Result<T, Box<dyn Error>>;

    /// Number of payload bytes of a large frame. The payload is in two pages of 32 KiB, with half of the
    /// bytes in each page.
    const LARGE: usize = 65_000;
    const SMALL: usize = 64;

    pub(super) fn main() -> Outcome<()> {
        let args: Vec<String> = std::env::args().skip(1).collect();
        if let [role, folder, ring] = &args[..]
            && role == "echo"
        {
            return echo(Path::new(folder), ring.parse()?);
        }
        let rings = if args.is_empty() { vec!["1024".to_owned()] } else { args };
        for ring in rings {
            measure(ring.parse::<usize>()? << 10)?;
        }
        Ok(())
    }

    fn open(folder: &Path, station: u16, ring_bytes: usize) -> Outcome<LocalPort> {
        let config =
            LocalConfig { station: Some(station), ring_bytes, ..LocalConfig::new(folder.to_owned()) };
        Ok(local::open(&config)?)
    }

    /// The process that runs [`echo`], and the folder of the local wire. When this value is dropped, the
    /// process is killed and the folder is removed.
    struct Echo(Child, PathBuf);

    impl Drop for Echo {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
            let _ = std::fs::remove_dir_all(&self.1);
        }
    }

    fn measure(ring_bytes: usize) -> Outcome<()> {
        let folder = std::env::temp_dir().join(format!("dp-local-example-{}", std::process::id()));
        let mut port = open(&folder, 1, ring_bytes)?;
        let child = Command::new(std::env::current_exe()?)
            .args(["echo", folder.to_str().ok_or("a path in UTF-8")?, &ring_bytes.to_string()])
            .spawn()?;
        let _echo = Echo(child, folder.clone());
        while !local::stations(&folder)?.iter().any(|station| station.number == 2) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let clock = Clock::new();
        round_trip(&mut port, &clock)?;
        let mut rates = [0.0; 5];
        for rate in &mut rates {
            *rate = stream(&mut port, &clock)?;
        }
        rates.sort_by(f64::total_cmp);
        let mut trips = Vec::new();
        for _ in 0..200_000 {
            trips.push(round_trip(&mut port, &clock)?);
        }
        trips.sort_unstable();
        println!(
            "rings of {} KiB: {:.1} Gb/s (slowest {:.1}, fastest {:.1}), round trip of {SMALL} bytes: \
             {} ns",
            ring_bytes >> 10,
            rates[2],
            rates[0],
            rates[4],
            trips[trips.len() / 2].as_nanos(),
        );
        Ok(())
    }

    fn headers(port: &LocalPort, to: u16) -> Outcome<Mbuf> {
        let mut frame = port.mempool().alloc().ok_or("no buffer")?;
        let [high, low] = to.to_be_bytes();
        assert!(frame.append_slice(&[2, 0, 0x64, 0x40, high, low]));
        assert!(frame.append_slice(&port.info().mac));
        assert!(frame.append_slice(&[0; SMALL - 12]));
        Ok(frame)
    }

    /// Sends `FRAMES` frames of 64 KiB, waits until the other process has received all of them, and returns
    /// the rate in Gbit/s.
    fn stream(port: &mut LocalPort, clock: &Clock) -> Outcome<f64> {
        const FRAMES: usize = 30_000;
        let pool = port.bulk_mempool().ok_or("no large buffers")?.clone();
        let mut pages = Vec::new();
        for _ in 0..32 {
            let mut page = Page::alloc(&pool).ok_or("no page")?;
            page.room().fill(7);
            page.fill(LARGE / 2);
            pages.push(page);
        }
        let start = Instant::now();
        let mut sent = 0;
        let mut burst = Burst::new();
        while sent < FRAMES || !burst.is_empty() {
            while sent < FRAMES && burst.len() < 8 {
                let mut frame = headers(port, 2)?;
                for half in 0..2 {
                    let page = &pages[(2 * sent + half) % pages.len()];
                    frame.chain(page.view(0..LARGE / 2).ok_or("no view")?).map_err(|_| "a short chain")?;
                }
                frame.set_tx_offload(TxOffload { tso_segment_bytes: 8960, ..TxOffload::default() });
                burst.push(frame);
                sent += 1;
            }
            port.tx_burst(clock.now_us(), &mut burst);
            if !burst.is_empty() {
                std::hint::spin_loop();
            }
        }
        round_trip(port, clock)?;
        Ok((FRAMES * LARGE * 8) as f64 / start.elapsed().as_nanos() as f64)
    }

    fn round_trip(port: &mut LocalPort, clock: &Clock) -> Outcome<Duration> {
        let start = Instant::now();
        let mut burst: Burst = [headers(port, 2)?].into_iter().collect();
        while !burst.is_empty() {
            port.tx_burst(clock.now_us(), &mut burst);
        }
        while port.rx_burst(clock.now_us(), &mut burst) == 0 {
            if start.elapsed() > Duration::from_secs(10) {
                return Err("no answer".into());
            }
        }
        Ok(start.elapsed())
    }

    /// Sends small frames back to their sender and drops all other frames, until the measuring process has
    /// ended.
    fn echo(folder: &Path, ring_bytes: usize) -> Outcome<()> {
        let mut port = open(folder, 2, ring_bytes)?;
        let clock = Clock::new();
        let (mut burst, mut answers) = (Burst::new(), Burst::new());
        while port.next_departed().is_none() {
            let now_us = clock.now_us();
            if port.rx_burst(now_us, &mut burst) == 0 {
                continue;
            }
            for mut frame in burst.drain(..) {
                if frame.len() == SMALL
                    && let Some(bytes) = frame.head_mut()
                {
                    let (to, from) = bytes[..12].split_at_mut(6);
                    to.swap_with_slice(from);
                    answers.push(frame);
                }
            }
            if !answers.is_empty() {
                port.tx_burst(now_us, &mut answers);
            }
        }
        Ok(())
    }
}
