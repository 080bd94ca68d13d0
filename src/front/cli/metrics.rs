//! `bimetal metrics`: what mounts say of themselves, for Prometheus, over HTTP on a loopback address or a unix socket.
//!
//! Each request asks each mount anew, all at once; of one that does not answer within [`PATIENCE`] it is told that it does not.
//! Each caller has a thread of its own, and [`PATIENCE`] to ask and to listen; there are no more than [`CALLERS_MAX`] at a time. Only GET and HEAD of `/metrics` and `/` are answered, and nothing of a request is kept.

use super::exposition::exposition;
use super::sample::Look;
use crate::front::{live, signals};
use crate::{Error, Result};
use clap::Args;
use parking_lot::{Condvar, Mutex};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  bimetal metrics /mnt                                 http://127.0.0.1:9750/metrics, until Ctrl-C
  bimetal metrics --listen '[::1]:9751' /mnt /data
  bimetal metrics --socket /tmp/bimetal.sock /mnt      curl --unix-socket /tmp/bimetal.sock http://x/metrics
  bimetal metrics --once /mnt > bimetal.new && mv bimetal.new /var/lib/prometheus/node-exporter/bimetal.prom
Only this machine is answered: addresses that others reach are refused. A board for Grafana is in
packaging/grafana, and where the documents are installed.";

/// Who takes longer to ask, or to take an answer, gets none; a mount that takes longer is told to be down.
const PATIENCE: Duration = Duration::from_secs(2);
/// Callers that are listened to at a time; more are turned away.
const CALLERS_MAX: usize = 64;
/// The longest head of a request.
const HEAD_MAX: usize = 8 << 10;
/// Prometheus' text format.
const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Tell Prometheus how mounts are
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Metrics {
    /// A loopback address and port; port 0 takes a free one, and says which
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9750", conflicts_with_all = ["socket", "once"])]
    listen: SocketAddr,
    /// A unix socket, in place of an address
    #[arg(long, value_name = "PATH", conflicts_with = "once")]
    socket: Option<PathBuf>,
    /// Print the metrics once, and end
    #[arg(long)]
    once: bool,
    /// Directories that are mounted on
    #[arg(required = true)]
    mountpoints: Vec<PathBuf>,
}

impl Metrics {
    pub fn run(&self) -> Result<ExitCode> {
        let mounts: Arc<[Arc<Asked>]> = whole(&self.mountpoints)?.into_iter().map(Asked::new).collect();
        // What is no mount now is a mistake; what is none later, or does not answer, is told as such.
        let looks = looks(&mounts);
        if let Some(Err(why)) = looks.iter().flatten().map(|look| &**look).find(|look| look.is_err()) {
            return Err(Error::invalid(why.to_string()));
        }
        if self.once {
            super::say(told(&mounts, &looks).trim_end())?;
            return Ok(ExitCode::SUCCESS);
        }
        match &self.socket {
            Some(socket) => on_socket(socket, &mounts),
            None => on_address(self.listen, &mounts),
        }
    }
}

/// A mount that is asked, again and again: by one thread at a time, however often its server does not answer.
struct Asked {
    place: PathBuf,
    now: Mutex<Now>,
    answered: Condvar,
}

#[derive(Default)]
struct Now {
    is_asked: bool,
    answers: u64,
    last: Option<Arc<Result<Look>>>,
}

impl Asked {
    fn new(place: PathBuf) -> Arc<Asked> {
        Arc::new(Asked { place, now: Mutex::default(), answered: Condvar::new() })
    }

    /// Asks, unless it is being asked already; how many answers there were before.
    fn ask(self: &Arc<Self>) -> u64 {
        let mut now = self.now.lock();
        if !now.is_asked {
            let mount = self.clone();
            let ask = move || {
                let look = Look::at(&mount.place);
                let mut now = mount.now.lock();
                (now.last, now.is_asked) = (Some(Arc::new(look)), false);
                now.answers += 1;
                mount.answered.notify_all();
            };
            now.is_asked = thread::Builder::new().name("ask".into()).spawn(ask).is_ok();
        }
        now.answers
    }

