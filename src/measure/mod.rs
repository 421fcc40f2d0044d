//! Reading what tools printed. Bytes in, [`Parsed`] out, nothing else.
//!
//! There is one parser per tool. Which one reads a file is decided by its
//! content, never by its name. A parser never fails as a whole, never invents
//! a number and never panics; what it could not read is a problem in its
//! result. Nothing here knows what a number should be.

pub mod dcgm;
pub mod imex;
pub mod json;
pub mod nccl;
pub mod nvbandwidth;
pub mod nvloom;
pub mod p2p;
pub mod perftest;
pub mod smi;
pub mod text;

use crate::model::parsed::Parsed;
use crate::model::parsed::Problem;
use crate::model::parsed::ProblemKind;

/// One output, decoded once and offered to every parser.
#[derive(Debug)]
pub struct Input<'a> {
    /// The decoded text.
    pub text: &'a str,
    /// Its lines without launchers' prefixes.
    pub lines: Vec<text::Line<'a>>,
}

impl<'a> Input<'a> {
    /// The input in this decoded text.
    pub fn new(text: &'a str) -> Self {
        Self { text, lines: text::lines(text) }
    }
}

/// How sure a parser is that an output is its tool's: 0 is "no", and the
/// highest wins. Its own header is worth [`CERTAIN`], a table that only looks
/// like its own [`LIKELY`], a mere mention [`POSSIBLE`].
pub type Confidence = u8;

/// The tool's own banner, header or document key.
pub const CERTAIN: Confidence = 100;
/// The shape of its results without a header.
pub const LIKELY: Confidence = 60;
/// A word that this tool's failures print.
pub const POSSIBLE: Confidence = 20;

/// One parser: how it knows its tool, and how it reads it.
struct Parser {
    recognises: fn(&Input<'_>) -> Confidence,
    parse: fn(&Input<'_>) -> Parsed,
}

const PARSERS: &[Parser] = &[
    Parser { recognises: nvbandwidth::recognises, parse: nvbandwidth::parse },
    Parser { recognises: nccl::recognises, parse: nccl::parse },
    Parser { recognises: p2p::recognises, parse: p2p::parse },
    Parser { recognises: perftest::recognises, parse: perftest::parse },
    Parser { recognises: smi::nvlink::recognises, parse: smi::nvlink::parse },
    Parser { recognises: smi::topo::recognises, parse: smi::topo::parse },
    Parser { recognises: smi::query::recognises, parse: smi::query::parse },
    Parser { recognises: imex::recognises, parse: imex::parse },
    Parser { recognises: dcgm::recognises, parse: dcgm::parse },
    Parser { recognises: nvloom::recognises, parse: nvloom::parse },
];

/// Reads one output of whatever tool wrote it.
pub fn read(bytes: &[u8]) -> Parsed {
    let text = text::decode(bytes);
    let input = Input::new(&text);
    let mut best: Option<(Confidence, &Parser)> = None;
    for parser in PARSERS {
        let confidence = (parser.recognises)(&input);
        if best.map_or(0, |(highest, _)| highest) < confidence {
            best = Some((confidence, parser));
        }
        // Nobody can be surer, and asking all costs more than reading.
        if CERTAIN <= confidence {
            break;
        }
    }
    match best {
        Some((_, parser)) => (parser.parse)(&input),
        None => unrecognised(bytes),
    }
}

/// A result that says why nothing was read.
fn unrecognised(bytes: &[u8]) -> Parsed {
    let detail = if bytes.iter().all(u8::is_ascii_whitespace) {
        "the file is empty; some tools print nothing where there is nothing to report"
    } else if bytes.contains(&0) {
        "binary data, not the text or JSON output of a supported tool"
    } else {
        "not the output of a supported tool"
    };
    Parsed { problems: vec![Problem::new(ProblemKind::Unrecognised, detail)], ..Parsed::default() }
}
