//! A page of a terminal under construction: styles, wrapping, indents.
//!
//! Its only knowledge of runs and verdicts is the colour of an outcome.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use comfy_table::{CellAlignment, Row, Table, presets};

use super::plain_text::{clip, wrap_text};
use model::verdict::Outcome;

/// How to render for a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalStyle {
    /// Width in columns (at least 72); only commands are longer.
    pub width: usize,
    /// Whether to use colours.
    pub colour: bool,
}

/// Longest text taken from a file.
const LONGEST: usize = 600;

pub(super) struct TerminalPage {
    pub(super) out: String,
    pub(super) width: usize,
    colour: bool,
}

impl TerminalPage {
    /// An empty page, at least 72 and at most 200 columns wide.
    pub(super) fn new(style: &TerminalStyle) -> Self {
        Self { out: String::new(), width: style.width.clamp(72, 200), colour: style.colour }
    }

    /// Text in a style, if colours are enabled.
    pub(super) fn styled(&mut self, style: Style, text: &str) {
        if self.colour && style != Style::new() {
            let _ = write!(self.out, "{style}{text}{style:#}");
        } else {
            self.out.push_str(text);
        }
    }

    /// Ends a line, without trailing blanks.
    pub(super) fn end_line(&mut self) {
        let kept = self.out.trim_end_matches(' ').len();
        self.out.truncate(kept);
        self.out.push('\n');
    }

    /// A table, each line after `lead`.
    pub(super) fn table(&mut self, lead: &str, table: &Table) {
        for line in table.lines() {
            let _ = write!(self.out, "{lead}{line}");
            self.end_line();
        }
    }

    /// An empty line and a title.
    pub(super) fn section(&mut self, title: &str) {
        self.out.push('\n');
        self.styled(Style::new().bold(), title);
        self.end_line();
    }

    pub(super) fn warning(&mut self, text: &str) {
        self.styled(Style::new().bold().fg_color(Some(AnsiColor::Magenta.into())), text);
        self.end_line();
    }

    /// `text` in a fainter tone, wrapped.
    pub(super) fn faint(&mut self, text: &str, indent: usize) {
        for line in wrap_text(&clip(text, LONGEST), self.width.saturating_sub(indent)) {
            let _ = write!(self.out, "{:indent$}", "");
            self.styled(Style::new().dimmed(), &line);
            self.end_line();
        }
    }

    /// `text` after `lead`, wrapped, with continuation lines indented to the text.
    pub(super) fn paragraph(&mut self, lead: &str, text: &str, indent: usize) {
        let depth = indent + lead.chars().count();
        let room = self.width.saturating_sub(depth);
        for (i, line) in wrap_text(&clip(text, LONGEST), room).iter().enumerate() {
            let lead = if i == 0 { lead } else { "" };
            let _ = write!(self.out, "{:indent$}{lead:<fill$}{line}", "", fill = depth - indent);
            self.end_line();
        }
    }

    /// A line with a coloured outcome, wrapped at the depth of its text.
    pub(super) fn outcome_line(&mut self, outcome: Outcome, text: &str) {
        const LEAD: usize = 2 + 8 + 2;
        for (i, line) in wrap_text(&clip(text, LONGEST), self.width - LEAD).iter().enumerate() {
            self.out.push_str("  ");
            if i == 0 {
                self.styled(outcome_colour(outcome), &format!("{:<8}", outcome.as_str()));
            } else {
                let _ = write!(self.out, "{:8}", "");
            }
            let _ = write!(self.out, "  {line}");
            self.end_line();
        }
    }
}

/// An empty table without lines; the first column holds text and the others numbers.
pub(super) fn new_table(header: impl Into<Row>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// The colour of an outcome.
pub(super) fn outcome_colour(outcome: Outcome) -> Style {
    let colour = match outcome {
        Outcome::Pass => AnsiColor::Green,
        Outcome::Unknown => AnsiColor::Cyan,
        Outcome::Degraded => AnsiColor::Yellow,
        Outcome::Failed => AnsiColor::Red,
    };
    Style::new().bold().fg_color(Some(colour.into()))
}