    /// The next answer, if it comes in time.
    fn answer(&self, before: u64, until: Instant) -> Option<Arc<Result<Look>>> {
        let mut now = self.now.lock();
        while now.answers == before {
            if self.answered.wait_until(&mut now, until).timed_out() {
                return None;
            }
        }
        now.last.clone()
    }
}

/// Asks all mounts at once; those that do not answer in time are none.
fn looks(mounts: &[Arc<Asked>]) -> Vec<Option<Arc<Result<Look>>>> {
    let until = Instant::now() + PATIENCE;
    let asked: Vec<u64> = mounts.iter().map(Asked::ask).collect();
    mounts.iter().zip(asked).map(|(mount, before)| mount.answer(before, until)).collect()
}

fn told(mounts: &[Arc<Asked>], looks: &[Option<Arc<Result<Look>>>]) -> String {
    let all = mounts.iter().zip(looks).map(|(mount, found)| {
        let found = found.as_deref().and_then(|found| found.as_ref().ok());
        (mount.place.as_path(), found)
    });
    exposition(all.collect())
}

/// Absolute paths without links, each once: a mount has the same label wherever the command was started.
fn whole(places: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut all: Vec<PathBuf> = Vec::new();
    for place in places {
        let whole = place.canonicalize().map_err(|why| match why.raw_os_error() {
            Some(libc::ENOTCONN) => super::status::dead(place),
            _ => Error::io(place.display(), why),
        })?;
        if !all.contains(&whole) {
            all.push(whole);
        }
    }
    Ok(all)
}

fn on_socket(socket: &Path, mounts: &Arc<[Arc<Asked>]>) -> Result<ExitCode> {
    let signals = signals::hold()?;
    let listener = live::listen(socket, socket)?;
    let (bound, place) = (live::identity(socket), socket.to_path_buf());
    signals.watch(move |_| {
        live::remove(&place, bound);
        std::process::exit(0);
    })?;
    super::say(&format!("metrics on {}", super::place(socket)))?;
    answer_all(listener.incoming(), mounts);
    Ok(ExitCode::SUCCESS)
}

fn on_address(address: SocketAddr, mounts: &Arc<[Arc<Asked>]>) -> Result<ExitCode> {
    if !address.ip().is_loopback() {
        return Err(Error::invalid(format!(
            "--listen {address}: other machines reach this address, and nobody is asked who they are; listen on a loopback \
             address (127.0.0.1:9750) or a socket (--socket PATH), behind a proxy that asks if it is meant for others"
        )));
    }
    let failed = |why| Error::io(format!("--listen {address}"), why);
    let listener = TcpListener::bind(address).map_err(failed)?;
    super::say(&format!("metrics on http://{}/metrics", listener.local_addr().map_err(failed)?))?;
    answer_all(listener.incoming(), mounts);
    Ok(ExitCode::SUCCESS)
}

/// A connection that waits for its other end no longer than it is told.
trait Patient: Read + Write + Send + 'static {
    /// How long the next read and write wait at most.
    fn wait_for(&self, time: Duration) -> io::Result<()>;
}

impl Patient for TcpStream {
    fn wait_for(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }
}

impl Patient for UnixStream {
    fn wait_for(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }
}

/// A connection up to a moment, however little comes or goes at a time.
struct Until<S>(S, Instant);

impl<S: Patient> Until<S> {
    fn hurry(&self) -> io::Result<()> {
        let left = self.1.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { self.0.wait_for(left) }
    }
}

impl<S: Patient> Read for Until<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.hurry()?;
        self.0.read(into)
    }
}

impl<S: Patient> Write for Until<S> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.hurry()?;
        self.0.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Answers each caller in a thread of its own. Who has gone is not answered.
