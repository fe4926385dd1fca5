//! Skipped and successful runs, remembered for those who look after jobs.

use crate::place::Place;

#[test]
fn skips_and_successes_are_counted_and_shown() {
    let place = Place::new();
    let never = place.run(&["check", "job", "--succeeded-within", "26h"]);
    never.assert_code(1);
    assert!(never.stderr.contains("no success known"), "{never:?}");
    place.run(&["run", "job", "--", "true"]).assert_code(0);
    let fine = place.run(&["check", "job", "--succeeded-within", "26h"]);
    fine.assert_code(0);
    assert_eq!(fine.stderr, "");

    let holder = place.hold("job");
    for args in [&["-n"][..], &["-w", ".05"], &["-n", "-E", "0"]] {
        place.run(&[&["run"], args, &["job", "--", "true"]].concat());
    }
    let record = place.inspect("job")["runs"].clone();
    assert_eq!(record["skips"], 3, "{record}");
    assert!(record["held_by"].as_str().unwrap().contains(&format!(":{}:", holder.pid())), "{record}");
    let text = place.run(&["inspect", "job"]).stdout;
    assert!(text.contains("runs      skipped 3 times, last ") && text.contains("; last success "), "{text}");
    let table = place.run(&["history", "--skipped"]).stdout;
    assert!(table.starts_with("NAME  SKIPPED  LAST SKIP") && table.lines().count() == 2, "{table}");
    assert_eq!(place.run(&["history", "--skipped", "--json", "j*"]).json()["skips"], 3);
    assert_eq!(place.run(&["history", "--skipped", "--json", "other"]).stdout, "");
}

#[test]
fn a_success_that_is_too_old_or_never_came_is_told() {
    let place = Place::new();
    place.run(&["run", "job", "-c", "exit 3"]).assert_code(3);
    place.run(&["check", "job", "--succeeded-within", "26h"]).assert_code(1);
    place.run(&["run", "job", "--", "true"]).assert_code(0);
    std::thread::sleep(std::time::Duration::from_millis(20));
    let old = place.run(&["check", "job", "--succeeded-within", "10ms", "--json"]);
    old.assert_code(1);
    assert_eq!(old.json()["succeeded_within"], false);
    place.run(&["check", "job"]).assert_code(64);
    place.run(&["check", "--succeeded-within", "1h"]).assert_code(64);
}
