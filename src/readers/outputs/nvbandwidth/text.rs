//! nvbandwidth's text output, line by line.
//!
//! A test is announced, prints one table or three, and ends with the `SUM` (or `PERF`) line of the
//! last. Since v0.6 a run ends with a note. Other text between those lines is noise of other
//! programs and is skipped; only failure reports are kept. `table` alone reads numbers.

mod matrix_names;

use super::errors::FailureScope;
use super::header::NvbandwidthHeadItem;
use super::run::{NvbandwidthRun, NvbandwidthTest};
use super::table::{NvbandwidthTable, TableLineKind};
use super::testcases::TestcaseEvent;
use super::{errors, header, surroundings, table, testcases};
use crate::outputs::facts_builder::FactsBuilder;
use crate::outputs::text::OutputLine;
use crate::outputs::{ParserInput, text};
use model::measurement::Measurement;
use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput, Tool};
use model::text::clean;

pub(super) fn parse(input: &ParserInput<'_>) -> ParseOutput {
    let is_start =
        |line: &OutputLine<'_>| line.text.trim_start().starts_with("nvbandwidth Version:");
    // Without a line end at the end of the file, the last number may be truncated.
    let end = input.lines.last().map(|l| l.number).filter(|_| !input.text.ends_with('\n'));
    let mut reader = NvbandwidthTextReader::new(end);
    match super::split_streams(&input.lines, is_start) {
        Some(streams) => {
            for stream in streams {
                for line in stream {
                    reader.read_line(line);
                }
                reader.end_stream();
            }
        }
        None => {
            for line in &input.lines {
                reader.read_line(line);
            }
            reader.end_stream();
        }
    }
    reader.parsed.complete = reader.measured && reader.complete;
    reader.parsed
}

#[derive(Debug)]
struct NvbandwidthTextReader<'a> {
    parsed: ParseOutput,
    roster: FactsBuilder,
    run: NvbandwidthRun,
    test: Option<NvbandwidthTest>,
    /// A table's title, before its column labels.
    title: Option<&'a str>,
    table: Option<NvbandwidthTable<'a>>,
    /// The number of cells lost in the tables so far.
    lost: usize,
    /// A single token since the last header line: v0.8 prints the host like this.
    lone_word: Option<&'a str>,
    /// The number of the last line, if it has no line end.
    end: Option<u32>,
    measured: bool,
    complete: bool,
}

impl<'a> NvbandwidthTextReader<'a> {
    fn new(end: Option<u32>) -> Self {
        Self {
            parsed: ParseOutput::for_tool(Tool::Nvbandwidth),
            roster: FactsBuilder::default(),
            run: NvbandwidthRun { line: 1, ..NvbandwidthRun::default() },
            test: None,
            title: None,
            table: None,
            lost: 0,
            lone_word: None,
            end,
            measured: false,
            complete: true,
        }
    }

    fn read_line(&mut self, line: &OutputLine<'a>) {
        let text = testcases::strip_mark(line.text.trim_start());
        let Some(first) = text.bytes().next() else { return };
        // A string of an embedded JSON document, possibly an environment.
        if first == b'"' {
            return;
        }
        // Rows first: they are almost all lines of a large output.
        if first.is_ascii_digit() && !line.stderr && self.read_numbers(line, text) {
            return;
        }
        if let Some(failure) = errors::parse_failure(line) {
            self.add_failure(failure);
            return;
        }
        if line.stderr {
            return;
        }
        match first {
            b'R' | b'W' if self.read_announcement(line, text) => return,
            b'S' | b'&' | b'C' if self.read_total(line, text) => return,
            b'N' if text.starts_with("NOTE: The reported results") => {
                self.close_test(None);
                self.run.has_closing_note = true;
                return;
            }
            b'I' if text.starts_with("Index, Name:") => {
                self.run.is_listing = true;
                return;
            }
            b'n' | b'B' | b'M' | b'C' | b'D' | b'P' if self.read_fact(line, text) => return,
            _ => {}
        }
        if surroundings::is_elision_mark(line, text) {
            self.note_elision(line);
        } else if table::is_description(text) && !text.starts_with("Sample ") {
            self.close_table(None);
            self.title = Some(text);
        } else if text.contains("GPUs on ") && errors::parse_oversubscription(text).is_some() {
            let problem = errors::parse_oversubscription(text).map(|p| p.at_line(line.number));
            self.parsed.problems.extend(problem);
        } else if text.starts_with("NOTE: You have chosen a buffer size") {
            header::keep_parameter(&mut self.parsed.facts, "warning", text);
        } else if text.contains("nvbandwidth") {
            self.read_command(line, text);
        } else if errors::is_host(text) && text::parse_number(text).is_none() {
            self.lone_word = Some(text);
        }
    }

