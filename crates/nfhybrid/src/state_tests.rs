//! Every transition of a volume's state: who may go where, and by whose word.

use super::*;

const DISK: [u8; 16] = *b"the disk's own i";
const SSD: [u8; 16] = *b"the SSD's own id";
const EPOCH: u64 = 7;

fn pairing(state: Saved) -> Pairing {
    Pairing { ssd: SSD, epoch: EPOCH, op: 100, state, reached: (1, 1), lag_tenths: 50 }
}

fn identity() -> Identity {
    Identity { uuid: DISK, mount_count: 3, mount_time: 10, write_time: 20, check_time: 5, in_use: true }
}

fn disk(pairing: Result<Pairing, NoPairing>) -> DiskSays<'static> {
    DiskSays { name: "the disk", identity: identity(), pairing }
}

fn ssd() -> SsdSays<'static> {
    let seen = ssd::Pairing {
        disk_uuid: DISK,
        epoch: EPOCH,
        before: 0,
        disk_op: 100,
        mount_count: 3,
        mount_time: 10,
        last_check: 5,
        write_time: 20,
    };
    SsdSays {
        name: "the SSD",
        uuid: SSD,
        seen,
        clean: false,
        disk_had: 90,
        holds: false,
        holds_own: false,
        lost: None,
        unread: false,
    }
}

const SILENT: Word = Word { without_ssd: false, recover: Recover::Log, draw: 7 };
const WITHOUT: Word = Word { without_ssd: true, recover: Recover::Log, draw: 7 };
const DROP: Word = Word { without_ssd: false, recover: Recover::Disk, draw: 7 };
const WHOLE: Word = Word { without_ssd: false, recover: Recover::Whole, draw: 7 };
const EVERY: [Saved; 4] = [Saved::Clean, Saved::LogOpen, Saved::Recovering, Saved::Degraded];
const OPEN: [Saved; 2] = [Saved::LogOpen, Saved::Recovering];

#[test]
fn a_disk_alone_raises_the_epoch_and_with_an_open_log_only_by_word() {
    for state in EVERY {
        let found = judge(&disk(Ok(pairing(state))), None, SILENT);
        if OPEN.contains(&state) {
            let error = found.unwrap_err().to_string();
            assert!(error.contains("--without-ssd") && error.contains(&show(SSD).to_string()), "{error}");
        } else {
            let plan = found.unwrap();
            assert_eq!((plan.phase, plan.epoch), (Phase::Degraded, raised(EPOCH, 7)), "{state:?}");
        }
        let plan = judge(&disk(Ok(pairing(state))), None, WITHOUT).unwrap();
        assert_eq!(plan.phase, Phase::Degraded);
        assert_eq!(!plan.notes.is_empty(), OPEN.contains(&state), "{state:?}");
    }
    assert_eq!(judge(&disk(Err(NoPairing::None)), None, SILENT).unwrap().epoch, raised(0, 7));
    assert!(matches!(judge(&disk(Err(NoPairing::Damaged)), None, SILENT), Err(Error::Corrupt { .. })));
    assert!(judge(&disk(Err(NoPairing::Damaged)), None, WITHOUT).unwrap().epoch > 1 << 40);
    let later = judge(&disk(Err(NoPairing::Version(9))), None, WITHOUT).unwrap_err();
    assert!(matches!(later, Error::Unsupported { .. }) && later.to_string().contains("version 9"), "{later}");
    judge(&disk(Ok(pairing(Saved::LogOpen))), Some(&ssd()), WITHOUT).unwrap_err();
}

#[test]
fn halves_that_missed_nothing_go_on_and_what_the_log_holds_is_replayed() {
    for (state, holds) in EVERY.into_iter().flat_map(|state| [(state, false), (state, true)]) {
        let plan = judge(&disk(Ok(pairing(state))), Some(&SsdSays { holds, ..ssd() }), SILENT).unwrap();
        let cut = state == Saved::Recovering;
        let phase = if holds || cut { Phase::Replaying } else { Phase::Settling };
        assert_eq!((plan.phase, plan.epoch, plan.cached), (phase, EPOCH, !cut), "{state:?}, {holds}");
    }
}

