//! Locates the node lists of blocks in a topology file, for edits that leave every other
//! character unchanged.
//!
//! A location is returned only if its text is exactly the parsed list; `hostlist` interprets a
//! list, the readers interpret a block.

use std::ops::Range;

use super::host_list_budget::strip_bom;
use super::key_value::{parse_entries, read_lines};
use super::yaml_tree;
use super::yaml_tree::{YamlNode, YamlValue};

/// The location of a block's node list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockSpan {
    /// The topology, where a file can contain several.
    pub topology: Option<String>,
    /// Name of the block.
    pub block: String,
    /// Line number, from 1.
    pub line: usize,
    /// Byte range of the host list, or why there is no single range to edit.
    pub list: Result<Range<usize>, &'static str>,
}

/// Locates the blocks of a `topology.yaml`.
pub fn find_in_yaml(text: &str) -> Vec<BlockSpan> {
    let plain = strip_bom(text);
    let mark = text.len() - plain.len();
    let Some(root) = yaml_tree::read(plain).root else { return Vec::new() };
    let mut places = Vec::new();
    for topology in root.items() {
        let name = topology.get("topology").and_then(|node| node.text()).map(str::to_owned);
        let blocks = topology.get("block").and_then(|block| block.get("blocks"));
        for block in blocks.map(|blocks| blocks.items()).unwrap_or_default() {
            let Some(title) = block.get("block") else { continue };
            let nodes = block.get("nodes");
            places.push(BlockSpan {
                topology: name.clone(),
                block: title.text().unwrap_or_default().to_owned(),
                line: nodes.map_or(title.line, |nodes| nodes.line),
                list: nodes.map_or(Err("it has no nodes"), |nodes| scalar_span(plain, mark, nodes)),
            });
        }
    }
    places
}

/// The range of a value on one line.
fn scalar_span(text: &str, mark: usize, node: &YamlNode) -> Result<Range<usize>, &'static str> {
    let value = match &node.value {
        YamlValue::Text(value) => value.as_str(),
        YamlValue::Null => return Err("it has no nodes"),
        YamlValue::List(_) | YamlValue::Map(_) => {
            return Err("its nodes are not a single host \
            list");
        }
    };
    const ELSEWHERE: &str = "its host list is not written literally on one line";
    let start = byte_offset(text, node.line, node.column).ok_or(ELSEWHERE)?;
    let rest = &text[start..];
    let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''));
    let begin = start + quote.map_or(0, char::len_utf8);
    let behind = text[begin..].strip_prefix(value).ok_or(ELSEWHERE)?;
    let ends = match quote {
        Some(quote) => behind.starts_with(quote),
        None => {
            let blanks = behind.len() - behind.trim_start_matches([' ', '\t']).len();
            let next = behind[blanks..].chars().next();
            next.is_none_or(|c| "\r\n,]}".contains(c) || (c == '#' && 0 < blanks))
        }
    };
    if !ends || value.is_empty() {
        return Err(ELSEWHERE);
    }
    Ok(mark + begin..mark + begin + value.len())
}

/// Locates the blocks of a `topology.conf`, and its included files.
pub fn find_in_conf(text: &str) -> (Vec<BlockSpan>, Vec<String>) {
    let plain = strip_bom(text);
    let mark = text.len() - plain.len();
    let mut places = Vec::new();
    let mut includes = Vec::new();
    for line in read_lines(plain) {
        let (found, strange) = parse_entries(line.text());
        if let Some((_, word)) = strange.first()
            && word.eq_ignore_ascii_case("include")
        {
            includes.push(line.text().trim().to_owned());
        }
        let Some(first) = found.first().filter(|entry| entry.has_key("BlockName")) else {
            continue;
        };
        let nodes = found.iter().find(|entry| entry.has_key("Nodes") && !entry.value.is_empty());
        let list = nodes.ok_or("it has no nodes").and_then(|nodes| {
            let (number, column) = line.position(nodes.offset);
            let start = byte_offset(plain, number, column);
            let start = start.filter(|start| plain[*start..].starts_with(nodes.value));
            let start = start.ok_or("its host list is spread over several lines")?;
            Ok(mark + start..mark + start + nodes.value.len())
        });
        let line = nodes.map_or(line.line_number(), |nodes| line.position(nodes.offset).0);
        let block = first.value.to_owned();
        places.push(BlockSpan { topology: None, block, line, list });
    }
    (places, includes)
}

/// Byte offset of this line and column, both from 1.
fn byte_offset(text: &str, line: usize, column: usize) -> Option<usize> {
    let mut start = 0;
    for _ in 1..line {
        start += text[start..].find('\n')? + 1;
    }
    let rest = text[start..].split('\n').next()?;
    let mut places = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    places.nth(column.checked_sub(1)?).map(|at| start + at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lists<'t>(
        text: &'t str,
        places: &[BlockSpan],
    ) -> Vec<(String, Result<&'t str, &'static str>)> {
        let list = |it: &BlockSpan| it.list.clone().map(|range| &text[range]);
        places.iter().map(|it| (it.block.clone(), list(it))).collect()
    }

    #[test]
    fn lists_are_found_however_yaml_writes_them() {
        let text = "\u{feff}---\n# é: block\n- topology: t\r\n  block:\n    block_sizes: [2]\n    blocks:\n      \
                    - block: a # nodes: x\n        nodes: n[1-2]   # spare\n      - nodes: \"n[3-4]\"\n        \
                    block: b\n      - {block: c, nodes: 'n[5,6]'}\n      - block: d\n        nodes: >\n          n7\n      \
                    - block: e\n        nodes: [n8, n9]\n      - block: f\n      - block: g\n        nodes: &x n10\n";
        let found = find_in_yaml(text);
        let found_lists = lists(text, &found);
        let expected = [Ok("n[1-2]"), Ok("n[3-4]"), Ok("n[5,6]")];
        assert_eq!(
            found_lists.iter().take(3).map(|it| it.1).collect::<Vec<_>>(),
            expected,
            "{found_lists:?}"
        );
        assert!(
            found_lists[3].1.is_err() && found_lists[4].1.is_err() && found_lists[5].1.is_err(),
            "{found_lists:?}"
        );
        assert_eq!((found[0].line, found[0].topology.as_deref()), (8, Some("t")));
        if let Ok(list) = found_lists[6].1 {
            assert_eq!(list, "n10");
        }
    }

    #[test]
    fn lists_are_found_however_the_old_file_writes_them() {
        let text = "# BlockName=old Nodes=n0\nblockname=a Nodes=n[1-2] # n3\nBlockName = b \\\n  nodes = n[3-4]\n\
                    BlockName=c\nBlockName=d Nodes=n[5-\\\n6]\nInclude more.conf\nBlockSizes=2\n";
        let (found, includes) = find_in_conf(text);
        let found_lists: Vec<_> = lists(text, &found).into_iter().map(|it| it.1.ok()).collect();
        assert_eq!(found_lists, [Some("n[1-2]"), Some("n[3-4]"), None, None]);
        assert_eq!(found[1].line, 4);
        assert_eq!(includes, ["Include more.conf"]);
    }

    proptest! {
        #[test]
        fn spans_lie_inside_any_text(text in "(- topology: t\n  block:\n    blocks:\n)?[ \t\r\n#'\"\\\\\\-:,\\[\\]a-f=éN]{0,60}") {
            let (conf, _) = find_in_conf(&text);
            for place in find_in_yaml(&text).into_iter().chain(conf) {
                if let Ok(list) = place.list {
                    prop_assert!(text.get(list).is_some_and(|list| !list.is_empty()));
                }
            }
        }
    }
}
