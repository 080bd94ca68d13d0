//! The hashes by which indexed directories order their names.
//!
//! Three functions of the name and of a secret seed in the superblock, all from the days of ext3: *legacy* (a
//! multiply-and-mix, no seed), *half MD4* (three rounds of eight steps over 32 bytes a time) and *TEA* (sixteen
//! rounds of the Tiny Encryption Algorithm as a Davis–Meyer compression, 16 bytes a time). Each exists twice,
//! because the first implementations read names as `char`, which is signed on some machines: the superblock
//! says which one a file system was made with.
//!
//! Of the result, the *major* hash orders the index (its lowest bit is always 0: the index uses it to mark
//! that names with one hash go on in the next leaf), the *minor* one orders names inside `readdir`.
//!
//! Cost: half MD4 of a name up to 32 bytes takes about 40 ns.

use bimetal_base::{Error, Result};

/// The major hash that `readdir` positions reserve for "the end".
const END_OF_DIRECTORY: u32 = 0xFFFF_FFFE;
/// The seed of MD4, used when the superblock has none.
const DEFAULT_SEED: [u32; 4] = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476];

/// Where a name stands in an indexed directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NameHash {
    /// Orders the index; even, and never the value kept for the end of the directory.
    pub major: u32,
    /// Orders names whose major hash is the same; 0 for every name with the legacy hash.
    pub minor: u32,
}

/// Which function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Legacy,
    HalfMd4,
    Tea,
}

/// A hash function with its seed.
#[derive(Clone, Copy, Debug)]
pub struct Hasher {
    algorithm: Algorithm,
    unsigned: bool,
    seed: [u32; 4],
}

impl Hasher {
    /// The function numbered `version` in a directory's root block or in the superblock (0 legacy, 1 half MD4,
    /// 2 TEA; 3 to 5 the same with unsigned characters). `unsigned` is the superblock's flag for 0 to 2.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for any other number.
    pub fn new(version: u8, unsigned: bool, seed: [u32; 4]) -> Result<Hasher> {
        let algorithm = match version % 3 {
            _ if version > 5 => {
                return Err(Error::unsupported(
                    format_args!("directory hash {version}"),
                    "only legacy, half_md4 and tea are known; siphash needs the encryption key",
                ));
            }
            0 => Algorithm::Legacy,
            1 => Algorithm::HalfMd4,
            _ => Algorithm::Tea,
        };
        let seed = if seed == [0; 4] { DEFAULT_SEED } else { seed };
        Ok(Hasher { algorithm, unsigned: unsigned || version > 2, seed })
    }

    /// The hash of a name.
    pub fn hash(&self, name: &[u8]) -> NameHash {
        let (major, minor) = match self.algorithm {
            Algorithm::Legacy => (legacy(name, self.unsigned), 0),
            Algorithm::HalfMd4 => {
                let state = self.compress::<8>(name, half_md4);
                (state[1], state[2])
            }
            Algorithm::Tea => {
                let state = self.compress::<4>(name, tea);
                (state[0], state[1])
            }
        };
        let major = match major & !1 {
            END_OF_DIRECTORY => END_OF_DIRECTORY - 2,
            other => other,
        };
        NameHash { major, minor }
    }

    /// Runs `round` over the name, `WORDS` words at a time.
    fn compress<const WORDS: usize>(&self, name: &[u8], round: fn(&mut [u32; 4], &[u32; WORDS])) -> [u32; 4] {
        let mut state = self.seed;
        let mut rest = name;
        while !rest.is_empty() {
            round(&mut state, &words(rest, self.unsigned));
            rest = rest.get(WORDS * 4..).unwrap_or_default();
        }
        state
    }
}

/// One character as an integer, the way the C of the day saw it.
fn widen(byte: u8, unsigned: bool) -> u32 {
    if unsigned { u32::from(byte) } else { byte as i8 as u32 }
}

/// The first `4 * WORDS` bytes of `rest` as big-endian words, filled up with the remaining length.
fn words<const WORDS: usize>(rest: &[u8], unsigned: bool) -> [u32; WORDS] {
    let pad = (rest.len() as u32 & 0xFF) * 0x0101_0101;
    let mut out = [pad; WORDS];
    for (word, bytes) in out.iter_mut().zip(rest.chunks(4)) {
        for &byte in bytes {
            *word = widen(byte, unsigned).wrapping_add(*word << 8);
        }
    }
    out
}

