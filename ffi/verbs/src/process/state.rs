//! The state of the process: one wire, one engine and one context, started by the first call that needs them.
//!
//! Nothing starts when the library is loaded or when a program lists devices. The reason is that some
//! programs fork before they use verbs, and the child would have no thread of the library. In a child that is
//! forked after the start, each call that uses the engine fails with `EIO`.

use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use dp::LinkState;
use iwarp::engine::{Engine, SharedEngine, SharedOptions};
use iwarp::status::{self, StatusSocket};
use iwarp::verbs::{
    AsyncEvent, AsyncEventKind, Context, ContextConfig, EventChannel, ProtectionDomain, VerbsError,
};

use super::async_events::AsyncEvents;
use super::bound_ports::BoundPorts;
use super::cm_id_table::CmIdTable;
use super::drain::{drain, send_datagrams};
use super::groups::AttachedGroups;
use super::loopback_qps::LoopbackQps;
use super::object_guard::assert_none_locked;
use super::oob_connections::OobConnections;
use super::qp_table::QpTable;
use super::removal::Removal;
use super::retry_timeouts::RetryTimeouts;
use super::sidr::Sidr;
use super::{identity, limits};
use crate::ffi::abi::{self, EIO, Errno, Outcome, StartError};
use crate::ffi::settings::{self, Key};
use crate::ffi::{ending, fork, resources, signals, sys, unwritten};
use crate::net::{self, Net, PerSpace};

/// The limit of two waits at the exit of the process. First the library waits until peers have received their
/// data, and stops if there is no progress for this time. Then the library waits at most this time for the
/// engine's thread.
const EXIT_LIMIT: Duration = Duration::from_millis(100);

/// The library's state in a process.
pub(crate) struct Process {
    pub(crate) net: Net,
    pub(crate) context: Context,
    pub(crate) engine: SharedEngine,
    /// The event channel of all identifiers of the context.
    pub(crate) channel: EventChannel,
    /// Maps the context's identifiers to the program's identifiers.
    pub(crate) ids: CmIdTable,
    /// The datagram services of the identifiers.
    pub(crate) sidr: Sidr,
    /// The ports to which the identifiers are bound.
    pub(crate) ports: PerSpace<BoundPorts>,
    /// The protection domain of identifiers for which the program has set no domain.
    pub(crate) default_pd: ProtectionDomain,
    /// The queues of asynchronous events.
    pub(crate) async_events: AsyncEvents,
    /// Connections that programs set up out of band.
    pub(crate) oob: OobConnections,
    /// Out-of-band queue pairs whose peer has not connected yet.
    pub(crate) retry_timeouts: RetryTimeouts,
    /// Out-of-band queue pairs that are connected to themselves.
    pub(crate) loopback_qps: LoopbackQps,
    /// The removal of the device.
    pub(crate) removal: Removal,
    /// Queue pairs by their numbers.
    pub(crate) qps: QpTable,
    /// The multicast groups of queue pairs.
    pub(crate) groups: AttachedGroups,
    /// The socket that serves `uwarp status`. The socket is removed when the process exits.
    status: Mutex<Option<StatusSocket>>,
}

static PROCESS: OnceLock<Result<Process, Errno>> = OnceLock::new();
static STARTING: Mutex<()> = Mutex::new(());

/// Returns the state of the process. The first call starts the engine. If the start fails because a resource
/// is exhausted, the next call tries again. Any other failure is final.
pub(crate) fn get_or_start() -> Outcome<&'static Process> {
    match PROCESS.get() {
        Some(process) => process.as_ref().map_err(|errno| *errno),
        None => start(),
    }
}

/// Returns the state of the process, if the process has started the engine and may use it.
pub(crate) fn started() -> Option<&'static Process> {
    if fork::is_child() { None } else { PROCESS.get()?.as_ref().ok() }
}

fn starting() -> MutexGuard<'static, ()> {
    STARTING.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cold]
fn start() -> Outcome<&'static Process> {
    let _one_at_a_time = starting();
    if PROCESS.get().is_none() {
        // With signals blocked, the new threads handle no signal of the program.
        let made = match signals::with_blocked(make) {
            Ok(process) => Ok(process),
            Err(StartError { line, errno, is_transient }) => {
                abi::complain(&line);
                if is_transient {
                    return Err(errno);
                }
                Err(errno)
            }
        };
        // Only one thread at a time runs this code, so no other thread has set `PROCESS`.
        let _ = PROCESS.set(made);
        if let Some(Ok(process)) = PROCESS.get() {
            pass_async_events_on(process);
        }
    }
    PROCESS.get().ok_or(EIO)?.as_ref().map_err(|errno| *errno)
}

fn make() -> Result<Process, StartError> {
    resources::check_for_start()?;
    let (options, has_thread) = options()?;
    identity::check()?;
    let (port, mut config, net) = net::open(&net::wire_spec(None, None)?)?;
    // If the library has no thread, acknowledgements cannot wait, since it may take long until the program
    // calls again.
    config.acknowledge_at_once = !has_thread;
    let config_of_context = ContextConfig {
        limits: limits::context(),
        late_memory_checks: true,
        qp_num_prefix: net.qp_num_prefix(),
        ..ContextConfig::default()
    };
    let context = Context::new(config_of_context).map_err(failed)?;
    let engine = Engine::new(&context, port, config).map_err(failed)?;
    let channel = context.create_event_channel().map_err(failed)?;
    let default_pd = context.alloc_pd().map_err(failed)?;
    let start = if has_thread { SharedEngine::spawn } else { SharedEngine::without_thread };
    let engine = start(engine, options, Box::new(after_poll)).map_err(failed)?;
    let status = Mutex::new(show(&context, has_thread));
    register_hooks()?;
    let (ids, sidr, ports, async_events, oob, retry_timeouts, loopback_qps, removal, qps) =
        Default::default();
    Ok(Process {
        net,
        context,
        engine,
        channel,
        ids,
        sidr,
        ports,
        default_pd,
        async_events,
        oob,
        retry_timeouts,
        loopback_qps,
        removal,
        qps,
        groups: AttachedGroups::default(),
        status,
    })
}

