//! Real programs on a mounted file system, as a table that any mount can be put through.
//!
//! [`check`] runs them all in fresh directories of a mount and fails with the output of those that failed. A
//! program that is not installed is passed over with a message. Each script ends itself after [`SECONDS_MAX`].

use crate::mounts::{Mounted, no_fuse, skip};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

const SECONDS_MAX: &str = "300";

/// A program (or a few) and how to tell that they are content.
struct Program {
    name: &'static str,
    /// Commands that must be installed; `pjdfstest` and `fsx` are installed when missing.
    needs: &'static [&'static str],
    /// For `sh -eu`; `$D` is a fresh directory of the mount, `$T` one of the host.
    script: &'static str,
}

const PROGRAMS: &[Program] = &[
    Program {
        name: "fsx, 20 000 operations, all kinds",
        needs: &["fsx"],
        script: r#"
cat > $T/fsx.toml <<END
flen = 1048576
[weights]
close_open = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 1
truncate = 5
fsync = 1
fdatasync = 1
posix_fallocate = 3
punch_hole = 5
sendfile = 3
posix_fadvise = 1
copy_file_range = 5
END
fsx -q -f $T/fsx.toml -P $T -N 20000 -S 42 $D/file"#,
    },
    Program {
        name: "pjdfstest",
        needs: &["pjdfstest"],
        script: r#"
cat > $T/pjd.toml <<END
[features]
posix_fallocate = {}
rename_ctime = {}
utimensat = {}
utime_now = {}
[settings]
naptime = 0.01
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
END
chmod 755 $T
pjdfstest -c $T/pjd.toml -s $T -p $D > $T/out || { grep -A3 -i failed $T/out; exit 1; }
grep "^Summary: 0 failed" $T/out"#,
    },
    Program {
        name: "fio, random writes with fsync, crc32c",
        needs: &["fio"],
        script: "fio --name=v --directory=$D --size=24M --rw=randwrite --bs=4k --fsync=16 --ioengine=psync \
                 --verify=crc32c --verify_fatal=1 --verify_state_save=0 --output=$T/out || { cat $T/out; exit 1; }",
    },
    Program {
        name: "fio, direct and asynchronous, xxhash",
        needs: &["fio"],
        script: "fio --name=v --directory=$D --size=24M --rw=randwrite --bs=4k-64k --direct=1 --ioengine=libaio \
                 --iodepth=16 --verify=xxhash --verify_fatal=1 --verify_state_save=0 --output=$T/out || { cat $T/out; exit 1; }",
    },
    Program {
        name: "fio, memory mapped",
        needs: &["fio"],
        script: "fio --name=v --directory=$D --size=24M --rw=randwrite --bs=4k --ioengine=mmap --verify=crc32c \
                 --verify_fatal=1 --verify_state_save=0 --output=$T/out || { cat $T/out; exit 1; }",
    },
    Program {
        name: "sqlite3, 2000 transactions each way, integrity check",
        needs: &["sqlite3"],
        script: r#"
for mode in delete wal truncate; do
  { echo "pragma journal_mode=$mode; pragma synchronous=full; pragma mmap_size=1048576;"
    echo "create table t(a integer primary key, b text);"
    i=0; while [ $i -lt 2000 ]; do echo "insert into t values($i, hex(randomblob(200)));"; i=$((i+1)); done
    echo "update t set b=hex(randomblob(300)) where a%7=0; delete from t where a%3=0; vacuum;"
  } | sqlite3 $D/$mode.db > /dev/null
  echo 3 > /proc/sys/vm/drop_caches 2> /dev/null || true
  test "$(sqlite3 $D/$mode.db 'pragma integrity_check; select count(*) from t;' | tr '\n' ' ')" = "ok 1333 "
done"#,
    },
    Program {
        name: "git: init, add, commit, gc, fsck, clone, worktree",
        needs: &["git"],
        script: r#"
export HOME=$T GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
git init -q $D/one; cd $D/one
cp -r "$SOURCE/crates" "$SOURCE/docs" .
git add -A; git commit -q -m first
for i in 1 2 3; do echo $i >> docs/DESIGN.md; git commit -q -am change; done
git gc -q; git fsck --full --strict
git clone -q --no-hardlinks $D/one $D/two; git clone -q $D/one $D/three
git worktree add -q $D/four HEAD~1
diff -r crates $D/two/crates; test -z "$(git -C $D/three status --porcelain)""#,
    },
    Program {
        name: "postmark, 2000 files, 5000 transactions",
        needs: &["postmark"],
        script: r#"
printf 'set location %s\nset number 2000\nset transactions 5000\nset subdirectories 10\nrun\nquit\n' $D | postmark > $T/out
grep -q "transactions per second\|seconds of transactions" $T/out; test -z "$(ls -A $D)""#,
    },
    Program {
        name: "bonnie++",
        needs: &["bonnie++"],
        script: "chown nobody $D 2> /dev/null || true; bonnie++ -d $D -s 64 -r 32 -n 2:8192:128:4 -f -q -u root",
    },
    Program {
        name: "tar of a tree, there and back, compared twice",
        needs: &["tar", "diff"],
        script: r#"
mkdir $D/a; tar cf - -C /usr/include . | tar xf - -C $D/a
diff -r --no-dereference /usr/include $D/a
echo 3 > /proc/sys/vm/drop_caches 2> /dev/null || true
diff -r --no-dereference /usr/include $D/a
tar cf - -C $D/a . | tar df - -C $D/a
rm -r $D/a"#,
    },
    Program {
        name: "a parallel build",
        needs: &["make", "cc"],
        script: r#"
for i in 1 2 3 4 5 6 7 8; do echo "int f$i(void) { return $i; }" > $D/f$i.c; done
echo "int f8(void); int main(void) { return f8() - 8; }" > $D/main.c
printf 'main: $(patsubst %%.c,%%.o,$(wildcard *.c))\n\tcc -o $@ $^\n' > $D/Makefile
make -s -C $D -j4; $D/main; make -s -C $D -q"#,
    },
    Program {
        name: "links, holes, special files",
        needs: &["truncate", "mkfifo", "mknod"],
        script: r#"
cd $D; echo one > a; ln a b; ln a c; test "$(stat -c %h a)" = 3
rm a; test "$(cat b)" = one; test "$(stat -c %h c)" = 2
exec 9< b; rm b c; test "$(cat <&9)" = one; exec 9<&-
truncate -s 1G hole; test "$(stat -c %b hole)" = 0
printf end | dd of=hole bs=1 seek=1000000000 conv=notrunc status=none
test "$(stat -c %b hole)" -le 16; cp --sparse=always hole copy; cmp hole copy; test "$(stat -c %b copy)" -le 16
fallocate -p -o 0 -l 1G hole; test "$(stat -c %s hole)" = 1073741824
mkfifo pipe; (echo through > pipe &); test "$(cat pipe)" = through
if [ "$(id -u)" = 0 ]; then mknod null c 1 3; echo gone > null; test "$(stat -c '%t %T' null)" = "1 3"; fi
ln -s nowhere dangling; test "$(readlink dangling)" = nowhere
mkdir -p x/y/z; mv x/y w; test -d w/z; test "$(stat -c %h x)" = 2"#,
    },
    Program {
        name: "extended attributes and access control lists",
        needs: &["setfattr", "getfattr", "setfacl", "getfacl"],
        script: r#"
cd $D; echo x > f
setfattr -n user.colour -v blue f; test "$(getfattr --only-values -n user.colour f)" = blue
head -c 3000 /dev/zero | tr '\0' v > $T/value; setfattr -n user.long -v "$(cat $T/value)" f
getfattr --only-values -n user.long f | cmp - $T/value
setfattr -x user.colour f; ! getfattr -n user.colour f 2> /dev/null
chmod 640 f; setfacl -m u:nobody:rw f; test "$(stat -c %a f)" = 660
getfacl -cp f | grep -q user:nobody:rw-
chmod 600 f; getfacl -cp f | grep -q 'mask::---'
mkdir d; setfacl -d -m u:nobody:rwx,g::rx,o::- d; umask 077; echo y > d/g; mkdir d/h
getfacl -cp d/g | grep -q user:nobody:rwx; test "$(stat -c %a d/g)" = 660
getfacl -cp d/h | grep -q default:user:nobody:rwx
setfacl -b f; test "$(getfacl -cp f | grep -c .)" = 3"#,
    },
];

