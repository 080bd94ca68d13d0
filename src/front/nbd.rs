//! A device served over NBD on a unix socket, so that any NBD client (qemu, nbdcopy, nbdfuse, the kernel by
//! nbd-client) reads and writes it.
//!
//! Spoken is the protocol's fixed newstyle negotiation with simple replies (doc/proto.md of the NBD project):
//! one export, whatever it is called; reads, writes, flushes, FUA, trims, zeroes. A reply comes when the device
//! says the request is done, at once or in real time, so that one slow request holds up no other.
//! Several clients may be connected at once: they see one device.
//!
//! A client that breaks the protocol is disconnected; a request that makes no sense for the device gets the
//! protocol's error. Cost: one thread a client, a copy of the data of each write.

use super::export::{Export, answers, state};
use super::live::{self, Live};
use crate::media::answers::{Answers, Asker};
use crate::media::counted::{Counted, Counts};
use crate::media::{BlockDevice, Gather, Request, as_advice};
use crate::{Error, Result};
use bytes::Bytes;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The numbers of the protocol.
mod wire {
    pub const MAGIC: u64 = 0x4e42_444d_4147_4943;
    pub const OPTION: u64 = 0x4948_4156_454f_5054;
    pub const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
    pub const REQUEST: u32 = 0x2560_9513;
    pub const REPLY: u32 = 0x6744_6698;
    /// Handshake: options may be refused one by one; no zeros after the export.
    pub const FIXED_NEWSTYLE: u16 = 1;
    pub const NO_ZEROES: u16 = 2;
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO_REPLY: u32 = 3;
    pub const UNSUPPORTED: u32 = 0x8000_0001;
    pub const INVALID: u32 = 0x8000_0003;
    pub const INFO_EXPORT: u16 = 0;
    pub const INFO_BLOCK_SIZE: u16 = 3;
    /// What the export can do: flags are there, flush, FUA, zeroes, several clients; a disk; trims.
    pub const FLAGS: u16 = 1 | 4 | 8 | 64 | 256;
    pub const ROTATIONAL: u16 = 16;
    pub const TRIM_FLAG: u16 = 32;
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISCONNECT: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const WRITE_ZEROES: u16 = 6;
    pub const FUA: u16 = 1;
}

/// The longest option and the longest request.
const OPTION_BYTES_MAX: u32 = 64 << 10;
const REQUEST_BYTES_MAX: u32 = 32 << 20;
/// A client that takes no reply for so long is disconnected: others must not wait for it.
const PATIENCE: Duration = Duration::from_secs(10);
/// Zeros are written so many at once.
const ZEROES_BYTES: u64 = 1 << 20;

/// A device that is being served; dropping it disconnects its clients and removes the socket.
pub struct Served {
    server: Arc<Server>,
    thread: Option<JoinHandle<()>>,
    socket: PathBuf,
    bound: Option<(u64, u64)>,
    /// Tells its state, beside the socket.
    status: Option<Live>,
}

struct Server {
    device: Arc<Counted>,
    answers: Answers,
    ended: AtomicBool,
    /// The clients connected, to disconnect them.
    clients: Mutex<FxHashMap<u64, UnixStream>>,
}

/// Serves `export` on a new unix socket at `socket`, and its state beside it.
///
/// Fails with [`Error::Io`] if these cannot be made; a stale pair of ours is replaced, nothing else.
pub fn serve(export: Export, socket: &Path) -> Result<Served> {
    let listener = live::listen(socket, &live::beside(socket))?;
    let bound = live::identity(socket);
    let device = Arc::new(Counted::new(export.device));
    let server = Arc::new(Server {
        answers: answers(&device, export.real_time)?,
        device,
        ended: AtomicBool::new(false),
        clients: Mutex::default(),
    });
    let accepting = Arc::clone(&server);
    let thread = thread::Builder::new().name("nbd".into()).spawn(move || accepting.accept(&listener));
    let thread = thread.map_err(|error| Error::io("a thread", error))?;
    let mut served =
        Served { server, thread: Some(thread), socket: socket.to_path_buf(), bound, status: None };
    let (device, model) = (Arc::clone(&served.server.device), export.model);
    served.status = Some(live::tell(socket, move || state(&device, model.as_ref()))?);
    Ok(served)
}

