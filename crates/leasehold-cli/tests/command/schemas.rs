//! Every JSON output fits its checked-in schema, and says nothing that the schema does not.

use std::{fs, path::Path, process::Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::sandbox::{Running, Sandbox, json_lines, read_soon, until};

/// A checker of the part of JSON Schema that ours use; a keyword it does not know is a failure.
struct Schema {
    name: String,
    root: Value,
}

impl Schema {
    fn load(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("schemas/{name}.schema.json"));
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { name: name.to_owned(), root: serde_json::from_str(&text).unwrap() }
    }

    fn check(&self, value: &Value) {
        let mut faults = Vec::new();
        self.visit(&self.root, value, "$", &mut faults);
        assert!(faults.is_empty(), "{}: {faults:#?} in {value:#}", self.name);
    }

    fn visit(&self, schema: &Value, value: &Value, at: &str, faults: &mut Vec<String>) {
        let mut fault = |words: String| faults.push(format!("{at}: {words}"));
        for (keyword, wanted) in schema.as_object().unwrap() {
            match keyword.as_str() {
                "type" => {
                    let types: Vec<&str> = match wanted {
                        Value::Array(types) => types.iter().map(|name| name.as_str().unwrap()).collect(),
                        one => vec![one.as_str().unwrap()],
                    };
                    if !types.contains(&type_of(value)) {
                        fault(format!("is {}, not {types:?}", type_of(value)));
                    }
                }
                "const" if wanted != value => fault(format!("is {value}, not {wanted}")),
                "enum" if !wanted.as_array().unwrap().contains(value) => fault(format!("{value} is none of {wanted}")),
                "minimum" if value.as_f64().is_some_and(|number| number < wanted.as_f64().unwrap()) => {
                    fault(format!("{value} is below {wanted}"));
                }
                "maximum" if value.as_f64().is_some_and(|number| number > wanted.as_f64().unwrap()) => {
                    fault(format!("{value} is above {wanted}"));
                }
                "pattern" => {
                    if let Some(text) = value.as_str()
                        && !matches(wanted.as_str().unwrap(), text)
                    {
                        fault(format!("{text} does not look like {wanted}"));
                    }
                }
                "$schema" | "title" | "description" | "$defs" | "properties" | "required" | "items" | "$ref"
                | "const" | "enum" | "minimum" | "maximum" => {}
                unknown => panic!("the checker does not know {unknown}"),
            }
        }
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            let target = self.root.pointer(reference.strip_prefix('#').unwrap()).unwrap();
            self.visit(target, value, at, faults);
        }
        if let (Some(properties), Some(object)) = (schema.get("properties"), value.as_object()) {
            let required = schema["required"].as_array().unwrap();
            for name in required.iter().map(|name| name.as_str().unwrap()) {
                if !object.contains_key(name) {
                    faults.push(format!("{at}: {name} is missing"));
                }
            }
            for (name, value) in object {
                match properties.get(name) {
                    Some(schema) => self.visit(schema, value, &format!("{at}.{name}"), faults),
                    None => faults.push(format!("{at}: {name} is not in the schema")),
                }
            }
        }
        if let (Some(items), Some(array)) = (schema.get("items"), value.as_array()) {
            for (index, value) in array.iter().enumerate() {
                self.visit(items, value, &format!("{at}[{index}]"), faults);
            }
        }
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_u64() || number.is_i64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The two patterns that our schemas have.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern {
        "^lh2_[0-9a-f]+$" => text.strip_prefix("lh2_").is_some_and(|rest| {
            !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
        }),
        time => {
            assert!(time.starts_with("^[0-9]{4}-") && time.ends_with("\\.[0-9]{3}Z$"), "{time}");
            let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
            shape == "0000-00-00T00:00:00.000Z"
        }
    }
}

fn check_lines(name: &str, text: &str) -> usize {
    let schema = Schema::load(name);
    let lines = json_lines(text);
    for line in &lines {
        schema.check(line);
    }
    lines.len()
}

#[test]
fn the_checker_finds_faults() {
    let schema = Schema::load("version");
    let faults = |value: Value| {
        let mut faults = Vec::new();
        schema.visit(&schema.root, &value, "$", &mut faults);
        faults.len()
    };
    assert_eq!(faults(serde_json::json!({"v": 1, "version": "0", "backends": ["file"]})), 0);
    assert_eq!(faults(serde_json::json!({"v": 2, "version": "0", "backends": ["file"]})), 1);
    assert_eq!(faults(serde_json::json!({"v": 1, "version": null, "backends": [1, 2]})), 3);
    assert_eq!(faults(serde_json::json!({"v": 1, "backends": [], "more": 1})), 2);
    assert_eq!(faults(serde_json::json!([])), 1);
}

