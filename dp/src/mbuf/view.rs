//! The segments of a chain, independent of their storage.

/// One segment of a chain, of either backend.
pub(crate) trait View {
    /// Bytes of data.
    fn len(&self) -> usize;

    /// Whether the data are external memory.
    fn is_external(&self) -> bool;

    /// Address of the first byte. The bytes can be read by raw copies while the chain exists. Bytes that are
    /// not external memory may be read in any way while the chain is not written.
    #[cfg(target_os = "linux")]
    fn start(&self) -> *const u8;

    /// Copies the data from `offset` on to `out`, as many bytes as exist and fit; returns how many.
    fn copy_to(&self, offset: usize, out: &mut [u8]) -> usize;
}

pub(super) fn copy_views<V: View>(views: impl Iterator<Item = V>, offset: usize, out: &mut [u8]) -> usize {
    let (mut skip, mut done) = (offset, 0);
    for view in views {
        if done == out.len() {
            break;
        }
        done += view.copy_to(skip, &mut out[done..]);
        skip = skip.saturating_sub(view.len());
    }
    done
}

/// Copies bytes of a slice, as [`View::copy_to`] does.
pub(super) fn copy_slice(bytes: &[u8], offset: usize, out: &mut [u8]) -> usize {
    let bytes = bytes.get(offset..).unwrap_or_default();
    let copied = bytes.len().min(out.len());
    out[..copied].copy_from_slice(&bytes[..copied]);
    copied
}