    /// Reads column labels or a row, where either can appear.
    fn read_numbers(&mut self, line: &OutputLine<'a>, text: &'a str) -> bool {
        let is_due = self.title.is_some() || self.test.as_ref().is_some_and(|t| !t.is_settled);
        if text.starts_with('0')
            && let Some((labels, elided)) = table::parse_column_labels(text)
            && (is_due || self.table.is_some() || 1 < labels.len())
        {
            self.close_table(None);
            let title = self.title.take();
            self.table =
                Some(NvbandwidthTable::new(title, Some((labels, elided)), line, self.lost));
            return true;
        }
        let is_last = self.end == Some(line.number);
        match &mut self.table {
            Some(table) => match table.add_line(line, is_last) {
                TableLineKind::Row => return true,
                TableLineKind::No => return false,
                TableLineKind::Restart => {
                    // A table whose header was lost follows one whose sum was lost.
                    self.close_table(None);
                    self.test = None;
                }
            },
            None if !is_due => return false,
            None => {}
        }
        let mut table = NvbandwidthTable::new(self.title, None, line, self.lost);
        let is_row = table.add_line(line, is_last) == TableLineKind::Row;
        if is_row {
            self.title = None;
            self.table = Some(table);
        }
        is_row
    }

    /// `Running X.`, `Waiving X.`, `Waived: `.
    fn read_announcement(&mut self, line: &OutputLine<'a>, text: &'a str) -> bool {
        if let Some(name) = text.strip_prefix("Waived:") {
            let name = Some(name.trim()).filter(|name| testcases::is_name(name));
            self.waive(line, name);
            return true;
        }
        let waives = text.starts_with("Waiving ");
        if !waives && !text.starts_with("Running ") {
            return false;
        }
        let is_whole = text.ends_with('.') || self.end != Some(line.number);
        let name = testcases::parse_announcement(text).filter(|_| is_whole);
        // Other programs print "running" too: without a name the line must at least end like an
        // announcement, or be a truncated one.
        if name.is_none() && !(text.ends_with('.') && text.split_whitespace().count() == 2) {
            if self.end != Some(line.number) {
                return false;
            }
            self.close_test(None);
            self.note_truncation(
                None,
                line.number,
                "the output ends in the announcement of a test",
            );
            return true;
        }
        if waives {
            self.waive(line, name);
        } else {
            self.start_test(line, name);
        }
        true
    }

    fn waive(&mut self, line: &OutputLine<'a>, name: Option<&str>) {
        self.close_test(None);
        self.title = None;
        if name.is_none() {
            self.run.waived.push(self.parsed.problems.len());
            self.run.events.push(TestcaseEvent::Waived);
        } else {
            self.run.events.push(TestcaseEvent::Ran(name.map(str::to_owned)));
        }
        let detail = "the tool reports that this test does not apply here";
        let waived = OutputProblem::new(OutputProblemKind::Waived, detail);
        self.parsed.problems.push(waived.in_test(name).at_line(line.number));
    }

