//! The text output: assigns lines to runs, and tokens to rows.
//!
//! One pass over the lines. A line belongs to the preamble, the table or the footer, and returning
//! to an earlier part begins the next run. Rows are printed in pieces, so NCCL's own records and
//! failure messages can begin in the middle of one; pieces are joined only if they fit exactly.
//! `run` interprets a finished run.

mod row_pieces;

use std::collections::{BTreeMap, BTreeSet};

use super::header::{NcclRowReading, NcclTableLayout};
use super::output_builder::{NcclFailureReport, NcclOutputBuilder, NcclWarning};
use super::rounded_number::RoundedNumber;
use super::run::{NcclFooter, NcclRow, NcclRowHalf, NcclRun};
use super::{collective, debug_log, errors, header, preamble};
use row_pieces::is_last_word_whole;

use crate::outputs::text::OutputLine;
use crate::outputs::{ParserInput, text};
use model::parse_output::{OutputProblem, OutputProblemKind};
use model::text::clean;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NcclTextStage {
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

struct PendingNcclRow {
    words: Vec<String>,
    line: u32,
    /// The number of tokens at the same positions as in the previous row; tokens after a lost one
    /// do not align.
    aligned: usize,
}

struct NcclTextReader {
    out: NcclOutputBuilder,
    run: Option<NcclRun>,
    stage: NcclTextStage,
    has_header: bool,
    layout: Option<NcclTableLayout>,
    /// The end positions of the tokens of the last complete row.
    ends: Vec<usize>,
    pending: Option<PendingNcclRow>,
    /// Test programs named in the noise before the current run and its table.
    programs: BTreeSet<&'static str>,
    /// Programs named after the end of its table: they belong to the next run, if any.
    next_programs: BTreeSet<&'static str>,
    /// Line at which text was cut out since the last run.
    elided: Option<u32>,
    /// The last line, if the text ends without a line end.
    open_line: Option<u32>,
}

/// Whether this line is a table's header.
pub(super) fn is_header(line: &OutputLine<'_>) -> bool {
    (line.text.contains("size") || line.text.contains("bytes")) && {
        let words: Vec<&str> = line.split_words().collect();
        NcclTableLayout::from_header(&words).is_some()
    }
}

pub(super) fn read_runs(input: &ParserInput<'_>) -> NcclOutputBuilder {
    let mut reader = NcclTextReader {
        out: NcclOutputBuilder::default(),
        run: None,
        stage: NcclTextStage::Version,
        has_header: false,
        layout: None,
        ends: Vec::new(),
        pending: None,
        programs: BTreeSet::new(),
        next_programs: BTreeSet::new(),
        elided: None,
        open_line: None,
    };
    if !input.text.ends_with('\n') {
        reader.open_line = input.lines.last().map(|line| line.number);
    }
    for stream in split_streams(input) {
        for line in stream {
            reader.read_line(line);
        }
        reader.close_run();
    }
    reader.out
}

/// The lines as one stream, or one per task if several tasks print their own tables (a build
/// without MPI, started as several processes).
fn split_streams<'a>(input: &'a ParserInput<'a>) -> Vec<Vec<&'a OutputLine<'a>>> {
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
    // Lines without a label, or from a task without a table, go with the first stream.
    let mut streams = vec![Vec::new(); printers.len()];
    for line in &input.lines {
        let at = line.label.and_then(|label| printers.get(&label)).copied().unwrap_or(0);
        streams[at].push(line);
    }
    streams
}

impl NcclTextReader {
    fn read_line(&mut self, line: &OutputLine<'_>) {
        let (piece, record) = debug_log::split_record(line.text);
        let Some(record) = record else {
            return self.read_piece(piece, line);
        };
        debug_log::note_message(record.text, &mut self.out.facts);
        let (front, host) = self.split_glued_host(piece, record.host);
        if record.warning {
            self.out.warnings.push(NcclWarning {
                host: host.map(clean).filter(|h| !h.is_empty()),
                device: record.device,
                text: clean(record.text),
                line: line.number,
                run: self.out.runs.len(),
            });
        }
        if !piece.is_empty() && !line.stderr {
            let words: Vec<&str> = piece.split_whitespace().chain(front).collect();
            self.read_row_words(&words, piece, line.number);
        }
    }

