//! Aligned, owned I/O buffers (skeleton).
use bytes::Bytes;
/// An owned buffer whose memory is aligned for O_DIRECT.
#[derive(Debug)]
pub struct IoBuf(Vec<u8>);
impl IoBuf {
    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        Self(vec![0; len])
    }
    /// The shared, immutable form: no copy.
    pub fn freeze(self) -> Bytes {
        Bytes::from(self.0)
    }
}
impl std::ops::Deref for IoBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}
impl std::ops::DerefMut for IoBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
