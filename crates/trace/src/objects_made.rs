//! Object requests made, not recorded: for read shares that no recording has.
//!
//! Objects of sizes spread evenly over magnitudes; each request reads or writes one whole, drawn by Zipf's law
//! (the hottest are scattered over the numbers). Of the writes a quarter removes the object and makes it again, as
//! programs do that write a new file and rename it; the others overwrite it in place.

use super::objects::{ObjectOp, ObjectRequest, ObjectTrace};
use bimetal_base::random::Random;
use bimetal_base::time::Time;
use bimetal_base::units::parse_size;
use bimetal_base::{Error, Result};
use std::str::FromStr;

/// Requests to be made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Made {
    /// Objects.
    pub objects: u32,
    /// The largest object, bytes; the smallest is a hundredth of it.
    pub size_bytes: u64,
    /// Requests.
    pub requests: u32,
    /// The part of the requests that read.
    pub read: f64,
    /// Number that everything random follows from.
    pub seed: u64,
}

impl Default for Made {
    fn default() -> Made {
        Made { objects: 5000, size_bytes: 128 << 10, requests: 100_000, read: 0.5, seed: 1 }
    }
}

impl FromStr for Made {
    type Err = Error;

    /// From `objects=5000,size=128KiB,requests=100000,read=0.9,seed=1`, any of them.
    fn from_str(text: &str) -> Result<Made> {
        let mut made = Made::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let wrong = || {
                Error::invalid(format!(
                    "made: '{part}' is none of objects=N, size=SIZE, requests=N, read=0..1, seed=N"
                ))
            };
            let (name, value) = part.split_once('=').ok_or_else(wrong)?;
            let number = || value.parse::<u32>().ok().filter(|number| *number > 0).ok_or_else(wrong);
            match name {
                "objects" => made.objects = number()?,
                "requests" => made.requests = number()?,
                "seed" => made.seed = value.parse().map_err(|_| wrong())?,
                "size" => made.size_bytes = parse_size(value)?.max(1),
                "read" => {
                    let share = value.parse().ok().filter(|share| (0.0..=1.0).contains(share));
                    made.read = share.ok_or_else(wrong)?;
                }
                _ => return Err(wrong()),
            }
        }
        Ok(made)
    }
}

/// How long after one request the next comes.
const APART_NS: u64 = 2_000_000;

impl Made {
    /// The requests.
    pub fn trace(&self) -> ObjectTrace {
        let mut random = Random::new(self.seed, "objects");
        let sizes: Vec<u64> = (0..self.objects)
            .map(|_| {
                let magnitude = random.below(1 << 20) as f64 / f64::from(1 << 20);
                ((self.size_bytes as f64 * 100f64.powf(magnitude - 1.0)) as u64).max(1)
            })
            .collect();
        let mut trace = ObjectTrace {
            initial: sizes.iter().copied().enumerate().map(|(n, size)| (n as u32, size)).collect(),
            requests: Vec::with_capacity(self.requests as usize),
            objects: self.objects,
        };
        for number in 0..self.requests {
            let at = Time(u64::from(number) * APART_NS);
            let object = self.draw(&mut random);
            let len = sizes[object as usize];
            let mut ask = |ask| trace.requests.push(ObjectRequest { at, object, ask });
            if random.chance(self.read) {
                ask(ObjectOp::Read { offset: 0, len });
            } else {
                if random.chance(0.25) {
                    ask(ObjectOp::Remove);
                    ask(ObjectOp::Create);
                }
                ask(ObjectOp::Write { offset: 0, len });
            }
        }
        trace
    }

    /// A rank with a probability as 1 ÷ rank, roughly, scattered over the numbers.
    fn draw(&self, random: &mut Random) -> u32 {
        let uniform = random.below(1 << 30) as f64 / f64::from(1 << 30);
        let rank = f64::from(self.objects).powf(uniform) as u64 - 1;
        (rank.wrapping_mul(0x9E37_79B9) % u64::from(self.objects)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_reads_is_what_was_asked_for_and_the_requests_repeat() {
        for read in [0.1, 0.5, 0.95] {
            let made: Made = format!("read={read},objects=200,requests=20000").parse().unwrap();
            let trace = made.trace();
            assert!((trace.shape().1 - read).abs() < 0.02, "{}", trace.shape().1);
            assert_eq!(trace, made.trace());
        }
        assert!("objects=0".parse::<Made>().is_err() && "read=2".parse::<Made>().is_err());
    }
}
