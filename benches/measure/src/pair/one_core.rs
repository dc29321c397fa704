//! `one_core`: one core runs both sides, compared with a loop that copies the same number of bytes and
//! computes their CRC, once for each side.

use std::time::Duration;

use benches::errors::Error;
use dp::link::{LinkConfig, LinkTso};

use crate::pair::alternate::{Comparison, alternate, timed};
use crate::pair::copy_crc::CopyCrc;
use crate::pair::traffic::{Load, Traffic};

/// Number of bytes of a Write.
pub(crate) const MESSAGE_BYTES: usize = 1 << 20;

/// Returns a wire with the properties of a wire between virtual machines: jumbo frames, checksum offload, and
/// large frames that are not cut.
pub(crate) fn virtual_wire() -> LinkConfig {
    LinkConfig {
        mtu: 9000,
        bulk_mbufs: 512,
        checksum_offload: true,
        tso: LinkTso::Whole,
        ..LinkConfig::default()
    }
}

/// 1 MiB Writes on one queue pair, with four Writes in flight.
pub(crate) const LOAD: Load = Load { bytes: MESSAGE_BYTES, depth: 4, active: 1, redraw: None, seed: 1 };

/// # Errors
/// Returns an error of the engines, or [`Error::Validation`] if a byte is wrong.
pub(crate) fn measure(time: Duration) -> Result<Comparison, Error> {
    let mut ours = Traffic::new(virtual_wire(), 1, LOAD)?;
    let mut copy = CopyCrc::new(MESSAGE_BYTES);
    let sides: [&mut dyn FnMut(Duration) -> _; 2] =
        [&mut |slice| ours.run(slice), &mut |slice| timed(slice, || Ok(copy.message()))];
    let [rate, loop_rate] = alternate(time, sides)?;
    ours.validate(2)?;
    copy.validate()?;
    Ok(Comparison { ours: rate.gigabytes_per_s(), theirs: loop_rate.gigabytes_per_s(), unit: "GB/s" })
}
