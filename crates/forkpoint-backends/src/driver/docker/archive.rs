//! An archive that an engine sends, as it comes.

use std::io;

use bytes::{Bytes, BytesMut};

use super::http::Body;
use crate::tar::{BLOCK, Entry, Headers, Step, TarError, padding};

#[derive(Debug)]
pub(super) struct Reader {
    body: Body,
    buffer: BytesMut,
    /// Of the current entry's content, and of what fills its last block.
    content: u64,
    padding: u64,
}

impl Reader {
    pub(super) fn new(body: Body) -> Self {
        Self { body, buffer: BytesMut::new(), content: 0, padding: 0 }
    }

    /// The next entry, past what was not read of the one before.
    pub(super) async fn next(&mut self) -> io::Result<Option<Entry>> {
        self.skip().await?;
        let mut headers = Headers::default();
        while let Some(block) = self.block().await? {
            match headers.take(&block).map_err(io_error)? {
                Step::End => return Ok(None),
                Step::More { letter, len } => {
                    let bytes = self.take(len).await?;
                    self.pass(padding(len as u64)).await?;
                    headers.more(letter, &bytes).map_err(io_error)?;
                }
                Step::Entry(entry) => {
                    (self.content, self.padding) = (entry.len_bytes, padding(entry.len_bytes));
                    return Ok(Some(entry));
                }
            }
        }
        Ok(None)
    }

    /// What is there of the current content; `None` at its end.
    pub(super) async fn chunk(&mut self) -> io::Result<Option<Bytes>> {
        if self.content == 0 {
            return Ok(None);
        }
        if self.buffer.is_empty() && !self.fill().await? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let len = self.buffer.len().min(usize::try_from(self.content).unwrap_or(usize::MAX));
        self.content -= len as u64;
        Ok(Some(self.buffer.split_to(len).freeze()))
    }

    async fn skip(&mut self) -> io::Result<()> {
        while self.chunk().await?.is_some() {}
        let padding = std::mem::take(&mut self.padding);
        self.pass(padding).await
    }

    /// Past what fills a block.
    async fn pass(&mut self, padding: u64) -> io::Result<()> {
        self.take(usize::try_from(padding).unwrap_or(0)).await.map(drop)
    }

    async fn fill(&mut self) -> io::Result<bool> {
        match self.body.next().await? {
            Some(bytes) => {
                self.buffer.extend_from_slice(&bytes);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    async fn take(&mut self, len: usize) -> io::Result<BytesMut> {
        while self.buffer.len() < len {
            if !self.fill().await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(self.buffer.split_to(len))
    }

    /// `None` where there is nothing more.
    async fn block(&mut self) -> io::Result<Option<[u8; BLOCK]>> {
        if self.buffer.is_empty() && !self.fill().await? {
            return Ok(None);
        }
        let mut block = [0; BLOCK];
        block.copy_from_slice(&self.take(BLOCK).await?);
        Ok(Some(block))
    }
}

fn io_error(err: TarError) -> io::Error {
    match err {
        TarError::Io(err) => err,
        err => io::Error::other(err),
    }
}