    /// Splits the end of a row from a host that follows it without a blank: (row part, host).
    /// `None` for both if the split is ambiguous.
    fn split_glued_host<'t>(
        &self,
        piece: &str,
        glued: &'t str,
    ) -> (Option<&'t str>, Option<&'t str>) {
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

    /// Reads a line, or the rest of it without NCCL's records.
    fn read_piece(&mut self, piece: &str, line: &OutputLine<'_>) {
        // A `-J` file next to the text holds an environment, which is not read, nor are its strings
        // in a pretty-printed file.
        if piece.trim().is_empty() || piece.trim_start().starts_with(['{', '"']) {
            return;
        }
        if let Some(failure) = errors::parse_test_failure(piece) {
            return self.note_failure(failure, piece, line);
        }
        if line.stderr {
            return self.read_noise(piece, line);
        }
        if line.is_elision() || is_elision(piece) {
            return self.note_elision(line.number);
        }
        if self.read_preamble(piece, line.number) || self.read_footer(piece, line.number) {
            return;
        }
        let words: Vec<&str> = piece.split_whitespace().collect();
        if let Some(layout) = NcclTableLayout::from_header(&words) {
            self.enter_stage(NcclTextStage::Header, line.number);
            self.has_header = true;
            if let Some(run) = &mut self.run {
                run.redop_column = layout.redop;
                run.modern = layout.redop && layout.root && !layout.milliseconds;
                run.cpu_time = layout.cpu_time;
            }
            self.layout = Some(layout);
            // Column names are aligned with the values below them.
            let size = words.iter().position(|word| matches!(*word, "size" | "bytes"));
            let size = size.unwrap_or(0);
            self.ends = word_ends(piece).skip(size).collect();
            return;
        }
        if !self.read_row_words(&words, piece, line.number) {
            self.read_noise(piece, line);
        }
    }

    fn note_elision(&mut self, line: u32) {
        match &mut self.run {
            Some(run) if self.stage < NcclTextStage::Average => {
                run.elided = run.elided.or(Some(line));
            }
            _ => self.elided = self.elided.or(Some(line)),
        }
    }

    fn note_failure(
        &mut self,
        failure: errors::NcclTestFailure,
        piece: &str,
        line: &OutputLine<'_>,
    ) {
        let mut failure = failure;
        let front = piece[..failure.start].trim();
        if !front.is_empty() && !line.stderr {
            let glued = failure.host.clone().unwrap_or_default();
            let (number, host) = self.split_glued_host(front, &glued);
            let words: Vec<&str> = front.split_whitespace().chain(number).collect();
            self.read_row_words(&words, &piece[..failure.start], line.number);
            failure.host = host.filter(|h| !h.is_empty()).map(str::to_owned);
        }
        self.flush();
        self.push_failure(failure, line);
    }

    fn push_failure(&mut self, failure: errors::NcclTestFailure, line: &OutputLine<'_>) {
        // A launcher counts processes, which equal ranks only with one GPU each.
        let counts = self.out.parameters.last().map(|(_, named)| {
            ["nThread", "nGpus"].iter().all(|name| named.get(*name).is_some_and(|n| n == "1"))
        });
        let rank = failure.rank.or(line.label).filter(|_| counts != Some(false));
        let run = self.out.runs.len();
        self.out.failures.push(NcclFailureReport { rank, failure, line: line.number, run });
    }

    /// Reads text outside the test's own output.
    fn read_noise(&mut self, piece: &str, line: &OutputLine<'_>) {
        if let Some(failure) = errors::parse_launcher_failure(piece) {
            self.push_failure(failure, line);
        }
        if let Some(version) = piece.trim().strip_prefix("NCCL version ") {
            debug_log::note_version(version, &mut self.out.facts);
        }
        let over = self.run.is_some() && NcclTextStage::Average <= self.stage;
        if self.run.is_none() || self.stage < NcclTextStage::Header || over {
            let programs = if over { &mut self.next_programs } else { &mut self.programs };
            programs.extend(piece.split_whitespace().filter_map(|word| {
                let word = word.trim_matches(|c: char| !c.is_ascii_alphanumeric() && c != '/');
                collective::find_program(word).map(|collective| collective.name)
            }));
        }
    }

    /// Reads the lines before a table.
    fn read_preamble(&mut self, piece: &str, line: u32) -> bool {
        if let Some(version) = preamble::word_after(piece, "nccl-tests version ") {
            self.enter_stage(NcclTextStage::Version, line);
            let version = clean(version.trim_start_matches(['v', 'V']));
            self.out.tool_version.get_or_insert(version);
            let code = preamble::word_after(piece, "nccl-library=").and_then(text::parse_integer);
            if let Some(code) = code {
                debug_log::note_version_code(code, &mut self.out.facts);
            }
        } else if let Some(name) = preamble::word_after(piece, "Collective test starting: ") {
            self.enter_stage(NcclTextStage::Starting, line);
            if let Some(run) = &mut self.run {
                run.name = Some(clean(name)).filter(|name| !name.is_empty());
            }
        } else if let Some(read) = preamble::parse_parameters(piece) {
            self.enter_stage(NcclTextStage::Parameters, line);
            if let Some(run) = &mut self.run {
                run.sweep = read.sweep;
                run.validation = read.validation;
                self.out.parameters.push((self.out.runs.len(), read.by_name));
            }
        } else if piece.trim().trim_start_matches(['#', ' ']) == "Using devices" {
            self.enter_stage(NcclTextStage::Devices, line);
        } else if let Some(rank) = preamble::parse_rank(piece) {
            self.enter_stage(NcclTextStage::Ranks, line);
            self.out.note_rank(&rank);
            if let Some(run) = &mut self.run {
                run.every_rank_listed = true;
                run.ranks.push(rank);
            }
        } else if let Some(max) = preamble::parse_reduced_max(piece) {
            if let Some(sweep) = self.run.as_mut().and_then(|run| run.sweep.as_mut()) {
                sweep.max = max;
                sweep.min = sweep.min.min(max);
            }
        } else {
            return false;
        }
        true
    }

    /// Reads the lines after a table.
    fn read_footer(&mut self, piece: &str, line: u32) -> bool {
        if let Some(name) = preamble::word_after(piece, "Collective test concluded: ") {
            // The end of this run, not the name of the next.
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
            let value = number.and_then(text::parse_number);
            Some((value, NcclFooter { value: None, okay, line, at_end: at_end && okay.is_none() }))
        };
        if let Some((count, footer)) = footer("Out of bounds values") {
            // Without its verdict the line is truncated.
            if footer.okay.is_some() {
                self.enter_stage(NcclTextStage::Bounds, line);
                let value = count.map(|count| RoundedNumber::with_decimals(count, 0));
                self.with_run(|run| run.out_of_bounds = Some(NcclFooter { value, ..footer }));
            }
        } else if let Some((average, footer)) = footer("Avg bus bandwidth") {
            if average.is_some() || footer.okay.is_some() || piece.contains("nan") {
                self.enter_stage(NcclTextStage::Average, line);
                let value = average.map(RoundedNumber::with_six_digits);
                self.with_run(|run| run.average = Some(NcclFooter { value, ..footer }));
            }
        } else if let Some((count, footer)) = footer("Bitwise mismatches") {
            let value = count.map(|count| RoundedNumber::with_decimals(count, 0));
            self.with_run(|run| run.bitwise = Some(NcclFooter { value, ..footer }));
        } else if let Some((_, error)) = piece.split_once("# error: ") {
            let problem = OutputProblem::new(OutputProblemKind::Error, clean(error)).at_line(line);
            self.with_run(|run| run.problems.push(problem));
        } else {
            return false;
        }
        true
    }

    fn with_run(&mut self, change: impl FnOnce(&mut NcclRun)) {
        if let Some(run) = &mut self.run {
            change(run);
        }
    }

    /// Enters a stage; returning to an earlier one begins the next run.
    fn enter_stage(&mut self, stage: NcclTextStage, line: u32) {
        self.flush();
        let repeats = matches!(stage, NcclTextStage::Ranks | NcclTextStage::Rows);
        let goes_on =
            self.run.is_some() && (self.stage < stage || (self.stage == stage && repeats));
        if !goes_on {
            let programs = std::mem::take(&mut self.next_programs);
            let elided = self.elided.take().filter(|_| NcclTextStage::Header <= stage);
            // A name before the first run belongs to that run.
            if self.run.is_some() {
                self.close_run();
                self.programs = programs;
            }
            self.run = Some(NcclRun { line, elided, ..NcclRun::default() });
            self.has_header = false;
        }
        self.stage = stage;
    }

    fn close_run(&mut self) {
        self.flush();
        if self.programs.is_empty() {
            // No further run follows that the name could belong to.
            self.programs = std::mem::take(&mut self.next_programs);
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
        self.next_programs.clear();
    }

    /// Reads tokens that may be a row or part of one; returns false if they are neither.
    fn read_row_words(&mut self, words: &[&str], piece: &str, line: u32) -> bool {
        if let Some(start) = header::row_start(words) {
            self.enter_stage(NcclTextStage::Rows, line);
            if words.iter().any(|word| matches!(*word, "..." | "…")) {
                self.note_elision(line);
                return true;
            }
            let mut words = &words[start..];
            if self.open_line == Some(line) && !self.is_row_whole(words) {
                // The last number may have lost digits.
                words = &words[..words.len() - 1];
            }
            self.assume_header(words, line);
            // A trace replay leaves the out-of-place half blank.
            let gap = piece.trim().contains("                              ");
            let ends: Vec<usize> = word_ends(piece).skip(start).take(words.len()).collect();
            self.read_row(words, ends, gap, line);
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
                return self.join_piece(pending, words, line);
            }
            return self.note_orphan(words.len(), line);
        }
        self.note_damaged_row(words, values, line)
    }

    /// Whether the last row of the text is complete.
    fn is_row_whole(&self, words: &[&str]) -> bool {
        self.layout.as_ref().is_some_and(|layout| layout.missing_words(words) == 0)
            && is_last_word_whole(words)
    }

    /// Assumes a layout from the row's shape if the header is lost.
    fn assume_header(&mut self, words: &[&str], line: u32) {
        if self.has_header {
            return;
        }
        self.has_header = true;
        if self.layout.is_none() {
            self.layout = NcclTableLayout::from_row(words);
        }
        let redop = self.layout.as_ref().is_some_and(|l| l.redop);
        let root = self.layout.as_ref().is_some_and(|l| l.root);
        let problem =
            OutputProblem::new(OutputProblemKind::Truncated, "the header of the table is missing")
                .at_line(line);
        self.with_run(|run| {
            run.redop_column = redop;
            run.modern = redop && root;
            run.problems.push(problem);
        });
    }

    fn read_row(&mut self, words: &[&str], ends: Vec<usize>, gap: bool, line: u32) {
        let Some(layout) = &self.layout else {
            let problem =
                OutputProblem::new(OutputProblemKind::Unrecognised, "a row without a header")
                    .at_line(line);
            return self.with_run(|run| run.problems.push(problem));
        };
        match layout.read_row(words, line, gap) {
            NcclRowReading::Whole(row) => {
                self.ends = ends;
                self.push_row(row);
            }
            NcclRowReading::Part(_) => {
                let placed = self.ends.iter().zip(&ends).take_while(|(a, b)| a == b).count();
                let placed = if self.ends.is_empty() { words.len() } else { placed };
                let words = words.iter().map(|w| (*w).to_owned()).collect();
                self.pending = Some(PendingNcclRow { words, line, aligned: placed });
            }
            NcclRowReading::Long(row) => {
                let detail = format!("the row of {} bytes has too many words", row.bytes);
                let problem =
                    OutputProblem::new(OutputProblemKind::Unrecognised, detail).at_line(line);
                self.with_run(|run| run.problems.push(problem));
                self.push_row(row);
            }
        }
    }

    fn push_row(&mut self, row: NcclRow) {
        let problem = (!row.halves.iter().flatten().all(NcclRowHalf::is_readable)).then(|| {
            let detail = format!("a value at {} bytes is not a finite number", row.bytes);
            OutputProblem::new(OutputProblemKind::Unrecognised, detail).at_line(row.line)
        });
        self.with_run(|run| {
            run.problems.extend(problem);
            run.rows.push(row);
        });
    }
}

/// The end positions of a line's tokens, in characters.
fn word_ends(text: &str) -> impl Iterator<Item = usize> + '_ {
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

/// Marks for cut-out text other than a bare ellipsis.
fn is_elision(piece: &str) -> bool {
    let body = piece.trim().trim_start_matches(['#', '|', '>', '[', '(', '<', ' ']);
    let dots = body.starts_with("...") || body.starts_with('…') || body.starts_with('⋮');
    let words = body.split_whitespace().count();
    dots || (words <= 6 && (body.contains("omitted") || body.starts_with("snip")))
}
