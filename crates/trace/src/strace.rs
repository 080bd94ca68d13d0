//! What `strace -f -y -ttt` prints, as system calls on numbered paths.
//!
//! `-y` shows the path of every descriptor, so that only positions need to be followed ([`Descriptors`]): from where
//! a file was opened, by reads, writes and `lseek`, through `dup`, `fork` and threads; to the file's end with
//! `O_APPEND`. Relative paths are taken
//! from the directory that `AT_FDCWD<…>` or the descriptor shows. Calls that failed, that were cut in two by another
//! process (`unfinished`, whose second half is used), and calls on what is no file are passed over. Of a descriptor
//! that was opened before the trace began, the position is 0 until a call tells it.

use super::descriptors::Descriptors;
use super::fields::Wrong;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// One call that succeeded, on paths by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Traced {
    /// Nanoseconds since the epoch, or the beginning.
    pub at_ns: u64,
    /// Who called.
    pub process: u32,
    /// As system-call traces name it.
    pub name: &'static str,
    pub path: u32,
    /// As system-call traces have it: of a rename the new path.
    pub offset: u64,
    pub len: u64,
    pub result: u64,
}

/// Reads line after line.
#[derive(Default)]
pub(super) struct Strace {
    numbers: FxHashMap<String, u32>,
    /// Paths by number.
    pub paths: Vec<String>,
    descriptors: Descriptors,
    /// First halves of calls, by process.
    halves: FxHashMap<u32, String>,
    /// How many calls were passed over, by their names or why.
    passed_over: BTreeMap<String, u64>,
}

/// Whether text begins like this format.
pub(super) fn is_strace(first_line: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(first_line) else { return false };
    head(text).is_ok_and(|(_, _, call)| call.contains('(') || call.starts_with("+++"))
}

/// The arguments of a call: apart at commas outside quotes, brackets and `<…>`.
fn arguments(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut quoted, mut escaped, mut from) = (Vec::new(), 0i32, false, false, 0);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ if quoted => {}
            '{' | '[' | '<' | '(' => depth += 1,
            '}' | ']' | '>' | ')' => depth -= 1,
            ',' if depth <= 0 => {
                parts.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[from..].trim());
    parts
}

/// `3</home/x>`: the descriptor and its path.
fn descriptor(text: &str) -> Option<(u32, &str)> {
    let (number, rest) = text.split_once('<')?;
    let path = rest.strip_suffix('>')?;
    let path = path.strip_suffix("(deleted)").unwrap_or(path);
    Some((number.parse().ok()?, path)).filter(|(_, path)| path.starts_with('/'))
}

/// Whether a flag is among flags.
fn has(flags: &str, flag: &str) -> bool {
    flags.split('|').any(|one| one.trim() == flag)
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}

