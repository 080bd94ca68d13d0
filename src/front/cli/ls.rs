//! `bimetal ls`: names in a file system that is not mounted.

use crate::error::acts;
use crate::front::kinds::volume::{self, Access, VolumeArgs};
use crate::front::tree::at;
use crate::fs::{Attr, FileSystem, Kind, resolve_bytes};
use crate::time::Stamp;
use crate::units::Ino;
use crate::{Error, Result};
use clap::Args;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

const EXAMPLES: &str = "\
Examples:
  bimetal ls --ssd ssd.img --disk disk.img /
  bimetal ls -lR --disk disk.img /home          with all attributes, and everything below";

/// List a directory of a file system that is not mounted
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Ls {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Kind, mode, links, owner, group, size, time of last change
    #[arg(short)]
    long: bool,
    /// With everything below
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Directories themselves, not what is in them
    #[arg(short, long, conflicts_with = "recursive")]
    directory: bool,
    /// As JSON, one object a line
    #[arg(long)]
    json: bool,
    /// Absolute paths
    #[arg(default_value = "/")]
    paths: Vec<OsString>,
    /// What is written goes to a terminal.
    #[arg(skip = io::stdout().is_terminal())]
    terminal: bool,
    /// Something that a directory names could not be read.
    #[arg(skip)]
    is_partial: Cell<bool>,
}

impl Ls {
    pub fn run(&self) -> Result<ExitCode> {
        let fs = volume::open(&self.volume, Access::Read, &[])?;
        let mut out = BufWriter::new(io::stdout().lock());
        let listed = self.paths.iter().try_for_each(|path| self.path(&*fs, path, &mut out));
        let shut = fs.shutdown();
        listed?;
        super::said(out.flush())?;
        shut?;
        Ok(if self.is_partial.get() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// What can be read; none of what is damaged, which is said, and is no reason not to go on.
    fn readable<T>(&self, path: &[u8], read: Result<T>) -> Result<Option<T>> {
        match read {
            Err(why @ Error::Corrupt { .. }) => {
                self.is_partial.set(true);
                super::complain(&at(String::from_utf8_lossy(path), why));
                Ok(None)
            }
            read => read.map(Some),
        }
    }

    fn path(&self, fs: &dyn FileSystem, path: &OsStr, out: &mut dyn Write) -> Result<()> {
        let failed = |why| at(path.display(), why);
        let path = path.as_bytes();
        let attr = resolve_bytes(fs, path).map_err(failed)?;
        if attr.kind != Kind::Dir || self.directory {
            return self.line(fs, path, path, &attr, out);
        }
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        self.below(fs, &path[..end], &attr, out).map_err(failed)
    }

    /// A directory, and the directories below it when that is asked for. No depth of theirs is too much, and one that a damaged
    /// directory leads back to is not listed again.
    fn below(&self, fs: &dyn FileSystem, path: &[u8], dir: &Attr, out: &mut dyn Write) -> Result<()> {
        let mut seen = HashSet::from([dir.ino]);
        let mut todo = vec![(path.to_vec(), dir.ino)];
        while let Some((path, dir)) = todo.pop() {
            if self.recursive && !self.json {
                if seen.len() > 1 {
                    super::said(writeln!(out))?;
                }
                let path = if path.is_empty() { b"/" } else { &path[..] };
                super::said(out.write_all(&self.shown(path)))?;
                super::said(writeln!(out, ":"))?;
            }
            let listed = self.dir(fs, &path, dir, out);
            let listed = if seen.len() > 1 { self.readable(&path, listed)? } else { Some(listed?) };
            let mut inside = listed.unwrap_or_default();
            inside.retain(|(_, ino)| self.recursive && seen.insert(*ino));
            todo.extend(inside.into_iter().rev());
        }
        Ok(())
    }

    /// The entries of a directory, a line each; the directories among them.
    fn dir(
        &self,
        fs: &dyn FileSystem,
        path: &[u8],
        dir: Ino,
        out: &mut dyn Write,
    ) -> Result<Vec<(Vec<u8>, Ino)>> {
        let mut names = Vec::new();
        fs.readdir(dir, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                names.push(entry.name.to_vec());
            }
            true
        })?;
        names.sort();
        let mut inside = Vec::new();
        for name in names {
            let child = [path, b"/", &name[..]].concat();
            let Some(attr) = self.readable(&child, fs.lookup(dir, &name))? else { continue };
            fs.forget(attr.ino, 1);
            if self.readable(&child, self.line(fs, &child, &name, &attr, out))?.is_none() {
                continue;
            }
            if attr.kind == Kind::Dir {
                inside.push((child, attr.ino));
            }
        }
        Ok(inside)
    }

