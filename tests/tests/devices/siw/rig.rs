//! The machine and its wire: one at a time, booted when a test needs another kind than the last one.
//!
//! `v1` is ours, used by a raw socket, and has no kernel address. Its other end and the machine's tap are on
//! a bridge.

use std::cell::Cell;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tests::iwperf::Net;
use tests::lab::{Namespace, Process, Result, Siw, SiwConfig, Wire, programs, veth};
use tests::lab_error;

/// Our address.
pub(crate) const OURS: &str = "10.77.0.1";
/// The machine's address.
pub(crate) const THEIRS: &str = "10.77.0.2";
/// Our IPv6 address.
pub(crate) const OURS_6: &str = "fd77::1";
/// The machine's IPv6 address.
pub(crate) const THEIRS_6: &str = "fd77::2";

/// The address of the namespace's kernel, for programs over its TCP.
pub(crate) const KERNELS: &str = "10.77.0.3";

/// How long the machine may be silent before a test.
const WIRE_TIMEOUT: Duration = Duration::from_secs(60);

/// A namespace with a bridge, a machine, and a device for us.
pub(crate) struct Rig {
    config: SiwConfig,
    has_target: Cell<bool>,
    // Stopped before its namespace is removed: fields are dropped in this order.
    pub(crate) siw: Siw,
    pub(crate) namespace: Namespace,
}

impl Rig {
    fn new(config: SiwConfig) -> Result<Self> {
        // A server in the machine does not wait for the build of its client.
        programs::iwperf()?;
        programs::iwprobe()?;
        programs::uwarp()?;
        programs::own("verbs-scenes")?;
        programs::own("bad-write")?;
        let namespace = Namespace::new()?;
        let mtu = config.mtu;
        namespace.bridge("br0", mtu)?;
        namespace.address("br0", &format!("{KERNELS}/24"))?;
        veth(Wire { namespace: &namespace, dev: "v0" }, Wire { namespace: &namespace, dev: "v1" }, mtu)?;
        namespace.ip(["link", "set", "v0", "master", "br0"])?;
        let siw = Siw::start(&namespace, "br0", &config)?;
        Ok(Self { config, has_target: Cell::new(false), siw, namespace })
    }

    /// Waits until the machine answers on the wire. A new one did not, at times, for longer than a neighbour
    /// is asked for, 3 s, and the client of the test gave up.
    pub(crate) fn wait_for_wire(&self) -> Result<()> {
        let theirs: IpAddr = THEIRS.parse().map_err(|error| lab_error!("{THEIRS}: {error}"))?;
        self.namespace.wait_for_host(theirs, WIRE_TIMEOUT)
    }

    /// The frames that the devices of the namespace have passed and dropped.
    fn counters(&self) -> String {
        self.namespace.ip(["-s", "link"]).unwrap_or_else(|error| error.to_string())
    }

    /// With `UWARP_CAPTURES=DIR`, captures the bridge for each test, numbered in the order of the tests.
    fn capture(&self) -> Result<Option<Process>> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let Some(folder) = std::env::var_os("UWARP_CAPTURES") else { return Ok(None) };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let run =
            self.namespace.run("tcpdump").args(["-Z", "root", "-i", "br0", "-U", "--immediate-mode", "-w"]);
        let mut dump = run.arg(PathBuf::from(folder).join(format!("{number}.pcap"))).spawn()?;
        dump.wait_for("listening on", Duration::from_secs(10))?;
        Ok(Some(dump))
    }

    /// The path of iwprobe's target in the machine.
    pub(crate) fn target(&self) -> Result<&'static str> {
        const PATH: &str = "/tmp/verbs-target";
        if !self.has_target.get() {
            self.siw.push(&programs::verbs_target()?, PATH)?;
            self.has_target.set(true);
        }
        Ok(PATH)
    }

    /// The MTU of the wire.
    pub(crate) fn mtu(&self) -> u16 {
        self.config.mtu
    }

    /// Our side of the wire.
    pub(crate) fn net(&self) -> Net {
        Net::af_packet("v1", &format!("{OURS}/24"), self.config.mtu)
    }
}

/// The rig that all tests share.
#[derive(Clone, Default)]
pub(crate) struct Shared(Arc<Mutex<Option<Rig>>>);

impl Shared {
    /// Runs a test on a machine of this kind; reuses the last one if it is of this kind.
    pub(crate) fn with<T>(
        &self,
        mtu: u16,
        params: &[&str],
        test: impl FnOnce(&Rig) -> Result<T>,
    ) -> Result<T> {
        let config = SiwConfig {
            mtu,
            addresses: vec![format!("{THEIRS}/24"), format!("{THEIRS_6}/64")],
            params: params.iter().map(|param| (*param).to_owned()).collect(),
        };
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.as_ref().is_none_or(|rig| rig.config != config) {
            // Stops the old machine first: two would share the cores.
            drop(slot.take());
            *slot = Some(Rig::new(config)?);
        }
        let Some(rig) = slot.as_ref() else { unreachable!("made above") };
        let capture = rig.capture()?;
        let result = rig.wait_for_wire().and_then(|()| test(rig));
        drop(capture);
        let Err(error) = result else { return result };
        let error = lab_error!("{error}\n---- the wire\n{}", rig.counters());
        if rig.siw.answers() {
            let theirs = rig.siw.run(WIRE_TIMEOUT, ["ip", "-s", "link"]).check(WIRE_TIMEOUT);
            let theirs = theirs.unwrap_or_else(|error| error.to_string());
            return Err(lab_error!("{error}\n---- the machine's devices\n{theirs}"));
        }
        // A machine that hangs fails this test alone: the next one boots another.
        let console = rig.siw.console().unwrap_or_else(|error| error.to_string());
        drop(slot.take());
        Err(lab_error!("{error}\n---- siw's machine does not answer any more; its console:\n{console}"))
    }

    /// Stops the machine: the next test boots a new one.
    pub(crate) fn end(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
