//! A Ceph cluster of one monitor and one OSD, which keeps its objects in memory, with the messenger
//! `async+rdma`.

use std::fs;
use std::time::Duration;

use super::{From, Other, succeed, wait_for};
use crate::pair::Running;
use crate::wire::Wire;

const PACKAGES: From = From::Debian(&["ceph-osd", "ceph-mon", "ceph-common"]);

pub(crate) const ALL: [Other; 2] = [
    Other {
        test: "ceph",
        program: "Ceph (`ms_type = async+rdma`)",
        from: PACKAGES,
        how: "`ceph-mon`, `ceph-osd`, `ceph`, `rados put`, `get` and `bench`",
        checks: "the test compares an object of 20 MiB; `rados bench` compares what it reads",
        run: || Cluster { wire: Wire::new()?, settings: "" }.run(),
    },
    Other {
        test: "ceph_iwarp",
        program: "Ceph by rdma_cm (`ms_async_rdma_cm = true`, `ms_async_rdma_type = iwarp`)",
        from: PACKAGES,
        how: "as above",
        checks: "as above",
        // Only with this type Ceph makes connections by rdma_cm. With the other type, Ceph 16 ends (`fd=-1`):
        // the constructor of `RDMAConnectedSocketImpl` makes no descriptor if `ms_async_rdma_cm` is set.
        run: || {
            let settings = "ms async rdma cm = true\nms async rdma type = iwarp\n";
            Cluster { wire: Wire::new()?, settings }.run()
        },
    },
];

const CLUSTER: &str = "00000000-0000-4000-8000-000000000001";
const OSD: &str = "00000000-0000-4000-8000-000000000002";
const WITHIN: Duration = Duration::from_secs(60);
const BYTES: u64 = 20 << 20;

struct Cluster {
    wire: Wire,
    /// Further lines of the settings.
    settings: &'static str,
}

impl Cluster {
    fn run(&self) -> Result<(), String> {
        self.exchange().map_err(|error| {
            let outputs = ["server", "osd", "client"].map(|of| format!("--- {of}\n{}", self.wire.output(of)));
            format!("{error}\n{}", outputs.concat())
        })
    }

    fn exchange(&self) -> Result<(), String> {
        let folder = self.wire.folder();
        let write = |name: &str, bytes: &[u8]| {
            fs::write(folder.join(name), bytes).map_err(|error| format!("{name}: {error}"))
        };
        write("ceph.conf", self.configuration().as_bytes())?;
        let object: Vec<u8> = (0..BYTES / 8).flat_map(|word| (word * word + word).to_le_bytes()).collect();
        write("in", &object)?;
        self.tool("mkdir mon.data osd.data")?;
        self.tool(&format!("monmaptool --create --fsid {CLUSTER} --addv a [v2:127.0.0.1:13300] monmap"))?;
        self.tool("ceph-mon -c ceph.conf --mkfs -i a --monmap monmap")?;
        let _monitor = Running::start(&self.wire, "server", "ceph-mon -c ceph.conf -i a -f")?;
        wait_for("the monitor answers", || Ok(self.ceph("-s").is_ok()))?;
        self.ceph(&format!("osd new {OSD} 0"))?;
        self.tool(&format!("ceph-osd -c ceph.conf -i 0 --mkfs --osd-uuid {OSD}"))?;
        let _osd = Running::start(&self.wire, "osd", "ceph-osd -c ceph.conf -i 0 -f")?;
        wait_for("the OSD is up", || Ok(self.ceph("osd stat")?.contains("1 up")))?;
        self.ceph("osd pool create p 8")?;
        self.ceph("osd pool set p size 1 --yes-i-really-mean-it")?;
        self.rados("put object in")?;
        self.rados("get object out")?;
        let back = fs::read(folder.join("out")).map_err(|error| format!("out: {error}"))?;
        if back != object {
            return Err(format!("rados get has {} bytes, which differ", back.len()));
        }
        let written = self.bench("write --no-cleanup -b 65536", "Total writes made:")?;
        let read = self.bench("seq", "Total reads made:")?;
        if written == 0 || read == 0 || read > written {
            return Err(format!("rados bench: {written} writes, {read} reads"));
        }
        Ok(())
    }

    /// Measures for some seconds. Meanwhile the client's bytes are on the wire. Returns the number of
    /// operations.
    fn bench(&self, kind: &str, total: &str) -> Result<u64, String> {
        let words = format!("rados -c ceph.conf -p p bench 8 {kind} -t 4");
        let mut client = Running::start(&self.wire, "client", &words)?;
        client.wait_to_connect(&self.wire, 10 << 20)?;
        let status = client.wait(WITHIN)?;
        let output = self.wire.output("client");
        let count = output.lines().find_map(|line| line.strip_prefix(total)?.trim().parse().ok());
        // If an object is not what was written, `rados bench` prints this, and goes on.
        match count.filter(|_| status.success() && !output.contains("is not correct")) {
            Some(count) => Ok(count),
            None => Err(format!("rados bench {kind} ended with {status}")),
        }
    }

    fn ceph(&self, arguments: &str) -> Result<String, String> {
        self.tool(&format!("ceph -c ceph.conf --connect-timeout 20 {arguments}"))
    }

    fn rados(&self, arguments: &str) -> Result<String, String> {
        self.tool(&format!("rados -c ceph.conf -p p {arguments}"))
    }

    fn tool(&self, command: &str) -> Result<String, String> {
        let words = format!("timeout {} {command}", WITHIN.as_secs());
        succeed(&mut self.wire.command(0, &words.split(' ').collect::<Vec<_>>()))
    }

    /// The settings: without authentication, with small buffers, and with a pool that keeps each object once.
    fn configuration(&self) -> String {
        let folder = self.wire.folder().display();
        format!(
            "[global]\nfsid = {CLUSTER}\nmon host = v2:127.0.0.1:13300\nmon initial members = a\n\
             auth cluster required = none\nauth service required = none\nauth client required = none\n\
             run dir = {folder}\nadmin socket = {folder}/$name.$pid.asok\nkeyring = {folder}/keyring\npid file =\n\
             log file = {folder}/$name.log\nmon data = {folder}/mon.data\nosd data = {folder}/osd.data\n\
             ms type = async+rdma\nms async rdma device name = uwarp0\nms async op threads = 1\n\
             ms async rdma buffer size = 65536\nms async rdma receive buffers = 512\n\
             ms async rdma send buffers = 256\nms async rdma receive queue len = 256\n{}\
             osd objectstore = memstore\nmemstore device bytes = 8589934592\nosd crush chooseleaf type = 0\n\
             osd pool default size = 1\nosd pool default min size = 1\nmon allow pool size one = true\n\
             osd pool default pg autoscale mode = off\nosd class load list =\n",
            self.settings
        )
    }
}
