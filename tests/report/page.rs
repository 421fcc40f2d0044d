//! The page of a run in a real browser: its behaviour in use, and requests that it must never
//! make.
//!
//! Needs chromium (or Chrome) on PATH and prints SKIPPED where it is missing. With
//! `FABRICGATE_PAGE_PICTURES=FOLDER` it stores screenshots there.

mod browser;
#[allow(dead_code, reason = "made-up runs of the unit tests, not all of which are opened here")]
#[path = "../../src/engine/report/fixture.rs"]
mod fixture;

use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use browser::Browser;
use engine::report::html::{HtmlPageContext, render};
use model::id::NodeName;
use model::run::Run;

/// A page as a file, and a browser to open it in.
struct Opened {
    browser: Browser,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

fn open(page: &str, hash: &str) -> Option<Opened> {
    let mut browser = Browser::start()?;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("report.html");
    fs::write(&file, page).expect("writable");
    browser.size(1280, 900);
    browser.open(&file, hash);
    Some(Opened { browser, file, _folder: folder })
}

fn page_of(run: &Run) -> String {
    render(run, &HtmlPageContext::default()).expect("a page")
}

fn rack() -> String {
    page_of(&fixture::rack())
}

/// The rack after a repair, with all parts of a page: the example, which a unit test compares
/// with the current rendering.
fn repaired() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(root.join("reports/example/repaired.html")).expect("the example")
}

#[test]
fn no_page_complains_or_loads_anything_with_and_without_its_script() {
    let Some(Opened { mut browser, file, _folder }) = open(&rack(), "") else { return };
    let pages: Vec<(&str, String)> = vec![
        ("rack", rack()),
        ("repaired", repaired()),
        ("hgx", page_of(&fixture::hgx())),
        ("empty", page_of(&fixture::empty())),
        ("hostile", page_of(&fixture::hostile())),
        ("rails", page_of(&fixture::rails())),
    ];
    for (name, page) in pages {
        fs::write(&file, &page).expect("writable");
        for scripts in [true, false] {
            browser.scripts(scripts);
            browser.open(&file, "");
            let complaints = browser.complaints();
            assert!(complaints.is_empty(), "{name}, scripts {scripts}: {complaints:#?}");
            let ready = browser.text("document.documentElement.dataset.ready || 'no'");
            assert_eq!(ready, if scripts { "yes" } else { "no" }, "{name}");
        }
    }
}

#[test]
fn a_filter_applies_to_tiles_findings_and_nodes_together_and_the_address_keeps_it() {
    let Some(Opened { mut browser, file, _folder }) = open(&rack(), "") else { return };
    const SHOWN: &str = "[document.querySelectorAll('#tiles a:not(.off)').length, \
        document.querySelectorAll('article.finding:not([hidden])').length, \
        document.querySelectorAll('tr.item:not([hidden])').length, \
        document.querySelectorAll('li.item:not([hidden])').length].join(' ')";
    assert_eq!(browser.text(SHOWN), "18 1 18 1");
    browser.ask("document.querySelector('.chip.unknown').click()");
    assert_eq!(browser.text(SHOWN), "1 0 1 1");
    assert_eq!(
        browser.text("document.querySelector('.count').textContent"),
        "1 of 18 nodes, 0 of 1 findings"
    );
    browser.ask("document.querySelector('.chip.unknown').click()");
    browser.ask("{ const i = document.querySelector('#filter input'); i.focus(); }");
    browser.call("Input.insertText", &serde_json::json!({"text": "node0007"}));
    browser.key("Enter");
    assert_eq!(browser.text(SHOWN), "1 1 1 0");
    let hash = browser.text("location.hash");
    assert_eq!(hash, "#&q=node0007");
    // Another window, the same view; and a finding in it that was linked to.
    browser.open(&file, "#finding-nvlink-low-block01-node0007-2&o=degraded&q=node0007&v=abs");
    assert_eq!(browser.text(SHOWN), "1 1 1 0");
    let there = "const r = document.querySelector('.here'); r.id + ' ' + \
        (r.getBoundingClientRect().top >= 0 && r.getBoundingClientRect().top < innerHeight)";
    assert_eq!(browser.text(there), "finding-nvlink-low-block01-node0007-2 true");
    assert_eq!(
        browser.text("document.querySelector('.chip.degraded').getAttribute('aria-pressed')"),
        "true"
    );
    assert_eq!(browser.text("document.getElementById('figure-1').dataset.shown"), "now absolute");
    browser.ask("document.querySelector('.clear').click()");
    assert_eq!(browser.text(SHOWN), "18 1 18 1");
    assert!(browser.complaints().is_empty());
}

