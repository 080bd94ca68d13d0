//! A window that moves over a stream: the bytes not yet used, in one piece.

use std::io::{self, Read};

/// How much is read at once; small enough to stay in the second-level cache.
const CHUNK: usize = 256 << 10;

/// The unused bytes of a stream. Its memory is [`CHUNK`], or twice the longest piece anybody needs whole.
pub(super) struct Window {
    bytes: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Window {
    pub fn new(bytes: Box<dyn Read + Send>) -> Window {
        Window { bytes, buffer: vec![0; CHUNK], start: 0, end: 0 }
    }

    /// What is there.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// `len` bytes that begin `skip` before the unused ones, which [`use_up`](Self::use_up) passed last.
    #[inline]
    pub fn passed(&self, skip: usize, len: usize) -> &[u8] {
        &self.buffer[self.start - skip..self.start - skip + len]
    }

    /// Moves past `count` bytes of what is there.
    #[inline]
    pub fn use_up(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
    }

    /// Reads on, keeping what is there. False: the stream has ended.
    pub fn read_on(&mut self) -> io::Result<bool> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.end == self.buffer.len() {
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
        loop {
            match self.bytes.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Ok(false),
                Ok(got) => {
                    self.end += got;
                    return Ok(true);
                }
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
        }
    }

    /// Whether at least `count` bytes are there, after reading on as needed.
    pub fn has(&mut self, count: usize) -> io::Result<bool> {
        while self.end - self.start < count {
            if !self.read_on()? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives one byte a call.
    struct Drip(u8);

    impl Read for Drip {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if self.0 == 200 || into.is_empty() {
                return Ok(0);
            }
            into[0] = self.0;
            self.0 += 1;
            Ok(1)
        }
    }

    #[test]
    fn bytes_come_in_order_whatever_the_pieces() {
        let mut window = Window::new(Box::new(Drip(0)));
        assert!(window.has(3).unwrap());
        assert_eq!(window.bytes(), [0, 1, 2]);
        window.use_up(2);
        assert_eq!(window.passed(2, 2), [0, 1]);
        assert!(window.has(4).unwrap());
        assert_eq!(window.bytes(), [2, 3, 4, 5]);
        assert!(!window.has(1000).unwrap());
        assert_eq!(window.bytes().len(), 198);
    }
}
