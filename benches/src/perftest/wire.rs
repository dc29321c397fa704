//! Layouts of perftest's messages.

use crate::errors::Error;

/// Number of bytes of a [`Dest`].
pub const DEST_BYTES: usize = 56;

/// Number of bytes of the version message.
pub const VERSION_BYTES: usize = 16;

/// The version that we announce, which is the version of perftest 4.5+0.17.
pub const VERSION: &str = "6.06";

/// The oldest version of perftest that has this exchange.
const OLDEST: f64 = 5.70;

/// The address of one queue pair's memory (`struct pingpong_dest`).
///
/// The layout on the wire is big-endian: lid, out_reads, qpn, psn, rkey (4 bytes each), 4 bytes of padding,
/// vaddr (8), gid (16), srqn, gid_index (4 each).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dest {
    /// Unused with iWARP.
    pub lid: u32,
    /// Number of Reads that the sender of this message serves at a time.
    pub out_reads: u32,
    /// Queue pair number, which is only displayed.
    pub qpn: u32,
    /// Unused with iWARP.
    pub psn: u32,
    /// STag of the memory.
    pub rkey: u32,
    /// Tagged offset of the memory. In a Send bandwidth test, this is the tagged offset of the credit cell
    /// (see [`script`](super::script)).
    pub vaddr: u64,
    /// The GID, which is only displayed. siw puts its MAC address into the first bytes of the GID.
    pub gid: [u8; 16],
}

impl Dest {
    /// Encodes the message.
    pub fn encode(&self) -> [u8; DEST_BYTES] {
        let Self { lid, out_reads, qpn, psn, rkey, vaddr, gid } = self;
        let mut out = [0; DEST_BYTES];
        for (index, word) in [lid, out_reads, qpn, psn, rkey].into_iter().enumerate() {
            out[4 * index..4 * index + 4].copy_from_slice(&word.to_be_bytes());
        }
        out[24..32].copy_from_slice(&vaddr.to_be_bytes());
        out[32..48].copy_from_slice(gid);
        out
    }

    /// Decodes the message.
    ///
    /// # Errors
    /// Returns [`Error::Exchange`] if the message has another length.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let bytes: &[u8; DEST_BYTES] = exactly(bytes, "a destination")?;
        let word = |index: usize| u32::from_be_bytes(std::array::from_fn(|i| bytes[4 * index + i]));
        Ok(Self {
            lid: word(0),
            out_reads: word(1),
            qpn: word(2),
            psn: word(3),
            rkey: word(4),
            vaddr: u64::from_be_bytes(std::array::from_fn(|i| bytes[24 + i])),
            gid: std::array::from_fn(|i| bytes[32 + i]),
        })
    }
}

/// Our version message: the digits of the version, padded with NULs.
pub fn encode_version() -> [u8; VERSION_BYTES] {
    let mut out = [0; VERSION_BYTES];
    out[..VERSION.len()].copy_from_slice(VERSION.as_bytes());
    out
}

/// Parses a version message as perftest does (`atof`).
///
/// # Errors
/// Returns [`Error::Exchange`] if the version is too old or unreadable.
pub fn decode_version(bytes: &[u8]) -> Result<f64, Error> {
    let bytes: &[u8; VERSION_BYTES] = exactly(bytes, "a version")?;
    let digits: String =
        bytes.iter().map(|&o| o as char).take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    let version: f64 =
        digits.parse().map_err(|_| Error::Exchange(format!("{bytes:02x?} is not a version")))?;
    if version < OLDEST {
        return Err(Error::Exchange(format!("version {version} is older than {OLDEST:.2}")));
    }
    Ok(version)
}

/// Decodes a 32-bit number: the cycle buffer or the cache line.
pub fn decode_u32(bytes: &[u8]) -> Result<u32, Error> {
    Ok(u32::from_be_bytes(*exactly(bytes, "a number of 4 bytes")?))
}

/// Encodes the path MTU as InfiniBand counts it (1 to 5 for 256 to 4096), as a digit and a NUL.
pub fn encode_mtu(mtu: u16) -> [u8; 2] {
    // The number stands for the largest of the MTUs 256 to 4096 that fits the payload of a frame, as the siw
    // and RoCE drivers report it.
    let number = (1..=5).rev().find(|n| 128u32 << n <= u32::from(mtu)).unwrap_or(1);
    [b'0' + number, 0]
}

/// Parses an MTU message. Checks only the format of the message.
///
/// # Errors
/// Returns [`Error::Exchange`] if the message is not a digit from 1 to 5 and another byte.
pub fn decode_mtu(bytes: &[u8]) -> Result<u8, Error> {
    let [digit, _nul] = exactly(bytes, "an MTU")?;
    if !(b'1'..=b'5').contains(digit) {
        return Err(Error::Exchange(format!("MTU {digit:#04x} is not a digit from 1 to 5")));
    }
    Ok(digit - b'0')
}

/// The bandwidth of one side, in five messages of 8 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Number of bytes of a message.
    pub size: u64,
    /// Number of messages of all queue pairs.
    pub iters: u64,
    /// Peak in the unit that the sender prints.
    pub bw_peak: f64,
    /// Average in the unit that the sender prints.
    pub bw_avg: f64,
    /// Message rate in millions per second.
    pub msg_rate_mpps: f64,
}

