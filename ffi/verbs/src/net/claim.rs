//! What an identifier claims that is bound to a port, and which claims exclude each other.

use std::net::IpAddr;

/// The addresses that an identifier takes at its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Its address; the unspecified one stands for all of its family. One of IPv4 is written as such.
    pub(crate) address: IpAddr,
    /// It does not care for the other family.
    pub(crate) family_only: bool,
    /// Others may be bound to the address as well, as long as nobody listens.
    pub(crate) reuses: bool,
}

/// Why two identifiers cannot have one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// They are bound to the same address.
    Same,
    /// One of them takes all addresses, those of the other one included.
    Overlaps,
}

impl Claim {
    /// Of an identifier that is bound to `address`. One of IPv4 is of one family only unless it says
    /// otherwise.
    pub(crate) fn new(address: IpAddr, family_only: Option<bool>, reuses: bool) -> Self {
        let address = address.to_canonical();
        Self { address, family_only: family_only.unwrap_or(address.is_ipv4()), reuses }
    }

    /// Checks a claim against an earlier one at the same port. Whether both reuse their addresses does not
    /// count here.
    pub(crate) fn check(&self, before: &Self) -> Result<(), Conflict> {
        let of_other_family = self.address.is_ipv4() != before.address.is_ipv4();
        if self.family_only && before.family_only && of_other_family {
            return Ok(());
        }
        match (self.address, before.address) {
            (one, other) if one.is_unspecified() || other.is_unspecified() => Err(Conflict::Overlaps),
            (one, other) if one == other => Err(Conflict::Same),
            _ => Ok(()),
        }
    }
}
