//! Names a matrix if the tool did not name it next to it: from its title, its sum, and the
//! surrounding lines.

use super::super::table::NvbandwidthTable;
use super::super::testcases;
use super::super::testcases::TestcaseEvent;
use super::NvbandwidthTextReader;
use model::parse_output::{OutputProblem, OutputProblemKind};

impl<'a> NvbandwidthTextReader<'a> {
    /// The name of this test's table if its sum is missing.
    pub(super) fn name_by_title(
        &self,
        table: &NvbandwidthTable<'a>,
        name: String,
    ) -> Option<String> {
        if !testcases::has_parts(&name) {
            return Some(name);
        }
        match table.title().and_then(|title| testcases::part_for_title(&name, title)) {
            Some(part) => Some(name + part),
            // Before v0.6 there is one matrix, and its title names no part; since then there are
            // three.
            None => {
                let is_one = match self.run.minor {
                    Some(minor) => minor < 6,
                    None => table.title().is_some_and(|title| title.contains("(column) bandwidth")),
                };
                is_one.then_some(name)
            }
        }
    }

    /// The test of a table with this sum, and the usable part of the sum.
    pub(super) fn name_by_sum(
        &mut self,
        table: &NvbandwidthTable<'a>,
        running: Option<String>,
        key: &str,
        sum: Option<f64>,
        line: u32,
    ) -> (Option<String>, Option<f64>) {
        let fits = running.as_deref().is_some_and(|name| {
            key.strip_prefix(name).is_some_and(|part| part.is_empty() || part.starts_with('_'))
        });
        let is_damaged_name = self.test.as_ref().is_some_and(|t| !t.is_settled && t.name.is_none());
        if fits || is_damaged_name {
            let base = running.as_deref().unwrap_or(key);
            // Since v0.6 a bidirectional test continues until its total.
            let goes_on = testcases::has_parts(base)
                && ["_read1", "_read2", "_write1", "_write2"].iter().any(|p| key.ends_with(p));
            if !goes_on && let Some(test) = &mut self.test {
                test.is_settled = true;
            }
            let titled = table.title().and_then(|title| testcases::part_for_title(base, title));
            if titled.is_some_and(|part| key != base && !key.ends_with(part)) {
                // The end of one part follows the beginning of another.
                let detail = "these cells are under the title of another part of the test";
                self.note_truncation(Some(key), line, detail);
                return (None, None);
            }
            return (Some(key.to_owned()), sum);
        }
        // Of a known and an unknown name, the unknown one is damaged.
        if let Some(name) = running.clone().filter(|name| testcases::is_listed(name))
            && !testcases::is_listed(key)
        {
            let detail = format!("the sum is named {key}");
            let problem = OutputProblem::new(OutputProblemKind::Unrecognised, detail);
            self.parsed.problems.push(problem.in_test(Some(&name)).at_line(line));
            self.run.is_broken = true;
            if let Some(test) = &mut self.test {
                test.is_reported = true;
            }
            return (self.name_by_title(table, name), sum);
        }
        let detail = "the line that announces this test is missing";
        self.note_truncation(Some(key), line, detail);
        match running {
            // Lines are missing between the announcement of one test and the sum of another. Only
            // the sum shows which test the cells belong to.
            Some(running) if !sum.is_some_and(|sum| table.adds_up_to(sum)) => {
                let detail = format!("cells between the start of {running} and the sum of {key}");
                let problem = OutputProblem::new(OutputProblemKind::Inconsistent, detail);
                self.parsed.problems.push(problem.in_test(Some(&running)).at_line(table.line));
                self.close_test(Some(&running));
                (None, None)
            }
            Some(running) => {
                self.close_test(Some(&running));
                self.run.events.push(TestcaseEvent::Ran(Some(key.to_owned())));
                (Some(key.to_owned()), sum)
            }
            None => {
                self.run.events.push(TestcaseEvent::Ran(Some(key.to_owned())));
                (Some(key.to_owned()), sum)
            }
        }
    }

    /// Names the nameless waived tests of this run, if their names can be inferred.
    pub(super) fn name_waived(&mut self) {
        let names = testcases::name_waived(
            self.run.minor.unwrap_or(0),
            self.run.is_multinode,
            &self.run.events,
        );
        for (at, name) in self.run.waived.drain(..).zip(names) {
            self.parsed.problems[at].testcase = name.map(str::to_owned);
        }
    }
}
