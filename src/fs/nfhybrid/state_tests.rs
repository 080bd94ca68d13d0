//! Every transition of a volume's state: who may go where, and by whose word.

use super::*;

const DISK: [u8; 16] = *b"the disk's own i";
const SSD: [u8; 16] = *b"the SSD's own id";
const EPOCH: u64 = 7;

fn tie(state: Saved) -> Tie {
    Tie { ssd: SSD, epoch: EPOCH, op: 100, state, reached: (1, 1), lag_tenths: 50 }
}

fn identity() -> Identity {
    Identity { uuid: DISK, mount_count: 3, mount_time: 10, write_time: 20, check_time: 5, in_use: true }
}

fn disk(tie: Result<Tie, NoTie>) -> DiskSays<'static> {
    DiskSays { name: "the disk", identity: identity(), tie }
}

fn ssd() -> SsdSays<'static> {
    let seen = ssd::Tie {
        disk_uuid: DISK,
        epoch: EPOCH,
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
        lost: None,
        unread: false,
    }
}

const SILENT: Word = Word { without_ssd: false, recover: Recover::Log };
const WITHOUT: Word = Word { without_ssd: true, recover: Recover::Log };
const DROP: Word = Word { without_ssd: false, recover: Recover::Disk };
const WHOLE: Word = Word { without_ssd: false, recover: Recover::Whole };
const EVERY: [Saved; 4] = [Saved::Clean, Saved::LogOpen, Saved::Recovering, Saved::Degraded];
const OPEN: [Saved; 2] = [Saved::LogOpen, Saved::Recovering];

#[test]
fn a_disk_alone_raises_the_epoch_once_and_an_open_log_only_by_word() {
    for state in EVERY {
        let found = judge(&disk(Ok(tie(state))), None, SILENT);
        if OPEN.contains(&state) {
            let error = found.unwrap_err().to_string();
            assert!(error.contains("--without-ssd") && error.contains(&show(SSD).to_string()), "{error}");
        } else {
            let plan = found.unwrap();
            let raised = u64::from(state != Saved::Degraded);
            assert_eq!((plan.phase, plan.epoch), (Phase::Degraded, EPOCH + raised), "{state:?}");
        }
        let plan = judge(&disk(Ok(tie(state))), None, WITHOUT).unwrap();
        assert_eq!(plan.phase, Phase::Degraded);
        assert_eq!(!plan.notes.is_empty(), OPEN.contains(&state), "{state:?}");
    }
    assert_eq!(judge(&disk(Err(NoTie::None)), None, SILENT).unwrap().epoch, 1);
    assert!(matches!(judge(&disk(Err(NoTie::Damaged)), None, SILENT), Err(Error::Corrupt { .. })));
    assert!(judge(&disk(Err(NoTie::Damaged)), None, WITHOUT).unwrap().epoch > 1 << 40);
    let later = judge(&disk(Err(NoTie::Version(9))), None, WITHOUT).unwrap_err();
    assert!(matches!(later, Error::Unsupported { .. }) && later.to_string().contains("version 9"), "{later}");
    judge(&disk(Ok(tie(Saved::LogOpen))), Some(&ssd()), WITHOUT).unwrap_err();
}

#[test]
fn halves_that_missed_nothing_go_on_and_what_the_log_holds_is_replayed() {
    for (state, holds) in EVERY.into_iter().flat_map(|state| [(state, false), (state, true)]) {
        let plan = judge(&disk(Ok(tie(state))), Some(&SsdSays { holds, ..ssd() }), SILENT).unwrap();
        let cut = state == Saved::Recovering;
        let phase = if holds || cut { Phase::Replaying } else { Phase::Settling };
        assert_eq!((plan.phase, plan.epoch, plan.cached), (phase, EPOCH, !cut), "{state:?}, {holds}");
    }
}