    fn start_test(&mut self, line: &OutputLine<'a>, name: Option<&str>) {
        self.close_test(None);
        self.title = None;
        let is_repeated = name.is_some_and(|name| self.run.started.contains(name));
        if self.run.has_closing_note {
            // The header of the next output was cut off.
            self.end_run();
            self.run = NvbandwidthRun {
                index: self.run.index + 1,
                line: line.number,
                ..NvbandwidthRun::default()
            };
        } else if is_repeated {
            self.repeat_run();
        }
        let name = name.map(str::to_owned);
        if name.is_none() {
            let detail = "the name of the test that starts here cannot be read";
            let problem =
                OutputProblem::new(OutputProblemKind::Unrecognised, detail).at_line(line.number);
            self.parsed.problems.push(problem);
        }
        self.run.started.extend(name.clone());
        self.run.events.push(TestcaseEvent::Ran(name.clone()));
        self.test = Some(NvbandwidthTest {
            name,
            line: line.number,
            is_settled: false,
            is_reported: false,
        });
    }

    /// Reads `SUM key value`, `&&&& PERF key value unit`, and the additions of v0.9.
    fn read_total(&mut self, line: &OutputLine<'a>, text: &'a str) -> bool {
        // Two tokens after the keyword, and a unit after those of PERF: any other line belongs to
        // another program, or its name or number was split.
        let mut words = text.split_whitespace();
        let (is_spread, most) = match words.next() {
            Some("SUM") => (false, 3),
            Some("COEFFICIENT_OF_VARIATION") => (true, 3),
            Some("&&&&") if words.next() == Some("PERF") => (false, 5),
            _ => return false,
        };
        if most < text.split_whitespace().count() {
            return false;
        }
        let is_last = self.end == Some(line.number);
        let key = words.next().filter(|key| testcases::is_name(key));
        let word = words.next().filter(|word| !is_last || table::has_two_decimals(word));
        let (Some(key), Some(word)) = (key, word) else {
            // Truncated, or text of another program.
            if is_last {
                self.close_test(None);
            }
            return is_last;
        };
        // The tool prints two decimals. A number with fewer lost some, or was typed by a user; then
        // it must at least match the cells.
        let value = text::parse_number(word).filter(|value| {
            table::has_two_decimals(word)
                || self.table.as_ref().is_some_and(|table| table.adds_up_to(*value))
        });
        if value.is_none() {
            let detail = format!("not a number: {}", clean(text));
            let problem = OutputProblem::new(OutputProblemKind::Unrecognised, detail);
            self.parsed.problems.push(problem.in_test(Some(key)).at_line(line.number));
            self.run.is_broken = true;
        }
        if is_spread {
            self.read_spread(key, value);
        } else if self.table.is_some() {
            self.close_table(Some((key, value, line.number)));
        } else {
            self.read_sum_alone(key, value, line.number);
        }
        true
    }

    fn read_spread(&mut self, key: &str, value: Option<f64>) {
        if let Some(at) = self.run.printed.get(key)
            && let Some(Measurement::Matrix(matrix)) = self.parsed.measurements.get_mut(*at)
        {
            matrix.coefficient_of_variation = value;
        }
    }

    /// A sum without a table before it: printed twice, or its table is missing.
    fn read_sum_alone(&mut self, key: &str, value: Option<f64>, line: u32) {
        let same = self.run.printed.get(key).map(|at| &self.parsed.measurements[*at]);
        match same {
            Some(Measurement::Matrix(matrix)) if matrix.sum == value => {}
            Some(_) => {
                let detail = "a second, different sum for this test";
                let problem = OutputProblem::new(OutputProblemKind::Inconsistent, detail);
                self.parsed.problems.push(problem.in_test(Some(key)).at_line(line));
            }
            None => {
                self.note_truncation(Some(key), line, "a sum without its matrix");
                if let Some(test) = &mut self.test {
                    test.is_reported = true;
                }
            }
        }
    }

