//! Where messages go.
//!
//! To standard error, warnings and worse. A server that leaves its terminal has a log as well, for information, too: a file, or
//! the system's log, by the datagrams of syslog(3), which under systemd is the journal. `BIMETAL_LOG` says otherwise for
//! both. No server waits for its log: what the system's log does not take at once is lost. Cost: one call a message.

use crate::error::shown;
use crate::{Error, Result};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::writer::OptionalWriter;
use tracing_subscriber::fmt::{MakeWriter, layer};
use tracing_subscriber::{EnvFilter, Layer, layer::SubscriberExt, util::SubscriberInitExt};

/// Where the system's log listens.
const SYSTEM: &str = "/dev/log";
/// The facility of system daemons, as syslog(3) numbers it.
const DAEMON: u8 = 3;
/// The longest message for the system's log; any that listens takes that much.
const MESSAGE_BYTES_MAX: usize = 8000;

/// The log of this process, once it has one.
static LOG: OnceLock<Log> = OnceLock::new();
/// Standard error is nobody's any more.
static LEFT: AtomicBool = AtomicBool::new(false);

/// The log of a server.
enum Log {
    File(File),
    System(SystemLog),
}

/// From here on there are messages. To be called once.
pub(super) fn begin() {
    // A mount that somebody else took away is no matter of a warning: it is how most servers end.
    let quiet = |least: &str| EnvFilter::new(format!("{least},fuser::mnt=error"));
    let filter = |least: &str| EnvFilter::try_from_env("BIMETAL_LOG").unwrap_or_else(|_| quiet(least));
    let terminal = layer().with_ansi(false).with_writer(Terminal);
    // It would be said on standard error, which is what failed, and end the process.
    let terminal = terminal.with_target(false).log_internal_errors(false);
    let log = layer().with_ansi(false).with_timer(Clock).with_writer(ToLog);
    let log = log.with_target(false).log_internal_errors(false);
    let all = tracing_subscriber::registry().with(terminal.with_filter(filter("warn")));
    all.with(log.with_filter(filter("info"))).init();
}

/// From here on messages go to a file, too.
pub(super) fn log_to_file(file: File) {
    // A process has one log.
    let _ = LOG.set(Log::File(file));
}

/// From here on messages go to the system's log, too, if there is one.
///
/// # Errors
/// A socket cannot be made.
pub(super) fn log_to_system() -> Result<()> {
    let log =
        SystemLog::at(Path::new(SYSTEM)).map_err(|why| Error::io("a socket for the system's log", why))?;
    let _ = LOG.set(Log::System(log));
    Ok(())
}

/// From here on nothing goes to standard error; and a panic is a message, too.
pub(super) fn leave_terminal() {
    LEFT.store(true, Relaxed);
    std::panic::set_hook(Box::new(|panic| tracing::error!("a bug: {panic}")));
}

/// A message as it is told: what a terminal would act on is written as Rust writes it, and what follows its first line begins
/// with blanks, so that no name can look like another message.
pub(super) fn tame(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(|line| shown(line.as_bytes())).collect();
    lines.join("\n  ")
}

/// [`tame`] of a line with its end.
fn tamed(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    tame(text.strip_suffix('\n').unwrap_or(&text)) + "\n"
}

/// Standard error, until it was left.
struct Terminal;

impl<'a> MakeWriter<'a> for Terminal {
    type Writer = OptionalWriter<Stderr>;

    fn make_writer(&'a self) -> Self::Writer {
        if LEFT.load(Relaxed) { OptionalWriter::none() } else { OptionalWriter::some(Stderr) }
    }
}

/// Standard error, for messages, which come whole.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(tamed(text).as_bytes())?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The log, once there is one.
struct ToLog;

impl<'a> MakeWriter<'a> for ToLog {
    type Writer = OptionalWriter<Line>;

    fn make_writer(&'a self) -> Self::Writer {
        line(Level::INFO)
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Self::Writer {
        line(*meta.level())
    }
}

fn line(level: Level) -> OptionalWriter<Line> {
    LOG.get().map_or_else(OptionalWriter::none, |log| OptionalWriter::some(Line { log, level }))
}

/// One message on its way.
struct Line {
    log: &'static Log,
    level: Level,
}

impl Write for Line {
    /// A message comes whole.
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let tamed = tamed(text);
        match self.log {
            Log::File(file) => (&*file).write_all(tamed.as_bytes())?,
            Log::System(system) => system.send(self.level, &tamed),
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The time, for a file; the system's log has its own.
struct Clock;

impl FormatTime for Clock {
    fn format_time(&self, to: &mut Writer<'_>) -> std::fmt::Result {
        match LOG.get() {
            Some(Log::File(_)) => SystemTime.format_time(to),
            _ => Ok(()),
        }
    }
}

/// The system's log.
struct SystemLog {
    socket: UnixDatagram,
    place: PathBuf,
}

impl SystemLog {
    fn at(place: &Path) -> io::Result<SystemLog> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(SystemLog { socket, place: place.into() })
    }

    /// Sends a message. It is lost where nobody listens, or who listens has no room: it could wait for this server.
    fn send(&self, level: Level, text: &str) {
        let severity = match level {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        };
        let text = text.trim();
        let text = &text[..text.floor_char_boundary(MESSAGE_BYTES_MAX)];
        let message = format!("<{}>bimetal[{}]: {text}", DAEMON << 3 | severity, std::process::id());
        let _ = self.socket.send_to(message.as_bytes(), &self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_looks_like_another_message_or_acts_on_a_terminal() {
        assert_eq!(tame("a\nbimetal: all is well\u{1b}[2J"), "a\n  bimetal: all is well\\u{1b}[2J");
        assert_eq!(tamed(b"WARN a\nb\n"), "WARN a\n  b\n");
    }

    #[test]
    fn the_system_log_gets_each_message_with_its_severity_and_nobody_waits_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("log");
        let log = SystemLog::at(&place).unwrap();
        log.send(Level::ERROR, "nobody listens");
        let listener = UnixDatagram::bind(&place).unwrap();
        log.send(Level::ERROR, " ERROR the disk half failed\n");
        log.send(Level::INFO, &"ä".repeat(MESSAGE_BYTES_MAX));
        let mut read = [0; 2 * MESSAGE_BYTES_MAX];
        let bytes = listener.recv(&mut read).unwrap();
        let pid = std::process::id();
        assert_eq!(read[..bytes], *format!("<27>bimetal[{pid}]: ERROR the disk half failed").as_bytes());
        let bytes = listener.recv(&mut read).unwrap();
        assert!(read.starts_with(b"<30>") && bytes < MESSAGE_BYTES_MAX + 40, "{bytes}");
        // Who listens is slow: this would never end if it were waited for.
        (0..10_000).for_each(|_| log.send(Level::WARN, "again"));
    }
}