#[test]
fn halves_that_are_of_different_moments_are_refused_unless_nothing_is_lost_or_the_user_says_so() {
    let older_disk = SsdSays { disk_had: 101, ..ssd() };
    let mut of_later_epoch = ssd();
    of_later_epoch.seen.epoch = EPOCH + 1;
    let mut of_other_mount = ssd();
    of_other_mount.seen.mount_count = 4;
    for ssd in [older_disk, of_later_epoch, of_other_mount] {
        let found = disk(Ok(tie(Saved::LogOpen)));
        let error = judge(&found, Some(&ssd), SILENT).unwrap_err();
        assert!(matches!(&error, Error::Mismatch(why) if why.contains("recover=disk")), "{error}");
        judge(&found, Some(&ssd), WHOLE).unwrap_err();
        let raised = EPOCH.max(ssd.seen.epoch) + 1;
        for (ssd, word) in [(SsdSays { clean: true, ..ssd }, SILENT), (SsdSays { clean: false, ..ssd }, DROP)]
        {
            let plan = judge(&found, Some(&ssd), word).unwrap();
            assert_eq!((plan.phase, plan.epoch, plan.cached), (Phase::Rejoining, raised, false));
        }
    }
    for gone in [NoTie::None, NoTie::Damaged] {
        judge(&disk(Err(gone)), Some(&ssd()), SILENT).unwrap_err();
        let plan = judge(&disk(Err(gone)), Some(&ssd()), DROP).unwrap();
        assert_eq!((plan.phase, plan.epoch), (Phase::Rejoining, EPOCH + 1));
    }
}

#[test]
fn an_ssd_that_was_given_up_is_taken_back_empty() {
    let mut given_up = ssd();
    given_up.seen.epoch = EPOCH - 1;
    for state in [Saved::Degraded, Saved::Clean] {
        let plan = judge(&disk(Ok(tie(state))), Some(&given_up), SILENT).unwrap();
        assert_eq!((plan.phase, plan.epoch, plan.cached), (Phase::Rejoining, EPOCH, false));
    }
    // The disk has an open log, and it is not this one's.
    judge(&disk(Ok(tie(Saved::LogOpen))), Some(&given_up), SILENT).unwrap_err();
}

#[test]
fn foreign_halves_are_refused_whatever_the_user_says() {
    let mut other_disk = ssd();
    other_disk.seen.disk_uuid = [1; 16];
    for ssd in [other_disk, SsdSays { uuid: [2; 16], ..ssd() }] {
        for word in [SILENT, DROP, WHOLE] {
            let found = judge(&disk(Ok(tie(Saved::Clean))), Some(&ssd), word);
            assert!(matches!(found, Err(Error::Mismatch(_))));
        }
    }
}

#[test]
fn a_damaged_log_is_an_error_only_where_it_may_hold_something() {
    let ssd = SsdSays { lost: Some("group 4 is damaged"), ..ssd() };
    assert_eq!(judge(&disk(Ok(tie(Saved::Clean))), Some(&ssd), SILENT).unwrap().phase, Phase::Settling);
    for state in OPEN {
        let found = disk(Ok(tie(state)));
        let error = judge(&found, Some(&ssd), SILENT).unwrap_err().to_string();
        assert!(error.contains("group 4") && error.contains("recover=whole"), "{error}");
        assert_eq!(judge(&found, Some(&ssd), WHOLE).unwrap().epoch, EPOCH);
        let dropped = judge(&found, Some(&ssd), DROP).unwrap();
        assert_eq!((dropped.phase, dropped.epoch), (Phase::Rejoining, EPOCH + 1));
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
        let found = DiskSays { identity, ..disk(Ok(tie(Saved::LogOpen))) };
        let plan = judge(&found, Some(&SsdSays { holds: true, ..ssd() }), SILENT).unwrap();
        assert_eq!((plan.phase, plan.cached), (Phase::Replaying, cached));
    }
}

fn state(phase: Phase) -> State {
    State::new(&Plan { phase, epoch: EPOCH, cached: true, notes: Vec::new() })
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
        assert_eq!(state.epoch(), EPOCH + u64::from(allowed));
        assert!(!state.ssd_failed(&own), "twice");
        assert_eq!(state.epoch(), EPOCH + u64::from(allowed));
        let mut state = self::state(from);
        assert!(!state.ssd_overflowed(&own), "that is for its own error");
        assert_eq!(state.ssd_overflowed(&Error::NoSpace("log")), allowed, "{from:?}");
        assert_eq!(state.epoch(), EPOCH + u64::from(allowed));
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
