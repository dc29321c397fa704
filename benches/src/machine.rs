//! A description of the machine, which is shown with the figures.

use serde::Serialize;

/// The properties on which figures depend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MachineInfo {
    /// The processor's model name, with its family and model.
    pub cpu: String,
    /// Number of CPUs that this process may use.
    pub cores: usize,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Whether a hypervisor runs the machine.
    pub is_virtual: bool,
    /// The name and the release of the kernel.
    pub kernel: String,
}

impl MachineInfo {
    /// Describes this machine.
    pub fn here() -> Self {
        let [cpuinfo, meminfo, release] = ["cpuinfo", "meminfo", "sys/kernel/osrelease"]
            .map(|file| std::fs::read_to_string(format!("/proc/{file}")).unwrap_or_default());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self::described(&cpuinfo, &meminfo, &release, cores)
    }

    /// The machine that these files in `/proc` describe. A missing name is shown as unknown, and a missing
    /// number is 0.
    fn described(cpuinfo: &str, meminfo: &str, release: &str, cores: usize) -> Self {
        let mut cpu = field(cpuinfo, "model name").unwrap_or("unknown processor").to_owned();
        if let (Some(family), Some(model)) = (field(cpuinfo, "cpu family"), field(cpuinfo, "model")) {
            cpu += &format!(" (family {family}, model {model})");
        }
        let memory = field(meminfo, "MemTotal").and_then(|text| text.strip_suffix("kB"));
        let memory_kib: Option<u64> = memory.and_then(|text| text.trim().parse().ok());
        Self {
            cpu,
            cores,
            memory_mib: memory_kib.unwrap_or(0) / 1024,
            is_virtual: field(cpuinfo, "flags")
                .is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor")),
            kernel: format!("Linux {}", release.trim()),
        }
    }
}

impl std::fmt::Display for MachineInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cpu, cores, memory_mib, is_virtual, kernel } = self;
        write!(f, "{cpu}, {cores} cores, {:.1} GiB of memory, ", *memory_mib as f64 / 1024.0)?;
        if *is_virtual {
            write!(f, "a virtual machine, ")?;
        }
        write!(f, "{kernel}")
    }
}

/// The first value called `name` in a file of lines `name: value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPUINFO: &str = "processor\t: 0\ncpu family\t: 6\nmodel\t\t: 207\n\
        model name\t: Some CPU @ 2.50GHz\nflags\t\t: fpu hypervisor avx2\n\nmodel name\t: Other\n";

    #[test]
    fn the_machine_is_described_as_it_describes_itself() {
        let meminfo = "MemTotal:        8143892 kB\nMemFree:         1 kB\n";
        let machine = MachineInfo::described(CPUINFO, meminfo, "6.18.44\n", 2);
        assert_eq!(
            machine.to_string(),
            "Some CPU @ 2.50GHz (family 6, model 207), 2 cores, 7.8 GiB of memory, a virtual machine, Linux 6.18.44"
        );
        let bare = CPUINFO.replace("hypervisor ", "");
        assert!(!MachineInfo::described(&bare, meminfo, "6.18.44\n", 2).to_string().contains("virtual"));
    }

    #[test]
    fn what_is_not_said_is_unknown() {
        let machine = MachineInfo::described("processor: 0\n", "", "", 1);
        assert_eq!((machine.cpu.as_str(), machine.memory_mib), ("unknown processor", 0));
    }
}
