//! The state of the process: one wire, one engine and one context, started by the first call that needs them.
//!
//! Nothing starts when the library is loaded, or when a program lists devices: programs fork before they use
//! verbs, and a thread would not come along. A child of a process that has started gets `EIO` from each call.

use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use iwarp::engine::{Engine, SharedEngine, SharedOptions};
use iwarp::verbs::{
    AsyncEventKind, AsyncEvents, CmEvent, Context, ContextConfig, EventChannel, ProtectionDomain,
};

use crate::abi::{self, Errno, Outcome};
use crate::async_events::Contexts;
use crate::drain::drain;
use crate::ids::Ids;
use crate::net::{self, Net, Spec};
use crate::numbers::Numbers;
use crate::rendezvous::Rendezvous;
use crate::{fork, limits};

/// How long the end of a process may wait for its thread, to reset its connections.
const EXIT_LIMIT: Duration = Duration::from_millis(100);

/// What the library has in a process that uses it.
pub(crate) struct Process {
    pub(crate) net: Net,
    pub(crate) context: Context,
    pub(crate) engine: SharedEngine,
    /// The channel of all identifiers of the context.
    pub(crate) channel: EventChannel,
    /// The identifiers of programs, by those of the context.
    pub(crate) ids: Ids,
    /// The domain of identifiers whose program gave none.
    pub(crate) default_pd: ProtectionDomain,
    /// Where asynchronous events go.
    pub(crate) contexts: Contexts,
    /// Connections that programs set up themselves.
    pub(crate) rendezvous: Rendezvous,
    /// Queue pairs by their numbers.
    pub(crate) qps: Numbers,
}

/// Is called with each event of a connection, after a poll, with the engine locked.
pub(crate) type OnConnection = fn(&'static Process, CmEvent);

static PROCESS: OnceLock<Result<Process, Errno>> = OnceLock::new();
static STARTING: Mutex<()> = Mutex::new(());

/// The state of the process. If it has not started, it is started, and `on_connection` gets its events.
pub(crate) fn get(on_connection: OnConnection) -> Outcome<&'static Process> {
    fork::check()?;
    match PROCESS.get() {
        Some(process) => process.as_ref().map_err(|errno| *errno),
        None => start(on_connection),
    }
}

/// The state of the process, if it has started and may be used.
pub(crate) fn started() -> Option<&'static Process> {
    if fork::is_child() { None } else { PROCESS.get()?.as_ref().ok() }
}

fn starting() -> MutexGuard<'static, ()> {
    STARTING.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cold]
fn start(on_connection: OnConnection) -> Outcome<&'static Process> {
    let _one_at_a_time = starting();
    let process = PROCESS.get_or_init(|| {
        make(on_connection).map_err(|line| {
            abi::complain(&line);
            Errno(libc::ENODEV)
        })
    });
    process.as_ref().map_err(|errno| *errno)
}

fn make(on_connection: OnConnection) -> Result<Process, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let spec = spec()?;
    let (port, config, net) = net::open(&spec)?;
    let config_of_context = ContextConfig { limits: limits::context(), ..ContextConfig::default() };
    let context = Context::new(config_of_context).map_err(|error| text(&error))?;
    let engine = Engine::new(&context, port, config).map_err(|error| text(&error))?;
    let channel = context.create_event_channel().map_err(|error| text(&error))?;
    let default_pd = context.alloc_pd().map_err(|error| text(&error))?;
    let events = context.async_events();
    let after_poll = Box::new(move || after_poll(on_connection, &events));
    let engine = with_signals_blocked(|| {
        SharedEngine::spawn(engine, options()?, after_poll).map_err(|error| text(&error))
    })?;
    register_hooks()?;
    let (ids, contexts, rendezvous, qps) = Default::default();
    Ok(Process { net, context, engine, channel, ids, default_pd, contexts, rendezvous, qps })
}

/// Hands the events of a poll to the program. Those of the first polls wait until the process has started.
fn after_poll(on_connection: OnConnection, events: &AsyncEvents) {
    let Some(process) = started() else { return };
    while let Some(event) = process.channel.poll() {
        on_connection(process, event);
    }
    process.rendezvous.sweep();
    while let Ok(Some(event)) = events.poll() {
        if matches!(event.kind, AsyncEventKind::PortActive | AsyncEventKind::PortError) {
            process.net.set_link(event.kind == AsyncEventKind::PortActive);
        }
        process.contexts.on_event(&event);
    }
}

/// Runs `start`, which makes a thread, with all signals blocked, so that the thread takes none of those that
/// the program handles. Faults are delivered to the thread that makes them in any case.
fn with_signals_blocked<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: all bits of the set are overwritten before it is used.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is a valid place.
    unsafe { libc::sigfillset(&raw mut all) };
    for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP] {
        // SAFETY: the set was filled above.
        unsafe { libc::sigdelset(&raw mut all, fault) };
    }
    // SAFETY: both sets are valid places.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    let result = start();
    // SAFETY: the set is that of this thread before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    result
}

/// How the thread polls: `UWARP_THREAD=spin|doze`, `UWARP_CPU`.
fn options() -> Result<SharedOptions, String> {
    let mut options = SharedOptions::default();
    match variable("UWARP_THREAD")?.as_deref() {
        None | Some("doze") => {}
        Some("spin") => options.spin_polls = u32::MAX - 1,
        Some(other) => return Err(format!("UWARP_THREAD={other}: use spin or doze")),
    }
    if let Some(cpu) = variable("UWARP_CPU")? {
        options.cpu = Some(cpu.parse().map_err(|_| format!("UWARP_CPU={cpu}: use the number of a CPU"))?);
    }
    Ok(options)
}

fn variable(name: &str) -> Result<Option<String>, String> {
    match std::env::var(name) {
        Ok(value) if value.is_empty() => Ok(None),
        Ok(value) => Ok(Some(value)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => Err(format!("{name} is no UTF-8 text")),
    }
}

/// The wire that the environment asks for: `UWARP_NET`, `UWARP_ADDR`.
fn spec() -> Result<Spec, String> {
    let mut spec: Spec = match variable("UWARP_NET")? {
        Some(spec) => spec.parse().map_err(|error: net::SpecError| error.to_string())?,
        None => Spec::default(),
    };
    if let Some(address) = variable("UWARP_ADDR")? {
        spec.set_address(&address).map_err(|error| error.to_string())?;
    }
    spec.check().map_err(|error| error.to_string())?;
    Ok(spec)
}

// ---- the end of the process ----

fn register_hooks() -> Result<(), String> {
    fork::watch()?;
    // SAFETY: the handler has no argument, and the library is not unloaded while threads of it run.
    if unsafe { libc::atexit(at_exit) } != 0 {
        return Err("the system has no memory for a handler of exit".into());
    }
    Ok(())
}

extern "C" fn at_exit() {
    // Peers learn at once that the process is gone.
    if let Some(process) = started() {
        let _ = abi::guarded(|| {
            drain(&process.engine, &process.qps.all(), EXIT_LIMIT);
            process.engine.reset_within(EXIT_LIMIT);
            Ok(())
        });
    }
}
