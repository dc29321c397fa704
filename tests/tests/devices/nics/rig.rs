//! Two machines, `a` and `b`. For each model of NIC, a wire (a bridge in a namespace) joins the two NICs of
//! this model. Each machine has one more NIC. The bridge of this NIC (`br-a` or `br-b`) has no NIC of the
//! other machine, and is for tests with a router or with a third machine. One pair of machines runs at a
//! time, and is rebooted when a test needs another driver binding.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tests::iwperf::TEST_TIMEOUT;
use tests::lab::{
    Namespace, NicConfig, NicLab, NicMachine, Prerequisite, Process, Result, missing, programs,
};
use tests::lab_error;

/// The bridge of the routed NIC of `a`, and the bridge of the routed NIC of `b`.
pub(crate) const BRIDGES: [&str; 2] = ["br-a", "br-b"];

/// The MTU of the wires, which accept the frames of any test.
const WIRE_MTU: u16 = 9000;

/// Maximum time until a program in a machine has opened its NIC and is ready. Opening a NIC takes seconds,
/// since the machines are emulated.
pub(crate) const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// The Linux driver by which DPDK accesses a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binding {
    /// `uio_pci_generic`: DPDK uses physical addresses, without an IOMMU.
    Uio,
    /// `vfio-pci` with an IOMMU: DPDK uses virtual addresses.
    Vfio,
}

impl Binding {
    pub(crate) const ALL: [Self; 2] = [Self::Uio, Self::Vfio];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Uio => "uio",
            Self::Vfio => "vfio",
        }
    }

    /// Returns the NICs that are tested with this driver.
    pub(crate) fn nics(self) -> Vec<Nic> {
        match self {
            Self::Uio => vec![Nic::Igb, Nic::Vmxnet3, Nic::E1000, Nic::E1000e, Nic::Virtio],
            Self::Vfio => vec![Nic::Igb, Nic::Virtio],
        }
    }
}

/// A model of NIC that both machines have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nic {
    Igb,
    Vmxnet3,
    E1000,
    E1000e,
    Virtio,
    /// An e1000e on the bridge.
    Bridged,
    /// An e1000e in a separate PCI port, which can be unplugged.
    Pluggable,
}

impl Nic {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Igb => "igb",
            Self::Vmxnet3 => "vmxnet3",
            Self::E1000 => "e1000",
            Self::E1000e => "e1000e",
            Self::Virtio => "virtio",
            Self::Bridged => "bridged",
            Self::Pluggable => "pluggable",
        }
    }

    /// Whether the NIC spreads flows over its queues.
    pub(crate) fn has_rss(self) -> bool {
        matches!(self, Self::Igb | Self::Virtio)
    }

    /// Returns the name of the bridge that joins both NICs.
    fn wire(self) -> String {
        format!("w-{}", self.name())
    }

    pub(crate) fn needs(self) -> &'static [Prerequisite] {
        match self {
            Self::Igb | Self::Vmxnet3 => &[Prerequisite::NewerQemu],
            _ => &[],
        }
    }
}

/// An IP family, with the addresses of the server and of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V4 => "ipv4",
            Self::V6 => "ipv6",
        }
    }

    pub(crate) fn server(self) -> &'static str {
        match self {
            Self::V4 => "10.78.0.1/24",
            Self::V6 => "fd78::1/64",
        }
    }

    pub(crate) fn client(self) -> &'static str {
        match self {
            Self::V4 => "10.78.0.2/24",
            Self::V6 => "fd78::2/64",
        }
    }
}

/// The pair of machines. Both machines have `iwperf`, and all their NICs are bound.
pub(crate) struct NicPair {
    binding: Binding,
    nics: Vec<Nic>,
    // Fields are dropped in this order, so the machines stop before the namespace of their taps is removed.
    pub(crate) a: NicMachine,
    pub(crate) b: NicMachine,
    lab: Arc<NicLab>,
    pub(crate) namespace: Namespace,
}

impl NicPair {
    fn new(binding: Binding) -> Result<Self> {
        let namespace = Namespace::new()?;
        for bridge in BRIDGES {
            namespace.bridge(bridge, 1500)?;
        }
        for nic in binding.nics().into_iter().chain([Nic::Pluggable]) {
            namespace.bridge(&nic.wire(), WIRE_MTU)?;
        }
        let lab = NicLab::new()?;
        lab.put(&programs::iwperf()?)?;
        let mut nics = binding.nics();
        nics.retain(|nic| missing(nic.needs()).is_none());
        nics.extend([Nic::Bridged, Nic::Pluggable]);
        let config = |name, bridge| {
            let wired = |nic: &Nic| match nic {
                Nic::Bridged => format!("e1000e,bridge={bridge}"),
                Nic::Pluggable => format!("e1000e,bridge={},mtu={WIRE_MTU},port=on", nic.wire()),
                nic => {
                    let queues = if *nic == Nic::Virtio { ",queues=4,rss=on,hash=on" } else { "" };
                    format!("{},bridge={},mtu={WIRE_MTU}{queues}", nic.name(), nic.wire())
                }
            };
            let nics = nics.iter().map(wired).collect();
            NicConfig { name, nics, iommu: binding == Binding::Vfio }
        };
        let [to_a, to_b] = BRIDGES;
        let machines = lab.boot(&namespace, &[config("a", to_a), config("b", to_b)])?;
        let [a, b] = <[NicMachine; 2]>::try_from(machines).map_err(|_| lab_error!("not two machines"))?;
        let pair = Self { binding, nics, a, b, lab, namespace };
        for machine in [&pair.a, &pair.b] {
            for nic in &pair.nics {
                machine.shell(&format!("nic-bind {}", pair.address(*nic)))?;
            }
        }
        Ok(pair)
    }

