//! The rows of the table: the quantity, its baseline, its goal and its aim.

/// Whether a larger or a smaller ratio is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// A larger ratio is better, as for rates.
    HigherIsBetter,
    /// A smaller ratio is better, as for times and sizes.
    LowerIsBetter,
}

impl Direction {
    /// Whether `ratio` is at least as good as `mark`.
    pub(crate) fn reaches(self, ratio: f64, mark: f64) -> bool {
        match self {
            Self::HigherIsBetter => ratio >= mark,
            Self::LowerIsBetter => ratio <= mark,
        }
    }

    /// Whether `ratio` is worse than `than`.
    pub(crate) fn is_worse(self, ratio: f64, than: f64) -> bool {
        match self {
            Self::HigherIsBetter => ratio < than,
            Self::LowerIsBetter => ratio > than,
        }
    }
}

/// How the pairs of a row are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sampling {
    /// A run is repeated if its pollers lost their CPU. Some runs are not watched and not repeated, for
    /// example streams over the kernel's TCP.
    Undisturbed,
    /// Runs are not repeated, since their threads may compete with each other for the CPUs.
    AsTheyCome,
    /// A single pair is measured, since its figure is equal each time.
    Once,
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Measure {
    /// The name of the row in the table and in the JSON.
    pub(crate) id: &'static str,
    /// The measured quantity.
    pub(crate) what: &'static str,
    /// The baseline with which the quantity is compared.
    pub(crate) against: &'static str,
    /// Unit of both figures.
    pub(crate) unit: &'static str,
    /// Which ratio is better.
    pub(crate) better: Direction,
    /// The ratio that has to be reached.
    pub(crate) goal: f64,
    /// The ratio that is aimed for. The aim is at least as ambitious as the goal.
    pub(crate) aim: f64,
    /// How the pairs of the row are measured.
    pub(crate) taken: Sampling,
}

impl Measure {
    const fn taken(self, taken: Sampling) -> Self {
        Self { taken, ..self }
    }
}

