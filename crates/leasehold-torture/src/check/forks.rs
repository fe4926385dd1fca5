//! A forked child is refused: every call on an instance that it inherited fails, and none hangs.

use super::{Promises, Violation};
use crate::history::{ForkAnswer, RunHistory};

pub(super) fn check(history: &RunHistory, _rules: Promises) -> Vec<Violation> {
    let calls = history.children.iter().flat_map(|(pid, child)| {
        let parent = &history.lives[child.life].label;
        child.calls.iter().map(move |(call, answer)| (pid, parent, call, answer))
    });
    calls
        .filter_map(|(pid, parent, call, answer)| {
            let answer = match answer {
                ForkAnswer::Refused => return None,
                ForkAnswer::Missing => "no answer",
                ForkAnswer::Other(text) => text.as_str(),
            };
            let what = format!("child {pid} of {parent}: {call} was not refused");
            Some(Violation::new("forks", what, vec![format!("answer: {answer}")]))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{super::sample, *};
    use crate::history::Child;

    #[test]
    fn a_child_whose_call_succeeds_or_hangs_is_found() {
        let mut history = sample::history(1);
        let answers = [ForkAnswer::Refused, ForkAnswer::Missing, ForkAnswer::Other(String::from("Ok(())"))];
        for (pid, answer) in (1..).zip(answers) {
            let calls = [(String::from("check"), answer)].into();
            history.children.insert(pid, Child { life: 0, idle: false, calls });
        }
        assert_eq!(check(&history, sample::RULES).len(), 2);
    }
}