    pub(crate) fn binding(&self) -> Binding {
        self.binding
    }

    /// Returns the PCI address of a NIC, which is the same in both machines.
    pub(crate) fn address(&self, nic: Nic) -> String {
        if nic == Nic::Pluggable {
            return "0000:01:00.0".to_owned();
        }
        let index = self.nics.iter().position(|it| *it == nic).unwrap_or(usize::MAX);
        format!("0000:00:{:02x}.0", index.wrapping_add(8))
    }

    /// Starts `iwperf WORDS` on this NIC in a machine.
    pub(crate) fn iwperf(
        &self,
        machine: &NicMachine,
        nic: Nic,
        words: &[&str],
        limit: Duration,
    ) -> Result<Process> {
        let address = self.address(nic);
        // `exec` keeps the process id of the shell.
        let script = format!("echo $$ >/run/{}; exec iwperf \"$@\"", words[0]);
        let start = ["sh", "-c", &script, "iwperf"].into_iter().chain(words.iter().copied());
        machine.run(limit, start.chain(["--pci", &address])).spawn()
    }

    /// Starts a server with these further options, which serves one client after another.
    pub(crate) fn serve<'a>(
        &self,
        machine: &'a NicMachine,
        nic: Nic,
        ip: &str,
        options: &[&str],
    ) -> Result<NicServer<'a>> {
        let words = ["server", "-P", "--ip", ip, "--timeout", "20"];
        let words = words.iter().chain(options).copied();
        let process = self.iwperf(machine, nic, &words.collect::<Vec<_>>(), 4 * TEST_TIMEOUT)?;
        let mut server = NicServer { machine, process };
        server.process.wait_for("listening on port", READY_TIMEOUT)?;
        Ok(server)
    }

    pub(crate) fn machines(&self) -> [&NicMachine; 2] {
        [&self.a, &self.b]
    }

    /// Copies a program to the folder in which both machines find it by its name.
    pub(crate) fn put(&self, program: &Path) -> Result<()> {
        self.lab.put(program)
    }

    /// Returns the path of a file that the machines see as `/host/NAME`.
    pub(crate) fn shared_file(&self, name: &str) -> PathBuf {
        self.lab.share().join(name)
    }

    /// Whether both machines run commands.
    fn answers(&self) -> bool {
        self.a.answers() && self.b.answers()
    }

    fn consoles(&self) -> String {
        let console = |machine: &NicMachine| machine.console().unwrap_or_else(|error| error.to_string());
        format!("{}\n----\n{}", console(&self.a), console(&self.b))
    }
}

/// A server of `iwperf`. When the value is dropped, the server is ended, and the drop waits until the NIC is
/// free.
pub(crate) struct NicServer<'a> {
    machine: &'a NicMachine,
    process: Process,
}

impl NicServer<'_> {
    /// Returns what the server has printed so far.
    pub(crate) fn text(&self) -> String {
        self.process.text()
    }

    /// Kills the program, so that it cannot stop the NIC or notify the peer, and waits until it has ended.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.end("KILL")
    }

    fn end(&mut self, signal: &str) -> Result<()> {
        let script = "p=$(cat /run/server) && kill -$S $p 2>/dev/null; n=0
            while kill -0 $p 2>/dev/null; do n=$((n + 1)); [ $n -lt 100 ] || exit 1; sleep 0.1; done";
        self.machine.shell(&format!("S={signal}; {script}")).map(drop)
    }
}

impl Drop for NicServer<'_> {
    fn drop(&mut self) {
        // If the machine does not answer, the next test boots another machine.
        let _ = self.end("TERM");
    }
}

/// The pair of machines that all tests share, and a line for each transfer.
#[derive(Clone, Default)]
pub(crate) struct SharedPair {
    pair: Arc<Mutex<Option<NicPair>>>,
    table: Arc<Mutex<Vec<String>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedPair {
    /// Runs a test on machines with this binding. If the running machines have this binding, they are used
    /// again. If the test fails and a machine no longer answers, the machines are stopped.
    pub(crate) fn with(&self, binding: Binding, test: impl FnOnce(&NicPair) -> Result<()>) -> Result<()> {
        let mut slot = lock(&self.pair);
        if slot.as_ref().is_none_or(|pair| pair.binding != binding) {
            // The old machines are stopped first, since four machines would share the cores.
            drop(slot.take());
            *slot = Some(NicPair::new(binding)?);
        }
        let Some(pair) = slot.as_ref() else { unreachable!("made above") };
        let Err(error) = test(pair) else { return Ok(()) };
        if pair.answers() {
            return Err(error);
        }
        let consoles = pair.consoles();
        drop(slot.take());
        Err(lab_error!("{error}\n---- a machine does not answer any more; the consoles:\n{consoles}"))
    }

    /// Adds a line to the table of transfers.
    pub(crate) fn note(&self, line: String) {
        lock(&self.table).push(line);
    }

    /// Stops the machines and prints the table.
    pub(crate) fn end(&self) {
        drop(lock(&self.pair).take());
        let table = lock(&self.table);
        if !table.is_empty() {
            println!("Gb/s of Writes, Reads and Sends, which only show that it works (emulated machines):");
        }
        for line in table.iter() {
            println!("{line}");
        }
    }
}