/// The programs that come from the crate registry, by version; built once into `target/tools`.
const CRATES: &[(&str, &str)] = &[("fsx", "0.3.2"), ("pjdfstest", "0.2.2")];

fn tools() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools")
}

fn has(command: &str) -> bool {
    let places = std::env::var_os("PATH").unwrap_or_default();
    let own = tools().join("bin");
    let mut places = std::env::split_paths(&places).chain([own, "/usr/sbin".into(), "/sbin".into()]);
    places.any(|place| place.join(command).exists())
}

/// One at a time: two builds of one program would take each other's results away.
static INSTALLING: Mutex<()> = Mutex::new(());

fn install(command: &str) {
    let _one = INSTALLING.lock().unwrap_or_else(|held| held.into_inner());
    if let Some((name, version)) = CRATES.iter().find(|(name, _)| *name == command)
        && !has(name)
    {
        let wanted = format!("{name}@{version}");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.env_remove("CARGO_TARGET_DIR").env("CARGO_PROFILE_DEV_DEBUG", "0");
        // Offline, or with a registry that is down, the program stays missing.
        // Not optimized: they run for a moment, and building them so takes as long as a third of the tests.
        let _ = cargo
            .args(["install", "--debug", "--quiet", "--locked", "--root"])
            .arg(tools())
            .arg(wanted)
            .status();
    }
}

