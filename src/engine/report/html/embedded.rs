//! Parts of the page that are not markup: style, script and data, and the
//! policy that allows these and nothing else.
//!
//! The policy names both by their digests, so nothing that found its way into
//! the page by another door would run, and nothing can be loaded at all.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

/// The Content-Security-Policy of a page with this style and this script.
pub(super) fn content_security_policy(style: &str, script: &str) -> String {
    let digest = |text: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)));
    format!(
        "default-src 'none'; style-src {}; script-src {}; base-uri 'none'; form-action 'none'",
        digest(style),
        digest(script)
    )
}

/// A value as JSON that may stand inside a script element: what could end the
/// element or begin a comment in it is an escape.
pub(super) fn to_script_json<T: Serialize>(value: &T) -> String {
    let text = serde_json::to_string(value).expect("texts and numbers are JSON");
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("\\u003c"),
            '>' => out.push_str("\\u003e"),
            '&' => out.push_str("\\u0026"),
            '\u{2028}' => out.push_str("\\u2028"),
            '\u{2029}' => out.push_str("\\u2029"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_cannot_end_its_element_and_reads_back_unchanged() {
        let text = "</script><!--<script>\u{2028}&amp;\"\\";
        let json = to_script_json(&[text]);
        assert!(!json.contains(['<', '>', '&', '\u{2028}']), "{json}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&json).expect("JSON"), [text]);
    }

    #[test]
    fn the_policy_names_digests_and_no_source() {
        let policy = content_security_policy("a", "");
        // echo -n | openssl dgst -sha256 -binary | base64
        assert!(
            policy.contains("script-src 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='")
        );
        assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
    }
}
