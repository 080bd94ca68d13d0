//! ext4 images in files, and the programs that look into them.

use crate::mounts::once_free;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// A file system image in a directory of its own, gone with it.
pub struct Image {
    dir: TempDir,
    block_bytes: usize,
}

/// What a program printed and how it ended.
pub struct Said {
    pub code: i32,
    pub text: String,
}

/// Runs a program and gives all it printed.
pub fn run(program: &str, arguments: &[&str]) -> Said {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output: Output = Command::new(program)
        .args(arguments)
        .env("PATH", path)
        .env("LC_ALL", "C")
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    Said { code: output.status.code().unwrap_or(-1), text }
}

impl Image {
    /// Makes a file system of `mebibytes` with the given block size and further options of `mke2fs`.
    pub fn make(mebibytes: u32, block_bytes: usize, options: &[&str]) -> Image {
        let image = Image { dir: TempDir::new().expect("a temporary directory"), block_bytes };
        let (path, block, size) = (image.path(), block_bytes.to_string(), format!("{mebibytes}M"));
        let fixed = ["-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"];
        let own = ["-b", &block, path.to_str().expect("a plain path"), &size];
        let said = run("mke2fs", &[&fixed[..], options, &own].concat());
        assert_eq!(said.code, 0, "{}", said.text);
        image
    }

    /// A second image, with these contents.
    pub fn with(&self, bytes: &[u8]) -> Image {
        let copy =
            Image { dir: TempDir::new().expect("a temporary directory"), block_bytes: self.block_bytes };
        fs::write(copy.path(), bytes).expect("a written image");
        copy
    }

    /// Where the image is.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    /// The image's path as the programs take it.
    pub fn path_text(&self) -> String {
        self.path().to_str().expect("a plain path").to_string()
    }

    /// Overwrites one block.
    pub fn put_block(&self, block: u64, bytes: &[u8]) {
        let file = fs::OpenOptions::new().write(true).open(self.path()).expect("a writable image");
        file.write_all_at(bytes, block * self.block_bytes as u64).expect("a written block");
    }

    /// Its whole contents.
    pub fn bytes(&self) -> Vec<u8> {
        fs::read(self.path()).expect("a readable image")
    }

    /// One block.
    pub fn block<'b>(&self, bytes: &'b [u8], block: u64) -> &'b [u8] {
        let at = block as usize * self.block_bytes;
        &bytes[at..at + self.block_bytes]
    }

    /// What `debugfs` says to these requests; it may change the image.
    pub fn debugfs(&self, requests: &[&str]) -> String {
        let script = self.dir.path().join("requests");
        fs::write(&script, requests.join("\n")).expect("a written script");
        let said = run("debugfs", &["-w", "-f", script.to_str().expect("a plain path"), &self.path_text()]);
        said.text
    }

    /// The blocks of a file, in order.
    pub fn blocks_of(&self, file: &str) -> Vec<u64> {
        let said = self.debugfs(&[&format!("blocks {file}")]);
        said.lines().flat_map(str::split_whitespace).filter_map(|word| word.parse().ok()).collect()
    }

    /// Some free blocks from a goal on.
    pub fn free_blocks(&self, count: usize, goal: u64) -> Vec<u64> {
        let said = self.debugfs(&[&format!("ffb {count} {goal}")]);
        let list = said.split("found:").nth(1).expect("free blocks");
        let blocks: Vec<u64> = list.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        assert_eq!(blocks.len(), count, "{said}");
        blocks
    }

    /// Runs `e2fsck` with these options.
    pub fn e2fsck(&self, options: &[&str]) -> Said {
        run("e2fsck", &[options, &[&self.path_text()]].concat())
    }

    /// Mounts the image with the kernel's ext4; says why if that cannot be done here.
    pub fn mount(&self) -> Result<Mounted, String> {
        let at = TempDir::new().expect("a temporary directory");
        let said =
            run("mount", &["-t", "ext4", "-o", "loop", &self.path_text(), &at.path().to_string_lossy()]);
        if said.code == 0 { Ok(Mounted { at }) } else { Err(said.text) }
    }
}

/// A mounted image; unmounted when it goes.
pub struct Mounted {
    at: TempDir,
}

impl Mounted {
    /// The mount point.
    pub fn path(&self) -> &Path {
        self.at.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !once_free(Command::new("umount").arg(self.at.path())).status.success() {
            run("umount", &["-l", &self.at.path().to_string_lossy()]);
        }
    }
}
