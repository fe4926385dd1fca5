//! What a command leaves behind when it ends.

use std::{fs, time::Duration};

use crate::place::{Place, is_alive, read_soon};

#[test]
fn what_stays_in_the_group_is_stopped_before_the_release() {
    let place = Place::new();
    let pid = place.path("pid");
    let ran =
        place.run(&["run", "-v", "x", "-c", &format!("sleep 999 > /dev/null 2>&1 & echo $! > {}", pid.display())]);
    ran.assert_code(0);
    assert!(!is_alive(read_soon(&pid).parse().unwrap()));
    assert!(ran.stderr.contains("left processes behind"), "{ran:?}");
}

#[test]
fn a_stubborn_one_is_killed_after_the_grace() {
    let place = Place::new();
    let pid = place.path("pid");
    let script = format!(
        "sh -c 'trap \"\" TERM; echo $$ > {0}; while :; do sleep .05; done' > /dev/null 2>&1 & while ! test -s {0}; do sleep .01; done; exit 3",
        pid.display()
    );
    let ran = place.run(&["run", "--kill-after", ".3", "x", "-c", &script]);
    ran.assert_code(3);
    assert!(ran.took >= Duration::from_millis(300), "{ran:?}");
    assert!(!is_alive(read_soon(&pid).parse().unwrap()));
}

#[test]
fn a_daemon_lives_on_and_keeps_no_lock() {
    let place = Place::new();
    let pid = place.path("pid");
    let script = format!(
        "setsid sh -c 'echo $$ > {0}; exec sleep 999' < /dev/null > /dev/null 2>&1 & while ! test -s {0}; do sleep .01; done",
        pid.display()
    );
    let ran = place.run(&["run", "x", "-c", &script]);
    ran.assert_code(0);
    let daemon: i32 = read_soon(&pid).parse().unwrap();
    assert!(is_alive(daemon), "a daemon is meant to stay");
    let inherited = fs::read_dir(format!("/proc/{daemon}/fd")).unwrap().count();
    assert!(inherited > 3, "it has closed nothing");
    let next = place.run(&["run", "-n", "x", "--", "true"]);
    next.assert_code(0);
}

#[test]
fn a_daemon_may_take_the_lock_again_later() {
    let place = Place::new();
    let (away, gone, code) = (place.path("away"), place.path("gone"), place.path("code"));
    let exe = env!("CARGO_BIN_EXE_leasehold");
    // Its environment still says that the lock is held by those who started it.
    let daemon = format!(
        "touch {}; while ! test -e {}; do sleep .01; done; {exe} run -n x true; echo $? > {}",
        away.display(),
        gone.display(),
        code.display()
    );
    let script = format!(
        "setsid sh -c '{daemon}' < /dev/null > /dev/null 2>&1 & while ! test -e {}; do sleep .01; done",
        away.display()
    );
    place.run(&["run", "x", "-c", &script]).assert_code(0);
    fs::write(gone, "").unwrap();
    assert_eq!(read_soon(&code), "0");
}

#[test]
fn with_kill_mode_process_they_are_left_alone() {
    let place = Place::new();
    let pid = place.path("pid");
    let script = format!("sleep 999 > /dev/null 2>&1 & echo $! > {}", pid.display());
    place.run(&["run", "--kill-mode", "process", "x", "-c", &script]).assert_code(0);
    assert!(is_alive(read_soon(&pid).parse().unwrap()));
    place.run(&["run", "-n", "x", "--", "true"]).assert_code(0);
}