impl Report {
    /// The five messages in order.
    pub fn encode(&self) -> [[u8; 8]; 5] {
        let Self { size, iters, bw_peak, bw_avg, msg_rate_mpps } = self;
        [
            size.to_be_bytes(),
            iters.to_be_bytes(),
            bw_peak.to_be_bytes(),
            bw_avg.to_be_bytes(),
            msg_rate_mpps.to_be_bytes(),
        ]
    }

    /// Decodes the five messages. If perftest is the target, it sends uninitialised memory, so the figures
    /// may have any value.
    pub fn decode(messages: &[[u8; 8]; 5]) -> Self {
        let [size, iters, bw_peak, bw_avg, msg_rate_mpps] = *messages;
        Self {
            size: u64::from_be_bytes(size),
            iters: u64::from_be_bytes(iters),
            bw_peak: f64::from_be_bytes(bw_peak),
            bw_avg: f64::from_be_bytes(bw_avg),
            msg_rate_mpps: f64::from_be_bytes(msg_rate_mpps),
        }
    }
}

/// Returns `bytes` as an array, or an error that names the expected contents.
pub fn exactly<'a, const N: usize>(bytes: &'a [u8], what: &str) -> Result<&'a [u8; N], Error> {
    bytes
        .try_into()
        .map_err(|_| Error::Exchange(format!("{} bytes where {what} ({N} bytes) was due", bytes.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A destination of `ib_write_bw -R` on siw, from a capture.
    const SIW_DEST: &str = "00000000 00000001 00000002 0065f8a2 73efaa00 00000000 000055fca48ec000 \
        5254009ac261 00000000000000000000 00000000 00000000";

    /// The report of the run of [`SIW_DEST`], from the same capture: the size (8192 bytes), the number of
    /// iterations (5), and three doubles: peak bandwidth, average bandwidth and message rate.
    const SIW_REPORT: &str =
        "0000000000002000 0000000000000005 4053df06ec3746fe 404050cefd21850a 3f711bb381fb01d3";

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
        digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
    }

    #[test]
    fn siws_destination_is_read_and_written() {
        let bytes = hex(SIW_DEST);
        let dest = Dest::decode(&bytes).unwrap();
        assert_eq!((dest.lid, dest.out_reads, dest.qpn, dest.psn), (0, 1, 2, 0x0065_f8a2));
        assert_eq!((dest.rkey, dest.vaddr), (0x73ef_aa00, 0x55fc_a48e_c000));
        assert_eq!(dest.gid[..6], [0x52, 0x54, 0x00, 0x9a, 0xc2, 0x61]);
        assert_eq!(dest.encode()[..], bytes);
    }

    #[test]
    fn padding_that_is_not_zero_is_ignored() {
        // The capture's last message contains stack garbage in these bytes.
        let mut bytes = hex(SIW_DEST);
        bytes[20..24].copy_from_slice(&hex("00fc5500"));
        assert_eq!(Dest::decode(&bytes).unwrap(), Dest::decode(&hex(SIW_DEST)).unwrap());
    }

    #[test]
    fn siws_report_is_read_and_written() {
        let bytes = hex(SIW_REPORT);
        let messages: [[u8; 8]; 5] = std::array::from_fn(|m| std::array::from_fn(|i| bytes[8 * m + i]));
        let report = Report::decode(&messages);
        assert_eq!((report.size, report.iters), (8192, 5));
        assert!(
            (report.bw_peak - 79.484_80).abs() < 1e-4 && (report.bw_avg - 32.631_32).abs() < 1e-4,
            "{report:?}"
        );
        // The average is the rate times the size, in MiB/s.
        assert!((report.msg_rate_mpps * 1e6 * 8192.0 / 1_048_576.0 - report.bw_avg).abs() < 1e-9);
        assert_eq!(report.encode(), messages);
    }

    #[test]
    fn the_prefix_is_the_captured_one() {
        assert_eq!(encode_version()[..], hex("362e3036 000000000000000000000000"));
        assert_eq!(encode_mtu(1500)[..], hex("3300"));
        assert_eq!(decode_u32(&hex("00001000")).unwrap(), 4096);
        assert_eq!(decode_u32(&hex("00000040")).unwrap(), 64);
        assert_eq!(encode_mtu(9000), *b"5\0");
        assert_eq!(encode_mtu(576), *b"2\0");
    }

    #[test]
    fn old_versions_and_nonsense_are_refused() {
        let version = |text: &str| {
            let mut bytes = [0; VERSION_BYTES];
            bytes[..text.len()].copy_from_slice(text.as_bytes());
            decode_version(&bytes)
        };
        assert_eq!(version("6.06").unwrap(), 6.06);
        assert_eq!(version("5.70").unwrap(), 5.70);
        assert!(version("5.69").unwrap_err().to_string().contains("older than 5.70"));
        assert!(version("").is_err() && version("x").is_err());
        assert!(decode_version(b"6.06").is_err());
        assert!(decode_mtu(b"9\0").is_err() && decode_mtu(b"3").is_err());
        assert!(Dest::decode(&[0; 55]).is_err());
    }
}
