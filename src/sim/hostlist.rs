//! Folded node names as scenarios write them: `node[0001-0018,20]`.
//!
//! One pair of brackets a name, several names between commas. The full
//! grammar of schedulers is the inventory's work, not this file's.

/// The nodes a folded list names, in its order.
pub fn expand(folded: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for part in split(folded)? {
        let part = part.trim();
        match part.split_once('[') {
            None if part.is_empty() => return Err(format!("an empty name in `{folded}`")),
            None => names.push(part.to_owned()),
            Some((head, rest)) => {
                let (ranges, tail) = rest
                    .split_once(']')
                    .ok_or_else(|| format!("a bracket in `{part}` is never closed"))?;
                if tail.contains(['[', ']']) {
                    return Err(format!("`{part}` has more than one pair of brackets"));
                }
                for range in ranges.split(',') {
                    numbers(range, &mut |number| names.push(format!("{head}{number}{tail}")))?;
                }
            }
        }
    }
    Ok(names)
}

/// The parts between commas that stand outside brackets.
fn split(folded: &str) -> Result<Vec<&str>, String> {
    let mut parts = Vec::new();
    let (mut start, mut depth) = (0, 0_u32);
    for (at, byte) in folded.bytes().enumerate() {
        match byte {
            b'[' => depth += 1,
            b']' if depth == 0 => {
                return Err(format!("`{folded}` closes a bracket it never opened"));
            }
            b']' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(&folded[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&folded[start..]);
    Ok(parts)
}

/// Every number of `0001-0018` or `7`, as wide as it was written.
fn numbers(range: &str, each: &mut dyn FnMut(String)) -> Result<(), String> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let parse = |text: &str| {
        text.parse::<u32>().map_err(|_| format!("`{range}` is not a number or a range of numbers"))
    };
    let (from, to) = (parse(first)?, parse(last)?);
    // A typo such as 1-99999999 should not fill the memory.
    if to < from || 100_000 < to - from {
        return Err(format!("the range `{range}` is empty or too long"));
    }
    for number in from..=to {
        each(format!("{number:0width$}", width = first.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_keep_their_width_and_lists_their_order() {
        let names = expand("node[0009-0011,2]-a, login").expect("a good list");
        assert_eq!(names, ["node0009-a", "node0010-a", "node0011-a", "node2-a", "login"]);
    }

    #[test]
    fn a_broken_list_is_named_in_the_message() {
        for broken in ["a[1-", "a]", "a[3-1]", "a[x]", "a,,b", "a[1][2]"] {
            assert!(expand(broken).is_err(), "{broken}");
        }
    }
}
