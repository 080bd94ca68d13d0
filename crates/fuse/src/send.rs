//! Answers that take more than one line to send.

use super::errno::errno;
use bimetal_base::Result;
use bimetal_vfs::{FsStat, NAME_MAX};
use bytes::Bytes;
use fuser::{Errno, ReplyData, ReplyStatfs, ReplyXattr};
use std::cell::RefCell;

/// Sends the parts of a read. fuser takes one slice, so that several parts are brought together first.
pub(super) fn send_parts(reply: ReplyData, parts: &[Bytes]) {
    thread_local!(static TOGETHER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
    match parts {
        [] => reply.data(&[]),
        [part] => reply.data(part),
        parts => TOGETHER.with_borrow_mut(|together| {
            together.clear();
            parts.iter().for_each(|part| together.extend_from_slice(part));
            reply.data(together);
        }),
    }
}

pub(super) fn send_statfs(reply: ReplyStatfs, stat: &FsStat) {
    let bytes = stat.block_bytes;
    reply.statfs(
        stat.blocks,
        stat.free,
        stat.available,
        stat.inodes,
        stat.inodes_free,
        bytes,
        NAME_MAX as u32,
        bytes,
    );
}

pub(super) fn send_xattr(reply: ReplyXattr, size: u32, operation: &'static str, value: Result<Vec<u8>>) {
    match value {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(errno(operation, &error)),
    }
}