#[test]
fn halves_that_are_of_different_moments_are_refused_unless_nothing_is_lost_or_the_user_says_so() {
    let older_disk = SsdSays { disk_had: 101, ..ssd() };
    let mut of_later_epoch = ssd();
    of_later_epoch.seen.epoch = raised(EPOCH, 7);
    let mut of_other_mount = ssd();
    of_other_mount.seen.mount_count = 4;
    for ssd in [older_disk, of_later_epoch, of_other_mount] {
        let found = disk(Ok(pairing(Saved::LogOpen)));
        let error = judge(&found, Some(&ssd), SILENT).unwrap_err();
        assert!(matches!(&error, Error::Mismatch(why) if why.contains("recover=disk")), "{error}");
        judge(&found, Some(&ssd), WHOLE).unwrap_err();
        let raised = raised(EPOCH.max(ssd.seen.epoch), 7);
        // An SSD that was left in order does not hold the log that this disk tells of: its own may.
        let left_in_order = |ssd: &SsdSays<'static>| SsdSays { clean: true, seen: ssd.seen, ..*ssd };
        let error = judge(&found, Some(&left_in_order(&ssd)), SILENT).unwrap_err().to_string();
        assert!(error.contains("last used with") && error.contains("recover=disk"), "{error}");
        for (state, ssd, word) in [
            (Saved::Clean, left_in_order(&ssd), SILENT),
            (Saved::LogOpen, SsdSays { clean: false, ..ssd }, DROP),
        ] {
            let found = disk(Ok(pairing(state)));
            let plan = judge(&found, Some(&ssd), word).unwrap();
            assert_eq!((plan.phase, plan.epoch, plan.cached), (Phase::Rejoining, raised, false));
        }
    }
    for gone in [NoPairing::None, NoPairing::Damaged] {
        judge(&disk(Err(gone)), Some(&ssd()), SILENT).unwrap_err();
        let plan = judge(&disk(Err(gone)), Some(&ssd()), DROP).unwrap();
        assert_eq!((plan.phase, plan.epoch), (Phase::Rejoining, raised(EPOCH, 7)));
    }
}

#[test]
fn a_disk_whose_record_of_its_ssd_is_gone_was_not_joined_with_another() {
    let used_since = Pairing { ssd: [0; 16], epoch: 1, state: Saved::Degraded, ..pairing(Saved::Degraded) };
    let found = disk(Ok(used_since));
    let error = judge(&found, Some(&ssd()), SILENT).unwrap_err().to_string();
    assert!(error.contains("bimetal rescue") && !error.contains("another SSD"), "{error}");
    let plan = judge(&found, Some(&SsdSays { clean: true, ..ssd() }), SILENT).unwrap();
    assert_eq!((plan.phase, plan.epoch), (Phase::Rejoining, raised(EPOCH, 7)));
    let other = Pairing { ssd: [9; 16], ..used_since };
    let error = judge(&disk(Ok(other)), Some(&ssd()), SILENT).unwrap_err().to_string();
    assert!(error.contains("another SSD"), "{error}");
}

#[test]
fn an_ssd_that_was_given_up_is_taken_back_empty() {
    let mut given_up = ssd();
    given_up.seen.epoch = EPOCH - 1;
    for state in [Saved::Degraded, Saved::Clean] {
        let plan = judge(&disk(Ok(pairing(state))), Some(&given_up), SILENT).unwrap();
        assert_eq!((plan.phase, plan.epoch, plan.cached), (Phase::Rejoining, EPOCH, false));
    }
    // The disk has an open log, and it is not this one's.
    judge(&disk(Ok(pairing(Saved::LogOpen))), Some(&given_up), SILENT).unwrap_err();
}

#[test]
fn a_disk_whose_uuid_was_changed_is_told_its_old_one() {
    let mut ssd = ssd();
    ssd.seen.disk_uuid = [1; 16];
    for state in EVERY {
        let error = judge(&disk(Ok(pairing(state))), Some(&ssd), SILENT).unwrap_err().to_string();
        assert!(error.contains("tune2fs -U 01010101-0101-0101-0101-010101010101"), "{error}");
    }
}

#[test]
fn foreign_halves_are_refused_whatever_the_user_says() {
    let mut other_disk = ssd();
    other_disk.seen.disk_uuid = [1; 16];
    for ssd in [other_disk, SsdSays { uuid: [2; 16], ..ssd() }] {
        for word in [SILENT, DROP, WHOLE] {
            let found = judge(&disk(Ok(pairing(Saved::Clean))), Some(&ssd), word);
            assert!(matches!(found, Err(Error::Mismatch(_))));
        }
    }
}