/// All rows in the order of the table. The goal and the aim of `pingpong_64` are for Xeons. For EPYCs the
/// goal would be 0.25, and the aim 0.2.
pub(crate) const MEASURES: [Measure; 71] = [
    row("write_1500", "Writes of 1 MiB, MTU 1500", "kernel TCP at its best", "Gb/s", 1.0, 1.5),
    row("write_9000", "Writes of 1 MiB, MTU 9000", "kernel TCP at its best", "Gb/s", 1.4, 2.0),
    row("default_1500", "Writes of 1 MiB, MTU 1500", "kernel TCP, plain iperf3", "Gb/s", 4.0, 5.0),
    row("default_9000", "Writes of 1 MiB, MTU 9000", "kernel TCP, plain iperf3", "Gb/s", 5.0, 7.0),
    row("sockets_1500", "Writes of 1 MiB, MTU 1500", "iWARP over kernel sockets", "Gb/s", 1.0, 2.0),
    row("sockets_9000", "Writes of 1 MiB, MTU 9000", "iWARP over kernel sockets", "Gb/s", 1.0, 2.0),
    row("send", "Sends of 1 MiB, MTU 9000", "our Writes", "Gb/s", 0.9, 1.0),
    row("read", "Reads of 1 MiB, MTU 9000", "our Writes", "Gb/s", 0.9, 1.0),
    less("pingpong_64", "64 B Writes there and back, median", "kernel TCP, busy polling", "us", 0.35, 0.25),
    less("pingpong_p99", "the same, 99th percentile", "kernel TCP, busy polling", "us", 1.0, 0.5),
    less("pingpong_p999", "the same, 99.9th percentile", "kernel TCP, busy polling", "us", 1.0, 0.5),
    less("sockets_64", "64 B Writes there and back, median", "iWARP over kernel sockets", "us", 0.35, 0.25),
    row("rate_64", "64 B Writes counted at the target", "kernel TCP, one send each", "M/s", 25.0, 40.0),
    row("shim_write", "unmodified ib_write_bw, 64 KiB, local", "loopback, plain iperf3", "Gb/s", 1.2, 2.0),
    less(
        "shim_send_64",
        "unmodified ib_send_lat, there and back",
        "loopback, busy polling",
        "us",
        0.333,
        0.2,
    ),
    less("shim_read_64", "unmodified ib_read_lat, 64 B", "loopback, busy polling", "us", 0.333, 0.2),
    row("shim_write_cost", "unmodified ib_write_bw, 64 KiB, local", "iwperf there", "Gb/s", 0.95, 1.0),
    share("local_write_64k", "unmodified ib_write_bw, 64 KiB, local"),
    share("local_write_1m", "unmodified ib_write_bw, 1 MiB, local"),
    share("local_send_64k", "unmodified ib_send_bw, 64 KiB, local"),
    share("local_send_1m", "unmodified ib_send_bw, 1 MiB, local"),
    share("local_read_64k", "unmodified ib_read_bw, 64 KiB, local"),
    share("local_read_1m", "unmodified ib_read_bw, 1 MiB, local"),
    less("shim_send_cost", "unmodified ib_send_lat, 64 B, local", "iwperf there", "us", 1.1, 1.0),
    less("shim_ud_64", "unmodified ib_send_lat -c UD, 64 B, local", "the same with RC", "us", 1.1, 1.0),
    row("local_rate_64", "unmodified ib_send_bw, 64 B, local", "loopback, one send each", "M/s", 5.0, 10.0),
    less("ucx_shm_64", "unmodified ib_send_lat, 64 B, local", "UCX's tags, shared memory", "us", 1.6, 1.0),
    row("ucx_shm_rate_64", "unmodified ib_send_bw, 64 B, local", "UCX, shared memory", "M/s", 1.0, 1.5),
    less("reg_mr_4k", "ibv_reg_mr of 4 KiB beside 40,000 mappings", "5 us", "us", 1.0, 0.5),
    less("ucx_tag_64", "UCP's tags, 64 B, half a round trip, local", "UCX's tcp, loopback", "us", 0.35, 0.25),
    row("ucx_put_64k", "UCP's put of 64 KiB, local", "UCX's tcp, loopback", "GB/s", 3.0, 4.0),
    less("mpi_ucx_64", "Open MPI's pml ucx, NetPIPE, 64 B, local", "btl tcp, loopback", "us", 0.4, 0.25),
    less("mpi_ofi_64", "Open MPI's mtl ofi, NetPIPE, 64 B, local", "btl tcp, loopback", "us", 0.4, 0.25),
    row("mpi_ucx_1m", "Open MPI's pml ucx, NetPIPE, 1 MiB, local", "btl tcp, loopback", "GB/s", 2.0, 3.0),
    row("mpi_ofi_1m", "Open MPI's mtl ofi, NetPIPE, 1 MiB, local", "btl tcp, loopback", "GB/s", 2.0, 3.0),
    less("mpi_vader_64", "Open MPI's pml ucx, NetPIPE, 64 B, local", "btl vader", "us", 3.0, 1.6),
    row("mpi_vader_1m", "Open MPI's pml ucx, NetPIPE, 1 MiB, local", "btl vader", "GB/s", 0.8, 1.0),
    row(
        "valkey_64",
        "valkey, SET and GET of 64 B, 1 client, local",
        "valkey over TCP, loopback",
        "k/s",
        1.5,
        2.0,
    ),
    row("valkey_50", "the same, 50 clients", "valkey over TCP, loopback", "k/s", 1.5, 2.0),
    row("valkey_pipe", "the same, 50 clients, pipeline of 32", "valkey over TCP, loopback", "k/s", 1.5, 2.0),
    row("valkey_100k", "the same, 100 KiB, 1 client", "valkey over TCP, loopback", "k/s", 1.5, 2.0),
    row(
        "valkey_busy_64",
        "64 B, 1 client, a busy process on each core",
        "valkey over TCP, loopback",
        "k/s",
        0.7,
        1.0,
    ),
    row("valkey_busy_100k", "the same, 100 KiB", "valkey over TCP, loopback", "k/s", 0.7, 1.0),
    row("packet_1500", "Writes of 64 KiB, packet sockets, MTU 1500", "plain iperf3", "Gb/s", 1.3, 2.0),
    row("packet_9000", "Writes of 64 KiB, packet sockets, MTU 9000", "plain iperf3", "Gb/s", 1.3, 2.0),
    row("packet_ucx_1500", "the same, MTU 1500", "UCX's tcp, put", "Gb/s", 2.0, 3.0),
    row("packet_ucx_9000", "the same, MTU 9000", "UCX's tcp, put", "Gb/s", 2.0, 3.0),
    less(
        "packet_64",
        "64 B Sends there and back, packet sockets",
        "kernel TCP, busy polling",
        "us",
        1.0,
        0.5,
    ),
    less("packet_p999", "the same, 99.9th percentile", "kernel TCP, busy polling", "us", 1.0, 0.5),
    less("packet_ucx_64", "64 B Sends, half a round trip", "UCX's tcp, tags", "us", 0.5, 0.35),
    less("local_wake", "64 B there and back, both asleep, local", "Unix socket, blocking", "us", 1.25, 1.0),
    less("vhost_wake", "the same over vhost-user", "Unix socket, blocking", "us", 1.25, 1.0),
    less("af_packet_wake", "the same over packet sockets, veth", "Unix socket, blocking", "us", 1.5, 1.25),
    less("connect_10k", "10,000 connections at once, local", "kernel TCP, one by one", "s", 10.0, 2.0)
        .taken(Sampling::AsTheyCome),
    less("processes_1k", "1,000 processes connect at once, local", "kernel TCP, loopback", "s", 10.0, 2.0)
        .taken(Sampling::AsTheyCome),
    row("one_core", "both ends in memory on one core", "copy, then CRC, for each end", "GB/s", 0.75, 0.85),
    row("markers", "Writes of 1 MiB with markers, MTU 9000", "without", "Gb/s", 0.9, 0.97),
    row("qps_1k", "64 of 1,000 queue pairs active", "64 of 64", "GB/s", 0.9, 1.0),
    row("qps_10k", "64 of 10,000 queue pairs active", "64 of 64", "GB/s", 0.95, 1.0),
    row("fair_64", "the slowest of 64 bulk queue pairs", "the fastest", "MB/s", 0.8, 0.9),
    less("beside_bulk", "64 B Writes there and back beside them", "150 us", "us", 1.0, 0.5),
    row("cores_2", "gain of a second core", "0.9 of a copy and CRC loop's", "x", 1.0, 1.1),
    row("queues_2", "the same on two queues of one device", "0.9 of a copy and CRC loop's", "x", 1.0, 1.1),
    row("engines_8", "2, 4 and 8 engines on one core, the slowest", "one engine", "GB/s", 0.95, 1.0),
    less("await_cost", "an awaited 64 B Read over a polled one", "2 us", "us", 1.0, 0.5),
    less(
        "stream_64",
        "a stream of iwarp-tokio, 64 B there and back",
        "tokio's TCP over loopback",
        "us",
        0.5,
        0.25,
    )
    .taken(Sampling::AsTheyCome),
    row("stream_1k", "a stream of iwarp-tokio, 1 KiB writes", "tokio's TCP over loopback", "GB/s", 2.0, 4.0)
        .taken(Sampling::AsTheyCome),
    row(
        "stream_64k",
        "a stream of iwarp-tokio, 64 KiB writes",
        "tokio's TCP over loopback",
        "GB/s",
        1.0,
        1.5,
    )
    .taken(Sampling::AsTheyCome),
    less("idle_qp_bytes", "memory of an idle queue pair", "4 KiB", "bytes", 0.75, 0.5).taken(Sampling::Once),
    row("vs_smoltcp", "our TCP below MPA, MTU 1500", "smoltcp's TCP below it", "GB/s", 1.5, 2.0),
    row("loss_01", "Writes at 0.1 % loss, 200 Mb/s, 10 ms", "Linux to Linux", "Mb/s", 0.9, 1.2),
];