/// The middle of a cell of the first figure, in the window.
fn cell(browser: &mut Browser, row: usize, col: usize) -> (f64, f64) {
    let at = format!(
        "(() => {{ const f = figures.get('figure-1'), [l, t, w, h] = f.of.cells; \
         f.svg.scrollIntoView(); const b = f.svg.getBoundingClientRect(), s = b.width / f.svg.viewBox.baseVal.width; \
         return [b.left + s * (l + w * {col} + w / 2), b.top + s * (t + h * {row} + h / 2)]; }})()"
    );
    let at = browser.ask(&at);
    (at[0].as_f64().expect("x"), at[1].as_f64().expect("y"))
}

const OUT: &str = "document.querySelector('#figure-1 output').textContent";

#[test]
fn a_cell_is_read_out_under_the_pointer_and_by_keys() {
    let Some(Opened { mut browser, .. }) = open(&rack(), "") else { return };
    let run = fixture::rack();
    let (x, y) = cell(&mut browser, 26, 3);
    browser.point(x, y);
    let text = browser.text(OUT);
    let is = |c: &&model::measured_cell::MeasuredCell| {
        c.src_node.as_ref().is_some_and(|n| n.as_str() == "node0007")
            && c.src_gpu == Some(2)
            && c.dst_node.as_ref().is_some_and(|n| n.as_str() == "node0001")
            && c.dst_gpu == Some(3)
    };
    let value = run.cells.iter().find(is).and_then(|c| c.value).expect("the cell");
    assert!(
        text.starts_with(&format!("node0007:2 → node0001:3: {value:.1} GB/s, ratio 0.94")),
        "{text}"
    );
    assert!(text.contains("(expected 761.0 GB/s); blamed: gpu node0007:2: NVLink slow"), "{text}");
    assert!(text.contains("domains/block01/read-1.txt"), "{text}");
    // Out of the matrix, and in by keys.
    browser.point(5.0, 5.0);
    assert!(browser.text(OUT).starts_with("Point at a cell"));
    browser.ask("document.querySelector('#figure-1 .plot').focus()");
    for key in ["ArrowRight", "ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft"] {
        browser.key(key);
    }
    assert!(browser.text(OUT).starts_with("node0001:1 → node0001:1: not part of this test"));
    browser.key("ArrowRight");
    assert!(browser.text(OUT).starts_with("node0001:1 → node0001:2: 7"), "{}", browser.text(OUT));
    // A click on a blamed part leads to the reason.
    let (x, y) = cell(&mut browser, 26, 3);
    for kind in ["mousePressed", "mouseReleased"] {
        let click =
            serde_json::json!({"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1});
        browser.point(x, y);
        browser.call("Input.dispatchMouseEvent", &click);
    }
    assert_eq!(browser.text("location.hash"), "#finding-nvlink-low-block01-node0007-2");
    assert!(browser.complaints().is_empty());
}

#[test]
fn switches_show_ratios_or_numbers_and_before_now_or_the_change() {
    let Some(Opened { mut browser, .. }) = open(&repaired(), "") else { return };
    // The colour of the cell that was bad before the repair.
    let colour =
        "(() => { const f = figures.get('figure-2'); return colourOf(f, 26 * 72 + 3); })()";
    let key = "document.querySelector('#figure-2 .key').textContent";
    assert_eq!(browser.text(colour), "#2b478f", "healthy now");
    assert!(browser.text(key).starts_with("Ratio to the expected 761.0 GB/s"));
    browser.ask("document.querySelector('#figure-2 button[value=before]').click()");
    assert_eq!(browser.text(colour), "#b35a9c", "one link lost then");
    assert!(
        browser.text(key).starts_with("Before: ratio to the expected"),
        "{}",
        browser.text(key)
    );
    browser.ask("document.querySelector('#figure-2 button[value=change]').click()");
    assert_eq!(browser.text(colour), "#121c4e", "much better than it was");
    assert!(browser.text(key).starts_with("Ratio of now to before"));
    assert_eq!(browser.text("location.hash"), "#&w=change");
    browser.ask("document.querySelector('#figure-2 .switches span:last-of-type button').click()");
    browser.ask("document.querySelector('#figure-2 button[value=abs]').click()");
    assert!(browser.text(key).starts_with("Measured GB/s"), "{}", browser.text(key));
    // The drawing matches the computation: one path a colour, and each exists.
    let drawn = "(() => { const f = figures.get('figure-2'); const want = new Set(); \
        for (let i = 0; i < f.rows.length * f.cols.length; i += 1) { const c = colourOf(f, i); if (c) want.add(c); } \
        const have = [...f.svg.querySelectorAll('.cells path')].map((p) => p.getAttribute('fill')); \
        return have.length === want.size && have.every((c) => want.has(c)); })()";
    assert_eq!(browser.ask(drawn), true);
    // All readings of a cell are displayed: this one dipped once.
    let at = browser.text(
        "(() => { const f = figures.get('figure-2'); \
         const i = f.readings.findIndex((r) => r.split(',').some((v) => Number(v) < 720)); \
         return words(f, Math.floor(i / f.cols.length), i % f.cols.length); })()",
    );
    assert!(at.contains("; 3 readings ") && at.contains(", spread 8."), "{at}");
    assert!(at.contains("; before: 7") && at.contains("%)"), "{at}");
    assert!(browser.complaints().is_empty());
}

#[test]
fn a_tile_leads_to_its_node_and_arrows_move_between_tiles() {
    let run = fixture::fleet(200);
    let Some(Opened { mut browser, .. }) = open(&page_of(&run), "") else { return };
    browser.ask("document.querySelector('#tiles a').focus()");
    browser.key("ArrowRight");
    browser.key("ArrowRight");
    assert_eq!(browser.text("document.activeElement.title"), "node0003: pass");
    // Its line is in a part that is closed until a reader opens it.
    browser.key("Enter");
    assert_eq!(browser.text("location.hash"), "#node-node0003");
    let seen = "(() => { const r = document.getElementById('node-node0003').getBoundingClientRect(); \
        return r.height > 0 && r.top >= 0 && r.bottom <= innerHeight; })()";
    assert_eq!(browser.ask(seen), true);
    // The arrow down goes to the nearest tile of the line below.
    browser.ask("document.querySelector('#tiles a').focus()");
    browser.key("ArrowDown");
    let below = "(() => { const a = document.querySelector('#tiles a').getBoundingClientRect(), \
        b = document.activeElement.getBoundingClientRect(); \
        return b.top > a.top && Math.abs(b.left - a.left) < 2; })()";
    assert_eq!(browser.ask(below), true);
    // One domain of twelve, and only its tiles and matrices.
    browser.ask("{ const s = document.querySelector('#filter select'); s.value = '1'; s.dispatchEvent(new Event('change')); }");
    assert_eq!(browser.text("document.querySelectorAll('#tiles a:not(.off)').length"), "18");
    assert_eq!(browser.text("location.hash"), "#node-node0003&d=1");
    assert!(browser.complaints().is_empty());
}

#[test]
fn hostile_names_are_inert_in_the_page_and_in_its_scripts_text() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let port = listener.local_addr().expect("an address").port();
    let mut run = fixture::hostile();
    let evil = NodeName::from(
        format!("\"'><img src=http://127.0.0.1:{port}/x onerror=owned=1></script><script>owned=1</script>").as_str(),
    );
    let old = run.verdicts.nodes[1].node.clone();
    for cell in &mut run.cells {
        for end in [&mut cell.src_node, &mut cell.dst_node] {
            if end.as_ref() == Some(&old) {
                *end = Some(evil.clone());
            }
        }
    }
    run.verdicts.nodes[1].node = evil;
    let Some(Opened { mut browser, file, _folder }) = open(&page_of(&run), "") else { return };
    browser.ask("window.alert = () => { window.owned = 1; }");
    browser.ask("document.querySelectorAll('button, summary').forEach((b) => b.click())");
    browser.ask("figures.forEach((f) => f.rows.forEach((_, r) => f.cols.forEach((_, c) => point(f, r, c))))");
    browser.ask("document.querySelectorAll('#tiles a').forEach((a) => a.click())");
    let hash =
        "#<img src=x onerror=owned=1>&q=<script>owned=1</script>&d=%zz&o=failed,constructor&v=<b>";
    assert!(browser.complaints().is_empty(), "{:?}", browser.complaints());
    browser.open(&file, hash);
    let state = "[typeof owned, document.images.length, document.scripts.length, document.querySelector('#filter input').value].join(' ')";
    assert_eq!(browser.text(state), "undefined 0 2 <script>owned=1</script>");
    assert!(browser.complaints().is_empty(), "{:?}", browser.complaints());
    let connection = listener.accept().map(|_| ()).map_err(|e| e.kind());
    assert_eq!(connection, Err(ErrorKind::WouldBlock), "the page loaded something");
}

#[test]
fn changes_by_a_repair_are_listed_by_node_and_hostile_text_in_them_is_inert() {
    let evil = "\"'><img src=x onerror=owned=1></script><script>owned=1</script>";
    let (before, mut repairs) = (fixture::rack(), fixture::multi_run::repairs());
    repairs.without[0].why.push_str(evil);
    let repair = &mut repairs.nodes[0];
    repair.text.push(evil.to_owned());
    repair.before_reason.push_str(evil);
    repair.comparison.before.push_str(evil);
    repair.comparison.parts[0].testcase.push_str(evil);
    repair.changes[0].what.push_str(evil);
    repair.changes[1].after.push_str(evil);
    let beside = HtmlPageContext {
        before: Some(&before),
        repairs: Some(&repairs),
        ..HtmlPageContext::default()
    };
    let page = render(&fixture::repaired(), &beside).expect("a page");
    let Some(Opened { mut browser, .. }) = open(&page, "") else { return };
    let text = browser.text("document.querySelector('article.repair').textContent");
    for words in [
        "node0007: degraded then, pass now",
        "it passes now: what was blamed is as it must be",
        "GPU-aaaa, now GPU-bbbb",
        "node0007:2",
        "+6.0 %",
        "<script>owned=1</script>",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let state = "[typeof owned, document.images.length, document.scripts.length].join(' ')";
    assert_eq!(browser.text(state), "undefined 0 2");
    // The earlier numbers are behind the switch of the matrix.
    browser.ask("document.querySelector('#figure-2 button[value=before]').click()");
    let key = "document.querySelector('#figure-2 .key').textContent";
    assert!(browser.text(key).starts_with("Before: "), "{}", browser.text(key));
    browser.ask("document.querySelector('article.repair .links a').click()");
    assert_eq!(browser.text("location.hash.split('&')[0]"), "#node-node0007");
    // It is filtered with its node, and is not a finding.
    let off = "document.querySelector('article.repair').hidden";
    browser.ask("document.querySelector('.chip.unknown').click()");
    assert_eq!(browser.ask(off), true);
    browser.ask("document.querySelector('.clear').click()");
    assert_eq!(browser.ask(off), false);
    assert!(browser.complaints().is_empty(), "{:?}", browser.complaints());
}

#[test]
fn without_scripts_all_words_figures_and_links_are_there() {
    let Some(Opened { mut browser, file, _folder }) = open(&repaired(), "") else { return };
    browser.scripts(false);
    browser.open(&file, "#node-node0012");
    // The protocol may still query; the page's script did not run.
    let seen = "[document.querySelectorAll('#tiles a').length, document.querySelectorAll('tr.item').length, \
        document.querySelectorAll('figure svg .cells path').length > 2, \
        document.querySelectorAll('figure svg .tips title').length > 3, \
        document.querySelectorAll('.spark').length > 2, \
        getComputedStyle(document.getElementById('filter')).display, \
        document.querySelectorAll('.switches').length].join(' ')";
    assert_eq!(browser.text(seen), "18 18 true true true none 0");
    let dead = "[...document.querySelectorAll('a[href]')].filter((a) => !document.getElementById(a.getAttribute('href').slice(1))).map((a) => a.outerHTML)";
    assert_eq!(browser.ask(dead), serde_json::json!([]));
}

/// Contrast, after WCAG 2, of every visible text against its background.
const CONTRAST: &str = "(() => { \
    const rgb = (c) => c.match(/[\\d.]+/g).map(Number); \
    const lum = ([r, g, b]) => [r, g, b].map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }).reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0); \
    const low = new Set(); \
    for (const e of document.querySelectorAll('body *:not(svg *)')) { \
      if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || !e.getClientRects().length) continue; \
      if (e.disabled) continue; \
      let up = e, back = [0, 0, 0, 0]; \
      while (up && back[3] === 0) { const c = rgb(getComputedStyle(up).backgroundColor); back = c.length > 3 ? c : [...c, 1]; up = up.parentElement; } \
      if (back[3] === 0) back = [255, 255, 255, 1]; \
      const [a, b] = [lum(rgb(getComputedStyle(e).color)), lum(back)].sort((x, y) => y - x); \
      if ((a + 0.05) / (b + 0.05) < 4.5) low.add(e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 30)); \
    } return [...low]; })()";

#[test]
fn text_is_legible_in_both_schemes_and_on_paper_and_headings_and_tables_are_in_order() {
    let Some(Opened { mut browser, .. }) = open(&repaired(), "") else { return };
    for (scheme, media) in [("light", ""), ("dark", ""), ("light", "print")] {
        browser.media(scheme, media);
        assert_eq!(browser.ask(CONTRAST), serde_json::json!([]), "{scheme} {media}");
    }
    let outline = browser.text(
        "[...document.querySelectorAll('h1, h2, h3, h4')].map((h) => Number(h.tagName[1])).join('')",
    );
    assert_eq!(outline.matches('1').count(), 1, "{outline}");
    let jumps = outline.as_bytes().windows(2).any(|pair| pair[0] + 1 < pair[1]);
    assert!(!jumps, "no level is left out: {outline}");
    let bare = "document.querySelectorAll('th:not([scope]), svg[role=img]:not([aria-label]):not([aria-labelledby]), \
        button:not([type]), table:not(.scroll table)').length";
    assert_eq!(browser.text(bare), "0");
    let unnamed = "[...document.querySelectorAll('a, button, select, input')].filter((e) => \
        !(e.textContent.trim() || e.title || e.getAttribute('aria-label') || e.labels && e.labels.length)).length";
    assert_eq!(browser.text(unnamed), "0");
    let twice = "(() => { const ids = [...document.querySelectorAll('[id]')].map((e) => e.id); return ids.length - new Set(ids).size; })()";
    assert_eq!(browser.text(twice), "0");
}

#[test]
fn nothing_is_wider_than_a_narrow_window() {
    let Some(Opened { mut browser, .. }) = open(&repaired(), "") else { return };
    for width in [360, 768, 1280] {
        browser.size(width, 900);
        let room = browser.ask("document.documentElement.scrollWidth").as_u64();
        assert_eq!(room, Some(u64::from(width)), "the page scrolls sideways");
    }
}

#[test]
fn on_paper_it_is_sheets_of_a4_with_nothing_cut() {
    let Some(Opened { mut browser, .. }) = open(&repaired(), "") else { return };
    let pdf = browser.print();
    let text = String::from_utf8_lossy(&pdf);
    let boxes: Vec<&str> =
        text.split("/MediaBox [").skip(1).filter_map(|rest| rest.split(']').next()).collect();
    assert!(!boxes.is_empty(), "sheets");
    for one in &boxes {
        let size: Vec<f64> = one.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        // A4 is 595.28 by 841.89 points; browsers round to their pixels.
        assert!((size[2] - 595.28).abs() < 1.0 && (size[3] - 841.89).abs() < 1.0, "{one}");
    }
    assert!((3..=12).contains(&boxes.len()), "{} sheets", boxes.len());
    // As wide as a sheet between its margins: 182 mm at 96 pixels an inch.
    browser.media("light", "print");
    browser.size(688, 1000);
    let cut = "[...document.querySelectorAll('main *:not(svg *)')].filter((e) => e.getClientRects().length && \
        e.getBoundingClientRect().right > 689).map((e) => e.tagName + '.' + e.className).slice(0, 5)";
    assert_eq!(browser.ask(cut), serde_json::json!([]));
    let controls = "[...document.querySelectorAll('button, select, input, nav')].filter((e) => e.getClientRects().length).length";
    assert_eq!(browser.text(controls), "0", "nothing on paper can be pressed");
    let tall = "[...document.querySelectorAll('figure svg')].filter((e) => e.getBoundingClientRect().height > 269 / 25.4 * 96).length";
    assert_eq!(browser.text(tall), "0", "a figure fits on a sheet");
}

#[test]
fn five_thousand_nodes_open_and_are_filtered() {
    let page = page_of(&fixture::fleet(5_000));
    assert!(page.len() < 2_600_000, "{} bytes", page.len());
    let Some(Opened { mut browser, .. }) = open(&page, "#&o=degraded") else { return };
    assert_eq!(
        browser.text("document.querySelector('.count').textContent"),
        "50 of 5000 nodes, 50 of 50 findings"
    );
    browser.ask("document.querySelector('.clear').click()");
    assert_eq!(browser.text("document.querySelectorAll('#tiles a:not(.off)').length"), "5000");
    assert!(browser.complaints().is_empty());
    if std::env::var_os("FABRICGATE_PAGE_PICTURES").is_some() {
        let times = "(() => { const t = performance.getEntriesByType('navigation')[0]; \
            const s = performance.now(); document.querySelector('.chip.degraded').click(); \
            document.body.getBoundingClientRect(); \
            return [t.domInteractive, t.loadEventEnd, performance.now() - s].map(Math.round).join(' '); })()";
        println!("{} bytes; interactive, loaded, filter: {} ms", page.len(), browser.text(times));
    }
}

#[test]
fn screenshots_are_stored_if_requested() {
    let Some(folder) = std::env::var_os("FABRICGATE_PAGE_PICTURES") else { return };
    let folder = Path::new(&folder);
    fs::create_dir_all(folder).expect("a folder");
    let pages = [
        ("rack", rack()),
        ("repaired", repaired()),
        ("hgx", page_of(&fixture::hgx())),
        ("hostile", page_of(&fixture::hostile())),
        ("rails", page_of(&fixture::rails())),
        ("fleet", page_of(&fixture::fleet(5_000))),
    ];
    let Some(mut browser) = Browser::start() else { return };
    for (name, page) in pages {
        let file = folder.join(format!("{name}.html"));
        fs::write(&file, &page).expect("writable");
        for (scheme, width) in [("light", 1280), ("dark", 1280), ("light", 768), ("dark", 400)] {
            browser.media(scheme, "");
            browser.size(width, 2400);
            browser.open(&file, "");
            let picture = browser.picture();
            fs::write(folder.join(format!("{name}-{scheme}-{width}.png")), picture)
                .expect("writable");
        }
        fs::write(folder.join(format!("{name}.pdf")), browser.print()).expect("writable");
    }
}