    /// Ends the table. `total` is the key and value of its sum and its line; `None` if that line is
    /// missing.
    fn close_table(&mut self, total: Option<(&str, Option<f64>, u32)>) {
        let Some(table) = self.table.take() else { return };
        self.lost = table.lost_cells();
        if table.is_empty() {
            if let Some((key, _, line)) = total {
                self.note_truncation(Some(key), line, "a sum without its matrix");
                if let Some(test) = &mut self.test {
                    test.is_reported = true;
                }
            }
            return;
        }
        let running = self.test.as_ref().filter(|t| !t.is_settled).and_then(|t| t.name.clone());
        let (name, sum) = match total {
            Some((key, sum, line)) => self.name_by_sum(&table, running, key, sum, line),
            None => {
                let name = running.and_then(|name| self.name_by_title(&table, name));
                let detail = "the line with the sum of this matrix is missing";
                self.note_truncation(name.as_deref(), table.line, detail);
                if let Some(test) = &mut self.test {
                    test.is_reported = true;
                }
                (name, None)
            }
        };
        if name.as_ref().is_some_and(|name| self.run.printed.contains_key(name)) {
            self.repeat_run();
        }
        self.run.printed.extend(name.clone().zip(Some(self.parsed.measurements.len())));
        let (matrix, problems) = table.finish(self.run.index, name, sum);
        self.run.is_broken |= problems.iter().any(|p| {
            matches!(p.kind, OutputProblemKind::Truncated | OutputProblemKind::Unrecognised)
        });
        self.parsed.problems.extend(problems);
        self.parsed.measurements.push(Measurement::Matrix(matrix));
        self.measured = true;
    }

    /// Ends the running test, and reports its missing parts once.
    fn close_test(&mut self, name: Option<&str>) {
        self.close_table(None);
        let Some(test) = self.test.take() else { return };
        if test.is_settled {
            return;
        }
        self.run.is_broken = true;
        if !test.is_reported {
            let name = name.or(test.name.as_deref());
            self.note_truncation(name, test.line, "the test starts and its results do not end");
        }
    }

    fn note_truncation(&mut self, test: Option<&str>, line: u32, detail: &str) {
        self.run.is_broken = true;
        let problem = OutputProblem::new(OutputProblemKind::Truncated, detail);
        self.parsed.problems.push(problem.in_test(test).at_line(line));
    }

    /// Records a user's mark for cut-out text.
    fn note_elision(&mut self, line: &OutputLine<'a>) {
        let name = self.test.as_ref().filter(|t| !t.is_settled).and_then(|t| t.name.clone());
        self.note_truncation(
            name.as_deref(),
            line.number,
            "a piece was cut out of the output here",
        );
    }

    fn add_failure(&mut self, failure: errors::NvbandwidthFailure) {
        let mut problem = failure.problem;
        let running = self.test.as_ref().filter(|t| !t.is_settled);
        if problem.testcase.is_none() && failure.scope != FailureScope::Nothing {
            problem.testcase = running.and_then(|t| t.name.clone());
        }
        self.parsed.problems.push(problem);
        match failure.scope {
            FailureScope::Run => {
                // Other ranks may still print; their tables are kept.
                self.run.has_failed = true;
                self.run.is_broken = true;
            }
            FailureScope::Test => {
                self.run.is_broken = true;
                // If rows were already printed, the error belongs to another program.
                if self.table.is_none()
                    && let Some(test) = &mut self.test
                {
                    test.is_settled = true;
                }
            }
            FailureScope::Nothing => {}
        }
    }

