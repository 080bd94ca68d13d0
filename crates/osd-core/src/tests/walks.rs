//! Walks: work, a cut of the power somewhere, a look at what is there, more work, another cut, and so on, by seed. What is
//! there after each cut must be a state that was passed since the last flush; a cut may come while the one before is
//! being recovered from, and a repair between must find nothing to do.

use super::*;

/// Goes one walk; the cuts that came.
fn walk(seed: u64) -> u32 {
    let placement = PLACEMENTS[seed as usize % 4];
    let mut random = Random::new(seed, "walk");
    let segment_blocks = 1 + random.below(2) as u32;
    let mut store = store(placement, segment_blocks);
    let mut model = Model::new();
    let mut cuts = 0;
    for part in 0..2 + random.below(5) {
        // The sooner, the more of it strikes what comes first after an opening.
        let most = if random.chance(0.5) { 12 } else { 300 };
        store.nand_mut().cut_power_in(1 + random.below(most));
        let mut states = vec![model.clone()];
        for _ in 0..random.below(120) {
            let done = step(&mut store, &mut model, &mut random);
            // What was under way may have happened.
            states.push(model.clone());
            let stops = done.is_err()
                || match random.below(30) {
                    0..4 => store.flush().map(|()| states = vec![model.clone()]).is_err(),
                    4 => store.checkpoint(false).map(|()| states = vec![model.clone()]).is_err(),
                    5 => store.close().map(|()| states = vec![model.clone()]).is_err(),
                    _ => false,
                };
            if stops {
                break;
            }
        }
        cuts += u32::from(store.nand().is_off());
        store = reopened(store);
        let found = contents(&mut store);
        assert!(states.contains(&found), "walk {seed}, part {part}, {placement}: a state that never was");
        assert_sound(&mut store);
        if random.chance(0.1) {
            assert_eq!(store.repair().unwrap(), [""; 0], "walk {seed}, part {part}");
        }
        model = found;
    }
    cuts
}

/// A commit before a checkpoint that the power cut off was there at one opening and not at another: it was found only where
/// the checkpoint before counted.
#[test]
fn a_commit_that_no_chain_leads_to_is_there_at_each_opening_or_at_none() {
    walk(394);
}

#[test]
fn whatever_cuts_the_power_again_and_again_the_contents_are_those_of_an_instant() {
    let walks = std::env::var("WALKS").ok().and_then(|text| text.parse().ok()).unwrap_or(150);
    let cuts: u32 = (0..walks).map(walk).sum();
    eprintln!("{walks} walks, {cuts} cuts");
    assert!(u64::from(cuts) > walks, "{cuts} cuts");
}