fn legacy(name: &[u8], unsigned: bool) -> u32 {
    let (mut last, mut before) = (0x12A3_FE2D_u32, 0x37AB_E8F9_u32);
    for &byte in name {
        let mixed = last ^ widen(byte, unsigned).wrapping_mul(7_152_373);
        let mut next = before.wrapping_add(mixed);
        if next & 0x8000_0000 != 0 {
            next = next.wrapping_sub(0x7FFF_FFFF);
        }
        before = last;
        last = next;
    }
    last << 1
}

fn tea(state: &mut [u32; 4], key: &[u32; 4]) {
    const DELTA: u32 = 0x9E37_79B9;
    let (mut left, mut right, mut sum) = (state[0], state[1], 0_u32);
    let half = |word: u32, sum: u32, first: u32, second: u32| {
        (word << 4).wrapping_add(first) ^ word.wrapping_add(sum) ^ (word >> 5).wrapping_add(second)
    };
    for _ in 0..16 {
        sum = sum.wrapping_add(DELTA);
        left = left.wrapping_add(half(right, sum, key[0], key[1]));
        right = right.wrapping_add(half(left, sum, key[2], key[3]));
    }
    state[0] = state[0].wrapping_add(left);
    state[1] = state[1].wrapping_add(right);
}

/// One step of MD4: `a` takes in a function of the others and a word, then turns left.
macro_rules! step {
    ($f:expr, $a:ident, $b:ident, $c:ident, $d:ident, $word:expr, $turn:expr) => {
        $a = $a.wrapping_add($f($b, $c, $d)).wrapping_add($word).rotate_left($turn)
    };
}

/// Eight steps with the words in the given order and the four turns of the round.
macro_rules! round {
    ($f:expr, $s:ident, $k:expr, $input:ident, $order:expr, $turns:expr) => {{
        let [mut a, mut b, mut c, mut d] = $s;
        let (o, t): ([usize; 8], [u32; 4]) = ($order, $turns);
        step!($f, a, b, c, d, $input[o[0]].wrapping_add($k), t[0]);
        step!($f, d, a, b, c, $input[o[1]].wrapping_add($k), t[1]);
        step!($f, c, d, a, b, $input[o[2]].wrapping_add($k), t[2]);
        step!($f, b, c, d, a, $input[o[3]].wrapping_add($k), t[3]);
        step!($f, a, b, c, d, $input[o[4]].wrapping_add($k), t[0]);
        step!($f, d, a, b, c, $input[o[5]].wrapping_add($k), t[1]);
        step!($f, c, d, a, b, $input[o[6]].wrapping_add($k), t[2]);
        step!($f, b, c, d, a, $input[o[7]].wrapping_add($k), t[3]);
        [a, b, c, d]
    }};
}

