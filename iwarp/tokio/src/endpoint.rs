//! An endpoint: a device, its engines, and the state that connections share.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use dp::Port;
use iwarp::engine::{Engine, EngineConfig, EngineCounters, SharedEngine, SharedOptions};
use iwarp::memory::Access;
use iwarp::verbs::{Context, ContextConfig, EventChannel, MrOptions, ProtectionDomain};
use iwarp_wire::{OpenError, Spec, Wire};
use tokio::net::{ToSocketAddrs, lookup_host};
use tokio::task::AbortHandle;

use crate::error::{Error, Result};
use crate::events::{self, Channel, Routes};
use crate::region::Region;
use crate::served::Served;

/// A device with its own IP address. Each queue of the device has an engine, which runs in its own thread.
/// Clones refer to the same endpoint. Connections and listeners keep the endpoint alive.
///
/// An endpoint must be created within a tokio runtime whose I/O is enabled. A task of the endpoint runs in
/// that runtime.
#[derive(Clone)]
pub struct Endpoint {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) context: Context,
    pub(crate) pd: ProtectionDomain,
    pub(crate) routes: Arc<Routes>,
    channel: Arc<Channel>,
    events: AbortHandle,
    addresses: Vec<IpAddr>,
    /// The engines, by index.
    pub(crate) engines: Vec<Arc<Served>>,
    /// The tasks that serve the engines.
    services: Vec<AbortHandle>,
    #[cfg(all(feature = "status", target_os = "linux"))]
    _shown: Option<iwarp::status::StatusSocket>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.events.abort();
        self.services.iter().for_each(AbortHandle::abort);
    }
}

impl Endpoint {
    /// Opens a wire by its name ([`iwarp_wire`]), for example `local` or `packet:eth0,addr=10.0.0.2/24`.
    /// Wires on DPDK devices need the feature `dpdk`.
    ///
    /// # Errors
    /// [`Error::Open`] if the wire cannot be opened: the text of the error is one line that says what to do.
    /// Otherwise the errors of [`on_queues`](Self::on_queues).
    pub async fn open(wire: &str) -> Result<Self> {
        let spec: Spec = wire.parse().map_err(OpenError::from)?;
        // Opening a device may take a second.
        let opened = tokio::task::spawn_blocking(move || iwarp_wire::open(&spec)).await;
        let Wire { port, config, .. } = opened.map_err(io::Error::from)??;
        Self::on_queues(vec![port], &config, &EndpointOptions::default())
    }

    /// Creates an endpoint on a port, with the addresses `addresses` (`10.0.0.1/24`), and defaults for all
    /// other options.
    ///
    /// # Errors
    /// [`Error::Verbs`] if an address cannot be parsed or a limit is reached. [`Error::System`] for an error
    /// of the system.
    pub fn on_port(port: Box<dyn Port>, addresses: &[&str]) -> Result<Self> {
        let config = EngineConfig::new(&*port, addresses)?;
        Self::on_queues(vec![port], &config, &EndpointOptions::default())
    }

