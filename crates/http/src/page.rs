//! The page for browsers: three files in the binary, which load nothing from anywhere else.
//!
//! The page makes the same calls as every other client, by POST to `rpc`, so it has no routes of its own.

use crate::Page;

/// What the page may do: its own script and style, and calls to where it came from. No site may frame it, and it sends
/// no form.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The files of the page.
#[must_use]
pub fn pages() -> Vec<Page> {
    let page = |path, content_type, body| Page { path, content_type, policy: POLICY, body };
    vec![
        page("/", "text/html; charset=utf-8", include_bytes!("page/page.html")),
        page("/page.css", "text/css; charset=utf-8", include_bytes!("page/page.css")),
        page("/page.js", "text/javascript; charset=utf-8", include_bytes!("page/page.js")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_small_and_loads_nothing_from_elsewhere() {
        let pages = pages();
        let bytes: usize = pages.iter().map(|page| page.body.len()).sum();
        assert!(bytes < 150_000, "{bytes}");
        for page in &pages {
            let text = std::str::from_utf8(page.body).unwrap();
            let elsewhere = ["http://", "https://", "src=\"//", "eval(", "innerHTML", " style="];
            for part in elsewhere {
                assert!(!text.contains(part), "{} has {part}", page.path);
            }
        }
    }
}
