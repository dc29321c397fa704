//! The addresses that identifiers claim at a port, and the rules by which claims conflict.

use std::net::IpAddr;

/// The addresses that an identifier claims at its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The address to which the identifier is bound. The unspecified address means all addresses of its
    /// family. IPv4 addresses are never in IPv4-mapped form.
    pub(crate) address: IpAddr,
    /// True if a wildcard claims only the addresses of its own family.
    pub(crate) family_only: bool,
    /// True if other identifiers may be bound to the same address, provided that no identifier listens there.
    pub(crate) reuses: bool,
}

/// The reason why two identifiers cannot be bound to the same port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// Both identifiers claim the same address.
    Same,
    /// At least one identifier claims all addresses, and the claims are not limited to different families.
    Overlaps,
}

impl Claim {
    /// The claim of an identifier that is bound to `address`. If `family_only` is `None`, an IPv4 address
    /// claims only its own family, and an IPv6 address claims both families.
    pub(crate) fn new(address: IpAddr, family_only: Option<bool>, reuses: bool) -> Self {
        let address = address.to_canonical();
        Self { address, family_only: family_only.unwrap_or(address.is_ipv4()), reuses }
    }

    /// Whether the claim includes an address of this host.
    pub(crate) fn includes(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        match self.address.is_unspecified() {
            true => !self.family_only || self.address.is_ipv4() == address.is_ipv4(),
            false => self.address == address,
        }
    }

    /// Checks a claim against an earlier claim at the same port. Ignores the field `reuses`.
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