fn failed(error: VerbsError) -> StartError {
    StartError::new(&error)
}

/// Makes the socket that serves `uwarp status`. Returns `None` if the system refuses the socket. A refusal is
/// logged, and has no other effect.
fn show(context: &Context, has_thread: bool) -> Option<StatusSocket> {
    let poll = move || {
        if !has_thread && let Some(process) = started() {
            process.engine.turn();
        }
    };
    let show = |folder: std::path::PathBuf| {
        status::serve_while_idle(context, &folder, Box::new(poll)).map_err(|error| error.to_string())
    };
    let refused = |line: &String| abi::log(|| format!("'uwarp status' does not show this process: {line}"));
    net::status_folder().and_then(show).inspect_err(refused).ok()
}

/// Passes the events of a poll to the program. Events that occur before the process has started stay queued.
fn after_poll() {
    assert_none_locked();
    unwritten::after_poll();
    let Some(process) = started() else { return };
    // Most polls have no event, and these checks are cheaper than polling the channels.
    let Process { channel, ids, sidr, oob, retry_timeouts, loopback_qps, removal, .. } = process;
    if channel.is_empty()
        && !oob.has_parked()
        && !retry_timeouts.has_waiting()
        && !loopback_qps.any()
        && !removal.is_to_be_announced()
        && !ids.has_time_waits()
        && !sidr.has_work()
    {
        return;
    }
    removal.announce(&process.async_events);
    while let Some(event) = channel.poll() {
        if !oob.takes(&event) {
            ids.on_event(&event);
        }
    }
    if ids.has_time_waits() {
        ids.sweep(&process.engine);
    }
    if sidr.has_work() {
        sidr.after_poll(&process.engine);
    }
    oob.sweep();
    retry_timeouts.sweep(&process.engine);
    loopback_qps.sweep();
}

/// From now on, passes asynchronous events to the program at once, beginning with the events that have
/// already occurred. These events cannot wait for a poll, since threads of the program cause some of them
/// while the engine may sleep.
fn pass_async_events_on(process: &'static Process) {
    let handler = move |event: &AsyncEvent| {
        if ending::has_begun() {
            return;
        }
        match event.kind {
            AsyncEventKind::PortActive => process.net.set_link(true),
            AsyncEventKind::PortError => process.net.set_link(false),
            AsyncEventKind::PortGone => {
                // The kernel first sets the link of a removed interface down.
                if process.net.link() == LinkState::Up {
                    process.net.set_link(false);
                    process.async_events.on_device(sys::IBV_EVENT_PORT_ERR);
                }
                // The connection manager's locks cannot be taken here, so the removal is announced after the
                // poll.
                process.removal.remove();
            }
            _ => {}
        }
        process.async_events.on_event(event);
    };
    if let Err(error) = process.context.async_events().set_handler(Box::new(handler)) {
        abi::complain(&format!("asynchronous events do not reach the program: {error}"));
    }
}

/// The options of the engine's thread, and whether the engine has a thread: `UWARP_THREAD=spin|doze|caller`,
/// `UWARP_CPU`.
fn options() -> Result<(SharedOptions, bool), String> {
    let mut options = SharedOptions::default();
    let mut has_thread = true;
    if let Some(thread) = settings::get(Key::Thread)? {
        match thread.text.as_str() {
            "doze" => {}
            "spin" => options.spin_polls = u32::MAX - 1,
            "caller" => has_thread = false,
            _ => return Err(thread.refused("use spin, doze or caller")),
        }
    }
    if let Some(cpu) = settings::get(Key::Cpu)? {
        if !has_thread {
            return Err(cpu.refused("leave it out, as there is no thread with UWARP_THREAD=caller"));
        }
        let allowed = rustix::thread::sched_getaffinity(None).map_err(|error| error.to_string())?;
        let is_allowed = |cpu: &usize| *cpu < rustix::thread::CpuSet::MAX_CPU && allowed.is_set(*cpu);
        options.cpu = Some(cpu.text.parse().ok().filter(is_allowed).ok_or_else(|| {
            cpu.refused("use the number of a CPU that this process may run on (taskset -cp $$ shows them)")
        })?);
    }
    Ok((options, has_thread))
}

// ---- the end of the process ----

fn register_hooks() -> Result<(), String> {
    fork::watch()?;
    // SAFETY: the handler has no argument, and the library is not unloaded while one of its threads runs.
    if unsafe { libc::atexit(at_exit) } != 0 {
        return Err("the system has no memory for a handler of exit".into());
    }
    Ok(())
}

extern "C" fn at_exit() {
    // This function closes the connections, and resets connections that do not close in time. So peers
    // usually notice at once that the process has ended.
    if let Some(process) = started() {
        let _ = abi::guarded(|| {
            ending::begin();
            drop(process.status.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take());
            drain(&process.engine, &process.qps.all(), EXIT_LIMIT);
            send_datagrams(&process.engine);
            // A port may write to the socket of a peer that has ended, which would raise SIGPIPE.
            signals::without_sigpipe(|| process.engine.reset_within(EXIT_LIMIT));
            Ok(())
        });
    }
}
