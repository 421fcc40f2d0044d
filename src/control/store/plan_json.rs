//! The layout of documents with millions of small parts: indented for readers down to a depth, and
//! each part below it on one line.
//!
//! Only the layout differs; the JSON is the same. A burn-in of ten thousand nodes has two and a
//! half million steps of thirty tokens, and a line for every token is gigabytes.

use std::io;

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

/// The rounds of a plan, and their steps, start on a new line.
const MAX_INDENT_DEPTH: usize = 4;

/// Writes a plan, with each of its steps on one line.
pub fn write_plan<T: Serialize>(out: impl io::Write, plan: &T) -> serde_json::Result<()> {
    plan.serialize(&mut Serializer::with_formatter(
        out,
        StepPerLineFormatter { depth: 0, is_empty: true },
    ))
}

struct StepPerLineFormatter {
    depth: usize,
    /// The innermost open bracket has no item yet.
    is_empty: bool,
}

impl StepPerLineFormatter {
    fn open_bracket<W: io::Write + ?Sized>(&mut self, out: &mut W, sign: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.is_empty = true;
        out.write_all(sign)
    }

    fn close_bracket<W: io::Write + ?Sized>(&mut self, out: &mut W, sign: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !self.is_empty && self.depth < MAX_INDENT_DEPTH {
            start_line(out, self.depth)?;
        }
        self.is_empty = false;
        out.write_all(sign)
    }

    fn separate_item<W: io::Write + ?Sized>(&self, out: &mut W, first: bool) -> io::Result<()> {
        if !first {
            out.write_all(b",")?;
        }
        match self.depth {
            depth if depth <= MAX_INDENT_DEPTH => start_line(out, depth),
            _ if first => Ok(()),
            _ => out.write_all(b" "),
        }
    }
}

fn start_line<W: io::Write + ?Sized>(out: &mut W, depth: usize) -> io::Result<()> {
    out.write_all(b"\n")?;
    (0..depth).try_for_each(|_| out.write_all(b"  "))
}

impl Formatter for StepPerLineFormatter {
    fn begin_array<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.open_bracket(out, b"[")
    }

    fn end_array<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.close_bracket(out, b"]")
    }

    fn begin_array_value<W: io::Write + ?Sized>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.separate_item(out, first)
    }

    fn end_array_value<W: io::Write + ?Sized>(&mut self, _: &mut W) -> io::Result<()> {
        self.is_empty = false;
        Ok(())
    }

    fn begin_object<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.open_bracket(out, b"{")
    }

    fn end_object<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.close_bracket(out, b"}")
    }

    fn begin_object_key<W: io::Write + ?Sized>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.separate_item(out, first)
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }

    fn end_object_value<W: io::Write + ?Sized>(&mut self, _: &mut W) -> io::Result<()> {
        self.is_empty = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_step_is_one_line_and_only_the_layout_differs() {
        let steps = json!([{"step": 0, "nodes": ["a", "b"], "none": {}}, {"step": 1, "nodes": []}]);
        let value =
            json!({"format": "p/1", "rounds": [{"round": 0, "steps": steps}], "skipped": []});
        let mut out = Vec::new();
        write_plan(&mut out, &value).expect("written");
        let text = String::from_utf8(out).expect("text");
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        assert!(lines.contains(&r#"{"step": 0, "nodes": ["a", "b"], "none": {}},"#), "{text}");
        assert!(lines.contains(&r#"{"step": 1, "nodes": []}"#), "{text}");
        assert!(lines.contains(&r#""skipped": []"#), "{text}");
        let read: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(read, value);
    }
}
