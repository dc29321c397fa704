//! One of two processes whose engines sleep: `serve` sends back each message; `ask IP` sends some messages
//! with pauses and then does nothing.
//!
//! `serve` prints `ready` when it listens. `ask` prints the minimum, the median and the 99th percentile of
//! the round-trip times in microseconds, and then a line `idle`. Both processes run until they are killed. On
//! any error, a process prints the error, and exits with status 1.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use benches::cli::NetArgs;
use benches::driver::Interrupt;
use benches::net;
use clap::{Parser, Subcommand};
use iwarp::memory::Access;
use iwarp::verbs::{
    CmEventKind, CmId, CompletionChannel, CompletionQueue, ConnParam, Context, EventChannel, MemoryRegion,
    ProtectionDomain, QpInit, QueuePair, RecvRequest, SendOp, SendRequest, WcOpcode, WcStatus,
    WorkCompletion,
};
use tests::lab::Result;
use tests::{ensure, lab_error};

const PORT: u16 = 7175;
const BYTES: usize = 64;

/// Maximum time to wait for any event.
const PATIENCE: Duration = Duration::from_secs(20);

/// Pause before the next message, long enough for both engines to go to sleep.
const PAUSE: Duration = Duration::from_millis(5);

/// One of two processes whose engines sleep.
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    net: NetArgs,
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Accepts connections one after the other, and sends back each message.
    Serve,
    /// Sends messages.
    Ask { ip: std::net::IpAddr, count: usize },
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sleeper: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let end =
        net::open(&options.net, true, true, &Interrupt::default()).map_err(|error| lab_error!("{error}"))?;
    let host = Host::new(end.endpoint.context.clone())?;
    match options.role {
        Role::Serve => host.serve(),
        Role::Ask { ip, count } => host.ask(SocketAddr::new(ip, PORT), count),
    }
}

/// The objects of a process. The engine runs in a thread.
struct Host {
    context: Context,
    events: EventChannel,
    pd: ProtectionDomain,
    channel: CompletionChannel,
    cq: CompletionQueue,
}

impl Host {
    fn new(context: Context) -> Result<Self> {
        let channel = context.create_comp_channel()?;
        Ok(Self {
            events: context.create_event_channel()?,
            pd: context.alloc_pd()?,
            cq: context.create_cq(64, Some(&channel))?,
            channel,
            context,
        })
    }

    fn qp(&self) -> Result<QueuePair> {
        Ok(self.pd.create_qp(&QpInit::new(&self.cq))?)
    }

    /// Returns the next completion, and sleeps until it arrives. Returns `None` after `limit`.
    fn completion(&self, limit: Duration) -> Result<Option<WorkCompletion>> {
        let begun = Instant::now();
        loop {
            self.cq.req_notify(false)?;
            if let Some(wc) = self.cq.poll_one() {
                return Ok(Some(wc));
            }
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            self.channel.wait(Some(left))?;
        }
    }

    fn serve(&self) -> Result<()> {
        let listener = self.context.create_id(&self.events);
        listener.listen(PORT, 8, PATIENCE)?;
        println!("ready");
        loop {
            // The clients connect again only when this process is idle.
            let Some(event) = self.events.wait(Duration::from_secs(1))? else { continue };
            if let CmEventKind::ConnectRequest { .. } = event.kind {
                self.answer(&event.id)?;
            }
        }
    }

    /// Accepts a connection, and sends back each message until the connection ends.
    fn answer(&self, id: &CmId) -> Result<()> {
        let qp = self.qp()?;
        let mr = self.pd.reg_mr(BYTES, Access::LOCAL_WRITE)?;
        let receive = RecvRequest::new(0, mr.sge(0, BYTES));
        let send = SendRequest::new(0, SendOp::Send, mr.sge(0, BYTES));
        qp.post_recv(&receive).map_err(|error| lab_error!("{error}"))?;
        id.accept(&qp, &ConnParam::default())?;
        loop {
            let Some(wc) = self.completion(PATIENCE)? else { continue };
            if wc.status != WcStatus::Success {
                // The connection has ended.
                return Ok(());
            }
            if wc.opcode == WcOpcode::Recv {
                qp.post_recv(&receive).map_err(|error| lab_error!("{error}"))?;
                qp.post_send(&send).map_err(|error| lab_error!("{error}"))?;
            }
        }
    }

    fn ask(&self, server: SocketAddr, count: usize) -> Result<()> {
        let (qp, id) = (self.qp()?, self.context.create_id(&self.events));
        id.connect(&qp, server, &ConnParam::default())?;
        let event = self.events.wait(PATIENCE)?.ok_or_else(|| lab_error!("no connection in time"))?;
        ensure!(matches!(event.kind, CmEventKind::Established { .. }), "{event:?}");
        let mr = self.pd.reg_mr(2 * BYTES, Access::LOCAL_WRITE)?;
        let mut times = Vec::new();
        for number in 0..count {
            std::thread::sleep(PAUSE);
            times.push(self.round_trip(&qp, &mr, number as u8)?);
        }
        times.sort_unstable();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_nanos() as f64 / 1000.0;
        println!("least {:.1} median {:.1} p99 {:.1}", at(0.0), at(0.5), at(0.99));
        println!("idle");
        loop {
            std::thread::sleep(Duration::from_secs(3600));
        }
    }

    fn round_trip(&self, qp: &QueuePair, mr: &MemoryRegion, number: u8) -> Result<Duration> {
        mr.write_at(0, &[number; BYTES]).map_err(|error| lab_error!("{error}"))?;
        qp.post_recv(&RecvRequest::new(1, mr.sge(BYTES, BYTES))).map_err(|error| lab_error!("{error}"))?;
        let begun = Instant::now();
        let send = SendRequest::new(2, SendOp::Send, mr.sge(0, BYTES));
        qp.post_send(&send).map_err(|error| lab_error!("{error}"))?;
        for _ in 0..2 {
            let wc = self.completion(PATIENCE)?.ok_or_else(|| lab_error!("no completion in time"))?;
            ensure!(wc.status == WcStatus::Success, "{wc:?}");
        }
        let took = begun.elapsed();
        let last = mr.load_u8(2 * BYTES - 1).map_err(|error| lab_error!("{error}"))?;
        ensure!(last == number, "message {number} comes back as {last}");
        Ok(took)
    }
}
