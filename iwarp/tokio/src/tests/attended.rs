//! Tests of the task that serves an engine in the runtime of its endpoint, on a local wire. If the runtime
//! does not run this task, the engine's thread serves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use dp::{Below, Burst, Link, Port, PortBase, PortLayer, Sleep, Statistics};
use iwarp::memory::Access;
use iwarp_wire::Wire;
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinSet, yield_now};
use tokio::time::sleep;

use super::{PORT, in_time, step_back, without_thread};
use crate::limited::watch;
use crate::{Connection, Endpoint, EndpointOptions, Listener, RemoteRegion};

const LIMIT: Duration = Duration::from_secs(30);

/// A name that no other test uses.
fn wire() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("local:attended-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

async fn endpoints() -> (Endpoint, Endpoint) {
    let wire = wire();
    tokio::try_join!(Endpoint::open(&wire), Endpoint::open(&wire)).unwrap()
}

async fn connected(client: &Endpoint, listener: &Listener, server: &Endpoint) -> (Connection, Connection) {
    let to = (server.addresses()[0], PORT);
    in_time(async { tokio::try_join!(Connection::connect(client, to), listener.accept()) }).await.unwrap()
}

async fn echo(connection: Connection) {
    while let Ok(message) = connection.recv().await {
        if connection.send(&message.data).await.is_err() {
            break;
        }
    }
}

async fn trip(connection: &Connection, byte: u8) {
    connection.send(&[byte; 64]).await.unwrap();
    assert_eq!(connection.recv().await.unwrap().data, [byte; 64]);
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A worker is blocked, and no task of its runtime runs. A peer reads memory meanwhile. The thread serves
/// after some milliseconds; on a busy machine it may wait for a CPU.
#[test]
fn while_the_worker_is_blocked_the_thread_serves() {
    let _watched = watch();
    let wire = wire();
    let (tell, told) = channel();
    let (tell_end, end) = channel();
    let peer_wire = wire.clone();
    let peer = thread::spawn(move || {
        let (address, remote): (_, RemoteRegion) = told.recv().unwrap();
        current_thread().block_on(async {
            let client = Endpoint::open(&peer_wire).await.unwrap();
            let a = in_time(Connection::connect(&client, (address, PORT))).await.unwrap();
            a.send(b"go").await.unwrap();
            for _ in 0..20 {
                let begun = Instant::now();
                assert_eq!(in_time(a.read_bytes(&remote)).await.unwrap(), [7; 8]);
                assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
                sleep(Duration::from_millis(2)).await;
            }
            tell_end.send(()).unwrap();
            assert_eq!(in_time(a.recv()).await.unwrap().data, b"done");
            in_time(a.close()).await.unwrap();
        });
    });
    current_thread().block_on(async {
        let server = Endpoint::open(&wire).await.unwrap();
        let listener = Listener::bind(&server, PORT).unwrap();
        let memory = server.register(8, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
        memory.write_at(0, &[7; 8]).unwrap();
        tell.send((server.addresses()[0], memory.remote())).unwrap();
        let b = in_time(listener.accept()).await.unwrap();
        in_time(b.recv()).await.unwrap();
        let engine = &server.shared.engines[0];
        end.recv_timeout(LIMIT).expect("nobody serves the engine while the worker is blocked");
        assert!(!engine.is_attended());
        // The runtime serves again.
        sleep(Duration::from_millis(1)).await;
        b.send(b"done").await.unwrap();
        in_time(async {
            while !engine.is_attended() {
                engine.call();
                yield_now().await;
            }
        })
        .await;
        in_time(b.closed()).await;
    });
    peer.join().unwrap();
}

/// The tasks of one runtime use the endpoints of another, which ends.
#[test]
fn a_runtime_ends_while_its_endpoints_are_used() {
    let _watched = watch();
    let (of_endpoints, of_tasks) = (current_thread(), current_thread());
    let (a, b) = of_endpoints.block_on(async {
        let (client, server) = endpoints().await;
        let listener = Listener::bind(&server, PORT).unwrap();
        let (a, b) = connected(&client, &listener, &server).await;
        // Events are delivered only while this runtime runs.
        in_time(async { tokio::try_join!(a.established(), b.established()) }).await.unwrap();
        (a, b)
    });
    of_tasks.block_on(async move {
        let answers = tokio::spawn(echo(b));
        // Nobody drives the runtime of the endpoints.
        for byte in 0..20 {
            in_time(trip(&a, byte)).await;
            sleep(Duration::from_millis(1)).await;
        }
        // A runtime cannot be dropped within another.
        thread::spawn(move || drop(of_endpoints)).join().unwrap();
        assert!(!a.engine().is_attended());
        for byte in 0..200 {
            in_time(trip(&a, byte)).await;
        }
        a.abort();
        in_time(answers).await.unwrap();
    });
}

/// The runtime ends while its task serves, so no task serves afterwards.
#[test]
fn the_end_of_the_runtime_is_the_end_of_its_service() {
    let _watched = watch();
    let runtime = current_thread();
    let endpoint = runtime.block_on(async {
        let endpoint = Endpoint::open(&wire()).await.unwrap();
        until_attended(&endpoint).await;
        endpoint
    });
    drop(runtime);
    assert!(!endpoint.shared.engines[0].is_attended());
}

async fn until_attended(endpoint: &Endpoint) {
    in_time(async {
        while !endpoint.shared.engines[0].is_attended() {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// The threads have stepped back for an hour, so no wake-up of the tasks may be lost. Frames, commands and
/// posts behind other posts wake them.
#[tokio::test(crate = "crate::limited")]
async fn without_the_threads_the_tasks_serve() {
    let wire = wire();
    let open = || {
        let Wire { port, config, .. } = iwarp_wire::open(&wire.parse().unwrap()).unwrap();
        Endpoint::on_queues(vec![port], &config, &without_thread()).unwrap()
    };
    let (client, server) = (open(), open());
    let listener = Listener::bind(&server, PORT).unwrap();
    for endpoint in [&client, &server] {
        until_attended(endpoint).await;
        step_back(&endpoint.shared.engines[0]).await;
        // The polls of this test have left the engine awake.
        endpoint.shared.engines[0].call();
    }
    let (a, b) = connected(&client, &listener, &server).await;
    let memory = b.register(8, Access::LOCAL_WRITE | Access::REMOTE).unwrap();
    let word = memory.remote();
    let answers = tokio::spawn(echo(b));
    for byte in 0..50 {
        in_time(trip(&a, byte)).await;
        if byte % 8 == 0 {
            // The last result has left the engine awake.
            a.engine().hand_over();
            sleep(Duration::from_millis(2)).await;
        }
        let (one, two) = in_time(async { tokio::join!(a.fetch_add(&word, 1), a.fetch_add(&word, 1)) }).await;
        assert!(one.is_ok() && two.is_ok());
    }
    in_time(a.close()).await.unwrap();
    in_time(answers).await.unwrap();
}

/// A port that has to be polled again 50 us after each poll, while `is_hurried`.
struct HurriedPort {
    port: Box<dyn Port>,
    is_hurried: Arc<AtomicBool>,
    polled_us: u64,
}

impl PortLayer for HurriedPort {
    fn below(&self) -> Below<&dyn Port, &PortBase> {
        Below::Port(&*self.port)
    }

    fn below_mut(&mut self) -> Below<&mut dyn Port, &mut PortBase> {
        Below::Port(&mut *self.port)
    }
}

impl Port for HurriedPort {
    fn rx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        self.polled_us = now_us;
        self.port.rx_burst(now_us, frames)
    }

    fn tx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        self.port.tx_burst(now_us, frames)
    }
}

impl Sleep for HurriedPort {
    fn next_due_us(&self) -> Option<u64> {
        let is_hurried = self.is_hurried.load(Ordering::SeqCst);
        if is_hurried { Some(self.polled_us + 50) } else { self.port.next_due_us() }
    }
}

impl Link for HurriedPort {}
impl Statistics for HurriedPort {}

/// The engine cannot sleep for long, and has no work. The task leaves the engine to the thread, which sleeps
/// between two polls.
#[tokio::test(crate = "crate::limited")]
async fn the_task_does_not_spin_for_a_port_that_is_polled_often() {
    let is_hurried = Arc::new(AtomicBool::new(false));
    let Wire { port, config, .. } = iwarp_wire::open(&wire().parse().unwrap()).unwrap();
    let port = Box::new(HurriedPort { port, is_hurried: Arc::clone(&is_hurried), polled_us: 0 });
    let endpoint = Endpoint::on_queues(vec![port], &config, &EndpointOptions::default()).unwrap();
    let engine = &endpoint.shared.engines[0];
    until_attended(&endpoint).await;
    in_time(async {
        is_hurried.store(true, Ordering::SeqCst);
        // On a busy machine, the thread may serve in between. Then the task ends its round without leaving.
        for number in 0_u64.. {
            if !engine.is_attended() {
                break;
            }
            if number.is_multiple_of(20) {
                engine.call();
            }
            sleep(Duration::from_millis(1)).await;
        }
        // Later the task serves again.
        is_hurried.store(false, Ordering::SeqCst);
        engine.call();
    })
    .await;
    until_attended(&endpoint).await;
}

/// Several tasks and threads wait, poll and let the engines sleep at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4, crate = "crate::limited")]
async fn no_wake_up_is_lost_under_load() {
    let (client, server) = endpoints().await;
    let listener = Listener::bind(&server, PORT).unwrap();
    let mut tasks = JoinSet::new();
    for seed in 0..8_u64 {
        let (a, b) = connected(&client, &listener, &server).await;
        tokio::spawn(echo(b));
        tasks.spawn(async move {
            let mut random = seed;
            for number in 0..300_u64 {
                in_time(trip(&a, number as u8)).await;
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                match random >> 61 {
                    0 => sleep(Duration::from_millis(1)).await,
                    1 => yield_now().await,
                    2 => thread::sleep(Duration::from_micros(random >> 55)),
                    _ => {}
                }
            }
        });
    }
    in_time(async { while tasks.join_next().await.transpose().unwrap().is_some() {} }).await;
}
