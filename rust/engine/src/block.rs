//! Large blocks of memory that really go back.
//!
//! # Purpose
//! What an allocator frees it keeps, in as many arenas as threads asked: after a burst of copies the broker would hold the memory of all
//! of them for good. A block is asked of the kernel, and given back to it.
//!
//! # Invariants
//! * No file is behind a block, so reading one never fails.
//!
//! # Failure
//! A machine without memory is an error of the one who asked, and ends nothing.

use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

use crate::{Error, ErrorKind, Result};

/// Bytes, zero at first.
#[derive(Debug, Default)]
pub(crate) struct Block(Option<MmapMut>);

impl Block {
    /// A block of `length` bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] when the machine has none left.
    pub(crate) fn new(length: usize) -> Result<Self> {
        if length == 0 {
            return Ok(Block(None));
        }
        let map = MmapMut::map_anon(length)
            .map_err(|error| Error::new(ErrorKind::Internal, format!("no memory for {length} bytes: {error}")))?;
        Ok(Block(Some(map)))
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Block {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.as_deref_mut().unwrap_or_default()
    }
}
