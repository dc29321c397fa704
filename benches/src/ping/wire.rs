//! rping's message, and the text that rping sends as data.

use crate::errors::Error;

/// Number of bytes of an [`Advert`].
pub const ADVERT_BYTES: usize = 16;

/// The address of memory: BE64 address, BE32 rkey, BE32 size. The server's adverts are all zero, and only
/// mean "continue".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Advert {
    /// Tagged offset of the memory.
    pub addr: u64,
    /// STag of the memory.
    pub rkey: u32,
    /// Number of bytes of the memory.
    pub size: u32,
}

impl Advert {
    /// Encodes the advert.
    pub fn encode(&self) -> [u8; ADVERT_BYTES] {
        let mut out = [0; ADVERT_BYTES];
        out[..8].copy_from_slice(&self.addr.to_be_bytes());
        out[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        out[12..].copy_from_slice(&self.size.to_be_bytes());
        out
    }

    /// Decodes an advert.
    ///
    /// # Errors
    /// Returns [`Error::Exchange`] if the message has another length.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let bytes: &[u8; ADVERT_BYTES] = bytes
            .try_into()
            .map_err(|_| Error::Exchange(format!("{} bytes are not rping's message (16)", bytes.len())))?;
        let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
        let addr = u64::from(word(0)) << 32 | u64::from(word(4));
        Ok(Self { addr, rkey: word(8), size: word(12) })
    }
}

/// The data of round `round`: `rdma-ping-N: `, then repeatedly the ASCII characters from `A` to `z`, and a
/// NUL at the end. Each round begins with the next character.
pub fn text(round: u32, size: usize) -> Vec<u8> {
    const LETTERS: u32 = (b'z' - b'A') as u32 + 1;
    let mut out = format!("rdma-ping-{round}: ").into_bytes();
    out.truncate(size);
    let start = round % LETTERS;
    let letters = (0..).map(|i| b'A' + ((start + i) % LETTERS) as u8);
    out.extend(letters.take(size - out.len()));
    if let Some(last) = out.last_mut() {
        *last = 0;
    }
    out
}

/// The text in `bytes` up to the NUL, as a line of `--verbose`.
pub fn printable(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    bytes[..end].iter().map(|&o| if o.is_ascii_graphic() || o == b' ' { o as char } else { '.' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
        digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
    }

    #[test]
    fn rpings_advert_is_read_and_written() {
        // The first Send of `rping -c` on siw, from a capture.
        let bytes = hex("000055862db5e370 f3a4e200 00000040");
        let advert = Advert::decode(&bytes).unwrap();
        assert_eq!(advert, Advert { addr: 0x5586_2db5_e370, rkey: 0xf3a4_e200, size: 64 });
        assert_eq!(advert.encode()[..], bytes);
        assert!(Advert::decode(&bytes[..15]).is_err());
    }

    #[test]
    fn the_text_is_that_of_the_capture() {
        let first =
            hex("72646d612d70696e672d303a204142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f\
             606162636465666768696a6b6c6d6e6f70717200");
        assert_eq!(text(0, 64), first);
        let tenth =
            hex("72646d612d70696e672d393a204a4b4c4d4e4f505152535455565758595a5b5c5d5e5f60616263646566676869\
             6a6b6c6d6e6f707172737475767778797a4100");
        // The capture's frame has 64 bytes: the text, the letters that follow `z`, and the NUL.
        assert_eq!(text(9, 64), tenth);
    }

    #[test]
    fn the_ring_of_letters_closes() {
        let long = text(0, 1000);
        assert_eq!((long.len(), long[999]), (1000, 0));
        assert_eq!(text(58, 40)[14..], text(0, 39)[13..]);
    }

    #[test]
    fn only_text_is_printed() {
        assert_eq!(printable(b"ab\x1bc\0def"), "ab.c");
    }
}
