//! Slurm host lists: `node[0001-0018,0020],login1`, expanded and folded.
//!
//! Supports several brackets, ranges that keep their padding, lists, steps (`[0-8:2]`), and a
//! size limit, because `n[0-9][0-9][0-9][0-9][0-9][0-9]` is short to write and expands to a
//! million names. Nested brackets are rejected, as in Slurm's parser (`hostlist.c` takes the last
//! `[` and requires its `]` at the end). Steps and text after the last bracket are fabricgate
//! extensions.

use std::collections::{BTreeMap, HashSet};

/// The largest number of names in one list.
pub const MAX_NAMES: usize = 100_000;

/// A longer run of digits counts as text, not as a number: it might not fit 64 bits.
const MAX_DIGITS: usize = 18;

/// Why a host list is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("character {}: {message}", offset + 1)]
pub struct HostlistError {
    /// Byte offset into the list.
    pub offset: usize,
    /// The error at that offset.
    pub message: String,
}

fn error<T>(offset: usize, message: impl Into<String>) -> Result<T, HostlistError> {
    Err(HostlistError { offset, message: message.into() })
}

/// One range of a bracket: `lo-hi:step`, printed with `width` digits.
#[derive(Clone, Copy, Debug)]
struct HostlistRange {
    lo: u64,
    hi: u64,
    step: u64,
    width: usize,
}

impl HostlistRange {
    fn len(self) -> u64 {
        ((self.hi - self.lo) / self.step).saturating_add(1)
    }
}

/// A piece of one element: literal text, or a bracket.
#[derive(Debug)]
enum HostlistPiece<'a> {
    Text(&'a str),
    Ranges(Vec<HostlistRange>),
}

/// All names of a host list, in its order. Commas or blanks separate names. Duplicates are kept.
pub fn expand(list: &str) -> Result<Vec<String>, HostlistError> {
    let mut names = Vec::new();
    for (start, element) in split_elements(list)? {
        let pieces = parse_pieces(start, element)?;
        let count = pieces.iter().try_fold(1u64, |count, piece| match piece {
            HostlistPiece::Text(_) => Some(count),
            HostlistPiece::Ranges(ranges) => {
                let of_bracket = ranges.iter().try_fold(0u64, |n, r| n.checked_add(r.len()))?;
                count.checked_mul(of_bracket)
            }
        });
        let room = (MAX_NAMES - names.len()) as u64;
        if count.is_none_or(|count| room < count) {
            return error(start, format!("expands to more than {MAX_NAMES} names"));
        }
        let first = names.len();
        names.push(String::new());
        for piece in &pieces {
            append_piece(&mut names, first, piece);
        }
    }
    Ok(names)
}

/// Whether Slurm accepts this text as the name of one node: not a list, range, function such as
/// `block{b1}` or option-like text, and not `ALL`, which stands for every node (`slurmctld`, in
/// any case).
pub fn is_name(text: &str) -> bool {
    !text.eq_ignore_ascii_case("ALL") && expand(text).is_ok_and(|names| names == [text])
}

/// Appends every value of `piece` to every name from index `first` on.
fn append_piece(names: &mut Vec<String>, first: usize, piece: &HostlistPiece<'_>) {
    match piece {
        HostlistPiece::Text(text) => names[first..].iter_mut().for_each(|name| name.push_str(text)),
        HostlistPiece::Ranges(ranges) => {
            let stems = names.split_off(first);
            for stem in stems {
                for range in ranges {
                    let mut at = range.lo;
                    while at <= range.hi {
                        names.push(format!("{stem}{at:0width$}", width = range.width));
                        at += range.step;
                    }
                }
            }
        }
    }
}

/// The elements between commas and blanks outside brackets, with offsets.
fn split_elements(list: &str) -> Result<Vec<(usize, &str)>, HostlistError> {
    let mut elements = Vec::new();
    let mut start: Option<usize> = None;
    let mut open: Option<usize> = None;
    let mut comma: Option<usize> = None;
    for (at, c) in list.char_indices() {
        if open.is_none() && (c == ',' || c.is_whitespace()) {
            if let Some(from) = start.take() {
                elements.push((from, &list[from..at]));
            } else if c == ',' && (comma.is_some() || elements.is_empty()) {
                return error(at, "a name is missing before this comma");
            }
            if c == ',' {
                comma = Some(at);
            }
            continue;
        }
        if start.is_none() {
            start = Some(at);
            comma = None;
        }
        match (c, open) {
            ('[', None) => open = Some(at),
            ('[', Some(_)) => {
                return error(
                    at,
                    "brackets cannot be nested; write [0-1,4-5] instead of [0-1,[4-5]]",
                );
            }
            (']', None) => return error(at, "this ] has no ["),
            (']', Some(_)) => open = None,
            (_, Some(_)) if c.is_ascii_digit() || matches!(c, '-' | ',' | ':') => {}
            (_, Some(_)) => {
                return error(at, format!("{c:?} inside brackets, expected digits, -, : or ,"));
            }
            (_, None) if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') => {}
            ('{', None) => {
                return error(at, "only Slurm's controller can expand lists such as block{b1}");
            }
            (_, None) => {
                return error(at, format!("{c:?} cannot be part of a node name"));
            }
        }
    }
    if let Some(at) = open {
        return error(at, "this [ is never closed");
    }
    if let Some(from) = start {
        elements.push((from, &list[from..]));
    } else if let Some(at) = comma {
        return error(at, "a name is missing after this comma");
    }
    if elements.is_empty() {
        return error(0, "the list is empty, expected node names such as node[0001-0018]");
    }
    Ok(elements)
}

