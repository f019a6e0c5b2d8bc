//! Whether two files hold the same bytes.

use std::{
    fs::File,
    hash::{DefaultHasher, Hasher as _},
    io::{self, Read as _},
};

use crate::layer::{
    LayerResult,
    error::{At as _, During as _},
};

const BUFFER_BYTES: usize = 64 * 1024;

pub(super) fn same(a: File, b: File) -> LayerResult<bool> {
    same_bytes(a, b).during("read").at(|| "a file that is compared".into())
}

pub(crate) fn same_bytes(mut a: File, mut b: File) -> io::Result<bool> {
    let (mut left, mut right) = (vec![0; BUFFER_BYTES], vec![0; BUFFER_BYTES]);
    loop {
        let (x, y) = (fill(&mut a, &mut left)?, fill(&mut b, &mut right)?);
        if left[..x] != right[..y] {
            return Ok(false);
        }
        if x < BUFFER_BYTES {
            return Ok(true);
        }
    }
}

/// For sorting out: whoever has the same number is compared.
pub(super) fn digest(mut file: File) -> io::Result<u64> {
    let mut hasher = DefaultHasher::new();
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let len = fill(&mut file, &mut buffer)?;
        hasher.write(&buffer[..len]);
        if len < BUFFER_BYTES {
            return Ok(hasher.finish());
        }
    }
}

/// As much as there is, up to the whole buffer.
fn fill(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match file.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
    Ok(len)
}
