//! Damage that follows the structure of its input: lines, numbers, tokens of the grammar.
//!
//! Bytes and dice in, bytes out. Damage by launchers, editors, full disks and mistaken copies
//! comes first; unrealistic damage comes last.

use super::dice::Dice;

/// Numbers that are hard to parse.
const NUMBERS: &[&str] = &[
    "0",
    "-1",
    "1",
    "-0.00",
    "007",
    "1e999",
    "1e-400",
    "9223372036854775808",
    "4294967296",
    "18446744073709551616",
    "340282366920938463463374607431768211456",
    "99999999999999999999.99",
    "0x1f",
    "1.2.3",
    "1,234.5",
    "inf",
    "-nan",
    "NaN",
    "N/A",
    "+5",
    ".5",
    "5.",
    "1e",
    "0.000000001",
    "65536",
    "1000000",
];

/// Bytes that are not text, or text that is not an output.
const GARBAGE: &[&[u8]] = &[
    b"\x00",
    b"\x00\x00\x00\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\x1b[31m",
    b"\x1b[0m",
    b"\x1b]0;t\x07",
    b"\x1b",
    b"\x08\x08",
    b"\x0c",
    b"\x7f",
    b"\xc2\x85",
    b"\xe2\x80\xa8",
    b"\xe2\x80\xae",
    b"\t\t",
    b"\r",
    b"...\n",
    b"[1,3]<stderr>:",
    b"slurmstepd: error: *** JOB 77 CANCELLED ***\n",
    b"{",
    b"}",
    b"\"",
    b"\\",
    b"[[[[",
    b"]]",
    b"''",
    b"#",
];

/// Longest generated input; larger ones only take time.
const LONGEST: usize = 200_000;

/// One input: a text of `corpus`, damaged one to four times. `tokens` are tokens of its grammar,
/// `others` further texts to splice in.
pub(crate) fn mutate(
    dice: &mut Dice,
    corpus: &[Vec<u8>],
    others: &[Vec<u8>],
    tokens: &[&str],
) -> Vec<u8> {
    let mut input = dice.pick(corpus).clone();
    let times = 1 + dice.below(4);
    for _ in 0..times {
        input = once(dice, input, corpus, others, tokens);
        input.truncate(LONGEST);
    }
    input
}

fn once(
    dice: &mut Dice,
    mut input: Vec<u8>,
    corpus: &[Vec<u8>],
    others: &[Vec<u8>],
    tokens: &[&str],
) -> Vec<u8> {
    match dice.below(24) {
        0 | 1 => {
            let at = dice.below(input.len() + 1);
            input.truncate(at);
        }
        2 => {
            let at = dice.below(input.len() + 1);
            input.drain(..at);
        }
        3 => {
            let (start, end) = dice.range(input.len());
            input.drain(start..end);
        }
        4 | 5 => return with_lines(&input, |lines| drop_lines(dice, lines)),
        6 | 7 => return with_lines(&input, |lines| double_lines(dice, lines)),
        8 | 9 => return with_lines(&input, |lines| swap_lines(dice, lines)),
        10 | 11 => return splice(dice, &input, corpus),
        12 => return splice(dice, &input, others),
        13..=15 => change_number(dice, &mut input),
        16 => insert(dice, &mut input, GARBAGE),
        17 | 18 => {
            let token = *dice.pick(tokens);
            replace_word(dice, &mut input, token.as_bytes());
        }
        19 => {
            let at = dice.below(input.len() + 1);
            let token = dice.pick(tokens).as_bytes();
            input.splice(at..at, token.iter().copied());
        }
        20 => return line_ends(dice, &input),
        21 => return prefixed(dice, &input),
        22 => {
            let nested = dice.pick(&["[", "{\"a\":", "(", "[[domain]]\n"]).repeat(dice.below(3000));
            let at = dice.below(input.len() + 1);
            input.splice(at..at, nested.bytes());
        }
        _ => {
            for _ in 0..=dice.below(4) {
                let at = dice.below(input.len());
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << dice.below(8);
                }
            }
        }
    }
    input
}

fn with_lines(input: &[u8], change: impl FnOnce(&mut Vec<&[u8]>)) -> Vec<u8> {
    let mut lines: Vec<&[u8]> = input.split_inclusive(|b| *b == b'\n').collect();
    if !lines.is_empty() {
        change(&mut lines);
    }
    lines.concat()
}

fn drop_lines(dice: &mut Dice, lines: &mut Vec<&[u8]>) {
    let start = dice.below(lines.len());
    let end = (start + 1 + dice.below(3)).min(lines.len());
    lines.drain(start..end);
}

