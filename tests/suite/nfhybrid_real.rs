//! A day's work on an nfhybrid: a real tree larger than the SSD, git, sqlite3, postmark, fio. It is right through the
//! mount, again after a remount, and byte by byte the same when the kernel mounts the disk half alone.
//!
//! `BIMETAL_FULL=1` takes the full measure (a tree of at least 10 000 files and 500 MB, 10 000 transactions of sqlite3,
//! 20 000 of postmark); without it, a part.

use crate::mounts::{no_fuse, skip};
use crate::nfhybrid::{Volume, same_trees, sh, unmount};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// How much of everything.
struct Measure {
    ssd_mib: u64,
    disk_mib: u64,
    trees: &'static [&'static str],
    /// What the repository that is cloned holds.
    cloned: &'static str,
    transactions: u32,
    postmark: u32,
    fio_mib: u32,
}

const PART: Measure = Measure {
    ssd_mib: 48,
    disk_mib: 2048,
    trees: &["/usr/include"],
    cloned: "/usr/include/linux",
    transactions: 500,
    postmark: 2000,
    fio_mib: 16,
};

const FULL: Measure = Measure {
    ssd_mib: 256,
    disk_mib: 16 << 10,
    trees: &["/usr/share", "/usr/lib/x86_64-linux-gnu"],
    cloned: "/usr/include",
    transactions: 10_000,
    postmark: 20_000,
    fio_mib: 128,
};

const GIT: &str = r#"
export HOME=$T GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
git init -q $T/origin; cp -r $MORE/. $T/origin; cd $T/origin; git add -A; git commit -q -m first
for i in 1 2 3; do echo $i >> change; git add change; git commit -q -m $i; done
cd $D; git clone -q --no-local $T/origin clone; git -C clone fsck --full --strict
test -z "$(git -C clone status --porcelain)"; rm -r $T/origin"#;

const SQLITE: &str = r#"
cd $D; { echo "pragma journal_mode=delete; pragma synchronous=full; create table t(a integer primary key, b text);"
  i=1; while [ $i -lt $N ]; do echo "insert into t values($i, hex(randomblob(100)));"; i=$((i+1)); done
} | sqlite3 base.db > /dev/null
test "$(sqlite3 base.db 'pragma integrity_check; select count(*) from t;' | tr '\n' ' ')" = "ok $((N-1)) ""#;

const POSTMARK: &str = r#"
mkdir $D/mail; printf 'set location %s\nset number %s\nset transactions %s\nset subdirectories 10\nrun\nquit\n' \
  $D/mail $((N/4)) $N | postmark > $T/postmark; grep -q "transactions per second\|seconds of transactions" $T/postmark"#;

/// One job writes through write(2), one through a map; what they wrote stays to be verified again.
const FIO: &str = r#"
fio --directory=$D --size=${N}M --rw=randwrite --bs=4k --verify=crc32c --verify_fatal=1 --verify_state_save=0 \
  --output=$T/fio $MORE \
  --name=written --ioengine=psync --fsync=16 --name=mapped --ioengine=mmap || { cat $T/fio; exit 1; }"#;

struct Work<'a> {
    mount: &'a Path,
    scratch: &'a Path,
}

impl Work<'_> {
    /// Runs a script with `$D` (the mount), `$T` (a place on the host), `$N` and `$MORE`; the seconds it took.
    fn run(&self, what: &str, script: &str, number: u32, more: &str) {
        let start = Instant::now();
        let run = Command::new("sh")
            .args(["-euc", script])
            .envs([("D", self.mount), ("T", self.scratch)])
            .envs([("N", number.to_string().as_str()), ("MORE", more)])
            .output()
            .expect("sh(1)");
        let said = [run.stdout, run.stderr].concat();
        assert!(run.status.success(), "{what}: {}", String::from_utf8_lossy(&said));
        println!("{what}: {:.1} s", start.elapsed().as_secs_f64());
    }
}

/// Sums of all contents, and everything `find` can say about every object, except access times.
fn manifest(dir: &Path) -> String {
    let script = "find . -path ./lost+found -prune -o -type f -print0 | sort -z | xargs -0 sha256sum; \
        find . -path ./lost+found -prune -o ! -name . -printf '%P %y %m %n %U %G %s %T@ %C@ %l\\n' | sort";
    let run = Command::new("sh").args(["-euc", script]).current_dir(dir).output().expect("sh(1)");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8_lossy(&run.stdout).into_owned()
}

fn same(what: &str, expected: &str, found: &str) {
    let different: Vec<(&str, &str)> =
        expected.lines().zip(found.lines()).filter(|(a, b)| a != b).take(5).collect();
    assert!(expected == found, "{what}: {} and {} bytes, {different:#?}", expected.len(), found.len());
}

#[test]
fn real_work_is_right_through_the_mount_again_after_it_and_on_the_disk_alone() {
    if let Some(why) = no_fuse() {
        return skip(&why);
    }
    let measure = if std::env::var_os("BIMETAL_FULL").is_some() { FULL } else { PART };
    let volume = Volume::new(measure.ssd_mib, measure.disk_mib, &[]);
    let mounted = volume.mount("lag=2s");
    let work = Work { mount: mounted.path(), scratch: mounted.scratch() };
    for tree in measure.trees {
        work.run(&format!("copy of {tree}"), "mkdir -p $D$MORE; cp -a $MORE/. $D$MORE", 0, tree);
    }
    work.run("git clone and fsck", GIT, 0, measure.cloned);
    work.run("sqlite3", SQLITE, measure.transactions, "");
    work.run("postmark", POSTMARK, measure.postmark, "");
    work.run("fio with verify", FIO, measure.fio_mib, "");
    sh("echo 3 > /proc/sys/vm/drop_caches 2> /dev/null || true", mounted.path());
    check_trees(&measure, mounted.path());
    let expected = manifest(mounted.path());
    let status = mounted.status();
    assert!(status["failure"].is_null(), "{status}");
    if let Some(why) = status["ssd_lost"].as_str() {
        // See the limits in DESIGN.md: nothing is lost by it, which is what the rest of this test is about.
        println!("the SSD was given up on the way: {why}");
    }
    unmount(mounted);
    volume.e2fsck();

    let mounted = volume.mount("lag=2s");
    same("after a remount", &expected, &manifest(mounted.path()));
    let work = Work { mount: mounted.path(), scratch: mounted.scratch() };
    work.run("fio verifies again", FIO, measure.fio_mib, "--verify_only=1");
    unmount(mounted);
    volume.e2fsck();

    let kernel = volume.kernel();
    same("the disk alone", &expected, &manifest(&kernel.0));
}

/// The copied trees are what they were copied from; how much that is.
fn check_trees(measure: &Measure, root: &Path) {
    for tree in measure.trees {
        same_trees(Path::new(tree), &root.join(tree.trim_start_matches('/')));
    }
    let count = "echo $(find usr -type f | wc -l) files, $(du -sm usr | cut -f1) MB";
    let counted = Command::new("sh").args(["-euc", count]).current_dir(root).output().expect("sh(1)");
    println!("compared: {}", String::from_utf8_lossy(&counted.stdout).trim());
}