#[test]
fn commands_that_look_fit_their_schemas() {
    let sandbox = Sandbox::new();
    let _holder = sandbox.hold("held");
    let _waiter = sandbox.start(&["run", "--meta", "{\"a\":[1]}", "--note", "n", "held", "--", "true"]);
    let _permit = sandbox.start(&["run", "-j", "4", "--permits", "2", "gpu", "--", "sleep", "600"]);
    let _reader = sandbox.start(&["run", "-s", "catalog", "--", "sleep", "600"]);
    sandbox.run(&["acquire", "leased", "--ttl", "10m", "--meta", "k=v"]).assert_code(0);
    sandbox.run(&["run", "over", "-c", "exit 3"]).assert_code(3);
    sandbox.run(&["run", "-w", "1", "held", "true"]).assert_code(75);
    until("all are there", || {
        sandbox.waiters("held") == 1 && sandbox.holders("gpu") == 1 && sandbox.holders("catalog") == 1
    });
    for list in [&["list", "--json"][..], &["list", "--json", "--limit", "1"], &["list", "--json", "nothing"]] {
        assert_eq!(check_lines("list", &sandbox.run(list).stdout), 1);
    }
    let _kept = sandbox.start(&["run", "--min-hold", "600s", "kept", "--", "true"]);
    until("its command has ended", || sandbox.inspect("kept")["holders"][0]["command_ended"].is_object());
    assert_eq!(check_lines("list", &sandbox.run(&["list", "--json", "kept"]).stdout), 1);
    for name in ["held", "gpu", "catalog", "leased", "over", "never", "kept"] {
        assert_eq!(check_lines("inspect", &sandbox.run(&["inspect", "--json", name]).stdout), 1);
    }
    assert_eq!(check_lines("history", &sandbox.run(&["history", "--json"]).stdout), 2);
    assert!(check_lines("runs", &sandbox.run(&["history", "--skipped", "--json"]).stdout) >= 1);
    let check = sandbox.run(&["check", "held", "--succeeded-within", "1h", "--json"]);
    assert!(check_lines("runs", &check.stdout) <= 1);
    assert_eq!(check_lines("doctor", &sandbox.run(&["doctor", "--json"]).stdout), 1);
    assert_eq!(check_lines("version", &sandbox.run(&["version", "--json"]).stdout), 1);
    let wrong = sandbox.run(&["evict", "--json", "held", "--fence", "1", "--reason", "r", "--yes"]);
    assert_eq!((check_lines("evict", &wrong.stdout), check_lines("event", &wrong.stderr)), (1, 1));
    let fence = sandbox.fence("gpu");
    let right = sandbox.run(&["evict", "--json", "gpu", "--fence", &fence, "--reason", "r", "--yes"]);
    assert_eq!((check_lines("evict", &right.stdout), check_lines("event", &right.stderr)), (1, 1));
}

#[test]
fn watch_fits_its_schema() {
    let sandbox = Sandbox::new();
    let (out, log) = (sandbox.path("out"), sandbox.path("log"));
    let mut command = sandbox.leasehold(&["watch", "--json"]);
    command.stdout(fs::File::create(&out).unwrap()).stderr(fs::File::create(&log).unwrap());
    let _watcher = Running::of(command);
    until("it watches", || fs::read_to_string(&log).unwrap().contains("watching"));
    let holder = sandbox.hold("x");
    let mut waiter = sandbox.start(&["run", "-j", "2", "gpu", "--", "true"]);
    waiter.wait();
    sandbox.run(&["run", "-w", "1", "x", "--", "true"]);
    holder.signal(Signal::KILL);
    drop(holder);
    until("all is told", || {
        sandbox.run(&["list"]);
        fs::read_to_string(&out).unwrap().contains("disconnected")
    });
    assert!(check_lines("watch", &fs::read_to_string(&out).unwrap()) >= 5);
    check_lines("event", &fs::read_to_string(&log).unwrap());
}

#[test]
fn commands_on_a_lease_fit_their_schemas() {
    let sandbox = Sandbox::new();
    let acquired = sandbox.run(&["acquire", "--json", "x", "--ttl", "1m"]);
    assert_eq!((check_lines("acquire", &acquired.stdout), check_lines("event", &acquired.stderr)), (1, 1));
    let event: Value = serde_json::from_str(&acquired.stderr).unwrap();
    assert_eq!((&event["event"], &event["lock"]), (&"acquired".into(), &"x".into()), "{event}");
    for field in ["fence", "waited_ms"] {
        assert_eq!(event[field], acquired.json()[field], "{event}");
    }
    let lease = acquired.json()["lease"].as_str().unwrap().to_owned();
    let file = sandbox.path("file");
    let hidden =
        sandbox.run(&["acquire", "--json", "-j", "2", "s", "--ttl", "1m", "--lease-file", file.to_str().unwrap()]);
    assert_eq!(check_lines("acquire", &hidden.stdout), 1);
    assert_eq!(hidden.json()["lease"], Value::Null);
    for round in 0..2 {
        let renewed = sandbox.run(&["renew", "--json", "--lease", &lease, "--ttl", "1m"]);
        let checked = sandbox.run(&["check", "--json", "--lease", &lease]);
        let released = sandbox.run(&["release", "--json", "--lease", &lease]);
        for (name, ran) in [("renew", &renewed), ("check", &checked)] {
            assert_eq!(check_lines(name, &ran.stdout), 1);
            assert_eq!(ran.code(), round);
        }
        assert_eq!(check_lines("release", &released.stdout), 1);
        assert_eq!(released.code(), round);
        let _next = sandbox.run(&["acquire", "x", "-n", "--ttl", "1m"]);
    }
}