    /// A name as it is; on a terminal with question marks for what a terminal would act on, as ls(1) does.
    fn shown<'a>(&self, name: &'a [u8]) -> Cow<'a, [u8]> {
        match self.terminal {
            true => String::from_utf8_lossy(name).replace(acts, "?").into_bytes().into(),
            false => name.into(),
        }
    }

    fn line(
        &self,
        fs: &dyn FileSystem,
        path: &[u8],
        name: &[u8],
        attr: &Attr,
        out: &mut dyn Write,
    ) -> Result<()> {
        let target = match attr.kind {
            Kind::Symlink if self.long || self.json => Some(fs.readlink(attr.ino)?),
            _ => None,
        };
        if self.json {
            return super::said(writeln!(out, "{}", super::as_line(&as_json(path, attr, target))));
        }
        if self.long {
            let size = match attr.kind {
                Kind::CharDevice | Kind::BlockDevice => {
                    format!("{}, {}", attr.rdev >> 8 & 0xfff, attr.rdev & 0xff | attr.rdev >> 12 & !0xff)
                }
                _ => attr.size.to_string(),
            };
            let (mode, time) = (mode_text(attr), show_time(attr.mtime));
            let (links, uid, gid) = (attr.nlink, attr.uid, attr.gid);
            super::said(write!(out, "{mode} {links:>3} {uid:>5} {gid:>5} {size:>12} {time} "))?;
        }
        super::said(out.write_all(&self.shown(name)))?;
        if let Some(target) = target {
            super::said(write!(out, " -> "))?;
            super::said(out.write_all(&self.shown(&target)))?;
        }
        super::said(writeln!(out))
    }
}

fn as_json(path: &[u8], attr: &Attr, target: Option<Vec<u8>>) -> Value {
    let mut line = json!({
        "ino": attr.ino.0,
        "kind": format!("{:?}", attr.kind).to_lowercase(),
        "mode": format!("{:04o}", attr.perm),
        "nlink": attr.nlink,
        "uid": attr.uid,
        "gid": attr.gid,
        "size": attr.size,
        "blocks_512": attr.blocks,
        "mtime": show_time(attr.mtime),
        "target": null,
    });
    super::set_name(&mut line, "path", path);
    if let Some(target) = target {
        super::set_name(&mut line, "target", &target);
    }
    line
}

