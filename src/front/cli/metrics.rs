//! `bimetal metrics`: what mounts say of themselves, for Prometheus, over HTTP on a loopback address or a unix socket.
//!
//! Each request asks each mount anew, one request at a time: a caller that neither asks nor listens is left after
//! [`PATIENCE`]. Only GET and HEAD of `/metrics` and `/` are answered, and nothing of a request is kept.

use super::exposition::exposition;
use super::sample::Look;
use crate::front::{live, signals};
use crate::{Error, Result};
use clap::Args;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  bimetal metrics /mnt                                 http://127.0.0.1:9750/metrics, until Ctrl-C
  bimetal metrics --listen '[::1]:9751' /mnt /data
  bimetal metrics --socket /tmp/bimetal.sock /mnt      curl --unix-socket /tmp/bimetal.sock http://x/metrics
  bimetal metrics --once /mnt > /var/lib/prometheus/node-exporter/bimetal.prom
Only this machine is answered: addresses that others reach are refused. A board for Grafana is in
packaging/grafana, and where the documents are installed.";

/// Who takes longer to ask, or to take an answer, gets none.
const PATIENCE: Duration = Duration::from_secs(2);
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
        // What is no mount now is a mistake; what is none later is told as such.
        let looks = self.mountpoints.iter().map(|place| Look::at(place)).collect::<Result<Vec<Look>>>()?;
        let places = whole(&self.mountpoints)?;
        if self.once {
            let of = places.iter().map(PathBuf::as_path).zip(looks.into_iter().map(Some)).collect();
            super::say(exposition(of).trim_end())?;
            return Ok(ExitCode::SUCCESS);
        }
        match &self.socket {
            Some(socket) => on_socket(socket, &places),
            None => on_address(self.listen, &places),
        }
    }
}

/// Absolute paths without links: a mount has the same label wherever the command was started.
fn whole(places: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let whole = |place: &PathBuf| place.canonicalize().map_err(|why| Error::io(place.display(), why));
    places.iter().map(whole).collect()
}

fn on_socket(socket: &Path, places: &[PathBuf]) -> Result<ExitCode> {
    let signals = signals::hold()?;
    let listener = live::listen(socket, socket)?;
    let (bound, place) = (live::identity(socket), socket.to_path_buf());
    signals.watch(move |_| {
        live::remove(&place, bound);
        std::process::exit(0);
    })?;
    super::say(&format!("metrics on {}", super::place(socket)))?;
    for stream in listener.incoming() {
        // Who has gone is not answered.
        let _ = stream.and_then(|mut stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            answer(&mut stream, places)
        });
    }
    Ok(ExitCode::SUCCESS)
}

fn on_address(address: SocketAddr, places: &[PathBuf]) -> Result<ExitCode> {
    if !address.ip().is_loopback() {
        return Err(Error::invalid(format!(
            "--listen {address}: other machines reach this address, and nobody is asked who they are; listen on a loopback \
             address (127.0.0.1:9750) or a socket (--socket PATH), behind a proxy that asks if it is meant for others"
        )));
    }
    let failed = |why| Error::io(format!("--listen {address}"), why);
    let listener = TcpListener::bind(address).map_err(failed)?;
    super::say(&format!("metrics on http://{}/metrics", listener.local_addr().map_err(failed)?))?;
    for stream in listener.incoming() {
        let _ = stream.and_then(|mut stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            answer(&mut stream, places)
        });
    }
    Ok(ExitCode::SUCCESS)
}

fn answer(stream: &mut (impl Read + Write), places: &[PathBuf]) -> io::Result<()> {
    let head = read_head(stream)?;
    let now = || exposition(places.iter().map(|place| (place.as_path(), Look::at(place).ok())).collect());
    stream.write_all(&answer_to(&head, now))
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
