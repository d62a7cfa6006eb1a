"""Results as one self-contained HTML page: `data` counts, `page` assembles, `assets/` is what the browser runs."""