fn double_lines(dice: &mut Dice, lines: &mut Vec<&[u8]>) {
    let start = dice.below(lines.len());
    let end = (start + 1 + dice.below(12)).min(lines.len());
    let part = lines[start..end].to_vec();
    let to = if dice.once_in(2) { end } else { dice.below(lines.len() + 1) };
    lines.splice(to..to, part);
}

fn swap_lines(dice: &mut Dice, lines: &mut [&[u8]]) {
    let (a, b) = (dice.below(lines.len()), dice.below(lines.len()));
    lines.swap(a, b);
}

/// The beginning of one output and the end of another, as of two writers or a file that was
/// overwritten. Mostly cut between lines.
fn splice(dice: &mut Dice, input: &[u8], from: &[Vec<u8>]) -> Vec<u8> {
    let other = dice.pick(from);
    let between_lines = !dice.once_in(4);
    let mut cut = |text: &[u8]| {
        let at = dice.below(text.len() + 1);
        let line = text[at..].iter().position(|b| *b == b'\n').map_or(text.len(), |i| at + i + 1);
        if between_lines { line } else { at }
    };
    let (head, tail) = (cut(input), cut(other));
    [&input[..head], &other[tail..]].concat()
}

/// Start and end of every run of bytes that `belongs`.
fn runs(input: &[u8], belongs: impl Fn(u8) -> bool) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut start = None;
    for (at, byte) in input.iter().chain(b"\n").enumerate() {
        match (start, at < input.len() && belongs(*byte)) {
            (None, true) => start = Some(at),
            (Some(from), false) => {
                found.push((from, at));
                start = None;
            }
            _ => {}
        }
    }
    found
}

fn change_number(dice: &mut Dice, input: &mut Vec<u8>) {
    let numbers = runs(input, |b| b.is_ascii_digit() || b == b'.');
    if numbers.is_empty() {
        return;
    }
    let (start, end) = *dice.pick(&numbers);
    if dice.once_in(3) {
        // The same length, so that tables keep their columns.
        for byte in &mut input[start..end] {
            if byte.is_ascii_digit() {
                *byte = b'0' + u8::try_from(dice.below(10)).expect("one digit");
            }
        }
    } else {
        input.splice(start..end, dice.pick(NUMBERS).bytes());
    }
}

fn replace_word(dice: &mut Dice, input: &mut Vec<u8>, token: &[u8]) {
    let words = runs(input, |b| !b.is_ascii_whitespace());
    if !words.is_empty() {
        let (start, end) = *dice.pick(&words);
        input.splice(start..end, token.iter().copied());
    }
}

fn insert(dice: &mut Dice, input: &mut Vec<u8>, choices: &[&[u8]]) {
    for _ in 0..=dice.below(3) {
        let at = dice.below(input.len() + 1);
        let bytes = *dice.pick(choices);
        input.splice(at..at, bytes.iter().copied());
    }
}

/// Another system's line ends, or another encoding.
fn line_ends(dice: &mut Dice, input: &[u8]) -> Vec<u8> {
    let with = |end: &[u8]| {
        let lines: Vec<&[u8]> = input.split(|b| *b == b'\n').collect();
        lines.join(end)
    };
    match dice.below(5) {
        0 => with(b"\r"),
        1 => with(b"\r\r\n"),
        2 => with(b" \n\n"),
        3 => {
            let text = String::from_utf8_lossy(input).into_owned();
            let units = text.encode_utf16().flat_map(u16::to_le_bytes);
            [0xff, 0xfe].into_iter().chain(units).collect()
        }
        _ => with(b"\r\n"),
    }
}

/// Prefixes that launchers and copy-and-paste add to lines.
fn prefixed(dice: &mut Dice, input: &[u8]) -> Vec<u8> {
    let style = dice.below(5);
    let mut out = Vec::with_capacity(input.len() * 2);
    for line in input.split_inclusive(|b| *b == b'\n') {
        let rank = dice.below(4);
        let prefix = match style {
            0 => format!("[1,{rank}]<stdout>:"),
            1 => format!("{rank}: "),
            2 => format!("[{rank}] "),
            3 => "> ".to_owned(),
            _ => format!("[pod/worker-{rank}/main] "),
        };
        // Some lines have none: two streams were mixed.
        if !dice.once_in(8) {
            out.extend_from_slice(prefix.as_bytes());
        }
        out.extend_from_slice(line);
    }
    out
}
