//! Scrubbing of a volume that is in use: what an order tells, and when there is nothing to scrub.

use super::*;
use bimetal_media::faulty::{Effect, Faulty, Kind as Struck, When};

fn order(fs: &NfHybrid, order: &str) -> Result<()> {
    fs.control_set(ROOT_INO, "bimetal.scrub", order.as_bytes())
}

fn found(fs: &NfHybrid) -> serde_json::Value {
    serde_json::from_slice(&fs.control_get(ROOT_INO, "bimetal.scrub").unwrap()).unwrap()
}

/// A volume with a file of 1024 blocks on both halves, the SSD of which fails when it is told to.
fn with_a_copy(disk: Arc<Ram>, ssd: Arc<Ram>) -> (NfHybrid, Arc<Faulty>, Ino) {
    let faulty = Arc::new(Faulty::new(ssd));
    let fs = NfHybrid::open(disk, Some(faulty.clone()), manual()).unwrap();
    let ino = create(&fs, "file", &[7; 4 << 20]);
    fs.fsync(ino, false).unwrap().get().unwrap();
    fs.commit().unwrap();
    (fs, faulty, ino)
}

#[test]
fn all_bad_copies_are_told_in_as_many_answers_as_it_takes() {
    let Some((disk, ssd)) = halves(64, 16) else { return };
    let (fs, faulty, _) = with_a_copy(disk, ssd);
    faulty.plan(Struck::Read, When::Always, Effect::Error(5));
    order(&fs, "start me").unwrap();
    let (mut bad, mut answers) = (0, 0);
    loop {
        order(&fs, "16777216 me").unwrap();
        let told = found(&fs);
        assert!(told.to_string().len() < 60 << 10, "{} bytes", told.to_string().len());
        bad += told["bad"].as_array().unwrap().len();
        answers += 1;
        if told["done"] == true {
            break;
        }
    }
    assert_eq!((bad, fs.status().counters.scrub_bad), (1024, 1024));
    assert!(answers >= 32, "{answers}");
    order(&fs, "end me").unwrap();
    faulty.forget();
    assert!(contents(&fs, "file") == [7; 4 << 20]);
    fs.shutdown().unwrap();
}

#[test]
fn without_an_ssd_there_is_nothing_that_could_be_right() {
    let Some((disk, ssd)) = halves(64, 16) else { return };
    let alone = open(&disk, None, Options { without_ssd: true, ..manual() }).unwrap();
    order(&alone, "start me").unwrap();
    assert!(order(&alone, "1000000 me").unwrap_err().to_string().contains("SSD"));
    alone.shutdown().unwrap();
    let (fs, faulty, ino) = with_a_copy(disk, ssd);
    order(&fs, "start me").unwrap();
    faulty.vanish();
    let told = order(&fs, "1000000 me");
    assert!(told.unwrap_err().to_string().contains("gone"));
    fs.write(ino, 0, b"new", false).unwrap().get().unwrap();
    fs.fsync(ino, false).unwrap().get().unwrap();
    assert!(fs.status().ssd_lost.is_some());
    assert!(order(&fs, "1000000 me").is_err(), "the SSD is lost");
    fs.shutdown().unwrap();
}

#[test]
fn a_step_that_fails_tells_what_it_found_and_one_that_was_overtaken_takes_nothing_from_the_other() {
    let Some((disk, ssd)) = halves(64, 16) else { return };
    let (fs, faulty, _) = with_a_copy(disk, ssd);
    order(&fs, "start a").unwrap();
    // The first stretch is bad, and the device goes with the second.
    faulty.plan(Struck::Read, When::FromNth(258), Effect::Vanish);
    faulty.plan(Struck::Read, When::Always, Effect::Error(5));
    assert!(order(&fs, "16777216 a").is_err());
    let mut bad = found(&fs)["bad"].as_array().unwrap().len();
    while bad < 256 && order(&fs, "1 a").is_ok() {
        bad += found(&fs)["bad"].as_array().unwrap().len();
    }
    assert_eq!((bad as u64, fs.status().counters.scrub_bad), (256, 256));
    assert!(order(&fs, "1 b").is_err(), "another one's");
    fs.abandon();
}
