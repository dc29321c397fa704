//! The claim of an identifier that is bound to a port, and the rules by which claims exclude each other.

use std::net::IpAddr;

/// The addresses that an identifier claims at its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Its address; the unspecified address stands for all addresses of its family. An IPv4 address is never
    /// in IPv4-mapped form.
    pub(crate) address: IpAddr,
    /// True if the claim does not include addresses of the other family.
    pub(crate) family_only: bool,
    /// True if other identifiers may be bound to the same address, as long as none of them listens.
    pub(crate) reuses: bool,
}

/// Why two identifiers cannot have one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// They are bound to the same address.
    Same,
    /// One of them claims all addresses, including that of the other.
    Overlaps,
}

impl Claim {
    /// The claim of an identifier that is bound to `address`. With an IPv4 address, the default is one
    /// family only.
    pub(crate) fn new(address: IpAddr, family_only: Option<bool>, reuses: bool) -> Self {
        let address = address.to_canonical();
        Self { address, family_only: family_only.unwrap_or(address.is_ipv4()), reuses }
    }

    /// Checks a claim against an earlier one at the same port. This check ignores whether both reuse their
    /// addresses.
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
