//! The ports to which identifiers of this process are bound. Bindings to the same port conflict by the rules
//! of the kernel (`cma_check_port` of `drivers/infiniband/core/cma.c`).
//!
//! | first identifier | second identifier at the same port | second call |
//! |---|---|---|
//! | any address | any address, or a specific address, of the same family | `EADDRNOTAVAIL` |
//! | any address | an address of the other family, unless both claim only their own family | `EADDRNOTAVAIL` |
//! | any address | an address of the other family, if both claim only their own family | succeeds |
//! | an address | the same address | `EADDRINUSE` |
//! | an address | another address | succeeds |
//! | any claim | any claim, if both reuse their addresses and neither identifier listens | succeeds |
//!
//! For an identifier that listens, `RDMA_OPTION_ID_REUSEADDR` has no effect: an identifier can listen only if
//! no other identifier is bound to the address or to an overlapping address. By default an identifier with an
//! IPv4 address claims one family, and an identifier with an IPv6 address claims both families
//! (`RDMA_OPTION_ID_AFONLY`).
//!
//! Each port space ([`PortSpace`](crate::net::PortSpace)) has its own ports.
//!
//! Between processes, the name service of the wire enforces the rules, if the wire has a name service.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use crate::net::{Claim, Conflict};

/// The identifiers that are bound, by their ports.
#[derive(Default)]
pub(crate) struct BoundPorts {
    bound: Mutex<HashMap<u16, Vec<Owner>>>,
}

struct Owner {
    /// The address of the `rdma_cm_id` that the program has.
    id: usize,
    claim: Claim,
}

