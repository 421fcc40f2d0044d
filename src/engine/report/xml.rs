//! A small XML writer: elements, attributes, text, always well formed.
//!
//! Characters that XML 1.0 forbids are dropped, everything else is escaped.

#[derive(Debug)]
pub(super) struct XmlWriter {
    out: String,
    open: Vec<&'static str>,
}

impl XmlWriter {
    /// A document without a root element.
    pub(super) fn new() -> Self {
        let out = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n".to_owned();
        Self { out, open: Vec::new() }
    }

    /// Elements to insert into a document.
    pub(super) fn fragment() -> Self {
        Self { out: String::new(), open: Vec::new() }
    }

    pub(super) fn open(&mut self, name: &'static str, attributes: &[(&str, &str)]) {
        self.start(name, attributes);
        self.out.push_str(">\n");
        self.open.push(name);
    }

    pub(super) fn empty(&mut self, name: &'static str, attributes: &[(&str, &str)]) {
        self.start(name, attributes);
        self.out.push_str("/>\n");
    }

    pub(super) fn text(&mut self, name: &'static str, attributes: &[(&str, &str)], text: &str) {
        self.start(name, attributes);
        self.out.push('>');
        self.escape(text, false);
        self.out.push_str("</");
        self.out.push_str(name);
        self.out.push_str(">\n");
    }

    pub(super) fn close(&mut self) {
        if let Some(name) = self.open.pop() {
            self.indent();
            self.out.push_str("</");
            self.out.push_str(name);
            self.out.push_str(">\n");
        }
    }

    pub(super) fn finish(mut self) -> String {
        while !self.open.is_empty() {
            self.close();
        }
        self.out
    }

    fn start(&mut self, name: &str, attributes: &[(&str, &str)]) {
        self.indent();
        self.out.push('<');
        self.out.push_str(name);
        for (key, value) in attributes {
            self.out.push(' ');
            self.out.push_str(key);
            self.out.push_str("=\"");
            self.escape(value, true);
            self.out.push('"');
        }
    }

    fn indent(&mut self) {
        for _ in 0..self.open.len() {
            self.out.push_str("  ");
        }
    }

    fn escape(&mut self, text: &str, attribute: bool) {
        for c in text.chars() {
            match c {
                '&' => self.out.push_str("&amp;"),
                '<' => self.out.push_str("&lt;"),
                '>' => self.out.push_str("&gt;"),
                '"' if attribute => self.out.push_str("&quot;"),
                // A reader would turn these into spaces, or drop the carriage return.
                '\n' | '\t' if attribute => self.reference(c),
                '\r' => self.reference(c),
                c if is_allowed(c) => self.out.push(c),
                _ => {}
            }
        }
    }

    fn reference(&mut self, c: char) {
        self.out.push_str(&format!("&#{};", u32::from(c)));
    }
}

/// The characters of XML 1.0, section 2.2, production 2.
fn is_allowed(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | '\u{20}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_escaped_and_forbidden_characters_are_dropped() {
        let mut xml = XmlWriter::new();
        xml.open("a", &[("b", "<\"&'>\n\t\x1b\u{fffe}x")]);
        xml.text("c", &[], "]]> <d> \r\n & \u{0}\u{b}ok");
        let want = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
                    <a b=\"&lt;&quot;&amp;'&gt;&#10;&#9;x\">\n  \
                    <c>]]&gt; &lt;d&gt; &#13;\n &amp; ok</c>\n</a>\n";
        assert_eq!(xml.finish(), want);
    }
}