fn parse_pieces(start: usize, element: &str) -> Result<Vec<HostlistPiece<'_>>, HostlistError> {
    // A name becomes an argument of a launcher and a folder of a run, so it must look neither
    // like an option nor like `..`.
    if element.starts_with(['-', '.']) {
        return error(start, format!("{element:?}: a node name begins with a letter or a digit"));
    }
    let mut pieces = Vec::new();
    let mut rest = element;
    let mut at = start;
    while let Some(open) = rest.find('[') {
        let close = rest[open..].find(']').map_or(rest.len(), |i| open + i);
        if 0 < open {
            pieces.push(HostlistPiece::Text(&rest[..open]));
        }
        pieces.push(HostlistPiece::Ranges(parse_ranges(at + open + 1, &rest[open + 1..close])?));
        at += close + 1;
        rest = &rest[close + 1..];
    }
    if !rest.is_empty() {
        pieces.push(HostlistPiece::Text(rest));
    }
    Ok(pieces)
}

fn parse_ranges(start: usize, inside: &str) -> Result<Vec<HostlistRange>, HostlistError> {
    let mut ranges = Vec::new();
    let mut at = start;
    for part in inside.split(',') {
        ranges.push(parse_range(at, part)?);
        at += part.len() + 1;
    }
    Ok(ranges)
}

fn parse_range(at: usize, part: &str) -> Result<HostlistRange, HostlistError> {
    let (bounds, step) = match part.split_once(':') {
        Some((bounds, step)) => (bounds, parse_number(at + bounds.len() + 1, step)?),
        None => (part, 1),
    };
    if step == 0 {
        return error(at + bounds.len() + 1, "a step of 0 never ends");
    }
    let (low, high) = match bounds.split_once('-') {
        Some((low, high)) => (low, Some(high)),
        None => (bounds, None),
    };
    let lo = parse_number(at, low)?;
    let Some(high) = high else {
        if bounds.len() < part.len() {
            return error(at, format!("{part:?}: a step needs a range such as 0-8:2"));
        }
        return Ok(HostlistRange { lo, hi: lo, step: 1, width: low.len() });
    };
    let high_at = at + low.len() + 1;
    let hi = parse_number(high_at, high)?;
    if hi < lo {
        return error(at, format!("{bounds:?} runs backwards"));
    }
    if high.starts_with('0') && 1 < high.len() && high.len() != low.len() {
        return error(high_at, format!("{bounds:?}: the two ends are padded differently"));
    }
    Ok(HostlistRange { lo, hi, step, width: low.len() })
}

fn parse_number(at: usize, digits: &str) -> Result<u64, HostlistError> {
    if digits.is_empty() {
        return error(at, "a number is missing here");
    }
    if MAX_DIGITS < digits.len() {
        return error(at, format!("{digits:?} has more than {MAX_DIGITS} digits"));
    }
    match digits.parse() {
        Ok(number) if digits.bytes().all(|b| b.is_ascii_digit()) => Ok(number),
        _ => error(at, format!("{digits:?} is not a number")),
    }
}

/// A name around its last number: the text before and after it.
type NumberedNameFrame<'a> = (&'a str, &'a str);

/// A short host list for these names, without duplicates. Names that differ only in their last
/// number share a bracket; groups are in the order of their first names.
pub fn fold<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut order: Vec<Result<NumberedNameFrame<'a>, &'a str>> = Vec::new();
    let mut groups: BTreeMap<NumberedNameFrame<'a>, Vec<(u64, &'a str)>> = BTreeMap::new();
    let mut whole: HashSet<&'a str> = HashSet::new();
    for name in names {
        match split_number(name) {
            Some((frame, digits)) => {
                let group = groups.entry(frame).or_insert_with(|| {
                    order.push(Ok(frame));
                    Vec::new()
                });
                group.push((digits.parse().unwrap_or(u64::MAX), digits));
            }
            None if whole.insert(name) => order.push(Err(name)),
            None => {}
        }
    }
    let mut parts = Vec::new();
    for entry in order {
        match entry {
            Err(name) => parts.push(name.to_owned()),
            Ok(frame) => {
                let mut numbers = groups.remove(&frame).unwrap_or_default();
                numbers.sort_unstable_by_key(|(number, digits)| (*number, digits.len()));
                numbers.dedup();
                parts.push(fold_group(frame, &numbers));
            }
        }
    }
    parts.join(",")
}

