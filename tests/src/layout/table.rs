//! The table of the checked crates: the layers ("floors") of their modules, and the largest allowed cycle of
//! each crate.

/// A crate whose layout is checked.
pub struct Layout {
    /// The path of the crate's root file, relative to the root of the repository.
    pub root: &'static str,
    /// The floors of its modules.
    pub floors: Floors,
    /// Number of modules in the largest allowed cycle, and the reason for it.
    pub largest_circle: (usize, &'static str),
}

/// The rule for the uses between modules of a crate.
pub enum Floors {
    /// Only cycles are checked.
    None,
    /// The floors are folders. Unit tests also obey the floors.
    Folders(&'static [Folder]),
    /// The floors are in files that have a table `| floor | modules | what |` at their head. A module uses
    /// only modules of lower floors; tests may use all modules.
    Heads(&'static [&'static str]),
}

/// A folder, without the subfolders that have their own entries in the table.
pub struct Folder {
    /// The path of the folder in the crate.
    pub path: &'static str,
    /// The folders that the files of this folder may use. These folders come before this folder in the table,
    /// so there is no cycle.
    pub knows: &'static [&'static str],
}

const NO_CIRCLE: (usize, &str) = (0, "");

/// The layouts of the checked crates.
pub const LAYOUTS: [Layout; 14] = [
    Layout { root: "dp/src/lib.rs", floors: Floors::None, largest_circle: NO_CIRCLE },
    Layout {
        root: "tcp-lite/src/lib.rs",
        floors: Floors::Heads(&["tcp-lite/src/lib.rs", "tcp-lite/src/tcp/mod.rs"]),
        largest_circle: (5, "`tcp/congestion`: the enum has the algorithms, and they share its signals"),
    },
    Layout {
        root: "iwarp/src/lib.rs",
        floors: Floors::Folders(&[
            Folder { path: "memory", knows: &[] },
            Folder { path: "ddp", knows: &["memory"] },
            Folder { path: "mpa", knows: &["memory"] },
            Folder { path: "rdmap", knows: &["memory", "ddp"] },
            Folder { path: "roce", knows: &[] },
            Folder { path: "queues", knows: &["memory", "mpa", "rdmap"] },
            Folder { path: "datagram", knows: &["memory", "roce", "queues"] },
            Folder { path: "stream", knows: &["memory", "ddp", "mpa", "rdmap", "queues"] },
            Folder { path: "verbs", knows: &["memory", "mpa", "rdmap", "queues"] },
            Folder {
                path: "engine",
                knows: &["memory", "mpa", "rdmap", "roce", "queues", "datagram", "stream", "verbs"],
            },
            Folder { path: "metrics", knows: &["verbs"] },
            Folder { path: "prometheus", knows: &["verbs"] },
            Folder { path: "status", knows: &["queues", "verbs"] },
        ]),
        largest_circle: (
            7,
            "`verbs`: a context has engines, their commands name connections, and a connection has its context",
        ),
    },
    Layout { root: "iwarp/wire/src/lib.rs", floors: Floors::None, largest_circle: NO_CIRCLE },
    Layout { root: "iwarp/tokio/src/lib.rs", floors: Floors::None, largest_circle: NO_CIRCLE },
    Layout {
        root: "ffi/verbs/src/lib.rs",
        floors: Floors::Folders(&[
            Folder { path: "ffi", knows: &[] },
            Folder { path: "net", knows: &["ffi"] },
            Folder { path: "process", knows: &["ffi", "net"] },
            Folder { path: "ibverbs", knows: &["ffi", "net", "process"] },
            Folder { path: "rdmacm", knows: &["ffi", "net", "process", "ibverbs"] },
            Folder { path: "files", knows: &["ffi", "net", "process", "ibverbs"] },
            Folder { path: "waits", knows: &["ffi", "process"] },
            Folder { path: "check", knows: &["ffi"] },
        ]),
        largest_circle: NO_CIRCLE,
    },
    Layout { root: "ffi/verbs/src/bin/uwarp/main.rs", floors: Floors::None, largest_circle: NO_CIRCLE },
    Layout { root: "benches/src/lib.rs", floors: Floors::None, largest_circle: NO_CIRCLE },
    Layout { root: "benches/src/main.rs", floors: Floors::None, largest_circle: NO_CIRCLE },
    Layout { root: "benches/measure/src/main.rs", floors: Floors::None, largest_circle: NO_CIRCLE },
    Layout {
        root: "tests/src/lib.rs",
        floors: Floors::None,
        largest_circle: (
            7,
            "`sim`: the setup has the plans of each kind of world, and the worlds read the setup",
        ),
    },
    Layout {
        root: "tests/fuzz/src/lib.rs",
        floors: Floors::None,
        largest_circle: (2, "`verbs`: a side of the pair, and the work that it posts"),
    },
    Layout {
        root: "tests/iwprobe/src/lib.rs",
        floors: Floors::None,
        largest_circle: (4, "a case runs on a probe, and the probe ends a case"),
    },
    Layout { root: "tests/testkit/src/lib.rs", floors: Floors::None, largest_circle: NO_CIRCLE },
];