#[test]
fn a_damaged_log_is_an_error_only_where_it_may_hold_something() {
    let ssd = SsdSays { lost: Some("group 4 is damaged"), ..ssd() };
    assert_eq!(judge(&disk(Ok(pairing(Saved::Clean))), Some(&ssd), SILENT).unwrap().phase, Phase::Settling);
    for state in OPEN {
        let found = disk(Ok(pairing(state)));
        let error = judge(&found, Some(&ssd), SILENT).unwrap_err().to_string();
        assert!(error.contains("group 4") && error.contains("recover=whole"), "{error}");
        assert_eq!(judge(&found, Some(&ssd), WHOLE).unwrap().epoch, EPOCH);
        let dropped = judge(&found, Some(&ssd), DROP).unwrap();
        assert_eq!((dropped.phase, dropped.epoch), (Phase::Rejoining, raised(EPOCH, 7)));
    }
}

#[test]
fn a_disk_that_was_checked_or_written_meanwhile_costs_the_cached_data_only() {
    let checked = Identity { check_time: 6, ..identity() };
    let written = Identity { write_time: 21, in_use: false, ..identity() };
    let replayed_by_us = Identity { write_time: 21, ..identity() };
    let counted_anew = Identity { check_time: 6, mount_count: 0, ..identity() };
    let found = [(checked, false), (counted_anew, false), (written, false), (replayed_by_us, true)];
    for (identity, cached) in found {
        let found = DiskSays { identity, ..disk(Ok(pairing(Saved::LogOpen))) };
        let plan = judge(&found, Some(&SsdSays { holds: true, ..ssd() }), SILENT).unwrap();
        assert_eq!((plan.phase, plan.cached, plan.others), (Phase::Replaying, cached, !cached));
    }
}

fn state(phase: Phase) -> State {
    State::new(&Plan {
        phase,
        epoch: EPOCH,
        draw: 7,
        given_up: None,
        cached: true,
        others: false,
        notes: Vec::new(),
    })
}

const PHASES: [Phase; 6] =
    [Phase::Replaying, Phase::Rejoining, Phase::Settling, Phase::Open, Phase::Closing, Phase::Degraded];

#[test]
fn each_phase_goes_on_to_the_next_and_nowhere_else() {
    use Phase::{Closing, Degraded, Open, Rejoining, Replaying, Settling};
    type Step<'a> = (fn(&mut State), &'a [(Phase, Phase)]);
    let steps: [Step; 3] = [
        (State::recovered, &[(Replaying, Settling), (Rejoining, Settling)]),
        (State::opened, &[(Settling, Open)]),
        (State::closing, &[(Open, Closing)]),
    ];
    for (step, moves) in steps {
        for from in PHASES {
            let mut state = state(from);
            step(&mut state);
            let to = moves.iter().find(|(begin, _)| *begin == from).map_or(from, |(_, end)| *end);
            assert_eq!((state.phase, state.epoch()), (to, EPOCH));
        }
    }
    let saved = PHASES.map(|phase| state(phase).saved());
    use Saved::Recovering;
    let expected = [Recovering, Saved::Degraded, Saved::Clean, Saved::LogOpen, Saved::Clean, Saved::Degraded];
    assert_eq!(saved, expected);
    assert_eq!(Degraded, state(Degraded).phase);
}

#[test]
fn an_ssd_is_given_up_once_for_its_own_error_and_never_while_its_log_is_replayed() {
    let own = Error::of_ssd(Error::Gone { device: "ssd".into() });
    for from in PHASES {
        for error in
            [Error::NoSpace("log"), Error::Stale, Error::invalid("?"), Error::Gone { device: "disk".into() }]
        {
            let mut state = state(from);
            assert!(!state.ssd_failed(&error));
            assert_eq!((state.phase, state.epoch(), state.ssd_lost()), (from, EPOCH, None));
        }
        let mut state = state(from);
        let allowed = matches!(from, Phase::Settling | Phase::Open | Phase::Closing);
        assert_eq!(state.ssd_failed(&own), allowed, "{from:?}");
        assert_eq!(state.epoch(), if allowed { raised(EPOCH, 7) } else { EPOCH });
        assert!(!state.ssd_failed(&own), "twice");
        assert_eq!(state.epoch(), if allowed { raised(EPOCH, 7) } else { EPOCH });
        let mut state = self::state(from);
        assert!(!state.ssd_overflowed(&own), "that is for its own error");
        assert_eq!(state.ssd_overflowed(&Error::NoSpace("log")), allowed, "{from:?}");
        assert_eq!(state.epoch(), if allowed { raised(EPOCH, 7) } else { EPOCH });
    }
}

