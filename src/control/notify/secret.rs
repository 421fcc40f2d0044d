//! Secret addresses and tokens: their storage, and their display without the content.

use std::fmt;
use std::path::PathBuf;

use reqwest::Url;

/// Largest file or variable that can hold an address or a token.
const MAX_SECRET_BYTES: usize = 16 << 10;

/// Shortest piece of an address that is hidden: shorter ones are ordinary words.
const MIN_HIDDEN_PIECE: usize = 6;

/// The location of a secret. Files and variables are read when needed, so that a new secret
/// takes effect immediately.
#[derive(Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// In the configuration itself.
    Inline(Secret),
    /// In a file of its own.
    File(PathBuf),
    /// In a variable of the environment.
    Variable(String),
}

impl fmt::Debug for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inline(_) => f.write_str("Inline(hidden)"),
            Self::File(path) => write!(f, "File({})", path.display()),
            Self::Variable(name) => write!(f, "Variable({name})"),
        }
    }
}

impl SecretSource {
    /// Reads the secret; an error names its location and none of its content.
    pub fn read(&self) -> Result<Secret, String> {
        let (text, place) = match self {
            Self::Inline(secret) => return Ok(secret.clone()),
            Self::File(path) => {
                let place = path.display().to_string();
                let text = std::fs::read_to_string(path);
                (text.map_err(|error| format!("{place}: {error}"))?, place)
            }
            Self::Variable(name) => {
                let text = std::env::var(name);
                let why = "not set in the environment, or not text";
                (text.map_err(|_| format!("{name}: {why}"))?, name.clone())
            }
        };
        let text = text.trim();
        if text.is_empty() || MAX_SECRET_BYTES < text.len() || text.contains(char::is_control) {
            return Err(format!("{place}: expected one line of text, not empty"));
        }
        Ok(Secret(text.to_owned()))
    }
}

/// A text that is never displayed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

impl Secret {
    /// The full text, for connecting.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Parses it as an HTTP address.
    pub fn parse_url(&self) -> Result<Url, String> {
        let expected = "expected https://host/path or http://host/path";
        // The parser's own error quotes nothing and is too short to help.
        let url = Url::parse(&self.0).map_err(|_| format!("not an address, {expected}"))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err(format!("not an HTTP address, {expected}"));
        }
        Ok(url)
    }

    /// The parts of it that an answer or an error could repeat.
    pub(super) fn hidden_pieces(&self) -> Vec<String> {
        let mut pieces = vec![self.0.clone()];
        if let Ok(url) = self.parse_url() {
            let queries = url.query_pairs().map(|(_, value)| value.into_owned());
            pieces.extend(queries.chain(url.query().map(str::to_owned)));
            pieces.extend([url.username(), url.password().unwrap_or_default()].map(str::to_owned));
            pieces.extend(url.path_segments().into_iter().flatten().map(str::to_owned));
            pieces.push(url.path().to_owned());
        }
        pieces.retain(|it| MIN_HIDDEN_PIECE <= it.len());
        // Longest first, so that no remainder of one stays.
        pieces.sort_by_key(|it| std::cmp::Reverse(it.len()));
        pieces
    }
}

/// Scheme, host and port: the parts of an address that may be displayed.
pub fn url_origin(url: &Url) -> String {
    let host = url.host_str().unwrap_or("(no host)");
    match url.port() {
        Some(port) => format!("{}://{host}:{port}", url.scheme()),
        None => format!("{}://{host}", url.scheme()),
    }
}

/// Replaces these pieces in a text.
pub fn redact(text: &str, pieces: &[String]) -> String {
    pieces.iter().fold(text.to_owned(), |text, piece| text.replace(piece, "(hidden)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_displayed_by_its_host() {
        let secret = Secret::from(
            "https://me:pass-word@hooks.example:8443/services/T0000000/B1?key=abcdefgh".to_owned(),
        );
        let url = secret.parse_url().expect("an address");
        assert_eq!(url_origin(&url), "https://hooks.example:8443");
        let text = redact(
            "no T0000000 and abcdefgh and pass-word at /services/T0000000/B1",
            &secret.hidden_pieces(),
        );
        assert_eq!(text, "no (hidden) and (hidden) and (hidden) at (hidden)");
        assert_eq!(
            format!("{:?} {:?}", secret, SecretSource::Inline(secret.clone())),
            "(hidden) Inline(hidden)"
        );
        assert!(Secret::from("hooks.example".to_owned()).parse_url().is_err());
        assert!(Secret::from("file:///etc/passwd".to_owned()).parse_url().is_err());
    }

    #[test]
    fn an_unreadable_secret_is_named_by_its_location() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("url");
        let read = || SecretSource::File(file.clone()).read();
        assert!(read().expect_err("none").contains("url: "));
        std::fs::write(&file, "https://x.example/secret\nhttps://y.example/secret\n")
            .expect("written");
        let message = read().expect_err("two lines");
        assert!(message.contains("one line") && !message.contains("example"), "{message}");
        std::fs::write(&file, " https://x.example/secret\n").expect("written");
        assert_eq!(read().expect("one line").as_str(), "https://x.example/secret");
        let unset = SecretSource::Variable("FABRICGATE_SURELY_UNSET".to_owned());
        assert!(unset.read().expect_err("unset").starts_with("FABRICGATE_SURELY_UNSET: "));
    }
}