impl Strace {
    fn path(&mut self, path: &str) -> u32 {
        let mut whole: Vec<&str> = Vec::new();
        for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
            match part {
                ".." => drop(whole.pop()),
                part => whole.push(part),
            }
        }
        let path = format!("/{}", whole.join("/"));
        let next = self.paths.len() as u32;
        *self.numbers.entry(path).or_insert_with_key(|path| {
            self.paths.push(path.clone());
            next
        })
    }

    /// A path argument, in the directory of a descriptor argument.
    fn path_at(&mut self, dir: Option<&str>, name: &str) -> Option<u32> {
        let name = name.strip_prefix('"')?.strip_suffix('"')?;
        if name.starts_with('/') {
            return Some(self.path(name));
        }
        let dir = dir.and_then(|dir| dir.split_once('<')).and_then(|(_, rest)| rest.strip_suffix('>'));
        Some(self.path(&format!("{}/{name}", dir.unwrap_or("/?"))))
    }

    /// Takes a line; the call on it, if it is one that succeeded on a file.
    pub fn line(&mut self, line: &[u8]) -> Result<Option<Traced>, Wrong> {
        let text = String::from_utf8_lossy(line);
        let (pid, at_ns, call) = head(&text)?;
        if let Some(half) = call.strip_suffix("<unfinished ...>") {
            if self.halves.insert(pid, half.trim_end().to_string()).is_some() {
                self.pass_over("unfinished");
            }
            return Ok(None);
        }
        let joined = match call.strip_prefix("<... ") {
            None => call.to_string(),
            Some(rest) => {
                let Some(first) = self.halves.remove(&pid) else {
                    self.pass_over("unfinished");
                    return Ok(None);
                };
                format!("{first}{}", rest.split_once("resumed>").map_or("", |(_, rest)| rest))
            }
        };
        let Some((name, rest)) = joined.split_once('(') else { return Ok(None) };
        let whole = rest.rsplit_once(" = ");
        let Some((inside, result)) =
            whole.and_then(|(inside, result)| Some((inside.trim_end().strip_suffix(')')?, result)))
        else {
            self.pass_over("unfinished");
            return Ok(None);
        };
        if result.starts_with(['-', '?']) {
            self.pass_over("failed");
            return Ok(None);
        }
        let called = self.call(pid, name, &arguments(inside), result);
        if called.is_none() {
            self.pass_over(name);
        }
        Ok(called.map(|traced| Traced { at_ns, process: pid, ..traced }))
    }

    fn pass_over(&mut self, name: &str) {
        *self.passed_over.entry(name.to_string()).or_default() += 1;
    }

    /// How many calls were passed over, by their names, or because they `failed` or were `unfinished`.
    pub fn left_out(&self) -> BTreeMap<String, u64> {
        let mut all = self.passed_over.clone();
        if !self.halves.is_empty() {
            *all.entry("unfinished".into()).or_default() += self.halves.len() as u64;
        }
        all
    }

    fn call(&mut self, pid: u32, name: &str, args: &[&str], result: &str) -> Option<Traced> {
        let arg = |index: usize| args.get(index).copied().unwrap_or_default();
        let plain = |name, path| Traced { at_ns: 0, process: 0, name, path, offset: 0, len: 0, result: 0 };
        match name {
            "open" | "openat" | "creat" => {
                let (fd, path) = descriptor(result)?;
                let flags = if name == "openat" { arg(2) } else { arg(1) };
                let path = self.path(path);
                Some(plain(self.opened(pid, (fd, path), flags, name == "creat"), path))
            }
            "read" | "readv" | "write" | "writev" | "pread64" | "pwrite64" | "preadv" | "pwritev" => {
                let ((fd, path), len) = (descriptor(arg(0))?, number(result));
                let (path, at) = (self.path(path), name.starts_with('p').then(|| number(arg(3))));
                let (name, offset) = match name.contains("read") {
                    true => ("read", self.descriptors.read(pid, fd, path, at, len)),
                    false => ("write", self.descriptors.written(pid, fd, path, at, len)),
                };
                Some(Traced { at_ns: 0, process: 0, name, path, offset, len, result: len })
            }
            "ftruncate" | "truncate" => {
                let path = match descriptor(arg(0)) {
                    Some((_, path)) => self.path(path),
                    None => self.path_at(None, arg(0))?,
                };
                self.descriptors.ends_at(path, number(arg(1)));
                Some(Traced { len: number(arg(1)), ..plain("truncate", path) })
            }
            "fallocate" => {
                let (path, flags) = (self.path(descriptor(arg(0))?.1), arg(1));
                let (offset, len) = (number(arg(2)), number(arg(3)));
                let keeps = has(flags, "FALLOC_FL_KEEP_SIZE");
                let name = match (has(flags, "FALLOC_FL_PUNCH_HOLE"), has(flags, "FALLOC_FL_ZERO_RANGE")) {
                    (true, _) => "punch",
                    (_, true) if keeps => "zero-keep",
                    (_, true) => "zero",
                    _ if keeps => "fallocate-keep",
                    _ if flags == "0" => "fallocate",
                    // Ranges that are cut out or put in: not played.
                    _ => return None,
                };
                if !keeps {
                    self.descriptors.reaches(path, offset.saturating_add(len));
                }
                Some(Traced { offset, len, ..plain(name, path) })
            }
            "fsync" | "fdatasync" => Some(plain("fsync", self.path(descriptor(arg(0))?.1))),
            "getdents64" | "getdents" => {
                let path = self.path(descriptor(arg(0))?.1);
                Some(Traced { result: number(result), ..plain("getdents", path) })
            }
            _ => {
                self.follow(pid, name, args, result);
                self.call_on_names(name, args)
            }
        }
    }

    /// A file was opened: what that is to it.
    fn opened(&mut self, pid: u32, (fd, path): (u32, u32), flags: &str, creat: bool) -> &'static str {
        self.descriptors.opened(pid, fd, has(flags, "O_APPEND"));
        let truncates = creat || has(flags, "O_TRUNC");
        if truncates || has(flags, "O_EXCL") {
            self.descriptors.ends_at(path, 0);
        }
        match (has(flags, "O_CREAT") || creat, truncates) {
            (true, _) => "opencreate",
            (false, true) => "opentrunc",
            _ => "open",
        }
    }

    /// Calls that are no requests but say where later ones go.
    fn follow(&mut self, pid: u32, name: &str, args: &[&str], result: &str) -> Option<()> {
        let arg = |index: usize| args.get(index).copied().unwrap_or_default();
        match name {
            "lseek" => {
                let (fd, path) = descriptor(arg(0))?;
                self.descriptors.seek(pid, fd, number(result));
                let from_end: Option<i64> = arg(1).parse().ok().filter(|_| arg(2) == "SEEK_END");
                if let Some(end) =
                    from_end.and_then(|by| number(result).checked_add_signed(by.checked_neg()?))
                {
                    let path = self.path(path);
                    self.descriptors.ends_at(path, end);
                }
            }
            "close" => self.descriptors.closed(pid, descriptor(arg(0))?.0),
            "dup" | "dup2" | "dup3" => {
                self.descriptors.duplicated(pid, descriptor(arg(0))?.0, descriptor(result)?.0);
            }
            "fcntl" | "fcntl64" if arg(1).starts_with("F_DUPFD") => {
                self.descriptors.duplicated(pid, descriptor(arg(0))?.0, descriptor(result)?.0);
            }
            "fcntl" | "fcntl64" if arg(1) == "F_SETFL" => {
                self.descriptors.set_append(pid, descriptor(arg(0))?.0, has(arg(2), "O_APPEND"));
            }
            "fork" | "vfork" | "clone" | "clone3" => {
                let child = result.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
                let shares = args.iter().any(|arg| arg.contains("CLONE_FILES"));
                self.descriptors.forked(pid, child, shares);
            }
            "fstat" | "stat" | "newfstatat" | "fstatat64" | "statx" => self.told_size(name, args)?,
            _ => {}
        }
        Some(())
    }

    /// A call told the size of a file.
    fn told_size(&mut self, name: &str, args: &[&str]) -> Option<()> {
        let state = args.iter().find(|arg| arg.starts_with('{') && arg.contains("S_IFREG"))?;
        let (_, size) = state.split_once("_size=")?;
        let size = size.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
        let at = name.contains("at") && !matches!(name, "fstat" | "stat");
        let path = match (at, args.first()?) {
            (true, dir) if args.get(1) == Some(&"\"\"") => self.path(descriptor(dir)?.1),
            (true, dir) => self.path_at(Some(dir), args.get(1)?)?,
            (false, first) => match descriptor(first) {
                Some((_, path)) => self.path(path),
                None => self.path_at(None, first)?,
            },
        };
        self.descriptors.ends_at(path, size);
        Some(())
    }

    fn call_on_names(&mut self, name: &str, args: &[&str]) -> Option<Traced> {
        let arg = |index: usize| args.get(index).copied().unwrap_or_default();
        let plain = |name, path| Traced { at_ns: 0, process: 0, name, path, offset: 0, len: 0, result: 0 };
        let at = name.ends_with("at") || name.ends_with("at2");
        let (dir, first) = if at { (Some(arg(0)), arg(1)) } else { (None, arg(0)) };
        match name {
            "unlink" | "rmdir" | "mkdir" | "mkdirat" | "readlink" | "readlinkat" | "execve" | "unlinkat" => {
                let kind = match name {
                    "unlinkat" if arg(2).contains("AT_REMOVEDIR") => "rmdir",
                    "unlinkat" => "unlink",
                    "execve" => "exec",
                    "rmdir" => "rmdir",
                    "unlink" => "unlink",
                    other if other.starts_with("mkdir") => "mkdir",
                    _ => "readlink",
                };
                let path = self.path_at(dir, first)?;
                if kind == "unlink" {
                    self.descriptors.removed(path);
                }
                Some(plain(kind, path))
            }
            "chmod" | "fchmodat" | "chown" | "lchown" | "fchownat" | "utimensat" => {
                let path = match descriptor(first).or_else(|| descriptor(arg(0)).filter(|_| first == "NULL"))
                {
                    Some((_, path)) => self.path(path),
                    None => self.path_at(dir, first)?,
                };
                Some(plain("setattr", path))
            }
            "rename" | "link" | "renameat" | "renameat2" | "linkat" => {
                let old = self.path_at(dir, first)?;
                let (dir, second) = if at { (Some(arg(2)), arg(3)) } else { (None, arg(1)) };
                let new = self.path_at(dir, second)?;
                let kind = if name.starts_with("rename") { "rename" } else { "link" };
                if kind == "rename" {
                    self.descriptors.renamed(old, new);
                }
                Some(Traced { offset: new.into(), ..plain(kind, old) })
            }
            "symlink" | "symlinkat" => {
                let (dir, link) = if at { (Some(arg(1)), arg(2)) } else { (None, arg(1)) };
                let len = arg(0).len().saturating_sub(2) as u64;
                Some(Traced { len, ..plain("symlink", self.path_at(dir, link)?) })
            }
            _ => None,
        }
    }
}

