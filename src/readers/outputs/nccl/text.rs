//! The text output: which line belongs to which run, and which words are a row.
//!
//! One pass over the lines. A line is of the preamble, the table or the
//! footer, and going back to an earlier part begins the next run. Rows are
//! printed in pieces, so NCCL's own records and failure messages can begin in
//! the middle of one; pieces are joined only where they fit exactly. What a
//! finished run means is for `run`.

mod torn;

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::collective;
use super::debug;
use super::errors;
use super::header;
use super::header::Layout;
use super::header::Reading;
use super::outcome::Outcome;
use super::outcome::Reported;
use super::outcome::Warning;
use super::preamble;
use super::printed::Printed;
use super::run::Footer;
use super::run::Half;
use super::run::Row;
use super::run::Run;
use torn::cannot_go_on;

use crate::outputs::Input;
use crate::outputs::text;
use crate::outputs::text::Line;
use model::parsed::Problem;
use model::parsed::ProblemKind;
use model::text::clean;

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Version,
    Starting,
    Parameters,
    Devices,
    Ranks,
    Header,
    Rows,
    Bounds,
    Average,
}

/// A row whose end has not come yet.
struct Pending {
    words: Vec<String>,
    line: u32,
    /// So many words stand where those of the row before stand; what comes
    /// behind a word that was lost does not.
    placed: usize,
}

/// The state of the pass.
struct Reader {
    out: Outcome,
    run: Option<Run>,
    stage: Stage,
    has_header: bool,
    layout: Option<Layout>,
    /// Where the words of the last whole row end on their line.
    ends: Vec<usize>,
    pending: Option<Pending>,
    /// Test programs named in the noise before the current run and its table.
    programs: BTreeSet<&'static str>,
    /// Those named since the end of its table: of the next run, if one comes.
    later: BTreeSet<&'static str>,
    /// Something was cut out since the last run.
    elided: Option<u32>,
    /// The line that the text ends on without a line end.
    open_line: Option<u32>,
}

/// Whether these words are a table's header.
pub(super) fn is_header(line: &Line<'_>) -> bool {
    (line.text.contains("size") || line.text.contains("bytes")) && {
        let words: Vec<&str> = line.words().collect();
        Layout::of_header(&words).is_some()
    }
}

/// Reads all runs of a text.
pub(super) fn read(input: &Input<'_>) -> Outcome {
    let mut reader = Reader {
        out: Outcome::default(),
        run: None,
        stage: Stage::Version,
        has_header: false,
        layout: None,
        ends: Vec::new(),
        pending: None,
        programs: BTreeSet::new(),
        later: BTreeSet::new(),
        elided: None,
        open_line: None,
    };
    if !input.text.ends_with('\n') {
        reader.open_line = input.lines.last().map(|line| line.number);
    }
    for stream in streams(input) {
        for line in stream {
            reader.line(line);
        }
        reader.close();
    }
    reader.out
}

/// The lines as one stream, or one per task where several tasks print tables
/// of their own (a build without MPI, started as several processes).
fn streams<'a>(input: &'a Input<'a>) -> Vec<Vec<&'a Line<'a>>> {
    let whole = || vec![input.lines.iter().collect()];
    let mut printers: BTreeMap<u32, usize> = BTreeMap::new();
    for line in input.lines.iter().filter(|line| !line.stderr && is_header(line)) {
        let Some(label) = line.label else { return whole() };
        let next = printers.len();
        printers.entry(label).or_insert(next);
    }
    if printers.len() < 2 {
        return whole();
    }
    // What nobody labelled, or a task without a table did, goes with the first.
    let mut streams = vec![Vec::new(); printers.len()];
    for line in &input.lines {
        let at = line.label.and_then(|label| printers.get(&label)).copied().unwrap_or(0);
        streams[at].push(line);
    }
    streams
}

