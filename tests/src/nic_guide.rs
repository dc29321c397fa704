//! The commands of the chapter on NICs (`docs/NIC.md`).

use testkit::chapter::{Chapter, without_comment};

/// The commands, in the groups in which a test of a NIC runs them. Each line is as written, but without its
/// comment.
#[derive(Debug)]
pub struct NicGuide {
    /// The commands that both hosts run before the program.
    pub setup: Vec<String>,
    /// The command that starts the server.
    pub server: String,
    /// The command that starts the server's client.
    pub client: String,
    /// The command that gives the NIC back to Linux.
    pub give_back: String,
    /// The command that lists the NIC's IOMMU group.
    pub iommu_group: String,
    /// The commands that bind the NIC to `uio_pci_generic`.
    pub bind_uio: Vec<String>,
    /// The commands that show the memory of the machine and reserve hugepages.
    pub hugepages: Vec<String>,
    /// The command that starts a server with other options.
    pub server_options: String,
}

impl NicGuide {
    /// Reads the chapter.
    ///
    /// # Errors
    /// If the chapter cannot be read, lacks one of these commands, or has a command that is in none of these
    /// groups.
    pub fn read() -> Result<Self, String> {
        let mut chapter = Chapter::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/NIC.md"))?;
        let mut block = |after: &str| -> Result<Vec<String>, String> {
            Ok(chapter.block(after)?.iter().map(|line| without_comment(line).to_owned()).collect())
        };
        let mut setup = block("## In short")?;
        let guide = Self {
            server: setup.pop().unwrap_or_default(),
            setup,
            client: only(block("The other end runs the same commands")?)?,
            give_back: only(block("Then Linux gets the NIC back")?)?,
            iommu_group: only(block("### vfio-pci")?)?,
            bind_uio: block("### uio_pci_generic")?,
            hugepages: block("These commands show the available hugepages")?,
            server_options: only(block("A server on one processor")?)?,
        };
        chapter.is_complete()?;
        Ok(guide)
    }
}

/// Returns the only line of a block.
fn only(lines: Vec<String>) -> Result<String, String> {
    let [line] = <[String; 1]>::try_from(lines).map_err(|lines| format!("not one line: {lines:?}"))?;
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::NicGuide;

    /// Reads the chapter early in the test run, since the tests that run these commands need virtual machines
    /// and run late.
    #[test]
    fn every_command_of_the_chapter_has_its_group() {
        let guide = NicGuide::read().unwrap();
        assert!(guide.setup.iter().any(|line| line.starts_with("dpdk-devbind.py -b vfio-pci ")));
        assert!(guide.server.starts_with("iwperf server --pci "));
        assert!(guide.client.starts_with("iwperf write-bw --pci "));
        assert!(guide.give_back.starts_with("dpdk-devbind.py -b "));
        assert!(guide.iommu_group.ends_with("/iommu_group/devices"));
        assert!(guide.bind_uio.iter().any(|line| line.starts_with("dpdk-devbind.py -b uio_pci_generic ")));
        assert!(guide.hugepages.iter().any(|line| line.starts_with("dpdk-hugepages.py --node ")));
        assert!(guide.server_options.contains(" --stats"));
    }
}
