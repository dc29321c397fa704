//! The virtual machine that runs siw or rxe, and the machine's wire. One machine runs at a time, and another
//! machine is booted when a test needs another kind of machine.
//!
//! `v1` is our device. A packet socket of our program uses it, and the kernel has no address on it. The other
//! device of its veth pair and the machine's tap are on a bridge.

use std::cell::Cell;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tests::iwperf::Net;
use tests::lab::{Driver, Evidence, Namespace, Result, Siw, SiwConfig, Wire, programs, veth};
use tests::lab_error;

/// Our address.
pub(crate) const OURS: &str = "10.77.0.1";
/// The machine's address.
pub(crate) const THEIRS: &str = "10.77.0.2";
/// Our IPv6 address.
pub(crate) const OURS_6: &str = "fd77::1";
/// The machine's IPv6 address.
pub(crate) const THEIRS_6: &str = "fd77::2";

/// The kernel's address in the namespace, for programs that use the kernel's TCP.
pub(crate) const KERNELS: &str = "10.77.0.3";

/// Maximum time for which the machine may be silent before a test.
const WIRE_TIMEOUT: Duration = Duration::from_secs(60);

/// A namespace with a bridge, a machine, and a device for our stack.
pub(crate) struct Rig {
    config: SiwConfig,
    has_target: Cell<bool>,
    // Fields are dropped in this order, so the machine stops before its namespace is removed.
    pub(crate) siw: Siw,
    pub(crate) namespace: Namespace,
}

impl Rig {
    fn new(config: SiwConfig) -> Result<Self> {
        // The programs are built now, so that a server in the machine does not wait for the build of its
        // client.
        programs::uwarp()?;
        if config.driver == Driver::Siw {
            programs::iwperf()?;
            programs::iwprobe()?;
            programs::own("verbs-scenes")?;
            programs::own("bad-write")?;
        }
        let namespace = Namespace::new()?;
        let mtu = config.mtu;
        namespace.bridge("br0", mtu)?;
        namespace.address("br0", &format!("{KERNELS}/24"))?;
        veth(Wire { namespace: &namespace, dev: "v0" }, Wire { namespace: &namespace, dev: "v1" }, mtu)?;
        namespace.ip(["link", "set", "v0", "master", "br0"])?;
        let siw = Siw::start(&namespace, "br0", &config)?;
        Ok(Self { config, has_target: Cell::new(false), siw, namespace })
    }

    /// Waits until the machine answers on the wire. New machines were sometimes silent for longer than
    /// neighbour resolution lasts, which is 3 s, and then the client of the test gave up.
    pub(crate) fn wait_for_wire(&self) -> Result<()> {
        let theirs: IpAddr = THEIRS.parse().map_err(|error| lab_error!("{THEIRS}: {error}"))?;
        self.namespace.wait_for_host(theirs, WIRE_TIMEOUT)
    }

    /// Returns the numbers of frames that the devices of the namespace have passed and dropped.
    fn counters(&self) -> String {
        self.namespace.ip(["-s", "link"]).unwrap_or_else(|error| error.to_string())
    }

    /// Copies iwprobe's target to the machine, once. Returns its path there.
    pub(crate) fn target(&self) -> Result<&'static str> {
        const PATH: &str = "/tmp/verbs-target";
        if !self.has_target.get() {
            self.siw.push(&programs::verbs_target()?, PATH)?;
            self.has_target.set(true);
        }
        Ok(PATH)
    }

    /// Sets the MTU of the namespace's devices. The machine's device keeps its MTU.
    pub(crate) fn set_mtu(&self, mtu: &str) -> Result<()> {
        let tap = self.siw.name();
        for dev in ["v0", "v1", tap, "br0"] {
            self.namespace.ip(["link", "set", dev, "mtu", mtu])?;
        }
        Ok(())
    }

    /// Returns the MTU with which the machine was booted.
    pub(crate) fn mtu(&self) -> u16 {
        self.config.mtu
    }

    /// Returns the network options of our side of the wire.
    pub(crate) fn net(&self) -> Net {
        Net::af_packet("v1", &format!("{OURS}/24"), self.config.mtu)
    }
}

/// The rig that all tests share.
#[derive(Clone, Default)]
pub(crate) struct Shared(Arc<Mutex<Option<Rig>>>);

impl Shared {
    /// Runs a test on a machine with siw and these parameters of siw.
    pub(crate) fn with<T>(
        &self,
        mtu: u16,
        params: &[&str],
        test: impl FnOnce(&Rig) -> Result<T>,
    ) -> Result<T> {
        let params = params.iter().map(|param| (*param).to_owned()).collect();
        self.on(Driver::Siw, mtu, params, test)
    }

    /// Runs a test on a machine with this driver and these parameters. A running machine of this kind is used
    /// again. If the test fails, evidence is kept, and a machine that no longer answers is stopped.
    pub(crate) fn on<T>(
        &self,
        driver: Driver,
        mtu: u16,
        params: Vec<String>,
        test: impl FnOnce(&Rig) -> Result<T>,
    ) -> Result<T> {
        let addresses = vec![format!("{THEIRS}/24"), format!("{THEIRS_6}/64")];
        let config = SiwConfig { driver, mtu, addresses, params };
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.as_ref().is_none_or(|rig| rig.config != config) {
            // The old machine is stopped first, since two machines would share the cores.
            drop(slot.take());
            *slot = Some(Rig::new(config)?);
        }
        let Some(rig) = slot.as_ref() else { unreachable!("made above") };
        let evidence = Evidence::gather(&rig.namespace, "br0", Some(rig.siw.id()?))?;
        let result = rig.wait_for_wire().and_then(|()| test(rig));
        let Err(error) = result else { return result };
        let mut texts = vec![("error", error.to_string()), ("devices", rig.counters())];
        texts.push(("console", rig.siw.console().unwrap_or_else(|error| error.to_string())));
        let answers = rig.siw.answers();
        if answers {
            let ask = "ip -s link; ss -tinmo; rdma resource show; rdma statistic show; ip neigh; dmesg | tail -n 100";
            let theirs = rig.siw.run(WIRE_TIMEOUT, ["sh", "-c", ask]).check(WIRE_TIMEOUT);
            texts.push(("machine", theirs.unwrap_or_else(|error| error.to_string())));
        }
        let kept = evidence.keep(&texts).unwrap_or_else(|error| format!("no evidence: {error}"));
        let texts = texts.iter().skip(1).map(|(name, text)| format!("---- {name}\n{text}\n"));
        let error = lab_error!("{error}\n{}{kept}", texts.collect::<String>());
        if answers {
            return Err(error);
        }
        // If the machine hangs, only this test fails, since the next test boots another machine.
        drop(slot.take());
        Err(lab_error!("{error}\n---- the machine does not answer any more"))
    }

    /// Stops the machine. The next test boots a new machine.
    pub(crate) fn end(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