impl Reader {
    fn line(&mut self, line: &Line<'_>) {
        let (piece, record) = debug::cut(line.text);
        let Some(record) = record else {
            return self.piece(piece, line);
        };
        debug::note(record.text, &mut self.out.facts);
        let (front, host) = self.unglue(piece, record.host);
        if record.warning {
            self.out.warnings.push(Warning {
                host: host.map(clean).filter(|h| !h.is_empty()),
                device: record.device,
                text: clean(record.text),
                line: line.number,
                run: self.out.runs.len(),
            });
        }
        if !piece.is_empty() && !line.stderr {
            let words: Vec<&str> = piece.split_whitespace().chain(front).collect();
            self.row_words(&words, piece, line.number);
        }
    }

    /// Parts the end of a row from the host that follows it without a blank:
    /// (what is the row's, the host). Neither where that cannot be told.
    fn unglue<'t>(&self, piece: &str, glued: &'t str) -> (Option<&'t str>, Option<&'t str>) {
        let words: Vec<&str> = piece.split_whitespace().collect();
        if words.is_empty() || (header::row_start(&words).is_none() && self.pending.is_none()) {
            return (None, Some(glued));
        }
        let known = self.out.facts.hosts.iter().find(|host| glued.ends_with(host.as_str()));
        let at = match known {
            Some(host) => glued.len() - host.len(),
            None if glued.starts_with("N/A") => 3,
            None => glued
                .find(|c: char| !(c.is_ascii_digit() || matches!(c, '-' | '.')))
                .filter(|at| glued[*at..].starts_with(|c: char| c.is_ascii_alphabetic()))
                .unwrap_or(0),
        };
        let (front, host) = glued.split_at(at);
        if front.is_empty()
            && host.starts_with(|c: char| !c.is_ascii_alphabetic())
            && known.is_none()
        {
            return (None, None);
        }
        (Some(front).filter(|f| !f.is_empty()), Some(host))
    }

    /// A line, or what is left of it beside NCCL's records.
    fn piece(&mut self, piece: &str, line: &Line<'_>) {
        // A `-J` file beside the text holds an environment: nothing for us, nor
        // are its strings where it was laid out line by line.
        if piece.trim().is_empty() || piece.trim_start().starts_with(['{', '"']) {
            return;
        }
        if let Some(failure) = errors::of_test(piece) {
            return self.failure(failure, piece, line);
        }
        if line.stderr {
            return self.noise(piece, line);
        }
        if line.is_elision() || is_elision(piece) {
            return self.elision(line.number);
        }
        if self.preamble(piece, line.number) || self.footer(piece, line.number) {
            return;
        }
        let words: Vec<&str> = piece.split_whitespace().collect();
        if let Some(layout) = Layout::of_header(&words) {
            self.enter(Stage::Header, line.number);
            self.has_header = true;
            if let Some(run) = &mut self.run {
                run.redop_column = layout.redop;
                run.modern = layout.redop && layout.root && !layout.milliseconds;
                run.cpu_time = layout.cpu_time;
            }
            self.layout = Some(layout);
            // Names are aligned as the values below them.
            let size = words.iter().position(|word| matches!(*word, "size" | "bytes"));
            let size = size.unwrap_or(0);
            self.ends = ends(piece).skip(size).collect();
            return;
        }
        if !self.row_words(&words, piece, line.number) {
            self.noise(piece, line);
        }
    }

    fn elision(&mut self, line: u32) {
        match &mut self.run {
            Some(run) if self.stage < Stage::Average => run.elided = run.elided.or(Some(line)),
            _ => self.elided = self.elided.or(Some(line)),
        }
    }

    fn failure(&mut self, failure: errors::Failure, piece: &str, line: &Line<'_>) {
        let mut failure = failure;
        let front = piece[..failure.start].trim();
        if !front.is_empty() && !line.stderr {
            let glued = failure.host.clone().unwrap_or_default();
            let (number, host) = self.unglue(front, &glued);
            let words: Vec<&str> = front.split_whitespace().chain(number).collect();
            self.row_words(&words, &piece[..failure.start], line.number);
            failure.host = host.filter(|h| !h.is_empty()).map(str::to_owned);
        }
        self.flush();
        self.report(failure, line);
    }

    fn report(&mut self, failure: errors::Failure, line: &Line<'_>) {
        // A launcher counts processes, which are ranks only with one GPU each.
        let counts = self.out.parameters.last().map(|(_, named)| {
            ["nThread", "nGpus"].iter().all(|name| named.get(*name).is_some_and(|n| n == "1"))
        });
        let rank = failure.rank.or(line.label).filter(|_| counts != Some(false));
        let run = self.out.runs.len();
        self.out.failures.push(Reported { rank, failure, line: line.number, run });
    }

    /// What is no part of the test's own output.
    fn noise(&mut self, piece: &str, line: &Line<'_>) {
        if let Some(failure) = errors::around_test(piece) {
            self.report(failure, line);
        }
        if let Some(version) = piece.trim().strip_prefix("NCCL version ") {
            debug::note_version(version, &mut self.out.facts);
        }
        let over = self.run.is_some() && Stage::Average <= self.stage;
        if self.run.is_none() || self.stage < Stage::Header || over {
            let programs = if over { &mut self.later } else { &mut self.programs };
            programs.extend(piece.split_whitespace().filter_map(|word| {
                let word = word.trim_matches(|c: char| !c.is_ascii_alphanumeric() && c != '/');
                collective::by_name(word).map(|collective| collective.name)
            }));
        }
    }

    /// The lines before a table.
    fn preamble(&mut self, piece: &str, line: u32) -> bool {
        if let Some(version) = preamble::word_after(piece, "nccl-tests version ") {
            self.enter(Stage::Version, line);
            let version = clean(version.trim_start_matches(['v', 'V']));
            self.out.tool_version.get_or_insert(version);
            let code = preamble::word_after(piece, "nccl-library=").and_then(text::integer);
            if let Some(code) = code {
                debug::note_version_code(code, &mut self.out.facts);
            }
        } else if let Some(name) = preamble::word_after(piece, "Collective test starting: ") {
            self.enter(Stage::Starting, line);
            if let Some(run) = &mut self.run {
                run.name = Some(clean(name)).filter(|name| !name.is_empty());
            }
        } else if let Some(read) = preamble::parameters(piece) {
            self.enter(Stage::Parameters, line);
            if let Some(run) = &mut self.run {
                run.sweep = read.sweep;
                run.validation = read.validation;
                self.out.parameters.push((self.out.runs.len(), read.named));
            }
        } else if piece.trim().trim_start_matches(['#', ' ']) == "Using devices" {
            self.enter(Stage::Devices, line);
        } else if let Some(rank) = preamble::rank(piece) {
            self.enter(Stage::Ranks, line);
            self.out.note_rank(&rank);
            if let Some(run) = &mut self.run {
                run.every_rank_listed = true;
                run.ranks.push(rank);
            }
        } else if let Some(max) = preamble::reduced_max(piece) {
            if let Some(sweep) = self.run.as_mut().and_then(|run| run.sweep.as_mut()) {
                sweep.max = max;
                sweep.min = sweep.min.min(max);
            }
        } else {
            return false;
        }
        true
    }

    /// The lines after a table.
    fn footer(&mut self, piece: &str, line: u32) -> bool {
        if let Some(name) = preamble::word_after(piece, "Collective test concluded: ") {
            // The end of this run, and no word of the next.
            let name = Some(clean(name)).filter(|name| !name.is_empty());
            self.with_run(|run| run.name = run.name.take().or(name));
            return true;
        }
        let at_end = self.open_line == Some(line);
        let footer = |name: &str| {
            let (_, rest) = piece.split_once(name)?;
            let mut words = rest.split_whitespace().skip_while(|w| *w == ":");
            let number = words.next();
            let okay = words.next().and_then(|word| match word {
                "OK" => Some(true),
                "FAILED" => Some(false),
                _ => None,
            });
            let value = number.and_then(text::number);
            Some((value, Footer { value: None, okay, line, at_end: at_end && okay.is_none() }))
        };
        if let Some((count, footer)) = footer("Out of bounds values") {
            // Without its verdict the line is cut.
            if footer.okay.is_some() {
                self.enter(Stage::Bounds, line);
                let value = count.map(|count| Printed::with_decimals(count, 0));
                self.with_run(|run| run.out_of_bounds = Some(Footer { value, ..footer }));
            }
        } else if let Some((average, footer)) = footer("Avg bus bandwidth") {
            if average.is_some() || footer.okay.is_some() || piece.contains("nan") {
                self.enter(Stage::Average, line);
                let value = average.map(Printed::with_six_digits);
                self.with_run(|run| run.average = Some(Footer { value, ..footer }));
            }
        } else if let Some((count, footer)) = footer("Bitwise mismatches") {
            let value = count.map(|count| Printed::with_decimals(count, 0));
            self.with_run(|run| run.bitwise = Some(Footer { value, ..footer }));
        } else if let Some((_, error)) = piece.split_once("# error: ") {
            let problem = Problem::new(ProblemKind::Error, clean(error)).at(line);
            self.with_run(|run| run.problems.push(problem));
        } else {
            return false;
        }
        true
    }

    fn with_run(&mut self, change: impl FnOnce(&mut Run)) {
        if let Some(run) = &mut self.run {
            change(run);
        }
    }

    /// Goes on to a stage; going back begins the next run.
    fn enter(&mut self, stage: Stage, line: u32) {
        self.flush();
        let repeats = matches!(stage, Stage::Ranks | Stage::Rows);
        let goes_on =
            self.run.is_some() && (self.stage < stage || (self.stage == stage && repeats));
        if !goes_on {
            let programs = std::mem::take(&mut self.later);
            let elided = self.elided.take().filter(|_| Stage::Header <= stage);
            // What was named before the first run is still that run's.
            if self.run.is_some() {
                self.close();
                self.programs = programs;
            }
            self.run = Some(Run { line, elided, ..Run::default() });
            self.has_header = false;
        }
        self.stage = stage;
    }

    /// Ends the current run.
    fn close(&mut self) {
        self.flush();
        if self.programs.is_empty() {
            // Nothing follows that it could be the name of.
            self.programs = std::mem::take(&mut self.later);
        }
        if let Some(mut run) = self.run.take() {
            if run.name.is_none()
                && let [only] = self.programs.iter().collect::<Vec<_>>()[..]
            {
                run.name = Some((*only).to_owned());
            }
            self.out.runs.push(run);
        } else if self.out.runs.is_empty()
            && let [only] = self.programs.iter().collect::<Vec<_>>()[..]
        {
            self.out.program = Some((*only).to_owned());
        }
        self.programs.clear();
        self.later.clear();
    }

    /// Words that may be a row or a piece of one; false where they are neither.
    fn row_words(&mut self, words: &[&str], piece: &str, line: u32) -> bool {
        if let Some(start) = header::row_start(words) {
            self.enter(Stage::Rows, line);
            if words.iter().any(|word| matches!(*word, "..." | "…")) {
                self.elision(line);
                return true;
            }
            let mut words = &words[start..];
            if self.open_line == Some(line) && !self.ends_whole(words) {
                // The last number may have lost digits.
                words = &words[..words.len() - 1];
            }
            self.missing_header(words, line);
            // A trace replay leaves the out-of-place half blank.
            let gap = piece.trim().contains("                              ");
            let ends: Vec<usize> = ends(piece).skip(start).take(words.len()).collect();
            self.row(words, ends, gap, line);
            return true;
        }
        let valueish = |w: &&str| {
            matches!(*w, "N/A" | "inf" | "-inf" | "nan" | "-nan")
                || (w.starts_with(|c: char| c.is_ascii_digit() || c == '-')
                    && w.bytes().all(|b| b.is_ascii_digit() || b".:-+e".contains(&b)))
        };
        let values = words.iter().filter(|w| valueish(w)).count();
        if values == words.len() && !words.is_empty() {
            if let Some(pending) = self.pending.take() {
                return self.join(pending, words, line);
            }
            return self.orphan(words.len(), line);
        }
        self.damaged_row(words, values, line)
    }

    /// Whether a row that the text ends on is all there.
    fn ends_whole(&self, words: &[&str]) -> bool {
        self.layout.as_ref().is_some_and(|layout| layout.lacking(words) == 0) && cannot_go_on(words)
    }

    /// Adds a run's only header-shaped knowledge where its header is lost.
    fn missing_header(&mut self, words: &[&str], line: u32) {
        if self.has_header {
            return;
        }
        self.has_header = true;
        if self.layout.is_none() {
            self.layout = Layout::of_row(words);
        }
        let redop = self.layout.as_ref().is_some_and(|l| l.redop);
        let root = self.layout.as_ref().is_some_and(|l| l.root);
        let problem =
            Problem::new(ProblemKind::Truncated, "the header of the table is not there").at(line);
        self.with_run(|run| {
            run.redop_column = redop;
            run.modern = redop && root;
            run.problems.push(problem);
        });
    }

    fn row(&mut self, words: &[&str], ends: Vec<usize>, gap: bool, line: u32) {
        let Some(layout) = &self.layout else {
            let problem =
                Problem::new(ProblemKind::Unrecognised, "a row without a header").at(line);
            return self.with_run(|run| run.problems.push(problem));
        };
        match layout.read(words, line, gap) {
            Reading::Whole(row) => {
                self.ends = ends;
                self.push(row);
            }
            Reading::Part(_) => {
                let placed = self.ends.iter().zip(&ends).take_while(|(a, b)| a == b).count();
                let placed = if self.ends.is_empty() { words.len() } else { placed };
                let words = words.iter().map(|w| (*w).to_owned()).collect();
                self.pending = Some(Pending { words, line, placed });
            }
            Reading::Long(row) => {
                let detail = format!("the row of {} bytes has too many words", row.bytes);
                let problem = Problem::new(ProblemKind::Unrecognised, detail).at(line);
                self.with_run(|run| run.problems.push(problem));
                self.push(row);
            }
        }
    }

    fn push(&mut self, row: Row) {
        let problem = (!row.halves.iter().flatten().all(Half::is_readable)).then(|| {
            let detail = format!("a value at {} bytes is no finite number", row.bytes);
            Problem::new(ProblemKind::Unrecognised, detail).at(row.line)
        });
        self.with_run(|run| {
            run.problems.extend(problem);
            run.rows.push(row);
        });
    }
}

/// Where the words of a line end, in characters.
fn ends(text: &str) -> impl Iterator<Item = usize> + '_ {
    let mut chars = text.chars().enumerate().peekable();
    std::iter::from_fn(move || {
        while chars.next_if(|(_, c)| c.is_whitespace()).is_some() {}
        let mut end = None;
        while let Some((at, _)) = chars.next_if(|(_, c)| !c.is_whitespace()) {
            end = Some(at + 1);
        }
        end
    })
}

/// More ways to say that something was cut out than a bare ellipsis.
fn is_elision(piece: &str) -> bool {
    let body = piece.trim().trim_start_matches(['#', '|', '>', '[', '(', '<', ' ']);
    let dots = body.starts_with("...") || body.starts_with('…') || body.starts_with('⋮');
    let words = body.split_whitespace().count();
    dots || (words <= 6 && (body.contains("omitted") || body.starts_with("snip")))
}