#[test]
fn a_failed_disk_ends_changes_and_an_ended_mount_ends_everything() {
    let mut state = state(Phase::Open);
    state.check_changeable().unwrap();
    state.disk_failed(&Error::Gone { device: "sdx".into() });
    state.disk_failed(&Error::Stale);
    state.check_readable().unwrap();
    assert!(state.check_changeable().unwrap_err().to_string().contains("sdx"));
    assert!(state.check_running().is_err() && !state.is_running());
    state.ended("unmounted");
    assert!(state.check_readable().unwrap_err().to_string().contains("unmounted"));
}

#[test]
fn each_mount_of_both_halves_draws_the_epoch_anew_and_the_ssd_hears_what_the_disk_said_before() {
    let counted = 3 << 32 | 17;
    let plan = |phase, epoch| Plan {
        phase,
        epoch,
        draw: 99,
        given_up: None,
        cached: true,
        others: false,
        notes: Vec::new(),
    };
    for phase in [Phase::Replaying, Phase::Rejoining] {
        let mut state = State::new(&plan(phase, counted));
        assert_eq!(state.epoch(), counted, "the disk says what it said until everything is there");
        state.recovered();
        assert_eq!((state.epoch(), state.epoch_before()), (3 << 32 | 99, 17));
    }
    let state = State::new(&plan(Phase::Settling, counted));
    assert_eq!((state.epoch(), state.epoch_before()), (3 << 32 | 99, 17));
    assert_eq!(State::new(&plan(Phase::Degraded, counted)).epoch(), counted);
    // Counts of before have nothing drawn in them.
    assert_eq!(State::new(&plan(Phase::Settling, 17)).epoch(), 17);
}

#[test]
fn halves_that_were_not_last_used_together_are_told_by_what_was_drawn() {
    let says = |draw: u64, state| disk(Ok(Pairing { epoch: 3 << 32 | draw, ..pairing(state) }));
    let has = |draw: u64, before: u32| {
        let mut half = ssd();
        (half.seen.epoch, half.seen.before) = (3 << 32 | draw, before);
        SsdSays { holds: true, ..half }
    };
    for state in EVERY {
        judge(&says(17, state), Some(&has(17, 16)), SILENT).unwrap();
        // The power failed after the SSD was told, and before the disk was; not so if the disk has gone on since.
        let gone_on = disk(Ok(Pairing { epoch: 3 << 32 | 16, op: 101, ..pairing(state) }));
        assert_eq!(judge(&gone_on, Some(&has(17, 16)), SILENT).is_ok(), state == Saved::Recovering);
        let cut = judge(&says(16, state), Some(&has(17, 16)), SILENT).unwrap();
        assert_eq!(cut.epoch, 3 << 32 | 16);
        for other in [15, 18] {
            let error = judge(&says(other, state), Some(&has(17, 16)), SILENT).unwrap_err().to_string();
            for word in ["copy", "backup", "bimetal rescue", "recover=disk"] {
                assert!(error.contains(word), "'{word}' is missing in: {error}");
            }
            judge(&says(other, state), Some(&has(17, 16)), WHOLE).unwrap_err();
            let dropped = judge(&says(other, state), Some(&has(17, 16)), DROP).unwrap();
            assert_eq!((dropped.phase, dropped.epoch >> 32), (Phase::Rejoining, 4));
            let clean = SsdSays { clean: true, holds: false, ..has(17, 16) };
            match judge(&says(other, state), Some(&clean), SILENT) {
                Ok(plan) => assert_eq!((plan.phase, OPEN.contains(&state)), (Phase::Rejoining, false)),
                Err(error) => assert!(OPEN.contains(&state), "{error}"),
            }
        }
    }
}

