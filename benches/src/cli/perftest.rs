//! Options of perftest that have no effect here, so that perftest's scripts run unchanged.

/// The options are accepted, and iwperf prints one line that says why the given options have no effect.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Accepted from perftest, without an effect")]
pub struct PerftestArgs {
    /// Connections are always made by address.
    #[arg(short = 'R', long = "rdma_cm", alias = "rdma-cm")]
    pub rdma_cm: bool,
    /// There is no warning about the CPU's frequency.
    #[arg(short = 'F', long = "CPU-freq")]
    pub cpu_freq: bool,
    /// The device is chosen by --wire, --packet, --vdev or --pci.
    #[arg(short = 'd', long = "ib-dev", value_name = "DEV")]
    pub ib_dev: Option<String>,
    /// A device has one port.
    #[arg(short = 'i', long = "ib-port", value_name = "N")]
    pub ib_port: Option<String>,
    /// The addresses are set by --ip.
    #[arg(short = 'x', long = "gid-index", value_name = "N")]
    pub gid_index: Option<String>,
    /// The size of a packet depends on --mtu, not on an RDMA MTU.
    #[arg(short = 'm', value_name = "BYTES")]
    pub rdma_mtu: Option<String>,
    /// There is no service level: use --tos or --vlan.
    #[arg(short = 'S', long = "sl", value_name = "N")]
    pub service_level: Option<String>,
    /// TCP retransmits: use --timeout.
    #[arg(short = 'u', long = "qp-timeout", value_name = "N")]
    pub qp_timeout: Option<String>,
    /// All connections are reliable.
    #[arg(short = 'c', long = "connection", value_name = "RC", value_parser = ["RC"])]
    pub connection: Option<String>,
}

impl PerftestArgs {
    /// One line about the options of perftest that were given, or `None` if no such option was given.
    pub fn note(&self) -> Option<String> {
        let flags = [
            (self.rdma_cm, "-R", "connections are always made by address"),
            (self.cpu_freq, "-F", "there is no warning to turn off"),
        ];
        let values = [
            (&self.ib_dev, "-d", "the device is that of --wire, --packet, --vdev or --pci"),
            (&self.ib_port, "-i", "a device has one port"),
            (&self.gid_index, "-x", "addresses are those of --ip"),
            (&self.rdma_mtu, "-m", "use --mtu"),
            (&self.service_level, "-S", "use --tos or --vlan"),
            (&self.qp_timeout, "-u", "use --timeout"),
            (&self.connection, "-c", "all connections are reliable"),
        ];
        let flags = flags.into_iter().filter(|flag| flag.0).map(|(_, name, why)| format!("{name} ({why})"));
        let values = values
            .into_iter()
            .filter_map(|(value, name, why)| Some(format!("{name} {} ({why})", value.as_deref()?)));
        let all: Vec<String> = flags.chain(values).collect();
        (!all.is_empty()).then(|| format!("accepted without an effect: {}", all.join(", ")))
    }
}
