//! Ethernet addresses that a user gives to a port.

/// Whether an interface can have the address `mac`: no interface has a group address or the address zero.
pub(crate) fn is_of_interface(mac: [u8; 6]) -> bool {
    mac[0] & 1 == 0 && mac != [0; 6]
}

/// Returns the address in the usual form, as `02:00:00:00:00:01`.
pub(crate) fn text(mac: &[u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
