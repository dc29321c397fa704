//! ULPDUs, byte by byte: the headers of RFC 5041 section 4 and RFC 5040 section 4. `control` contains DDP's
//! control byte and RDMAP's control byte.

/// Returns a tagged segment.
pub(crate) fn tagged(control: [u8; 2], stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    [&control[..], &stag.to_be_bytes(), &to.to_be_bytes(), payload].concat()
}

/// Returns an untagged segment. `stag` is the Invalidate STag; `queue` is the queue number, the MSN and the
/// MO.
pub(crate) fn untagged(control: [u8; 2], stag: u32, queue: [u32; 3], payload: &[u8]) -> Vec<u8> {
    let [qn, msn, mo] = queue.map(u32::to_be_bytes);
    [&control[..], &stag.to_be_bytes(), &qn, &msn, &mo, payload].concat()
}

/// Returns the 28 bytes of a Read Request. Sink and source are an STag and a tagged offset.
pub(crate) fn read_header(sink: (u32, u64), size: u32, source: (u32, u64)) -> Vec<u8> {
    let ((sink, at), (source, from)) = (sink, source);
    let [sink, size, source] = [sink, size, source].map(u32::to_be_bytes);
    [&sink[..], &at.to_be_bytes(), &size, &source, &from.to_be_bytes()].concat()
}

pub(crate) fn read_request(msn: u32, sink: (u32, u64), size: u32, source: (u32, u64)) -> Vec<u8> {
    untagged([0x41, 0x41], 0, [1, msn, 0], &read_header(sink, size, source))
}

/// Returns the bytes of hexadecimal digits, which may have white space between them.
pub(crate) fn from_hex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    assert!(digits.len().is_multiple_of(2));
    let pairs = (0..digits.len()).step_by(2).map(|at| &digits[at..at + 2]);
    pairs.map(|pair| u8::from_str_radix(pair, 16).expect("hex digits")).collect()
}
