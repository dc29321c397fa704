//! Errors that can occur when an interface is opened.

use std::io;
use std::net::IpAddr;

use rustix::io::Errno;

use crate::mac;

/// The reason why an interface cannot be used. The message of an error is one line, and most messages say
/// what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PacketError {
    /// There is no interface with this name.
    #[error("there is no interface {interface} here: there are {}", .present.join(", "))]
    NoInterface {
        /// The requested name.
        interface: String,
        /// The names of the existing interfaces.
        present: Vec<String>,
    },
    /// The interface is not an Ethernet interface.
    #[error("{interface} is no Ethernet interface: use one with an Ethernet address ({})", .suitable.join(", "))]
    NotEthernet {
        /// The interface.
        interface: String,
        /// The Ethernet interfaces of this host.
        suitable: Vec<String>,
    },
    /// The interface is down.
    #[error("{interface} is down: bring it up with `ip link set {interface} up`")]
    Down {
        /// The interface.
        interface: String,
    },
    /// The process lacks the privilege to open a packet socket.
    #[error(
        "a packet socket on {interface} needs CAP_NET_RAW: run as root or with it (Docker gives it unless it is dropped; \
         `setcap cap_net_raw+ep PROGRAM` gives it to a program)"
    )]
    NoPrivilege {
        /// The interface.
        interface: String,
    },
    /// The kernel does not support packet sockets.
    #[error(
        "this kernel has no packet sockets (CONFIG_PACKET, as in gVisor without --net-raw): use another kind of port"
    )]
    NoPacketSockets,
    /// The configuration has no address.
    #[error("no address for the port on {interface}: give one of its network that no host has")]
    NoAddress {
        /// The interface.
        interface: String,
    },
    /// The configuration has more addresses than the filter supports.
    #[error("{count} addresses on {interface}: at most {most} can be used")]
    TooManyAddresses {
        /// The interface.
        interface: String,
        /// The number of addresses in the configuration.
        count: usize,
        /// The maximum number of addresses.
        most: usize,
    },
    /// The address cannot belong to a host.
    #[error("{address} is no address of a host: give a unicast address of the network of {interface}")]
    NotUnicast {
        /// The address.
        address: IpAddr,
        /// The interface.
        interface: String,
    },
    /// The kernel has the address.
    #[error(
        "{address} is the kernel's own address on {owner}, and its TCP would answer our peers with RST: give a second \
         address of the network, which no interface has (see `ip address`)"
    )]
    KernelAddress {
        /// The address.
        address: IpAddr,
        /// The interface with this address.
        owner: String,
    },
    /// The Ethernet address cannot belong to an interface.
    #[error("{} is no Ethernet address of an interface: give a unicast one, such as 02:00:00:00:00:01", mac::text(.mac))]
    Mac {
        /// The address.
        mac: [u8; 6],
    },
    /// The MTU cannot be used.
    #[error(
        "an MTU of {mtu} on {interface}: it has to be from {least} to {most} (`ip link set {interface} mtu N` sets the largest)"
    )]
    Mtu {
        /// The interface.
        interface: String,
        /// The MTU in bytes.
        mtu: u32,
        /// The minimum MTU in bytes.
        least: u16,
        /// The maximum MTU in bytes.
        most: u16,
    },
    /// The size of a buffer or ring cannot be used.
    #[error("{what} of {value}: give from {least} to {most}")]
    Size {
        /// The field of [`PacketConfig`](super::PacketConfig).
        what: &'static str,
        /// The value of the field.
        value: usize,
        /// The minimum value of the field.
        least: usize,
        /// The maximum value of the field.
        most: usize,
    },
    /// The kernel cannot allocate the receive ring.
    #[error(
        "the kernel has no memory for a receive ring of {kib} KiB ({cause}): ask for fewer slots, or raise the memory or locked-memory limit (`ulimit -l`)"
    )]
    RingMemory {
        /// Size of the ring in KiB.
        kib: usize,
        /// The system's error.
        cause: Errno,
    },
    /// A step of the setup failed.
    #[error("{interface}: {step} failed: {cause}")]
    Setup {
        /// The interface.
        interface: String,
        /// The step.
        step: &'static str,
        /// The system's error.
        cause: Errno,
    },
}

/// The kind of the `io::Error` shows the cause, for example that the interface does not exist, that it is
/// down, or that a permission is missing. The `io::Error` contains the `PacketError`.
impl From<PacketError> for io::Error {
    fn from(error: PacketError) -> Self {
        let kind = match &error {
            PacketError::NoInterface { .. } => io::ErrorKind::NotFound,
            PacketError::Down { .. } => io::ErrorKind::NetworkDown,
            PacketError::NoPrivilege { .. } => io::ErrorKind::PermissionDenied,
            PacketError::NoPacketSockets => io::ErrorKind::Unsupported,
            PacketError::KernelAddress { .. } => io::ErrorKind::AddrInUse,
            PacketError::NotEthernet { .. }
            | PacketError::NoAddress { .. }
            | PacketError::TooManyAddresses { .. }
            | PacketError::NotUnicast { .. }
            | PacketError::Mac { .. }
            | PacketError::Mtu { .. }
            | PacketError::Size { .. } => io::ErrorKind::InvalidInput,
            PacketError::RingMemory { .. } => io::ErrorKind::OutOfMemory,
            PacketError::Setup { cause, .. } => cause.kind(),
        };
        Self::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_each_error_says_what_is_wrong() {
        use io::ErrorKind::{
            AddrInUse, InvalidInput, NetworkDown, NotFound, OutOfMemory, PermissionDenied, Unsupported,
        };
        let interface = || "eth9".to_owned();
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let step = "a step";
        for (error, kind) in [
            (PacketError::NoInterface { interface: interface(), present: vec![] }, NotFound),
            (PacketError::NotEthernet { interface: interface(), suitable: vec![] }, InvalidInput),
            (PacketError::Down { interface: interface() }, NetworkDown),
            (PacketError::NoPrivilege { interface: interface() }, PermissionDenied),
            (PacketError::NoPacketSockets, Unsupported),
            (PacketError::NoAddress { interface: interface() }, InvalidInput),
            (PacketError::TooManyAddresses { interface: interface(), count: 65, most: 64 }, InvalidInput),
            (PacketError::NotUnicast { address, interface: interface() }, InvalidInput),
            (PacketError::KernelAddress { address, owner: interface() }, AddrInUse),
            (PacketError::Mac { mac: [0; 6] }, InvalidInput),
            (PacketError::Mtu { interface: interface(), mtu: 1, least: 576, most: 9000 }, InvalidInput),
            (PacketError::Size { what: "mbufs", value: 1, least: 64, most: 100 }, InvalidInput),
            (PacketError::RingMemory { kib: 8192, cause: Errno::NOMEM }, OutOfMemory),
            (PacketError::Setup { interface: interface(), step, cause: Errno::PERM }, PermissionDenied),
            (PacketError::Setup { interface: interface(), step, cause: Errno::NOENT }, NotFound),
        ] {
            let line = error.to_string();
            assert!(!line.contains('\n'), "{line}");
            let kept = io::Error::from(error);
            assert_eq!((kept.kind(), kept.to_string()), (kind, line));
        }
    }
}