fn fold_group((before, behind): NumberedNameFrame<'_>, numbers: &[(u64, &str)]) -> String {
    if let [(_, only)] = numbers {
        return format!("{before}{only}{behind}");
    }
    let mut ranges: Vec<(&str, &str)> = Vec::new();
    let mut next = String::new();
    for (number, digits) in numbers {
        match ranges.last_mut() {
            // Expanding a range pads every number like the first one, so a number may only join
            // if it expands to exactly this text.
            Some((_, last)) if next == *digits => *last = digits,
            _ => ranges.push((digits, digits)),
        }
        let width = ranges.last().map_or(0, |(first, _)| first.len());
        next = format!("{:0width$}", number.saturating_add(1));
    }
    let inside: Vec<String> = ranges
        .iter()
        .map(|(lo, hi)| if lo == hi { (*lo).to_owned() } else { format!("{lo}-{hi}") })
        .collect();
    format!("{before}[{}]{behind}", inside.join(","))
}

/// Splits a name at its last run of digits; `None` if it has none or one that is too long.
fn split_number(name: &str) -> Option<(NumberedNameFrame<'_>, &str)> {
    let end = name.rfind(|c: char| c.is_ascii_digit())? + 1;
    let start = name[..end]
        .rfind(|c: char| !c.is_ascii_digit())
        .map_or(0, |at| at + name[at..].chars().next().map_or(1, char::len_utf8));
    let digits = &name[start..end];
    (digits.len() <= MAX_DIGITS).then_some(((&name[..start], &name[end..]), digits))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn names(list: &str) -> Vec<String> {
        expand(list).expect("a good list")
    }

    fn complaint(list: &str) -> String {
        expand(list).expect_err("a bad list").to_string()
    }

    #[test]
    fn a_name_is_one_name_and_nothing_else() {
        for name in ["node0001", "a", "r1u2-ib0", "9", "login1.cluster", "wall"] {
            assert!(is_name(name), "{name}");
        }
        for other in
            ["", "ALL", "all", "a,b", "a b", " a", "n[1]", "n[1-2]", "block{b1}", "-x", ".", "a=b"]
        {
            assert!(!is_name(other), "{other:?}");
        }
    }

    #[test]
    fn ranges_keep_their_padding() {
        assert_eq!(names("n[008-011]"), ["n008", "n009", "n010", "n011"]);
        assert_eq!(names("n[8-11]"), ["n8", "n9", "n10", "n11"]);
        assert_eq!(names("n[098-101]"), ["n098", "n099", "n100", "n101"]);
        assert_eq!(names("n[0001-3]"), ["n0001", "n0002", "n0003"]);
        assert_eq!(names("[1-2]"), ["1", "2"]);
    }

    #[test]
    fn lists_steps_suffixes_and_several_brackets() {
        assert_eq!(names("a1, b[2,4-5]-ib  c"), ["a1", "b2-ib", "b4-ib", "b5-ib", "c"]);
        assert_eq!(names("n[0-7:3]"), ["n0", "n3", "n6"]);
        assert_eq!(names("rack[1-2]u[01,03]"), ["rack1u01", "rack1u03", "rack2u01", "rack2u03"]);
    }

    #[test]
    fn every_mistake_is_named_at_its_place() {
        assert_eq!(complaint("n[1-3"), "character 2: this [ is never closed");
        assert_eq!(complaint("n1]"), "character 3: this ] has no [");
        assert_eq!(
            complaint("n[1[2]]").split(';').next(),
            Some("character 4: brackets cannot be nested")
        );
        assert_eq!(complaint("n[]"), "character 3: a number is missing here");
        assert_eq!(complaint("n[1,]"), "character 5: a number is missing here");
        assert_eq!(complaint("n[5-2]"), "character 3: \"5-2\" runs backwards");
        assert_eq!(
            complaint("n[1-x]"),
            "character 5: 'x' inside brackets, expected digits, -, : or ,"
        );
        assert_eq!(complaint("n[1-5:0]"), "character 7: a step of 0 never ends");
        assert_eq!(complaint("a,,b"), "character 3: a name is missing before this comma");
        assert_eq!(complaint("a,"), "character 2: a name is missing after this comma");
        assert_eq!(complaint(",a"), "character 1: a name is missing before this comma");
        assert_eq!(complaint("a/b"), "character 2: '/' cannot be part of a node name");
        assert!(complaint("").contains("empty"));
        assert!(complaint("ok,-oProxyCommand").starts_with("character 4:"));
        assert!(complaint("..").contains("begins with"));
        assert!(complaint("n[1-0010]").contains("padded differently"));
        assert!(complaint("n[1:2]").contains("needs a range"));
        assert!(complaint("n[1-2-3]").contains("not a number"));
        assert!(complaint("rack[0-1,[4-5]]").contains("nested"));
        assert!(complaint("a,block{b1}").starts_with("character 8: only Slurm's controller"));
    }

    #[test]
    fn a_bomb_is_refused_without_being_built() {
        assert!(complaint("n[0-9][0-9][0-9][0-9][0-9][0-9]").contains("more than 100000"));
        assert!(complaint("n[0-999999999999999999][0-999999999999999999]").contains("more than"));
        assert!(complaint("n[1-100000],m").contains("more than"));
        assert_eq!(names("n[1-100000]").len(), MAX_NAMES);
    }

    #[test]
    fn folding_joins_adjacent_numbers_and_leaves_the_rest() {
        assert_eq!(fold(["n0001", "n0003", "n0002", "login", "n0002"]), "n[0001-0003],login");
        assert_eq!(fold(["n9", "n10", "n010"]), "n[9-10,010]");
        assert_eq!(fold(["a7"]), "a7");
        assert_eq!(fold(["r1u1-ib", "r1u2-ib", "r2u1-ib"]), "r1u[1-2]-ib,r2u1-ib");
        assert_eq!(fold([]), "");
    }

    #[test]
    fn the_longest_list_without_a_number_is_folded_once() {
        let letter = |digit: usize| char::from(b'a' + u8::try_from(digit % 26).expect("a letter"));
        let word = |n: usize| -> String { (0..4).map(|i| letter(n / 26usize.pow(i))).collect() };
        let list = (0..MAX_NAMES).map(word).collect::<Vec<_>>().join(",");
        let expanded = names(&list);
        assert_eq!(expanded.len(), MAX_NAMES);
        let twice = expanded.iter().chain(&expanded).map(String::as_str);
        assert_eq!(fold(twice), list);
    }

    proptest! {
        #[test]
        fn folding_what_was_folded_changes_nothing(
            names in prop::collection::vec("[a-b]{0,2}[0-9]{0,3}(x[0-9]{1,2})?[a-b]", 1..40)
        ) {
            let folded = fold(names.iter().map(String::as_str));
            let again = expand(&folded).expect("a folded list can be expanded");
            prop_assert_eq!(fold(again.iter().map(String::as_str)), folded);
        }

        #[test]
        fn the_order_of_names_does_not_change_what_shares_a_bracket(
            mut names in prop::collection::vec("[a-b][0-9]{1,3}[a-b]?", 1..40)
        ) {
            let parts = |names: &[String]| {
                let folded = fold(names.iter().map(String::as_str));
                let elements = split_elements(&folded).expect("a folded list can be expanded");
                elements.into_iter().map(|(_, part)| part.to_owned()).collect::<BTreeSet<_>>()
            };
            let before = parts(&names);
            names.reverse();
            prop_assert_eq!(parts(&names), before);
        }

        #[test]
        fn any_names_can_be_folded(names in prop::collection::vec("\\PC{0,8}[0-9]{0,20}", 0..20)) {
            let folded = fold(names.iter().map(String::as_str));
            prop_assert!(names.iter().all(|n| n.is_empty()) || !folded.is_empty());
        }

        #[test]
        fn folding_and_expanding_gives_the_same_names(
            set in prop::collection::btree_set("[a-c]{0,2}[0-9]{1,4}(-[a-b]{1}|[a-b][0-9]{1,2})?", 1..60)
        ) {
            let folded = fold(set.iter().map(String::as_str));
            let back: Vec<String> = expand(&folded).expect("a folded list can be expanded");
            prop_assert_eq!(back.len(), set.len(), "{}", folded);
            prop_assert_eq!(back.into_iter().collect::<BTreeSet<_>>(), set);
        }

        #[test]
        fn no_text_panics_and_every_error_points_inside(list in "[a-b0-9\\[\\],:. \
             -]{0,24}|\\PC{0,12}") {
            match expand(&list) {
                Ok(names) => prop_assert!(!names.is_empty() && names.len() <= MAX_NAMES),
                Err(error) => prop_assert!(error.offset <= list.len()),
            }
        }
    }
}
