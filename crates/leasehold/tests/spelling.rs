//! No file of the repository has a known misspelling, by the dictionary of the `typos` project.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{collections::HashMap, fs, path::Path, process::Command};

use typos_dict::WORD;

/// Words that are meant: mistakes that the command answers to, genitives within names of tests, and a flag of open(2).
const MEANT: [&str; 11] =
    ["anothers", "childs", "dpeloy", "histroy", "inpsect", "lits", "mutexs", "nigthly", "relased", "wiat", "wronly"];
/// With fewer letters, an abbreviation is likelier than a mistake.
const SHORTEST: usize = 4;

type Corrections = HashMap<&'static str, &'static [&'static str]>;

fn corrections() -> Corrections {
    WORD.map.entries().map(|(word, corrections)| (word.into_inner(), *corrections)).collect()
}

/// The words of a text: `oneWord`, `one_word` and `OneWord` are two each.
fn words(text: &str) -> impl Iterator<Item = String> {
    let begins_word = |before: char, letter: char| before.is_ascii_lowercase() && letter.is_ascii_uppercase();
    let mut split = String::with_capacity(text.len());
    for letter in text.chars() {
        if split.chars().next_back().is_some_and(|before| begins_word(before, letter)) {
            split.push(' ');
        }
        split.push(letter);
    }
    let words: Vec<String> = split.split(|letter: char| !letter.is_alphabetic()).map(str::to_ascii_lowercase).collect();
    words.into_iter().filter(|word| word.len() >= SHORTEST)
}

fn misspellings<'a>(text: &'a str, known: &'a Corrections) -> impl Iterator<Item = (usize, String)> + 'a {
    text.lines().enumerate().flat_map(move |(number, line)| {
        words(line).filter(|word| !MEANT.contains(&word.as_str())).filter_map(move |word| {
            known.get(word.as_str()).map(|right| (number + 1, format!("{word}: {}", right.join(" or "))))
        })
    })
}

#[test]
fn no_word_is_misspelt() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let listed = Command::new("git").arg("ls-files").current_dir(&root).output().unwrap();
    assert!(listed.status.success(), "{listed:?}");
    let known = corrections();
    let mut files = 0;
    let mut found = Vec::new();
    for path in String::from_utf8(listed.stdout).unwrap().lines().filter(|path| !path.ends_with("Cargo.lock")) {
        // A file may have been removed and not committed, and a picture is not text.
        let Ok(text) = fs::read_to_string(root.join(path)) else { continue };
        files += 1;
        found.extend(misspellings(&text, &known).map(|(line, word)| format!("{path}:{line} {word}")));
    }
    assert!(files > 500, "{files} files");
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_misspelling_is_found_wherever_it_stands() {
    let known = corrections();
    // In two parts, since this file is looked at too.
    let wrong = ["rec", "ieve"].concat();
    for text in [format!("// {wrong}"), format!("to_{wrong}_it()"), format!("{}C", wrong.replacen('r', "R", 1))] {
        assert_eq!(misspellings(&text, &known).count(), 1, "{text}");
    }
    assert_eq!(misspellings("behaviour of a licence", &known).count(), 0, "British English is English");
}