fn answer_all<S: Patient>(callers: impl Iterator<Item = io::Result<S>>, mounts: &Arc<[Arc<Asked>]>) {
    let present = Arc::new(());
    for stream in callers {
        let Ok(stream) = stream else {
            // Such as no descriptor left: it comes again at once.
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        if Arc::strong_count(&present) > CALLERS_MAX {
            continue;
        }
        let (here, mounts) = (present.clone(), mounts.clone());
        let answer = move || {
            let _ = answer(stream, &mounts);
            drop(here);
        };
        // Who finds no thread has to come again.
        let _ = thread::Builder::new().name("answer".into()).spawn(answer);
    }
}

fn answer(stream: impl Patient, mounts: &[Arc<Asked>]) -> io::Result<()> {
    let mut stream = Until(stream, Instant::now() + PATIENCE);
    let head = read_head(&mut stream)?;
    let answer = answer_to(&head, || told(mounts, &looks(mounts)));
    stream.1 = Instant::now() + PATIENCE;
    stream.write_all(&answer)
}

/// The head of a request, up to the empty line; what comes after [`HEAD_MAX`] is not read.
fn read_head(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut part = [0; 1024];
    while head.len() < HEAD_MAX && !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut part)? {
            0 => break,
            count => head.extend_from_slice(&part[..count]),
        }
    }
    Ok(head)
}

/// The answer to a request with this head.
fn answer_to(head: &[u8], metrics: impl FnOnce() -> String) -> Vec<u8> {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let is_http = words.next().is_some_and(|version| version.starts_with("HTTP/1."));
    let (state, kind, body) = match (is_http, method, path) {
        (false, _, _) => ("400 Bad Request", FORMAT, "this speaks HTTP/1.1\n".to_string()),
        (_, "GET" | "HEAD", "/metrics") => ("200 OK", FORMAT, metrics()),
        (_, "GET" | "HEAD", "/") => ("200 OK", "text/plain", "bimetal: see /metrics\n".to_string()),
        (_, "GET" | "HEAD", _) => ("404 Not Found", "text/plain", "there is only /metrics\n".to_string()),
        _ => ("405 Method Not Allowed\r\nAllow: GET, HEAD", "text/plain", "only GET and HEAD\n".to_string()),
    };
    let mut answer = format!(
        "HTTP/1.1 {state}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    )
    .into_bytes();
    if method != "HEAD" {
        answer.extend_from_slice(body.as_bytes());
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(head: &str) -> String {
        String::from_utf8(answer_to(head.as_bytes(), || "up 1\n".into())).unwrap()
    }

    #[test]
    fn metrics_are_given_to_who_asks_for_them_and_nothing_else() {
        let said = answer("GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(said.starts_with("HTTP/1.1 200 OK\r\n") && said.contains("Content-Length: 5\r\n"), "{said}");
        assert!(said.ends_with("\r\n\r\nup 1\n") && said.contains("version=0.0.4"), "{said}");
        let head = answer("HEAD /metrics HTTP/1.0\r\n\r\n");
        assert!(head.contains("Content-Length: 5") && head.ends_with("\r\n\r\n"), "{head}");
        for (request, state) in [
            ("GET /etc/passwd HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("nonsense\r\n\r\n", "400"),
            ("", "400"),
        ] {
            let said = answer(request);
            assert!(said.starts_with(&format!("HTTP/1.1 {state} ")), "{request}: {said}");
        }
    }

    #[test]
    fn a_head_without_end_is_not_read_for_ever() {
        let head = read_head(&mut io::repeat(b'x')).unwrap();
        assert!((HEAD_MAX..HEAD_MAX + 1024).contains(&head.len()));
        assert_eq!(read_head(&mut &b"GET / HTTP/1.1\r\n\r\nrest"[..]).unwrap().len(), 22);
    }
}