impl Served {
    /// What was asked of the device so far.
    pub fn counts(&self) -> Counts {
        self.server.device.counts()
    }

    /// Where it is to be had, as clients take it.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.status = None;
        self.server.ended.store(true, Relaxed);
        for client in self.server.clients.lock().values() {
            let _ = client.shutdown(Shutdown::Both);
        }
        // Wakes the thread that accepts; it sees that all has ended.
        let _ = UnixStream::connect(&self.socket);
        live::remove(&self.socket, self.bound);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Server {
    /// Takes clients until all has ended.
    fn accept(self: Arc<Server>, listener: &UnixListener) {
        let mut threads: Vec<JoinHandle<()>> = Vec::new();
        for (number, stream) in (0u64..).zip(listener.incoming()) {
            if self.ended.load(Relaxed) {
                break;
            }
            let both = stream.and_then(|stream| Ok((stream.try_clone()?, stream)));
            let Ok((again, stream)) = both else {
                // Most likely out of file descriptors: until some client is gone.
                thread::sleep(Duration::from_millis(20));
                continue;
            };
            self.clients.lock().insert(number, again);
            let server = Arc::clone(&self);
            let client = thread::Builder::new().name("nbd client".into()).spawn(move || {
                if let Err(error) = server.talk(&stream) {
                    tracing::debug!("an NBD client is gone: {error}");
                }
                let _ = stream.shutdown(Shutdown::Both);
                server.clients.lock().remove(&number);
            });
            threads.retain(|thread| !thread.is_finished());
            threads.extend(client);
        }
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }

    /// Negotiates with a client and serves it until it is gone.
    fn talk(&self, stream: &UnixStream) -> io::Result<()> {
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut link = Link { stream };
        if !self.negotiate(&mut link)? {
            return Ok(());
        }
        let replies = Arc::new(Mutex::new(stream.try_clone()?));
        loop {
            if link.number::<4>()? != u64::from(wire::REQUEST) {
                return Err(broken("not a request"));
            }
            let (flags, kind) = (link.number::<2>()? as u16, link.number::<2>()? as u16);
            let (cookie, offset) = (link.number::<8>()?, link.number::<8>()?);
            let len = link.number::<4>()? as u32;
            // Trims and zeroes carry no data and may be long.
            if len > REQUEST_BYTES_MAX && matches!(kind, wire::READ | wire::WRITE) {
                return Err(broken("a request that is too long"));
            }
            let data = if kind == wire::WRITE { link.bytes(len as usize)? } else { Vec::new() };
            if kind == wire::DISCONNECT {
                return Ok(());
            }
            let asked = Asked { flags, kind, offset, len, data: data.into() };
            self.run(asked, Reply { cookie, stream: Arc::clone(&replies) });
        }
    }

    /// Offers the export; whether the client took it.
    fn negotiate(&self, link: &mut Link<'_>) -> io::Result<bool> {
        link.write(&[&wire::MAGIC.to_be_bytes(), &wire::OPTION.to_be_bytes()])?;
        link.write(&[&(wire::FIXED_NEWSTYLE | wire::NO_ZEROES).to_be_bytes()])?;
        let client = link.number::<4>()?;
        if client & !u64::from(wire::FIXED_NEWSTYLE | wire::NO_ZEROES) != 0 {
            return Err(broken("unknown flags"));
        }
        loop {
            if link.number::<8>()? != wire::OPTION {
                return Err(broken("not an option"));
            }
            let (option, len) = (link.number::<4>()? as u32, link.number::<4>()? as u32);
            if len > OPTION_BYTES_MAX {
                return Err(broken("an option that is too long"));
            }
            let data = link.bytes(len as usize)?;
            match option {
                wire::EXPORT_NAME => {
                    let zeros = if client & u64::from(wire::NO_ZEROES) == 0 { 124 } else { 0 };
                    link.write(&[&self.export(), &vec![0; zeros]])?;
                    return Ok(true);
                }
                wire::ABORT => {
                    link.reply(option, wire::ACK, &[])?;
                    return Ok(false);
                }
                wire::LIST => {
                    link.reply(option, wire::SERVER, &[&0u32.to_be_bytes()])?;
                    link.reply(option, wire::ACK, &[])?;
                }
                wire::INFO | wire::GO if is_info(&data) => {
                    self.inform(link, option)?;
                    if option == wire::GO {
                        return Ok(true);
                    }
                }
                wire::INFO | wire::GO => link.reply(option, wire::INVALID, &[])?,
                _ => link.reply(option, wire::UNSUPPORTED, &[])?,
            }
        }
    }

    /// Size and flags, as both ways of taking the export tell them.
    fn export(&self) -> [u8; 10] {
        let info = self.device.info();
        let kind = if info.rotational { wire::ROTATIONAL } else { wire::TRIM_FLAG };
        let mut told = [0; 10];
        told[..8].copy_from_slice(&info.size_bytes.to_be_bytes());
        told[8..].copy_from_slice(&(wire::FLAGS | kind).to_be_bytes());
        told
    }

    fn inform(&self, link: &mut Link<'_>, option: u32) -> io::Result<()> {
        link.reply(option, wire::INFO_REPLY, &[&wire::INFO_EXPORT.to_be_bytes(), &self.export()])?;
        let least = self.device.info().block_bytes;
        let sizes = [least, least.max(4096), REQUEST_BYTES_MAX].map(u32::to_be_bytes).concat();
        link.reply(option, wire::INFO_REPLY, &[&wire::INFO_BLOCK_SIZE.to_be_bytes(), &sizes])?;
        link.reply(option, wire::ACK, &[])
    }

    /// Runs what a client asked for; the reply goes out when it is done.
    fn run(&self, asked: Asked, reply: Reply) {
        let (durable, offset, asker) = (asked.flags & wire::FUA != 0, asked.offset, self.answers.asker());
        let request = match asked.kind {
            wire::READ => Request::Read { offset, len: asked.len as usize },
            wire::WRITE => Request::Write { offset, data: Gather::from_iter([asked.data]), durable },
            wire::FLUSH => Request::Flush,
            wire::TRIM => {
                let (trim, again) = (Request::Discard { offset, len: asked.len.into() }, asker.clone());
                return asker.ask(trim, move |result| match (durable, as_advice(result)) {
                    (true, Ok(_)) => again.ask(Request::Flush, move |result| reply.send(result)),
                    (_, result) => reply.send(result),
                });
            }
            wire::WRITE_ZEROES => return write_zeroes(asker, offset, asked.len.into(), durable, reply),
            _ => return reply.send(Err(Error::BadArgument)),
        };
        asker.ask(request, move |result| reply.send(result));
    }
}

/// Writes zeros in pieces, side by side; the reply goes out when the last is done, with the first error.
fn write_zeroes(asker: &Asker, offset: u64, len: u64, durable: bool, reply: Reply) {
    let pieces = len.div_ceil(ZEROES_BYTES);
    if pieces == 0 {
        return reply.send(Ok(Bytes::new()));
    }
    let zeros = Bytes::from(vec![0; len.min(ZEROES_BYTES) as usize]);
    let left = Arc::new(Mutex::new((pieces, Some(reply), Ok(Bytes::new()))));
    for from in (0..len).step_by(ZEROES_BYTES as usize) {
        let data = Gather::from_iter([zeros.slice(..(len - from).min(ZEROES_BYTES) as usize)]);
        let (offset, left) = (offset.saturating_add(from), Arc::clone(&left));
        asker.ask(Request::Write { offset, data, durable }, move |result| {
            let mut left = left.lock();
            let (pieces, reply, so_far) = &mut *left;
            *pieces -= 1;
            if so_far.is_ok() && result.is_err() {
                *so_far = result;
            }
            if *pieces == 0
                && let Some(reply) = reply.take()
            {
                reply.send(std::mem::replace(so_far, Ok(Bytes::new())));
            }
        });
    }
}

/// One request.
struct Asked {
    flags: u16,
    kind: u16,
    offset: u64,
    len: u32,
    data: Bytes,
}

/// Where the reply to a request goes.
struct Reply {
    cookie: u64,
    stream: Arc<Mutex<UnixStream>>,
}

impl Reply {
    fn send(self, result: Result<Bytes>) {
        let (error, data) = match result {
            Ok(data) => (0, data),
            Err(error) => (number_of(&error), Bytes::new()),
        };
        let head =
            [&wire::REPLY.to_be_bytes()[..], &error.to_be_bytes(), &self.cookie.to_be_bytes()].concat();
        let mut stream = self.stream.lock();
        if stream.write_all(&head).and_then(|()| stream.write_all(&data)).is_err() {
            // The client is gone, or stuck; its own thread sees it, too.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// The protocol's number for an error of the device: it has few.
fn number_of(error: &Error) -> u32 {
    let errno = match error {
        Error::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        Error::Invalid(_) | Error::BadArgument => libc::EINVAL,
        Error::Gone { .. } => 108,
        _ => libc::EIO,
    };
    match errno {
        libc::EPERM | libc::EROFS => 1,
        libc::ENOMEM | libc::EINVAL | libc::ENOSPC | 108 => errno as u32,
        libc::EOPNOTSUPP => 95,
        _ => libc::EIO as u32,
    }
}

/// Whether the data of an option is the name of an export and what the client wants to know of it.
fn is_info(data: &[u8]) -> bool {
    let number = |at: usize, len: usize| -> Option<usize> {
        let bytes = data.get(at..at.checked_add(len)?)?;
        Some(bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    };
    let Some(name) = number(0, 4) else { return false };
    let count = name.checked_add(4).and_then(|at| number(at, 2));
    count.is_some_and(|count| 4 + name + 2 + 2 * count == data.len())
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("it sent {what}"))
}

/// A client's end of the negotiation.
struct Link<'a> {
    stream: &'a UnixStream,
}

impl Link<'_> {
    /// Reads a number of `N` bytes.
    fn number<const N: usize>(&mut self) -> io::Result<u64> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn bytes(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn write(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        self.stream.write_all(&parts.concat())
    }

    /// Answers an option.
    fn reply(&mut self, option: u32, kind: u32, parts: &[&[u8]]) -> io::Result<()> {
        let data = parts.concat();
        let head = [option, kind, data.len() as u32].map(u32::to_be_bytes).concat();
        self.write(&[&wire::OPTION_REPLY.to_be_bytes(), &head, &data])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::ram::Ram;

    fn served() -> (tempfile::TempDir, Served) {
        let dir = tempfile::tempdir().unwrap();
        let device = Arc::new(Ram::new("ram", 1 << 20));
        let served = serve(Export { device, real_time: false, model: None }, &dir.path().join("s")).unwrap();
        (dir, served)
    }

    fn connect(served: &Served) -> UnixStream {
        let stream = UnixStream::connect(&served.socket).unwrap();
        let mut hello = [0; 18];
        (&stream).read_exact(&mut hello).unwrap();
        assert_eq!(&hello[..16], b"NBDMAGICIHAVEOPT");
        stream
    }

    fn send(stream: &mut UnixStream, parts: &[&[u8]]) {
        stream.write_all(&parts.concat()).unwrap();
    }

    fn option(stream: &mut UnixStream, option: u32, data: &[u8]) {
        let len = data.len() as u32;
        send(stream, &[b"IHAVEOPT", &option.to_be_bytes(), &len.to_be_bytes(), data]);
    }

    fn answer<const N: usize>(stream: &mut UnixStream) -> [u8; N] {
        let mut bytes = [0; N];
        stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn request(stream: &mut UnixStream, kind: u16, offset: u64, len: u32, data: &[u8]) -> u32 {
        let head = [&wire::REQUEST.to_be_bytes()[..], &[0, 0], &kind.to_be_bytes(), &[7; 8]].concat();
        send(stream, &[&head, &offset.to_be_bytes(), &len.to_be_bytes(), data]);
        let reply: [u8; 16] = answer(stream);
        assert_eq!((&reply[..4], &reply[8..]), (&wire::REPLY.to_be_bytes()[..], &[7; 8][..]));
        u32::from_be_bytes([reply[4], reply[5], reply[6], reply[7]])
    }

    #[test]
    fn a_client_of_the_oldest_kind_is_served() {
        let (_dir, served) = served();
        let mut stream = connect(&served);
        send(&mut stream, &[&[0, 0, 0, 1]]);
        option(&mut stream, 99, &[1, 2, 3]);
        assert_eq!(answer::<20>(&mut stream)[12..16], wire::UNSUPPORTED.to_be_bytes());
        option(&mut stream, wire::EXPORT_NAME, b"whatever");
        let export: [u8; 134] = answer(&mut stream);
        assert_eq!(export[..8], (1u64 << 20).to_be_bytes());
        assert_eq!(request(&mut stream, wire::WRITE, 512, 512, &[9; 512]), 0);
        assert_eq!(request(&mut stream, wire::READ, 512, 512, &[]), 0);
        assert_eq!(answer::<512>(&mut stream), [9; 512]);
        assert_eq!(request(&mut stream, wire::WRITE_ZEROES, 0, 1 << 20, &[]), 0);
        assert_eq!(request(&mut stream, wire::READ, 1 << 20, 512, &[]), libc::EINVAL as u32, "past the end");
        assert_eq!(request(&mut stream, wire::READ, 7, 512, &[]), libc::EINVAL as u32, "not in whole blocks");
        assert_eq!(request(&mut stream, 77, 0, 512, &[]), libc::EINVAL as u32, "unknown");
        assert_eq!(request(&mut stream, wire::READ, 512, 512, &[]), 0);
        assert_eq!(answer::<512>(&mut stream), [0; 512]);
    }

    #[test]
    fn clients_that_break_the_protocol_are_disconnected_and_others_are_not() {
        let (_dir, served) = served();
        let mut good = connect(&served);
        send(&mut good, &[&[0, 0, 0, 3]]);
        option(&mut good, wire::GO, &[0, 0, 0, 9]);
        assert_eq!(answer::<20>(&mut good)[12..16], wire::INVALID.to_be_bytes(), "the name is not there");
        for wrong in [&[0xFF; 4][..], &[0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8], &[0, 0, 0, 1, b'I']] {
            let mut bad = connect(&served);
            send(&mut bad, &[wrong]);
            bad.shutdown(Shutdown::Write).unwrap();
            assert_eq!(bad.read(&mut [0; 1]).unwrap(), 0);
        }
        let mut bad = connect(&served);
        send(&mut bad, &[&[0, 0, 0, 3]]);
        option(&mut bad, wire::EXPORT_NAME, b"");
        answer::<10>(&mut bad);
        let head = [&wire::REQUEST.to_be_bytes()[..], &[0, 0, 0, 1], &[0; 16], &[0xFF; 4]].concat();
        send(&mut bad, &[&head]);
        assert_eq!(bad.read(&mut [0; 1]).unwrap(), 0, "4 GiB at once");
        option(&mut good, wire::GO, &[0; 6]);
        assert_eq!(answer::<32>(&mut good)[12..16], wire::INFO_REPLY.to_be_bytes());
        answer::<34>(&mut good);
        answer::<20>(&mut good);
        assert_eq!(request(&mut good, wire::FLUSH, 0, 0, &[]), 0);
        assert_eq!(served.counts().flushes, 1);
    }

    #[test]
    fn a_socket_that_is_in_use_is_left_alone_and_a_stale_one_replaced() {
        let (dir, served) = served();
        let again = || {
            let device = Arc::new(Ram::new("ram", 1 << 20));
            serve(Export { device, real_time: false, model: None }, &dir.path().join("s"))
        };
        assert!(again().is_err());
        drop(served);
        // A socket alone may be another program's; an export leaves a pair.
        drop(UnixListener::bind(dir.path().join("s")).unwrap());
        assert!(again().is_err());
        drop(UnixListener::bind(dir.path().join("s.status")).unwrap());
        let served = again().unwrap();
        connect(&served);
    }
}
