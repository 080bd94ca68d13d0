//! One file beside a model of it: sizes up and down, space reserved past the end, holes, zeros, and power cuts after an fsync.

use super::promises::{noise, write};
use super::*;

#[test]
fn a_file_of_any_size_is_what_a_model_says() {
    for (seed, block) in (0..24_u64).flat_map(|seed| [(seed, "1024"), (seed, "4096")]) {
        let options = ["-b", block, "-N", "200", "-m", "0", "-J", "size=4"];
        let Some((mut disk, mut ssd)) = halves_with(16, 16, &ssd::Config::default(), &options) else {
            return;
        };
        let mut fs = open(&disk, Some(&ssd), manual()).unwrap();
        let mut random = bimetal_base::random::Random::new(seed, "model");
        let mut ino = create(&fs, "f", b"");
        let mut model: Vec<u8> = Vec::new();
        let mut trace = Vec::new();
        for step in 0..250_u64 {
            let pick = random.next() % 10;
            let at = random.next() % 60_000;
            let len = 1 + random.next() % 20_000;
            trace.push((pick, at, len));
            match pick {
                0..=1 => {
                    let bytes = noise(step, len as usize);
                    assert_eq!(write(&fs, ino, at, &bytes).unwrap(), bytes.len());
                    let end = (at + len) as usize;
                    if model.len() < end {
                        model.resize(end, 0)
                    }
                    model[at as usize..end].copy_from_slice(&bytes);
                }
                2..=4 => {
                    fs.setattr(ino, &SetAttr { size: Some(at), ..SetAttr::default() }).unwrap();
                    model.resize(at as usize, 0);
                }
                5 => fs.fallocate(ino, at, len, Fallocate::Reserve { keep_size: true }).unwrap(),
                6 => {
                    let keep_size = step % 2 == 0;
                    fs.fallocate(ino, at, len, Fallocate::Zero { keep_size }).unwrap();
                    let end = (at + len) as usize;
                    if !keep_size && model.len() < end {
                        model.resize(end, 0)
                    }
                    let (from, to) = (model.len().min(at as usize), model.len().min(end));
                    model[from..to].fill(0);
                }
                7 => {
                    fs.fallocate(ino, at, len, Fallocate::Punch).unwrap();
                    let (from, to) = (model.len().min(at as usize), model.len().min((at + len) as usize));
                    model[from..to].fill(0);
                }
                8 => fs.commit().unwrap(),
                _ => {
                    fs.fsync(ino, false).unwrap().get().unwrap();
                    let images = [disk.image(), ssd.image()];
                    fs.abandon();
                    [disk, ssd] = images.map(|bytes| Arc::new(Ram::from_bytes("half", bytes)));
                    fs = open(&disk, Some(&ssd), manual()).unwrap();
                    ino = fs.lookup(ROOT_INO, b"f").unwrap().ino;
                }
            }
            let found = contents(&fs, "f");
            assert!(
                found == model,
                "seed {seed}, blocks {block}, step {step}: {:?}",
                &trace[trace.len().saturating_sub(12)..]
            );
        }
        fs.shutdown().unwrap();
        full::check_disk(&disk);
    }
}