    fn read_fact(&mut self, line: &OutputLine<'a>, text: &str) -> bool {
        let Some(fact) = header::parse_head_line(text, &mut self.parsed.facts) else {
            return false;
        };
        let lone_word = self.lone_word.take();
        match fact {
            NvbandwidthHeadItem::Version(version) => self.start_run(line, version),
            NvbandwidthHeadItem::Fact => self.run.has_machine |= text.contains("Driver Version"),
            NvbandwidthHeadItem::Mpi => self.run.is_multinode = true,
            NvbandwidthHeadItem::Device(mut device) => {
                self.run.has_machine = true;
                // v0.8 prints the host on its own line before the list.
                if device.index == 0
                    && let Some(host) = lone_word
                {
                    self.run.host = Some(clean(host));
                }
                device.host.clone_from(&self.run.host);
                self.roster.add_device(&mut self.parsed.facts, device);
            }
            NvbandwidthHeadItem::Rank(rank) => {
                self.run.has_machine = true;
                self.run.is_multinode = true;
                let facts = &mut self.parsed.facts;
                let moved = header::add_rank(&mut self.roster, facts, &rank);
                self.parsed.problems.extend(moved.map(|p| p.at_line(line.number)));
            }
        }
        true
    }

    fn start_run(&mut self, line: &OutputLine<'a>, version: Option<String>) {
        self.close_test(None);
        self.title = None;
        let index = self.run.index + u32::from(self.run.has_tests());
        self.end_run();
        let version = version.filter(|_| self.end != Some(line.number));
        let minor = version.as_deref().and_then(header::minor_version);
        self.run = NvbandwidthRun {
            index,
            minor,
            has_head: true,
            line: line.number,
            ..NvbandwidthRun::default()
        };
        if self.parsed.tool_version.is_none() {
            self.parsed.tool_version = version;
        }
    }

    /// The same test again, without a new header: another run of the same tool.
    fn repeat_run(&mut self) {
        self.name_waived();
        self.complete &= !self.run.is_broken;
        let last = std::mem::take(&mut self.run);
        self.run = NvbandwidthRun {
            index: last.index + 1,
            has_head: last.has_head,
            line: last.line,
            minor: last.minor,
            is_multinode: last.is_multinode,
            host: last.host,
            has_machine: last.has_machine,
            ..NvbandwidthRun::default()
        };
    }

    fn end_run(&mut self) {
        self.name_waived();
        let run = &self.run;
        if !run.has_tests() {
            // A listing or `--version` is not a run; a header with the machine's facts and no
            // further output is a run that never reached its tests.
            if run.has_failed || (run.has_machine && !run.is_listing) {
                self.complete = false;
            }
            if run.has_machine && !run.is_listing && !run.has_failed {
                let detail = "the output ends before the first test";
                self.parsed.problems.push(
                    OutputProblem::new(OutputProblemKind::Truncated, detail).at_line(run.line),
                );
            }
            return;
        }
        let lacks_note = run.needs_closing_note() && !run.has_closing_note;
        if lacks_note && !run.is_broken {
            let detail = "the note that ends every run of this version is missing";
            self.parsed
                .problems
                .push(OutputProblem::new(OutputProblemKind::Truncated, detail).at_line(run.line));
        }
        self.complete &= !run.is_broken && !lacks_note;
    }

    /// Ends the lines of one process.
    fn end_stream(&mut self) {
        self.close_test(None);
        let is_bare_head = self.run.has_head
            && !self.run.has_tests()
            && !self.run.has_machine
            && !self.run.is_listing;
        if is_bare_head && 0 < self.run.index {
            self.note_truncation(None, self.run.line, "the output ends in the head of a run");
            self.complete = false;
        }
        self.end_run();
        self.title = None;
        self.lone_word = None;
        self.run = NvbandwidthRun {
            index: self.run.index + u32::from(self.run.has_tests()),
            line: 1,
            ..NvbandwidthRun::default()
        };
    }

    /// Reads a command line in front of the output.
    fn read_command(&mut self, line: &OutputLine<'a>, text: &str) {
        let Some(options) = surroundings::parse_command_options(text) else { return };
        header::keep_parameter(&mut self.parsed.facts, "options", &options.join(" "));
        if options.iter().any(|option| matches!(*option, "-s" | "--skipVerification")) {
            let detail = "run with --skipVerification: the copied data was not checked";
            let problem = OutputProblem::new(OutputProblemKind::Unverified, detail);
            self.parsed.problems.push(problem.at_line(line.number));
        }
    }
}