enum Outcome {
    Passed(f64),
    Missing(&'static str),
    Failed(String),
}

fn run(program: &Program, dir: &Path, scratch: &Path) -> Outcome {
    program.needs.iter().for_each(|command| install(command));
    if let Some(missing) = program.needs.iter().find(|command| !has(command)) {
        return Outcome::Missing(missing);
    }
    for path in [dir, scratch] {
        fs::create_dir(path).expect("a fresh directory");
    }
    let path = format!(
        "{}:/usr/sbin:/sbin:{}",
        tools().join("bin").display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let start = Instant::now();
    let output = Command::new("timeout")
        .args(["-k", "5", SECONDS_MAX, "sh", "-euc", program.script])
        .envs([("D", dir), ("T", scratch), ("SOURCE", Path::new(env!("CARGO_MANIFEST_DIR")))])
        .env("PATH", path)
        .output()
        .expect("timeout(1) and sh(1)");
    if output.status.success() {
        return Outcome::Passed(start.elapsed().as_secs_f64());
    }
    let said = [output.stdout, output.stderr].concat();
    Outcome::Failed(format!("{} ({})\n{}", program.name, output.status, String::from_utf8_lossy(&said)))
}

/// Runs every program in a directory of its own below `mount`; `scratch` is on the host. Panics if any failed.
pub fn check(label: &str, mount: &Path, scratch: &Path) {
    let mut failures = Vec::new();
    for (number, program) in PROGRAMS.iter().enumerate() {
        let (dir, own) = (mount.join(format!("p{number}")), scratch.join(format!("p{number}")));
        match run(program, &dir, &own) {
            Outcome::Passed(seconds) => println!("{label}: passed in {seconds:5.1} s: {}", program.name),
            Outcome::Missing(command) => {
                println!("{label}: skipped: {command} is not installed: {}", program.name)
            }
            Outcome::Failed(why) => {
                println!("{label}: FAILED: {}", program.name);
                failures.push(why);
            }
        }
    }
    assert!(failures.is_empty(), "{label}:\n{}", failures.join("\n\n"));
}

#[test]
#[ignore = "half a minute; write-back caching and nfhybrid are what a run of all tests has"]
fn real_programs_are_content_with_memfs() {
    if let Some(why) = no_fuse() {
        return skip(&why);
    }
    let mounted = Mounted::memfs("size=2GiB");
    check("memfs", mounted.path(), mounted.scratch());
    assert_eq!(mounted.status()["front"]["panics"], 0);
}

#[test]
fn real_programs_are_content_with_memfs_and_write_back_caching() {
    if let Some(why) = no_fuse() {
        return skip(&why);
    }
    let mounted = Mounted::memfs("size=2GiB,writeback");
    check("memfs, write-back", mounted.path(), mounted.scratch());
    assert_eq!(mounted.status()["front"]["panics"], 0);
}