/// Returns the row with this name, or `None` if there is no such row.
pub(crate) fn find(id: &str) -> Option<&'static Measure> {
    MEASURES.iter().find(|measure| measure.id == id)
}

const fn row(
    id: &'static str,
    what: &'static str,
    against: &'static str,
    unit: &'static str,
    goal: f64,
    aim: f64,
) -> Measure {
    Measure {
        id,
        what,
        against,
        unit,
        better: Direction::HigherIsBetter,
        goal,
        aim,
        taken: Sampling::Undisturbed,
    }
}

/// A row that is compared with a pipe between two cores.
const fn share(id: &'static str, what: &'static str) -> Measure {
    row(id, what, "copies into and out of 64 KiB slots", "Gb/s", 0.8, 1.0)
}

const fn less(
    id: &'static str,
    what: &'static str,
    against: &'static str,
    unit: &'static str,
    goal: f64,
    aim: f64,
) -> Measure {
    Measure { better: Direction::LowerIsBetter, ..row(id, what, against, unit, goal, aim) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aim_is_beyond_its_goal() {
        for Measure { id, better, goal, aim, .. } in MEASURES {
            assert!(better.reaches(aim, goal) && !better.reaches(goal, aim), "{id}");
        }
    }

    #[test]
    fn names_are_unique_and_found() {
        for (index, measure) in MEASURES.iter().enumerate() {
            assert_eq!(MEASURES.iter().position(|m| m.id == measure.id), Some(index));
            assert_eq!(find(measure.id), Some(measure));
        }
        assert_eq!(find("write"), None);
    }

    #[test]
    fn less_is_better_of_times_and_sizes_alone() {
        let less: Vec<&str> =
            MEASURES.iter().filter(|m| m.better == Direction::LowerIsBetter).map(|m| m.id).collect();
        assert_eq!(
            less,
            [
                "pingpong_64",
                "pingpong_p99",
                "pingpong_p999",
                "sockets_64",
                "shim_send_64",
                "shim_read_64",
                "shim_send_cost",
                "shim_ud_64",
                "ucx_shm_64",
                "reg_mr_4k",
                "ucx_tag_64",
                "mpi_ucx_64",
                "mpi_ofi_64",
                "mpi_vader_64",
                "packet_64",
                "packet_p999",
                "packet_ucx_64",
                "local_wake",
                "vhost_wake",
                "af_packet_wake",
                "connect_10k",
                "processes_1k",
                "beside_bulk",
                "await_cost",
                "stream_64",
                "idle_qp_bytes"
            ]
        );
    }
}