/// `drwxr-xr-x`, as ls(1) writes it.
fn mode_text(attr: &Attr) -> String {
    let kind = match attr.kind {
        Kind::File => '-',
        Kind::Dir => 'd',
        Kind::Symlink => 'l',
        Kind::CharDevice => 'c',
        Kind::BlockDevice => 'b',
        Kind::Fifo => 'p',
        Kind::Socket => 's',
    };
    let mut text = String::from(kind);
    // What stands for execution, alone and with the class's special bit.
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = attr.perm >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, attr.perm & special != 0) {
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

fn show_time(stamp: Stamp) -> String {
    let whole = Duration::from_secs(stamp.sec.unsigned_abs());
    let time = if stamp.sec < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    // humantime writes the years 1970 to 9999.
    match time {
        Some(time) if (0..253_402_300_800).contains(&stamp.sec) => {
            humantime::format_rfc3339_seconds(time).to_string()
        }
        _ => format!("@{}", stamp.sec),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::memfs::MemFs;
    use crate::fs::{Caller, NewNode};

    #[test]
    fn modes_read_as_ls_writes_them() {
        let fs = MemFs::new(1 << 20, &Caller::default());
        let mut attr = fs.getattr(fs.root()).unwrap();
        for (perm, text) in
            [(0o755, "drwxr-xr-x"), (0o1777, "drwxrwxrwt"), (0o6750, "drwsr-s---"), (0o4600, "drwS------")]
        {
            attr.perm = perm;
            assert_eq!(mode_text(&attr), text);
        }
    }

    #[test]
    fn a_recursive_listing_shows_every_name_once() {
        let fs = MemFs::new(1 << 20, &Caller::default());
        let node = |kind, target| NewNode { kind, perm: 0o750, rdev: 0, target };
        let dir = fs.create(&Caller::default(), fs.root(), b"d", &node(Kind::Dir, b"")).unwrap();
        fs.create(&Caller::default(), dir.ino, b"l", &node(Kind::Symlink, b"../x")).unwrap();
        let volume = VolumeArgs {
            kind: "memfs".into(),
            nand: None,
            nvram: None,
            device: String::new(),
            ssd: None,
            disk: None,
            yaffs2: false,
            without_ssd: false,
            models: Default::default(),
        };
        let mut ls = Ls {
            volume,
            long: true,
            recursive: true,
            directory: false,
            json: false,
            paths: Vec::new(),
            terminal: false,
            is_partial: Cell::new(false),
        };
        let mut out = Vec::new();
        ls.path(&fs, OsStr::new("/"), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.starts_with("/:\ndrwxr-x--- ") && text.contains("\n/d:\nl") && text.contains("l -> ../x\n")
        );
        (ls.long, ls.json) = (false, true);
        let mut out = Vec::new();
        ls.path(&fs, OsStr::new("/d"), &mut out).unwrap();
        let line: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!((&line["path"], &line["target"]), (&json!("/d/l"), &json!("../x")));

        fs.create(&Caller::default(), fs.root(), b"\x1b[2J\xff", &node(Kind::File, b"")).unwrap();
        let mut bottom = dir.ino;
        for _ in 0..3000 {
            bottom = fs.create(&Caller::default(), bottom, b"e", &node(Kind::Dir, b"")).unwrap().ino;
        }
        ls.recursive = false;
        let mut out = Vec::new();
        ls.path(&fs, OsStr::new("/"), &mut out).unwrap();
        let of_bytes =
            out.split(|byte| *byte == b'\n').find(|line| line.windows(8).any(|key| key == b"path_hex"));
        let line: Value = serde_json::from_slice(of_bytes.unwrap()).unwrap();
        assert_eq!((&line["path_hex"], &line["kind"]), (&json!("2f1b5b324aff"), &json!("file")));
        (ls.json, ls.recursive) = (false, true);
        let mut out = Vec::new();
        ls.path(&fs, OsStr::new("/"), &mut out).unwrap();
        assert_eq!(out.split(|byte| *byte == b'\n').filter(|line| line.ends_with(b"e:")).count(), 3000);
        assert!(out.windows(5).any(|name| name == b"\x1b[2J\xff"), "a program reads names as they are");
        fs.create(&Caller::default(), fs.root(), "\u{202e}\u{9b}\u{7f}".as_bytes(), &node(Kind::File, b""))
            .unwrap();
        (ls.terminal, ls.recursive) = (true, false);
        let mut out = Vec::new();
        ls.path(&fs, OsStr::new("/"), &mut out).unwrap();
        assert!(out.windows(5).any(|name| name == b"?[2J\xef") && !out.contains(&0x1b));
        assert!(String::from_utf8(out).unwrap().lines().any(|line| line.ends_with(" ???") || line == "???"));
    }
}
