//! Files of the fake platform as parts, and back.

use std::io;

use bytes::{Bytes, BytesMut};
use forkpoint_core::{
    Timestamp,
    driver::{DriverError, DriverResult},
    part::{
        EntryMeta, Extent, Part, PartContent, PartFormat, TreeEntry, TreeNode, end_tree, read_tree,
    },
    path::SandboxPath,
};
use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::{DRIVER, Files};

pub(super) fn export(files: Files) -> Part {
    let entries = files.into_iter().map(|(path, bytes)| {
        let path = SandboxPath::new(path).map_err(io::Error::other)?;
        let len_bytes = bytes.len() as u64;
        let data = stream::iter([Ok(Extent { offset: 0, bytes })]).boxed();
        Ok(TreeEntry { path, meta: meta(), node: TreeNode::File { len_bytes, data } })
    });
    let content = PartContent::Tree(end_tree(stream::iter(entries.collect::<Vec<_>>())));
    Part { format: PartFormat::tree(), content }
}

pub(super) async fn import(parts: Vec<Part>) -> DriverResult<Files> {
    let mut files = Files::new();
    for part in parts {
        let PartContent::Tree(items) = part.content else {
            return Err(invalid("a tree that is a stream of bytes"));
        };
        let mut entries = read_tree(items);
        while let Some(entry) = entries.try_next().await.map_err(read)? {
            if let TreeNode::File { len_bytes, data } = entry.node {
                let extents: Vec<Extent> = data.try_collect().await.map_err(read)?;
                files.insert(entry.path.as_path().to_owned(), join(len_bytes, extents)?);
            }
        }
    }
    Ok(files)
}

fn join(len_bytes: u64, extents: Vec<Extent>) -> DriverResult<Bytes> {
    let len = usize::try_from(len_bytes).map_err(|_| invalid("a file that fits no memory"))?;
    let mut content = BytesMut::zeroed(len);
    for Extent { offset, bytes } in extents {
        let start = usize::try_from(offset).ok();
        let range = start.and_then(|start| Some(start..start.checked_add(bytes.len())?));
        match range.and_then(|range| content.get_mut(range)) {
            Some(place) => place.copy_from_slice(&bytes),
            None => return Err(invalid("data beyond the end of a file")),
        }
    }
    Ok(content.freeze())
}

fn meta() -> EntryMeta {
    let xattrs = std::collections::BTreeMap::new();
    EntryMeta { mode: 0o644, uid: 0, gid: 0, modified: Timestamp::UNIX_EPOCH, xattrs }
}

fn read(source: io::Error) -> DriverError {
    DriverError::Io { operation: "read", path: "part".into(), source }
}

fn invalid(what: &str) -> DriverError {
    DriverError::Invalid { driver: DRIVER, reason: format!("the parts hold {what}") }
}