impl BoundPorts {
    fn bound(&self) -> MutexGuard<'_, HashMap<u16, Vec<Owner>>> {
        self.bound.lock().expect("no holder of this lock panics")
    }

    /// Binds an identifier to a port, or fails if its claim conflicts with the claim of another identifier.
    pub(crate) fn bind(&self, id: usize, port: u16, claim: Claim) -> Result<(), Conflict> {
        let mut bound = self.bound();
        let owners = bound.entry(port).or_default();
        for owner in owners.iter() {
            if !(owner.claim.reuses && claim.reuses) {
                claim.check(&owner.claim)?;
            }
        }
        owners.push(Owner { id, claim });
        Ok(())
    }

    /// Records that a bound identifier begins to listen. From then on, `RDMA_OPTION_ID_REUSEADDR` has no
    /// effect for this identifier. Fails if the claim of another identifier at the port conflicts with the
    /// claim of this identifier.
    pub(crate) fn listen(&self, id: usize, port: u16) -> Result<(), Conflict> {
        let mut bound = self.bound();
        let owners = bound.entry(port).or_default();
        let Some(at) = owners.iter().position(|owner| owner.id == id) else { return Ok(()) };
        if owners[at].claim.reuses {
            let mut others = owners.iter().filter(|owner| owner.id != id);
            others.try_for_each(|owner| owners[at].claim.check(&owner.claim))?;
            owners[at].claim.reuses = false;
        }
        Ok(())
    }

    /// Changes the claim of a bound identifier.
    pub(crate) fn update(&self, id: usize, port: u16, change: impl FnOnce(&mut Claim)) {
        let mut bound = self.bound();
        let owner = bound.get_mut(&port).and_then(|owners| owners.iter_mut().find(|owner| owner.id == id));
        if let Some(owner) = owner {
            change(&mut owner.claim);
        }
    }

    /// Releases the port of an identifier, if the identifier is bound.
    pub(crate) fn release(&self, id: usize, port: u16) {
        let mut bound = self.bound();
        if let Some(owners) = bound.get_mut(&port) {
            owners.retain(|owner| owner.id != id);
            if owners.is_empty() {
                bound.remove(&port);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::abi::{Errno, Outcome};

    const IN_USE: Outcome<()> = Err(Errno(libc::EADDRINUSE));
    const NOT_AVAILABLE: Outcome<()> = Err(Errno(libc::EADDRNOTAVAIL));

    /// Converts a conflict to the error number that the program receives.
    fn told(result: Result<(), Conflict>) -> Outcome<()> {
        Ok(result?)
    }

    /// Parses an address, optionally followed by the option with which the identifier is bound.
    fn of(text: &str) -> Claim {
        let (address, option) = text.split_once(' ').unwrap_or((text, ""));
        let family_only = match option {
            "only" => Some(true),
            "both" => Some(false),
            _ => None,
        };
        Claim::new(address.parse().unwrap(), family_only, option == "reuse")
    }

    /// The results are those of the kernel for the second of two identifiers, regardless of their order.
    #[test]
    fn addresses_exclude_each_other_as_the_kernel_has_it() {
        for (one, other, second) in [
            ("0.0.0.0", "0.0.0.0", NOT_AVAILABLE),
            ("0.0.0.0", "127.0.0.1", NOT_AVAILABLE),
            ("0.0.0.0", "::", NOT_AVAILABLE),
            ("0.0.0.0", "::1", NOT_AVAILABLE),
            ("0.0.0.0", ":: only", Ok(())),
            ("0.0.0.0 only", ":: only", Ok(())),
            ("0.0.0.0 both", ":: only", NOT_AVAILABLE),
            ("0.0.0.0", "::1 only", Ok(())),
            ("127.0.0.1", "127.0.0.1", IN_USE),
            ("127.0.0.1", "::ffff:127.0.0.1", IN_USE),
            ("127.0.0.1", "127.0.0.2", Ok(())),
            ("127.0.0.1", "::", NOT_AVAILABLE),
            ("127.0.0.1", ":: only", Ok(())),
            ("127.0.0.1", "::1", Ok(())),
            ("::", "::", NOT_AVAILABLE),
            (":: only", ":: only", NOT_AVAILABLE),
            (":: only", "::1", NOT_AVAILABLE),
            ("::1", "::1", IN_USE),
            ("::1", "fd00::1", Ok(())),
            ("0.0.0.0 reuse", "0.0.0.0", NOT_AVAILABLE),
            ("0.0.0.0 reuse", "0.0.0.0 reuse", Ok(())),
            ("127.0.0.1 reuse", "127.0.0.1 reuse", Ok(())),
            ("127.0.0.1 reuse", "127.0.0.1", IN_USE),
        ] {
            for (first, then) in [(one, other), (other, one)] {
                let ports = BoundPorts::default();
                ports.bind(1, 7, of(first)).unwrap();
                assert_eq!(told(ports.bind(2, 7, of(then))), second, "{then} after {first}");
                ports.bind(3, 8, of(then)).unwrap();
                // A refused identifier does not hold the port, and a released port is free.
                ports.release(2, 7);
                ports.release(1, 7);
                ports.bind(4, 7, of(then)).unwrap();
            }
        }
    }

    #[test]
    fn of_those_who_reuse_an_address_one_listens_alone() {
        let ports = BoundPorts::default();
        assert_eq!(told(ports.bind(1, 7, of("127.0.0.1 reuse"))), Ok(()));
        assert_eq!(told(ports.bind(2, 7, of("127.0.0.1 reuse"))), Ok(()));
        assert_eq!(told(ports.bind(3, 7, of("127.0.0.2 reuse"))), Ok(()));
        assert_eq!(told(ports.listen(1, 7)), IN_USE, "another one is bound");
        ports.release(2, 7);
        assert_eq!(told(ports.listen(1, 7)), Ok(()));
        assert_eq!(told(ports.bind(2, 7, of("127.0.0.1 reuse"))), IN_USE, "it listens");
        assert_eq!(told(ports.bind(2, 7, of("0.0.0.0 reuse"))), NOT_AVAILABLE);
        assert_eq!(told(ports.listen(3, 7)), Ok(()));
        ports.update(3, 7, |claim| claim.reuses = true);
        assert_eq!(told(ports.bind(4, 7, of("127.0.0.2 reuse"))), Ok(()));
        assert_eq!(told(ports.listen(9, 7)), Ok(()), "nobody's");
    }
}
