"""Reports: sections of text, tables and figures, rendered to HTML and to Markdown from one list."""