#[test]
fn an_ssd_with_a_lower_count_is_emptied_only_where_nobody_can_miss_what_it_holds() {
    let at = |count: u64, draw: u64| count << 32 | draw;
    let has = |holds, clean| {
        let mut half = ssd();
        half.seen.epoch = at(3, 17);
        SsdSays { holds_own: holds, clean, ..half }
    };
    let says = |state, reached| disk(Ok(Pairing { epoch: at(4, 1), reached, ..pairing(state) }));
    let goes_on = |disk: &DiskSays, ssd: &SsdSays| match judge(disk, Some(ssd), SILENT) {
        Ok(plan) => {
            assert_eq!((plan.phase, plan.given_up), (Phase::Rejoining, Some(17)));
            true
        }
        Err(error) => {
            assert!(error.to_string().contains("nothing was changed"), "{error}");
            false
        }
    };
    // The very one that the disk says it gave up may hold what it likes: the disk has it, or the user dropped it.
    let gave_up_this = says(Saved::Degraded, Pairing::reached_without_ssd(17));
    let gave_up_another = says(Saved::Degraded, Pairing::reached_without_ssd(18));
    let unknown = says(Saved::Degraded, (1, 1));
    for (disk, holds, goes) in [
        (&gave_up_this, true, true),
        (&gave_up_this, false, true),
        (&gave_up_another, true, false),
        (&gave_up_another, false, true),
        (&unknown, true, false),
        (&unknown, false, true),
    ] {
        assert_eq!(goes_on(disk, &has(holds, false)), goes, "holds {holds}");
    }
    // A disk that has an SSD again told that one first.
    assert!(goes_on(&says(Saved::Clean, (1, 1)), &has(false, true)));
    assert!(!goes_on(&says(Saved::Clean, (1, 1)), &has(false, false)));
    assert!(!goes_on(&says(Saved::Clean, (1, 1)), &has(true, false)));
}

#[test]
fn a_disk_used_alone_says_which_ssd_it_gave_up_and_goes_on_saying_it() {
    let first =
        judge(&disk(Ok(Pairing { epoch: 3 << 32 | 17, ..pairing(Saved::Clean) })), None, SILENT).unwrap();
    assert_eq!((first.epoch, first.given_up), (4 << 32 | 7, Some(17)));
    let state = State::new(&first);
    assert_eq!(state.given_up(), Some(17));
    let said =
        Pairing { epoch: first.epoch, reached: Pairing::reached_without_ssd(17), ..pairing(Saved::Degraded) };
    assert_eq!(said.disk_side().reached, (0, 0), "of no log");
    let again = judge(&disk(Ok(said)), None, SILENT).unwrap();
    assert_eq!((again.epoch, again.given_up), (5 << 32 | 7, Some(17)));
    // In a running mount, too.
    let mut running = State::new(&Plan { epoch: 3 << 32 | 17, ..first.clone() });
    running.phase = Phase::Open;
    assert_eq!(running.given_up(), None);
    assert!(running.ssd_failed(&Error::of_ssd(Error::Gone { device: "ssd".into() })));
    assert_eq!(running.given_up(), Some(17));
}

#[test]
fn a_damaged_record_of_the_ssd_counts_as_an_open_log() {
    let found = disk(Err(NoPairing::Damaged));
    let error = judge(&found, Some(&SsdSays { clean: true, ..ssd() }), SILENT).unwrap_err().to_string();
    assert!(error.contains("nothing was changed") && error.contains("recover=disk"), "{error}");
    judge(&found, Some(&SsdSays { clean: true, ..ssd() }), DROP).unwrap();
}

#[test]
fn a_check_that_brought_a_mount_of_the_future_back_to_now_parts_nothing() {
    let mut half = ssd();
    half.seen.mount_time = 1000;
    let found = |mount_time, mount_count| {
        let identity = Identity { mount_time, mount_count, check_time: 900, ..identity() };
        judge(
            &DiskSays { identity, ..disk(Ok(pairing(Saved::LogOpen))) },
            Some(&SsdSays { holds: true, ..half_of(&half) }),
            SILENT,
        )
    };
    fn half_of(half: &SsdSays<'static>) -> SsdSays<'static> {
        SsdSays { seen: half.seen, ..ssd() }
    }
    assert_eq!(found(900, 0).unwrap().phase, Phase::Replaying);
    found(899, 0).unwrap_err();
    found(900, 1).unwrap_err();
    found(1100, 0).unwrap_err();
}