#[test]
fn elections_fit_their_schema() {
    let sandbox = Sandbox::new();
    assert_eq!(check_lines("leader", &sandbox.run(&["elect", "boss", "--leader", "--json"]).stdout), 1);
    let ready = sandbox.path("ready");
    let script = format!("echo x > {}; exec sleep 600", ready.display());
    let _leader = sandbox.start(&["elect", "boss", "--value", "v", "-c", &script]);
    read_soon(&ready);
    for look in ["--leader", "--resign"] {
        assert_eq!(check_lines("leader", &sandbox.run(&["elect", "boss", look, "--json"]).stdout), 1);
    }
    let script = format!("echo x >> {0}; test $(wc -l < {0}) -ge 2", sandbox.path("times").display());
    let again = sandbox.run(&["--json", "elect", "other", "--backoff", "20ms", "-c", &script]);
    again.assert_code(0);
    assert!(check_lines("event", &again.stderr) > 0 && again.stderr.contains("\"details\""), "{again:?}");
}

#[test]
fn reports_and_events_of_every_outcome_fit_their_schemas() {
    let sandbox = Sandbox::new();
    let report = sandbox.path("report");
    let outcome = |args: &[&str]| -> String {
        let flags = ["run", "--json", "-vv", "--report", report.to_str().unwrap()];
        let ran = sandbox.run(&[&flags, args].concat());
        check_lines("event", &ran.stderr);
        assert_eq!(ran.stdout, "");
        let text = fs::read_to_string(&report).unwrap();
        assert_eq!(check_lines("report", &text), 1);
        let told: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(told["exit_code"], ran.code());
        told["outcome"].as_str().unwrap().to_owned()
    };
    assert_eq!(outcome(&["x", "--", "true"]), "completed");
    assert_eq!(outcome(&["-j", "3", "s", "--", "sh", "-c", "kill -9 $$"]), "failed");
    assert_eq!(outcome(&["x", "--", "no-such-command-here"]), "exec_failed");
    assert_eq!(outcome(&["--max-hold", ".1", "x", "--", "sleep", "600"]), "max_hold");
    let exe = env!("CARGO_BIN_EXE_leasehold");
    assert_eq!(outcome(&["x", "--", exe, "release"]), "lost");
    assert_eq!(outcome(&["-b", "file:///proc/nowhere", "x", "--", "true"]), "backend_error");
    let holder = sandbox.hold("x");
    assert_eq!(outcome(&["-n", "x", "--", "true"]), "not_acquired");
    assert_eq!(outcome(&["-w", "2.5", "x", "--", "true"]), "not_acquired");
    drop(holder);

    let ready = sandbox.path("ready");
    let script = format!("echo x > {}; exec sleep 600", ready.display());
    let mut command = sandbox.leasehold(&["run", "--json", "--report", report.to_str().unwrap(), "x", "-c", &script]);
    command.stderr(Stdio::piped());
    let running = Running::of(command);
    read_soon(&ready);
    running.signal(Signal::TERM);
    check_lines("event", &running.finish().stderr);
    assert_eq!(check_lines("report", &fs::read_to_string(&report).unwrap()), 1);
    assert!(fs::read_to_string(&report).unwrap().contains("\"outcome\":\"interrupted\""));

    for mistake in
        [&["--json", "run", "x"][..], &["--json", "frobnicate"], &["run", "--json", "--dry-run", "x", "--", "true"]]
    {
        assert_eq!(check_lines("event", &sandbox.run(mistake).stderr), 1);
    }
}

#[test]
fn init_fits_its_schema() {
    let (sandbox, server) = (Sandbox::new(), leasehold_testkit::postgres::Postgres::start());
    for _ in 0..2 {
        let ran = crate::sandbox::Ran::of(sandbox.bare(&["-b", &server.url(), "init", "--json"]));
        ran.assert_code(0);
        assert_eq!(check_lines("init", &ran.stdout), 1);
    }
    assert_eq!(check_lines("init", &sandbox.run(&["init", "--json"]).stdout), 1);
}