/// MD4's three rounds (RFC 1320, section 3.4) over eight words in place of sixteen.
fn half_md4(state: &mut [u32; 4], input: &[u32; 8]) {
    let select = |x: u32, y: u32, z: u32| z ^ (x & (y ^ z));
    let majority = |x: u32, y: u32, z: u32| (x & y).wrapping_add((x ^ y) & z);
    let parity = |x: u32, y: u32, z: u32| x ^ y ^ z;
    let s = *state;
    let s = round!(select, s, 0, input, [0, 1, 2, 3, 4, 5, 6, 7], [3, 7, 11, 19]);
    let s = round!(majority, s, 0x5A82_7999, input, [1, 3, 5, 7, 0, 2, 4, 6], [3, 5, 9, 13]);
    let s = round!(parity, s, 0x6ED9_EBA1, input, [3, 7, 2, 6, 1, 5, 0, 4], [3, 9, 11, 15]);
    for (old, new) in state.iter_mut().zip(s) {
        *old = old.wrapping_add(new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `debugfs -R "dx_hash -h … -s 01020304-0506-0708-090a-0b0c0d0e0f10 NAME"`, e2fsprogs 1.47.0.
    const SEED: [u32; 4] = [0x0403_0201, 0x0807_0605, 0x0C0B_0A09, 0x100F_0E0D];

    #[test]
    fn hashes_are_those_of_e2fsprogs() {
        #[rustfmt::skip]
        let golden = [
            (0, "a", 0xE74B53E2, 0x00000000),
            (0, "hello", 0x32252546, 0x00000000),
            (0, "größe", 0x9D040690, 0x00000000),
            (0, "a_name_of_just_over_32_bytes_long", 0x5DFFA0FE, 0x00000000),
            (0, "a_much_longer_name_that_goes_over_the_thirty_two_bytes_of_one_round_ü", 0xE2B653F0, 0x00000000),
            (1, "a", 0x8D08EC4C, 0x2FBCCD78),
            (1, "hello", 0xE2DDF968, 0xC8BC0924),
            (1, "größe", 0x88BBCD3C, 0xAC49430C),
            (1, "a_name_of_just_over_32_bytes_long", 0x73AE08D2, 0x3C3DDC0F),
            (1, "a_much_longer_name_that_goes_over_the_thirty_two_bytes_of_one_round_ü", 0x73DC47D6, 0x0EE685C5),
            (2, "a", 0xF53528F0, 0xEA54FB01),
            (2, "hello", 0x1A5692B6, 0x2FD9857D),
            (2, "größe", 0xF2F3DC0C, 0xD80D526F),
            (2, "a_name_of_just_over_32_bytes_long", 0x79C11DFE, 0x9C5364A9),
            (2, "a_much_longer_name_that_goes_over_the_thirty_two_bytes_of_one_round_ü", 0x98604CA0, 0xC8462764),
            (3, "a", 0xE74B53E2, 0x00000000),
            (3, "hello", 0x32252546, 0x00000000),
            (3, "größe", 0x098D2490, 0x00000000),
            (3, "a_name_of_just_over_32_bytes_long", 0x5DFFA0FE, 0x00000000),
            (3, "a_much_longer_name_that_goes_over_the_thirty_two_bytes_of_one_round_ü", 0x652E3FEE, 0x00000000),
            (4, "a", 0x8D08EC4C, 0x2FBCCD78),
            (4, "hello", 0xE2DDF968, 0xC8BC0924),
            (4, "größe", 0x51EC1B7C, 0xD234769D),
            (4, "a_name_of_just_over_32_bytes_long", 0x73AE08D2, 0x3C3DDC0F),
            (4, "a_much_longer_name_that_goes_over_the_thirty_two_bytes_of_one_round_ü", 0x195D8C26, 0x89939174),
            (5, "a", 0xF53528F0, 0xEA54FB01),
            (5, "hello", 0x1A5692B6, 0x2FD9857D),
            (5, "größe", 0xAC0D9A32, 0xA6F52424),
            (5, "a_name_of_just_over_32_bytes_long", 0x79C11DFE, 0x9C5364A9),
            (5, "a_much_longer_name_that_goes_over_the_thirty_two_bytes_of_one_round_ü", 0x496B7FC4, 0x671E68EC),
        ];
        for (version, name, major, minor) in golden {
            let hash = Hasher::new(version, false, SEED).unwrap().hash(name.as_bytes());
            assert_eq!(hash, NameHash { major, minor }, "{version} {name}");
        }
    }

    #[test]
    fn an_unknown_hash_is_refused_by_number() {
        let text = Hasher::new(6, false, SEED).unwrap_err().to_string();
        assert!(text.contains("directory hash 6"), "{text}");
    }

    #[test]
    fn the_major_hash_never_collides_with_the_mark_of_the_end() {
        for version in 0..6 {
            let hasher = Hasher::new(version, false, SEED).unwrap();
            for number in 0..20_000_u32 {
                let hash = hasher.hash(format!("name{number}").as_bytes());
                assert_eq!(hash.major & 1, 0);
                assert_ne!(hash.major, END_OF_DIRECTORY);
            }
        }
    }

    #[test]
    fn names_beyond_seven_bits_tell_signed_from_unsigned() {
        for version in 0..3 {
            let signed = Hasher::new(version, false, SEED).unwrap();
            let flagged = Hasher::new(version, true, SEED).unwrap();
            let numbered = Hasher::new(version + 3, false, SEED).unwrap();
            assert_eq!(signed.hash(b"plain"), flagged.hash(b"plain"));
            assert_ne!(signed.hash("größe".as_bytes()), flagged.hash("größe".as_bytes()));
            assert_eq!(numbered.hash("größe".as_bytes()), flagged.hash("größe".as_bytes()));
        }
    }
}