/// `PID TIME call…`, or `TIME call…` of a single process.
fn head(text: &str) -> Result<(u32, u64, &str), Wrong> {
    let text = text.trim_end();
    let text = text.strip_prefix("[pid").map_or(text, |rest| rest.trim_start());
    let (first, rest) =
        text.split_once(' ').ok_or_else(|| Wrong::new(1, "process", "is alone on the line"))?;
    let (pid, time, rest) = match first.contains('.') {
        true => (0, first, rest),
        false => {
            let pid = first.trim_end_matches(']').parse();
            let pid = pid.map_err(|_| Wrong::new(1, "process", format!("'{first}' is not a number")))?;
            let (time, rest) = rest.trim_start().split_once(' ').unwrap_or((rest, ""));
            (pid, time, rest)
        }
    };
    let wrong = || Wrong::new(2, "time", format!("'{time}' is not a time as -ttt prints it"));
    let (sec, fraction) = time.split_once('.').ok_or_else(wrong)?;
    let sec: u64 = sec.parse().map_err(|_| wrong())?;
    let digits: u64 =
        fraction.get(..9.min(fraction.len())).and_then(|text| text.parse().ok()).ok_or_else(wrong)?;
    let scale = 10u64.pow(9u32.saturating_sub(fraction.len().min(9) as u32));
    let at_ns = sec.checked_mul(1_000_000_000).and_then(|ns| ns.checked_add(digits * scale));
    Ok((pid, at_ns.ok_or_else(wrong)?, rest.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_with_their_paths_and_positions() {
        let text = r#"7 1700000000.000001 execve("/bin/cp", ["cp", "a,b"], 0x7ffe /* 3 vars */) = 0
7 1700000000.100000 openat(AT_FDCWD</w>, "a, (b)", O_RDONLY|O_CLOEXEC) = 3</w/a, (b)>
7 1700000000.200000 read(3</w/a, (b)>, ""..., 65536) = 4096
7 1700000000.300000 read(3</w/a, (b)>,  <unfinished ...>
8 1700000000.310000 openat(AT_FDCWD</w>, "gone", O_RDONLY) = -1 ENOENT (No such file or directory)
7 1700000000.400000 <... read resumed>""..., 65536) = 100
7 1700000000.500000 pwrite64(4</w/sub/../c>, ""..., 10, 500) = 10
7 1700000000.600000 rename("/w/c", "/w/d") = 0
7 1700000000.700000 write(1<pipe:[55]>, ""..., 5) = 5
7 1700000000.800000 unlinkat(AT_FDCWD</w>, "sub", AT_REMOVEDIR) = 0
7 1700000000.900000 +++ exited with 0 +++"#;
        assert!(is_strace(text.lines().next().unwrap().as_bytes()));
        let mut strace = Strace::default();
        let calls: Vec<Traced> =
            text.lines().filter_map(|line| strace.line(line.as_bytes()).unwrap()).collect();
        let short: Vec<_> =
            calls.iter().map(|call| (call.name, call.path, call.offset, call.result)).collect();
        assert_eq!(
            short,
            [
                ("exec", 0, 0, 0),
                ("open", 1, 0, 0),
                ("read", 1, 0, 4096),
                ("read", 1, 4096, 100),
                ("write", 2, 500, 10),
                ("rename", 2, 3, 0),
                ("rmdir", 4, 0, 0),
            ]
        );
        assert_eq!(strace.paths, ["/bin/cp", "/w/a, (b)", "/w/c", "/w/d", "/w/sub"]);
        assert_eq!(calls[2].at_ns, 1_700_000_000_200_000_000);
    }

    #[test]
    fn appended_and_inherited_positions_are_followed() {
        let text = r#"7 1.000001 newfstatat(AT_FDCWD</w>, "log", {st_mode=S_IFREG|0644, st_size=500, ...}, 0) = 0
7 1.100000 openat(AT_FDCWD</w>, "log", O_WRONLY|O_CREAT|O_APPEND, 0666) = 3</w/log>
7 1.200000 dup2(3</w/log>, 1</dev/null>) = 1</w/log>
7 1.300000 close(3</w/log>) = 0
7 1.400000 clone(child_stack=NULL, flags=CLONE_CHILD_SETTID|SIGCHLD) = 8
8 1.500000 write(1</w/log>, ""..., 10) = 10
7 1.600000 write(1</w/log>, ""..., 10) = 10
7 1.700000 openat(AT_FDCWD</w>, "data", O_RDWR) = 3</w/data>
7 1.800000 lseek(3</w/data>, -8, SEEK_END) = 92
7 1.810000 fcntl(3</w/data>, F_SETFL, O_RDWR|O_APPEND) = 0
7 1.820000 write(3</w/data>, ""..., 5) = 5
7 1.830000 fork() = 9
9 1.840000 read(3</w/data>, ""..., 5) = 0
7 1.850000 ftruncate(3</w/data>, 20) = 0
9 1.860000 pwrite64(3</w/data>, ""..., 5, 2) = 5
7 1.870000 fstat(3</w/data>, {st_mode=S_IFREG|0644, st_size=4096, ...}) = 0
7 1.880000 write(3</w/data>, ""..., 1) = 1"#;
        let mut strace = Strace::default();
        let calls = text.lines().filter_map(|line| strace.line(line.as_bytes()).unwrap());
        let places: Vec<_> = calls
            .filter(|call| matches!(call.name, "read" | "write"))
            .map(|call| (call.name, call.path, call.offset))
            .collect();
        let (log, data) = (0, 1);
        let data_paths = strace.paths.iter().position(|path| path == "/w/data");
        assert_eq!(data_paths, Some(data as usize));
        assert_eq!(
            places,
            [
                ("write", log, 500),
                ("write", log, 510),
                ("write", data, 100),
                ("read", data, 105),
                ("write", data, 20),
                ("write", data, 4096),
            ]
        );
    }

    #[test]
    fn noise_is_an_error_or_nothing_and_never_a_panic() {
        let mut random = bimetal_base::random::Random::new(1, "noise");
        let mut strace = Strace::default();
        let pieces =
            ["7 ", "1.5 ", "read(", "3</a>", ", ", "\"x\"", ") = ", "9", "<... ", "resumed>", "€", "]", "<"];
        for _ in 0..5000 {
            let text: String =
                (0..random.below(14)).map(|_| pieces[random.below(pieces.len() as u64) as usize]).collect();
            let _ = strace.line(text.as_bytes());
        }
        assert!(!is_strace(b"#time_s,pid,op") && !is_strace(b"0.5,1,read(x"));
    }
}