    /// Creates an endpoint on the queues of a device, with an engine and a thread for each queue
    /// ([`Engine::on_queues`]).
    ///
    /// # Errors
    /// [`Error::Verbs`] with an error of [`Engine::on_queues`] or of [`SharedEngine::spawn`].
    /// [`Error::System`] if tokio cannot watch the endpoint's events.
    pub fn on_queues(
        ports: Vec<Box<dyn Port>>,
        config: &EngineConfig,
        options: &EndpointOptions,
    ) -> Result<Self> {
        let context = Context::new(options.context.clone())?;
        let pd = context.alloc_pd()?;
        let channel = Channel::register(context.create_event_channel()?)?;
        let routes = Arc::<Routes>::default();
        let addresses = config.stack.addresses.iter().map(|cidr| cidr.address().into()).collect();
        let share = |(at, engine)| {
            let cpu = options.cpus.get(at).copied().or(options.thread.cpu);
            let options = SharedOptions { cpu, ..options.thread };
            let engine = SharedEngine::spawn(engine, options, Box::new(|| {}))?;
            Served::start(engine).map_err(Error::from)
        };
        let engines = Engine::on_queues(&context, ports, config, &options.cpus)?;
        let engines = engines.into_iter().enumerate().map(share).collect::<Result<Vec<_>>>()?;
        let (engines, services): (Vec<_>, Vec<_>) = engines.into_iter().unzip();
        let services = services.into_iter().flatten().collect();
        let events = tokio::spawn(events::deliver_all(Arc::clone(&channel), Arc::clone(&routes)));
        let events = events.abort_handle();
        let shared = Shared {
            #[cfg(all(feature = "status", target_os = "linux"))]
            _shown: crate::shown::show(&context),
            context,
            pd,
            routes,
            channel,
            events,
            addresses,
            engines,
            services,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Returns the IP addresses of the endpoint.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.shared.addresses
    }

    /// Registers `bytes` bytes of new memory, filled with zeros, with these access rights. Remote writes and
    /// atomics, and Reads into the memory, need [`Access::LOCAL_WRITE`] as well.
    ///
    /// # Errors
    /// [`Error::Verbs`] if the limit on regions is reached, the memory cannot be allocated, or the rights
    /// cannot be combined.
    pub fn register(&self, bytes: usize, access: Access) -> Result<Region> {
        Ok(Region::new(self.shared.pd.reg_mr(bytes, access)?))
    }

    /// As [`register`](Self::register), with all options.
    ///
    /// # Errors
    /// [`Error::Verbs`] if the limit on regions is reached, the memory cannot be allocated, or an option is
    /// invalid.
    pub fn register_with(&self, bytes: usize, options: &MrOptions<'_>) -> Result<Region> {
        Ok(Region::new(self.shared.pd.reg_mr_with(bytes, options)?))
    }

    /// Returns the counters of each engine.
    pub fn counters(&self) -> Vec<EngineCounters> {
        self.shared.engines.iter().map(|engine| engine.counters()).collect()
    }

    /// Returns the endpoint's verbs context, for calls that this crate does not wrap.
    pub fn context(&self) -> &Context {
        &self.shared.context
    }

    /// Returns the protection domain of the endpoint's regions and connections.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.shared.pd
    }

    /// Resolves a name, and returns its first address of a family in which this endpoint has an address.
    pub(crate) async fn resolve(&self, name: impl ToSocketAddrs) -> Result<SocketAddr> {
        let found: Vec<SocketAddr> = lookup_host(name).await?.collect();
        let fits = |to: &&SocketAddr| self.shared.addresses.iter().any(|own| own.is_ipv4() == to.is_ipv4());
        found.iter().find(fits).copied().ok_or_else(|| {
            let own = self.shared.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            match found.first() {
                None => Error::Name("the name has no address".into()),
                Some(address) => Error::Name(format!(
                    "{} cannot be reached from {own}: give this endpoint an address of the same IP family",
                    address.ip()
                )),
            }
        })
    }
}

impl Shared {
    pub(crate) fn event_channel(&self) -> &EventChannel {
        self.channel.events()
    }

    /// Makes the engines' threads poll, since the caller may not poll for a while.
    pub(crate) fn hand_over(&self) {
        self.engines.iter().for_each(|engine| engine.hand_over());
    }
}

/// Options of an endpoint.
#[derive(Clone, Debug)]
pub struct EndpointOptions {
    /// The configuration of the endpoint's context, such as the limits on its objects.
    pub context: ContextConfig,
    /// How the threads of the endpoint's engines poll. Default: as [`SharedOptions::default`], but a thread
    /// that has stepped back for a task checks after 100 us, and after at most 500 us, whether the task still
    /// polls. While the runtime serves the engine, the thread checks at most once per millisecond.
    pub thread: SharedOptions,
    /// The CPUs to which the engines' threads are pinned, by the index of the engine. A thread without an
    /// entry uses `thread.cpu`. Default: none, so any CPU.
    pub cpus: Vec<usize>,
}

impl Default for EndpointOptions {
    fn default() -> Self {
        // A task may compute for a long time after its request has completed, while peers read memory. So the
        // thread soon checks whether the task still polls.
        let thread = SharedOptions {
            step_back: Duration::from_micros(100),
            longest_step_back: Duration::from_micros(500),
            ..SharedOptions::default()
        };
        Self { context: ContextConfig::default(), thread, cpus: Vec::new() }
    }
}
