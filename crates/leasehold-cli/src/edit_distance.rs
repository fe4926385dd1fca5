//! How far a word is from the one that was perhaps meant.

/// How many letters must be added, dropped, replaced, or swapped with their neighbour.
pub(crate) fn edit_distance(typed: &str, meant: &str) -> usize {
    let (typed, meant): (Vec<char>, Vec<char>) = (typed.chars().collect(), meant.chars().collect());
    let mut rows = vec![(0..=meant.len()).collect::<Vec<usize>>()];
    for (t, letter) in typed.iter().enumerate() {
        let mut row = vec![t + 1];
        for (m, wanted) in meant.iter().enumerate() {
            let replaced = rows[t][m] + usize::from(letter != wanted);
            let mut least = replaced.min(rows[t][m + 1] + 1).min(row[m] + 1);
            if t > 0 && m > 0 && *letter == meant[m - 1] && typed[t - 1] == *wanted {
                least = least.min(rows[t - 1][m - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[typed.len()][meant.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        for (typed, meant, count) in
            [("run", "run", 0), ("rnu", "run", 1), ("lits", "list", 1), ("rn", "run", 1), ("x", "run", 3)]
        {
            assert_eq!(edit_distance(typed, meant), count, "{typed}");
        }
    }
}
