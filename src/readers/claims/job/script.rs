//! Environments and scripts: `KEY=VALUE` lines (NUL-separated ones of `/proc` too), shell with
//! `export`, arguments of `env`, `mpirun -x` and `srun --export`, and the `#SBATCH` lines and
//! options of Slurm's commands.
//!
//! Nothing is evaluated: the last assignment in the text counts, whichever branch it is in.

use super::settings::{JobSettingsCollector, OPTIONS, RepeatPolicy};

/// How deep commands may be nested in commands (`bash -c "..."`).
const MAX_DEPTH: usize = 3;

/// Options of Slurm's commands without a value: the next word may be the command (`srun`,
/// `sbatch` and `salloc --help`, 24.11).
const VALUELESS_OPTIONS: [&str; 28] = [
    "-E",
    "-H",
    "-I",
    "-K",
    "-O",
    "-Q",
    "-X",
    "-Z",
    "-k",
    "-l",
    "-s",
    "-u",
    "-v",
    "--contiguous",
    "--exact",
    "--exclusive",
    "--hold",
    "--kill-on-bad-exit",
    "--label",
    "--no-kill",
    "--overcommit",
    "--overlap",
    "--oversubscribe",
    "--parsable",
    "--pty",
    "--quiet",
    "--unbuffered",
    "--verbose",
];

/// Prefixes of an assignment within one word.
const ASSIGNMENT_PREFIXES: [&str; 4] = ["--export=", "--env=", "-x=", "-e="];

/// Whether a text contains `#SBATCH` lines.
pub(super) fn has_directives(text: &str) -> bool {
    text.lines().any(|line| line.trim_start().starts_with("#SBATCH "))
}

/// Parses a script that starts at line `first` of its file.
pub(super) fn read(settings: &mut JobSettingsCollector<'_>, text: &str, first: usize) {
    read_nested(settings, text, first, 0);
}

fn read_nested(settings: &mut JobSettingsCollector<'_>, text: &str, first: usize, depth: usize) {
    let mut joined = String::new();
    let mut start = first;
    for (at, line) in text.split(['\n', '\0']).enumerate() {
        let line = line.trim_end_matches('\r');
        if joined.is_empty() {
            start = first + at;
        }
        if let Some(part) = line.strip_suffix('\\') {
            joined.push_str(part);
            joined.push(' ');
            continue;
        }
        joined.push_str(line);
        read_command(settings, &joined, start, depth);
        joined.clear();
    }
    if !joined.is_empty() {
        read_command(settings, &joined, start, depth);
    }
}

/// Parses the relevant parts of one line.
fn read_command(settings: &mut JobSettingsCollector<'_>, line: &str, number: usize, depth: usize) {
    let line = line.trim();
    if let Some(directive) = line.strip_prefix("#SBATCH ") {
        let words: Vec<String> = split_commands(directive).into_iter().flatten().collect();
        read_options(settings, &words, number);
        return;
    }
    for words in split_commands(line) {
        let is_unset = words.first().is_some_and(|word| word == "unset");
        let is_slurm = |word: &String| {
            let name = word.rsplit('/').next().unwrap_or_default();
            matches!(name, "sbatch" | "srun" | "salloc")
        };
        if let Some(at) = words.iter().position(is_slurm) {
            read_options(settings, own_options(&words[at + 1..]), number);
        }
        for word in &words {
            if is_unset {
                settings.unset(word);
                continue;
            }
            if read_assignment(settings, word, number) {
                continue;
            }
            // A command in one word: bash -c "export A=1; ...".
            if depth < MAX_DEPTH && word.contains('=') && word.contains([' ', '\t', ';']) {
                read_nested(settings, word, number, depth + 1);
            }
        }
    }
}

/// Records `NAME=VALUE`, also after `--export=ALL,`; returns whether it was an assignment.
fn read_assignment(settings: &mut JobSettingsCollector<'_>, word: &str, number: usize) -> bool {
    if let Some(list) = ASSIGNMENT_PREFIXES.iter().find_map(|front| word.strip_prefix(front)) {
        // Not every comma ends a value: a host list contains commas, too.
        let mut pieces: Vec<String> = Vec::new();
        for piece in list.split(',') {
            match pieces.last_mut() {
                Some(last)
                    if !piece.contains('=') && last.contains('[') && !last.ends_with(']') =>
                {
                    last.push(',');
                    last.push_str(piece);
                }
                _ => pieces.push(piece.to_owned()),
            }
        }
        for piece in pieces {
            assign(settings, &piece, number);
        }
        return true;
    }
    assign(settings, word, number)
}

fn assign(settings: &mut JobSettingsCollector<'_>, word: &str, number: usize) -> bool {
    let Some((name, value)) = word.split_once('=') else { return false };
    let Some(name) = JobSettingsCollector::known_name(name).filter(|name| !name.starts_with('-'))
    else {
        return false;
    };
    settings.set(name, value, number, RepeatPolicy::Replaces);
    true
}

/// Slurm's options before the command to run; later ones belong to that command.
fn own_options(words: &[String]) -> &[String] {
    let mut takes_value = false;
    let command = words.iter().position(|word| {
        let is_option = word.starts_with('-');
        let is_command = !is_option && !takes_value;
        // `-N 4` and `--nodes 4`, not `-N4` and `--nodes=4`.
        let is_open = word.len() == 2 || (word.starts_with("--") && !word.contains('='));
        takes_value = is_option && is_open && !VALUELESS_OPTIONS.contains(&word.as_str());
        is_command
    });
    &words[..command.unwrap_or(words.len())]
}

/// Records options of Slurm's commands: `--nodes=2`, `--nodes 2`, `-N2`, `-N 2`.
fn read_options(settings: &mut JobSettingsCollector<'_>, words: &[String], number: usize) {
    for (at, word) in words.iter().enumerate() {
        for (long, short) in OPTIONS {
            let rest = match (word.strip_prefix(long), short.is_empty()) {
                (Some(rest), _) if rest.is_empty() || rest.starts_with('=') => rest,
                (None, false) if !word.starts_with("--") => match word.strip_prefix(short) {
                    Some(rest) => rest,
                    None => continue,
                },
                _ => continue,
            };
            let value = match rest.strip_prefix('=').unwrap_or(rest) {
                "" => words.get(at + 1).map_or("", String::as_str),
                value => value,
            };
            settings.set(long, value, number, RepeatPolicy::Replaces);
        }
    }
}

/// The words of a line, command by command, without quotes. `#` starts a comment.
fn split_commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    let mut braces = 0usize;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some('"') | None, '\\') => {
                let escaped = chars.next();
                word.get_or_insert_default().extend(escaped);
            }
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, '{') if word.as_ref().is_some_and(|word| word.ends_with('$')) => {
                braces += 1;
                word.get_or_insert_default().push(c);
            }
            (None, '}') if 0 < braces => {
                braces -= 1;
                word.get_or_insert_default().push(c);
            }
            (None, c) if 0 < braces => word.get_or_insert_default().push(c),
            (None, ';' | '&' | '|' | '(' | ')') => {
                finish_word(&mut commands, &mut word);
                commands.push(Vec::new());
            }
            (None, c) if c.is_whitespace() => finish_word(&mut commands, &mut word),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    finish_word(&mut commands, &mut word);
    commands
}

fn finish_word(commands: &mut [Vec<String>], word: &mut Option<String>) {
    if let (Some(command), Some(word)) = (commands.last_mut(), word.take()) {
        command.push(word);
    }
}
